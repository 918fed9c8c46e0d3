# SPDX-License-Identifier: MIT
"""The gradient of the loss to x is right, far from zero too.

What it checks
    dx = (1/σ)·(g − mean(g) − x̂·mean(g·x̂)) with g = γ·dy (without mean(g) for an RMS norm), on rows at offsets from 0
    to 1e6 and sizes from 1e-20 to 1e20 (1e-100 to 1e100 in float64, 1e-5 to 1e2 in float16), within 8 ulp of
    (1/σ)·max|g| of the row. (An exact dx may be zero, so no bound in ulp of dx itself could be kept.) For 16-bit types
    half an ulp of dx comes on top.

Why it matters
    The backward pass uses statistics that the forward pass saved. A forward pass may be right at an offset of 1e6 and
    save its mean as one float32: the gradient then is off by tens of thousands of ulp, and training shows it late.

Example
    A forward pass that is right to the last bit saves its mean as one float32. At an offset of 1e6 and a spread of 1,
    dx is off by 102 377 ulp of its scale.

What to do
    Wrong at offset 0: compare the three terms with the formula. Wrong only far off: save what the rounding of the mean
    missed beside it, or take the mean anew.
"""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from layernorm.conformance.inputs import Case, clear_of
from layernorm.conformance.measure import NARROW, Measured, largest, parameters_of, scale_of, yes_or_no
from layernorm.conformance.oracle import backward, error, forward, ulp
from layernorm.conformance.targets import Target

FURTHEST = {"float16": 1e2, "bfloat16": 1e1, "float32": 1e6, "float64": 1e12}
# Sizes whose squares a type does not hold, though dx is a number of it.
EXTREME = {"bfloat16": (1e-20, 1e20), "float32": (1e-20, 1e20), "float64": (1e-100, 1e100)}


def refuses(target: Target) -> str | None:
    """Tell whether it gives gradients, and such that the oracle knows."""
    if target.backward is None:
        return "it gives no gradients"
    return None if target.spec.ddof != 1 else "its spec divides by d − 1, whose gradient is not checked"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give rows near zero and far, small and large, with γ and without."""
    for dtype in target.dtypes:
        for width in (17, 1000) if quick else (2, 3, 8, 17, 64, 768, 1000, 4096):
            yield Case(width, dtype=dtype, scale=clear_of(target.eps, dtype))
            if quick and width > 17:  # what wide rows alone can show, they show near zero
                continue
            for offset in (o for o in (0.0, 1.0, 1e1, 1e2, 1e4, 1e6, 1e12) if o <= FURTHEST[dtype]):
                yield Case(width, dtype=dtype, offset=offset, affine="gamma")
            for scale in (1e-5, 1e-2, 1e2, 1e5, *EXTREME.get(dtype, ())):
                yield Case(width, dtype=dtype, scale=scale, affine="gamma")


def measure(target: Target, case: Case) -> Measured:
    """Compare dx with the exact one."""
    assert target.backward is not None
    x, dy, (gamma, _) = case.x, case.dy, parameters_of(target, case)
    dx = target.backward(dy.copy(), x.copy(), gamma)[0]
    if dx.shape != x.shape:
        return yes_or_no(f"dx has shape {dx.shape}, x {x.shape}")
    scale = scale_of(target, gamma)
    exact = backward(dy, x, scale, target.eps, target.centered)[0]
    rstd = forward(x, None, None, target.eps, target.centered).rstd.to_float()
    slope = np.abs(dy.astype(np.float64) * (1.0 if scale is None else scale))
    size = rstd * np.max(slope, axis=1, keepdims=True)
    off = error(dx, exact)
    narrow = ulp(exact.hi, case.dtype) / 2 if case.dtype in NARROW else 0.0
    allowed = 8 * ulp(size, "float64" if case.dtype == "float64" else "float32") + narrow
    beyond = np.abs(exact.hi) > float(ml_dtypes.finfo(case.dtype).max)  # type: ignore[no-untyped-call]
    return Measured(
        largest(np.where(beyond, 0.0, off / allowed)), largest(np.where(beyond, 0.0, off / ulp(size, case.dtype)))
    )
