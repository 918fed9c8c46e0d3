# SPDX-License-Identifier: MIT
"""No rows give no rows, and a row of one column gives what the definition says.

What it checks
    x of shapes (0, 64) and (2, 0, 64) gives an empty answer of the same shape and type, an empty dx, and zeros for dγ
    and dβ. A row of one column gives β where the mean is taken off, and γ·x/√(x² + eps) + β where not.

Why it matters
    The last batch of a data set may be empty, and an expert of a mixture may get no token. One column is what a
    hyperparameter sweep ends at; dividing by d − 1 is dividing by zero there.

Example
    x of shape (0, 64): a maximum over no rows raises, a thread count of rows/32 = 0 divides by zero. A row (7) of one
    column is β; divided by d − 1 it is 0/0.

What to do
    Return early when x.size is 0. At one column, look for d − 1, and for a vector path that needs a full vector.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact, answers, with_backward, yes_or_no
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give no rows, and rows of one column."""
    for dtype in target.dtypes:
        for form in ("two-axes", "three-axes"):
            yield from with_backward(target, Case(64, rows=0, dtype=dtype, form=form))
        if target.spec.ddof != 1 and (target.eps or not target.centered):
            yield Case(1, dtype=dtype, form="one-column")


def measure(target: Target, case: Case) -> Measured:
    """Look at shape and type, or compare with the exact answer."""
    if case.form == "one-column":
        return against_exact(target, case)
    x = case.x if case.form.startswith("two-axes") else case.x.reshape(2, 0, case.width)
    y, *sums = (np.asarray(a) for a in answers(target, case, x.copy(), x.copy()))
    if y.shape != x.shape or y.dtype != x.dtype:
        return yes_or_no(f"x of shape {x.shape}, {x.dtype} gave {y.shape}, {y.dtype}")
    return yes_or_no("a sum over no rows is not 0" if any(s.any() for s in sums) else None)
