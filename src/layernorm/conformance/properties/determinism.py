# SPDX-License-Identifier: MIT
"""The same call gives the same bits, again and on any number of threads.

What it checks
    Three calls with the same x, and one each with 1, 2, 3 and 8 threads where the target lets them be set; dx, dγ and
    dβ likewise. Few long rows and many short ones are both tried, because they are shared out differently.

Why it matters
    Sums whose order is left to chance differ in the last digits. Nothing fails; but a run cannot be repeated, two
    machines disagree, and a bug that shows once in a hundred runs cannot be bisected.

Example
    In float32, (16777216 + 1) − 16777216 is 0 and (16777216 − 16777216) + 1 is 1. Which of the two a sum gives is
    decided by who is added first.

What to do
    Give each row to one thread; where a row must be cut, cut it at places that depend on its width alone, and add the
    parts in order. Atomic additions are not ordered.
"""

import os
from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, all_differing, answers, plain_case, with_backward
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give long rows and short ones, called again, and on other numbers of threads."""
    for form in ("again", "threads") if target.set_threads is not None else ("again",):
        for width, rows in ((768, 256), (65536, 4)) if quick else ((768, 256), (64, 2000), (65536, 4), (5000, 33)):
            for dtype in (target.dtypes[0],) if quick else target.dtypes:
                yield from with_backward(target, plain_case(target, width, dtype, rows=rows, form=form))


def measure(target: Target, case: Case) -> Measured:
    """Compare every answer with the first."""
    x, dy = case.x, case.dy
    if case.form.startswith("again") or target.set_threads is None:
        first, *others = (answers(target, case, x.copy(), dy.copy()) for _ in range(3))
    else:
        found = []
        try:
            for number in (1, 2, 3, 8):
                target.set_threads(number)
                found.append(answers(target, case, x.copy(), dy.copy()))
        finally:
            # how many it had cannot be asked; what this process may use is what most begin with
            allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
            target.set_threads(len(allowed))
        first, *others = found
    return max((all_differing(first, other) for other in others), key=lambda m: m.share)
