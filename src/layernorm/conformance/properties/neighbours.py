# SPDX-License-Identifier: MIT
"""NaN or infinity in one row changes no bit of another.

What it checks
    A batch is normalized as it is, and again with a NaN, an infinity or a negative infinity in every third row. The
    other rows must give the same bits. So must their dx, with such a value in every third row of dy as well.

Why it matters
    Padding may hold anything. Code that masks by multiplying with zero, or that finds one scale for the whole batch,
    turns one bad token into a batch of NaN: 0 · NaN is NaN.

Example
    13 rows, five of them with a NaN. A mask that adds 0·Σx gives 13 rows of NaN; a selection gives eight rows with
    the bits that they had without the five.

What to do
    Mask with a selection (`where`), not with a product; take maxima and scales by row.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import NOT_FINITE, Case
from layernorm.conformance.measure import Measured, answers, differing, plain_case, with_backward
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each type with each value."""
    for dtype in target.dtypes:
        for form in NOT_FINITE:
            for width in (100,) if quick else (3, 17, 100, 1000):
                case = plain_case(target, width, dtype, rows=13, pattern="mixed", form=form)
                yield from with_backward(target, case)


def measure(target: Target, case: Case) -> Measured:
    """Compare the rows that were left alone."""
    whole = case.x, case.dy
    spoilt = case.x, case.dy
    for a in spoilt:
        a[::3, case.width // 2] = NOT_FINITE[case.form.removesuffix("-backward")]
    kept = np.arange(case.rows) % 3 != 0
    first, other = (answers(target, case, *arrays)[0] for arrays in (whole, spoilt))
    return differing(first[kept], other[kept])
