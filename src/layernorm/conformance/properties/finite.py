# SPDX-License-Identifier: MIT
"""Rows near the largest number of the type are right, and not infinite.

What it checks
    Uniform rows up to the largest finite number of each type, and rows of zeros and that number, held to the full bound
    of `exact`: the answers are of size one.

Why it matters
    The sum of two large numbers of a row overflows, before any square does: float16 ends at 65 504. Models trained in
    bfloat16 and run in float16 get there.

Example
    The float16 row (60000, 60000, 0, 0) has mean 30 000 and should give (1, 1, −1, −1). Its sum is 120 000, which is
    infinity in float16, and the answer NaN.

What to do
    Sum in a wider type, or scale the row by a power of two before the sum; see `scale`, and mind eps.
"""

from collections.abc import Iterator

import ml_dtypes

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give rows up to the end of each type."""
    for dtype in target.dtypes:
        end = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        for width in (100,) if quick else (2, 17, 100, 768, 4096):
            yield Case(width, dtype=dtype, pattern="largest")
            yield Case(width, dtype=dtype, pattern="largest", scale=0.25)
            yield Case(width, dtype=dtype, pattern="bits", scale=end)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)
