# SPDX-License-Identifier: MIT
"""Rows of any size are as right as rows of size one.

What it checks
    Normal rows times 1e-30 … 1e30 in float32 and bfloat16 (1e-150 … 1e150 in float64, 1e-2 … 1e4 in float16), held to
    the full bound of `exact`. Small rows beside a larger eps give small answers, and those must be right too.

Why it matters
    Squares have twice the exponent: float32 ends at 3e38, so that a row of 2e19 has a variance of infinity and comes
    out as zeros; in float16 that happens at 256. With eps = 0 rows of 1e-23 have a variance of zero.

Example
    The float32 row (−1e20, 1e20) should give (−1, 1). Its squares are 1e40, which is infinity there, so that it gives
    (0, 0).

What to do
    Compute 16-bit rows in float32. In float32, when the variance comes out as infinite or nearly zero, do the row again
    times a power of two, with eps times the square of it.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact
from layernorm.conformance.targets import Target

# Powers of ten between which no value of a normal row overflows, and few are subnormal.
RANGE = {"float16": (-2, 4), "bfloat16": (-30, 30), "float32": (-30, 30), "float64": (-150, 150)}


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give sizes over each type's range."""
    for dtype in target.dtypes:
        low, high = RANGE[dtype]
        step = max(1, (high - low) // (6 if quick else 20))
        for width in (100,) if quick else (3, 17, 100, 768, 4096):
            for power in range(low, high + 1, step):
                yield Case(width, dtype=dtype, scale=float(f"1e{power}"))


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)
