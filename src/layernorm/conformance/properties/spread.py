# SPDX-License-Identifier: MIT
"""The denominator is the root of the mean square, divided by d and not by d − 1.

What it checks
    Rows of 2 to 8 values of mean zero, so large that eps does not show, to within 2e-2 of the definition. There,
    dividing by d − 1 gives 6 to 29 percent less.

Why it matters
    `torch.var` and `torch.std` divide by d − 1 unless told otherwise, `numpy.var` by d. At d = 768 the difference is
    0.07 percent, too small to be noticed and large enough to change the words that a model generates.

Example
    The row (1, 3) has mean 2 and variance 1, so that it becomes (−1, 1). Dividing by d − 1 = 1 makes the variance 2
    and the answer (−0.707, 0.707).

What to do
    Pass `correction=0` (or `unbiased=False`, or `ddof=0`), or divide by d. If the model was trained with d − 1, say so
    in the spec: `ddof=1`.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact, plain_case
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give the short widths."""
    for width in range(2, 9):
        yield plain_case(target, width, pattern="balanced")


def measure(target: Target, case: Case) -> Measured:
    """Compare with the definition, roughly."""
    return against_exact(target, case, tolerance=2e-2)
