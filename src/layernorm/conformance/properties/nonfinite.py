# SPDX-License-Identifier: MIT
"""NaN in a row is NaN in its whole answer, and an infinity is not hidden.

What it checks
    A row with a NaN must be NaN throughout, since its mean is not known. Where an infinity stood, the answer must be
    NaN or infinite: no number is right there.

Why it matters
    A NaN is a message from where training went wrong. Replacing it by zero loses the message and keeps the damage.

Example
    The row (1, 2, NaN, 5) with its NaN taken for 0 becomes (−0.53, 0, −1.07, 1.60): four numbers, of which none means
    anything.

What to do
    Remove `nan_to_num`, `nanmean` and clipping from the norm; if padding holds NaN, mask it before or after.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import NOT_FINITE, Case
from layernorm.conformance.measure import Measured, plain_case, yes_or_no
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each value in each type."""
    for dtype in target.dtypes:
        for form in NOT_FINITE:
            for width in (100,) if quick else (2, 17, 100, 768, 5000):
                yield plain_case(target, width, dtype, rows=2, form=form)


def measure(target: Target, case: Case) -> Measured:
    """Look for numbers where there can be none."""
    x, at = case.x, case.width // 2
    x[:, at] = NOT_FINITE[case.form]
    y = target.forward(x).astype(np.float64)
    if case.form == "nan":
        left = int(np.sum(~np.isnan(y)))
        return yes_or_no(f"{left} of {y.size} values are not NaN" if left else None)
    return yes_or_no(f"the infinity became {y[0, at]}" if np.isfinite(y[:, at]).any() else None)
