# SPDX-License-Identifier: MIT
"""Writing over x gives the same bits as writing elsewhere.

What it checks
    x normalized into its own memory, against x normalized into a new array.

Why it matters
    In place saves a third of the memory traffic. It is right only if nothing of a row is read after the first of it is
    written: a second pass that goes back to x finds the answer instead.

Example
    The row (1, 2, 6) has mean 3 and becomes (−0.93, −0.46, 1.39). Where a first pass takes the mean off in place, and a
    second one adds up (x − 3)² of what it finds, the variance is 13.7 instead of 4.7, and the answer
    (−0.54, −0.27, 0.81).

What to do
    Finish both sums of a row before writing any of it, and do not write a row while another thread may read it.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, differing, plain_case
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Tell whether it can write over x."""
    return None if target.in_place is not None else "it has no way to write over x"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each type at several widths."""
    for dtype in target.dtypes:
        for width in (100, 768) if quick else (2, 7, 17, 100, 768, 1025, 5000):
            yield plain_case(target, width, dtype, rows=13, pattern="mixed")


def measure(target: Target, case: Case) -> Measured:
    """Compare with a new array."""
    assert target.in_place is not None
    x = case.x
    target.in_place(x)
    return differing(target.forward(case.x), x)
