# SPDX-License-Identifier: MIT
"""A row is its own: its bits depend on its numbers alone, not on the rows around it, nor on how many there are.

What it checks
    A batch of rows of different mean and spread. Each of some rows alone, a slice of the batch, and the batch in
    another order must give the bits that the whole batch gave. So must the last of 70 000 narrow rows.

Why it matters
    A server puts the requests of many users into one batch. If a row's answer depends on its company, the same question
    gets different answers, and no log can explain them.

Example
    A kernel cuts rows into 1 + n mod 7 parts, n being the number of rows. Of 37 rows of 768 float32 values, 15 come
    out with other bits than alone, in 5944 values, by one ulp each.

What to do
    Choose the order of summation from the width, never from the number of rows. If the first rows of a batch differ
    from those alone, look for a kernel that works on several rows at once and another for what is left.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, differing, plain_case
from layernorm.conformance.targets import Target

WIDTHS = (2, 7, 8, 17, 31, 64, 100, 768, 1025, 5000)
QUICK = (7, 64, 768, 1025)


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give batches of 37 rows, one that is worth several threads, and one of more rows than 16 bits count."""
    yield plain_case(target, 7, rows=2500 if quick else 70000, pattern="mixed", form="alone")
    for dtype in target.dtypes:
        for form in ("alone", "slice", "order"):
            for width in QUICK if quick else WIDTHS:
                yield plain_case(target, width, dtype, rows=37, pattern="mixed", form=form)
            yield plain_case(target, 768, dtype, rows=300, pattern="mixed", form=form)


def measure(target: Target, case: Case) -> Measured:
    """Compare rows with what they were in the batch."""
    x = case.x
    y = target.forward(x.copy())
    if case.form == "slice":
        return differing(y[5:9], target.forward(x[5:9].copy()))
    if case.form == "order":
        order = np.random.default_rng(case.seed).permutation(case.rows)
        return differing(y[order], target.forward(x[order].copy()))
    picked = (0, 1, case.rows // 2, case.rows - 1)
    return differing(y[list(picked)], np.concatenate([target.forward(x[i : i + 1].copy()) for i in picked]))
