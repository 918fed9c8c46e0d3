# SPDX-License-Identifier: MIT
"""Epsilon is the number that was asked for, to its last digit.

What it checks
    Rows of mean zero whose spread is 0.01 to 10 times √eps, held to the full bound of `exact`.

Why it matters
    An epsilon that passes through a narrower type changes: 1e-5 is 1.0014e-5 in both 16-bit types, 1e-6 is 1.013e-6
    in float16 and 1e-8 is zero there. In float64 work, one that was stored as float32 is off in its eighth digit.

Example
    1e-5 in bfloat16 is 1.00136e-5, 0.136 percent more. Rows far below √eps then come out 0.068 percent too small: up
    to 11 363 ulp of float32, and 1.4 ulp of float16.

What to do
    Keep eps in the type of the arithmetic, and add it there: `var.astype(float32) + float32(eps)`.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Tell whether there is an epsilon."""
    return None if target.eps else "eps is 0"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give spreads around √eps."""
    for dtype in target.dtypes:
        for width in (16, 100) if quick else (7, 16, 100, 768, 4096):
            for factor in (0.01, 0.1, 1.0) if quick else (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
                yield Case(width, dtype=dtype, pattern="balanced", scale=target.eps**0.5 * factor)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)
