# SPDX-License-Identifier: MIT
"""A row of one value gives β, to the bit.

What it checks
    Rows that hold one value, from 1e-30 to 1e30 as far as the type goes, at widths whose reciprocal is not exact. The
    mean is that value and the spread zero, so that the answer is β rounded to the type, whatever γ and eps are.

Why it matters
    Padding, masked tokens and dead channels are such rows. A mean that is off by one rounding leaves x − mean at an ulp
    of x, and eps alone divides it.

Example
    Three times the float32 123456.7. Its sum times 1/3 is 1/128 away from the value. With eps = 1e-5 the answer is
    −2.47 instead of 0, with eps = 1e-12 it is −7812.

What to do
    Divide the sum by d instead of multiplying by 1/d, take (x − m) − δ, and do not write x·r − m·r.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Affine, Case
from layernorm.conformance.measure import Measured, largest, parameters_of
from layernorm.conformance.oracle import ulp
from layernorm.conformance.targets import Target

VALUES = (0.0, 1.0, -3.0, 0.1, 1e4, 1.0 / 3.0, 123456.7, 1e-30, -1e30)


def refuses(target: Target) -> str | None:
    """Tell whether such rows have this answer."""
    if not target.centered:
        return "without a mean taken off, a constant row is a row like others"
    return None if target.eps else "with eps = 0 a constant row has no answer"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give values at several widths."""
    kinds: tuple[Affine, ...] = ("none", "both")
    for dtype in target.dtypes:
        for width in (3, 100) if quick else (2, 3, 7, 49, 100, 768, 1000, 4097):
            for value in VALUES:
                for affine in kinds:
                    yield Case(width, dtype=dtype, rows=2, pattern="constant", offset=value, affine=affine)


def measure(target: Target, case: Case) -> Measured:
    """Compare with β; zero of either sign is zero."""
    gamma, beta = parameters_of(target, case)
    y = target.forward(case.x, gamma, beta).astype(np.float64)
    expected = (
        np.zeros_like(y) if beta is None else np.broadcast_to(beta.astype(case.dtype).astype(np.float64), y.shape)
    )
    if np.array_equal(y, expected):
        return Measured(0.0, 0.0)
    digits = largest(np.abs(y - expected) / ulp(expected, case.dtype))
    return Measured(np.inf, digits)
