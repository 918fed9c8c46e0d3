# SPDX-License-Identifier: MIT
"""The gradients of the loss to γ and β are right, however many rows are added up.

What it checks
    dγ = Σ dy·x̂ and dβ = Σ dy over 1 to 1000 rows, and rows of 1000 columns, within 2u·Σ|dy·x̂| and 2u·Σ|dy| and
    half an ulp of the type they are given in, where u is half an ulp of 1 in float32 (in float64 for float64).

Why it matters
    These sums run over all tokens of a batch: a million terms in a chain of 16-bit additions stop growing after the
    first few hundred.

Example
    dy is 1 in 1000 rows, so that dβ is 1000. A bfloat16 chain stops at 256, because 256 + 1 is 256 there.

What to do
    Add in float32 in blocks of 64 rows, the blocks in float64, and round once at the end. dγ wants x̂ and not x/σ.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Array, Case, clear_of
from layernorm.conformance.measure import Measured, largest, parameters_of, scale_of
from layernorm.conformance.oracle import DD, backward, error, ulp
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Tell whether it gives such gradients."""
    if target.backward is None:
        return "it gives no gradients"
    if target.spec.ddof == 1:
        return "its spec divides by d − 1, whose gradient is not checked"
    return None if target.spec.scale_axes is not None else "the norm has no γ"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give few rows and many, near zero and off it."""
    for dtype in target.dtypes:
        scale = clear_of(target.eps, dtype)
        yield Case(1000, 70, dtype, scale=scale, affine="gamma")
        for rows in (1, 70) if quick else (1, 3, 31, 70, 1000):
            for offset in (0.0, 3.0) if quick else (0.0, 3.0, 50.0):
                for width in (33,) if quick else (3, 33, 128):
                    yield Case(width, rows, dtype, offset=offset, scale=scale, affine="gamma")


def measure(target: Target, case: Case) -> Measured:
    """Compare the sums with the exact ones."""
    assert target.backward is not None
    x, dy, (gamma, _) = case.x, case.dy, parameters_of(target, case)
    _, dgamma, dbeta = target.backward(dy.copy(), x.copy(), gamma)
    scale = scale_of(target, gamma)
    _, exact_dgamma, exact_dbeta, size_dgamma, size_dbeta = backward(dy, x, scale, target.eps, target.centered)
    found = [_measured(dgamma, exact_dgamma, size_dgamma, case, "dγ")]
    if target.spec.shift_axes is not None and dbeta is not None:
        found.append(_measured(dbeta, exact_dbeta, size_dbeta, case, "dβ"))
    return max(found, key=lambda m: m.share)


def _measured(given: Array | None, exact: DD, size: Array, case: Case, name: str) -> Measured:
    if given is None or given.shape != exact.hi.shape:
        return Measured(np.inf, None, f"{name} is {'missing' if given is None else f'of shape {given.shape}'}")
    u = 2.0**-53 if case.dtype == "float64" else 2.0**-24
    off = error(given, exact)
    step = ulp(exact.hi, given.dtype)
    # half the smallest float64, where the exact sum is 0, would be 0
    return Measured(largest(off / (2 * u * size + step / 2 + 2.0**-1074)), largest(off / step), f"{name} is the worse")
