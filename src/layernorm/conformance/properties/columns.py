# SPDX-License-Identifier: MIT
"""Exchanging columns of x exchanges the same columns of y: all of them count, and count alike.

What it checks
    Rows with one large value, at widths around those of vectors and blocks. The large value is moved to the first and
    to the last column, the columns are reversed and shuffled, and the answer must move with them, to within 1e-2 of
    max(|y|, 1): no rounding is so large, and no forgotten column so small.

Why it matters
    Kernels work on vectors of 4 to 64 and blocks of 256 to 8192 columns; what is left over takes another path, and
    that path is written last and tested least.

Example
    A kernel writes blocks of 64 and does not add the column that is left over at d = 65. A normal row whose last
    value is 1000 should give −0.125, −0.127 … 8.00; it gives 0.065, −0.218 … 1096, while the same row with its 1000
    in the middle looks right.

What to do
    The width of the case that fails says which block: 1025 and not 1024 is a remainder of 1. Look at the mask of the
    last block, and at the lanes of it that are added to the sums.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import Measured, largest, plain_case
from layernorm.conformance.targets import Target

TOLERANCE = 1e-2
WIDTHS = (
    3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257, 511, 513, 768, 1000,
    1023, 1025, 1536, 2047, 2049, 4095, 4097, 8193, 16385, 65537,
)  # fmt: skip
QUICK = (3, 5, 7, 9, 17, 33, 65, 100, 257, 768, 1025, 2049, 4097, 8193)


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give widths, each with the columns in four other orders."""
    for width in QUICK if quick else WIDTHS:
        for form in ("first", "last", "reversed"):
            yield plain_case(target, width, rows=2, pattern="outlier", form=form)
        yield plain_case(target, width, rows=2, form="shuffled")


def measure(target: Target, case: Case) -> Measured:
    """Compare the answer to the other order with the other order of the answer."""
    order = _order(case)
    x = case.x
    wide, other = (a.astype(np.float64) for a in (target.forward(x.copy()), target.forward(x[:, order].copy())))
    wide = wide[:, order]
    return Measured(largest(np.abs(wide - other) / (TOLERANCE * np.maximum(np.abs(wide), 1))))


def _order(case: Case) -> Array:
    columns, middle = np.arange(case.width), case.width // 2
    if case.form == "first":
        return np.roll(columns, -middle)
    if case.form == "last":
        return np.roll(columns, -middle - 1)
    return columns[::-1] if case.form == "reversed" else np.random.default_rng(case.seed).permutation(columns)
