# SPDX-License-Identifier: MIT
"""Epsilon is added to the variance, under the root, and is of the size that was asked for.

What it checks
    Rows of mean zero whose spread is 0.1 to 10 times √eps, to within 3e-3 of the definition (16-bit types: one ulp
    more). With eps = 0, rows of spread 1e-3 and 1e-6: nothing may be added. What eps is to its last digits is for
    `epsilon-digits`.

Why it matters
    On rows of spread 1 an epsilon of 1e-5 does nothing, wherever it is put; where activations are small, as in the
    first layers of a speech model, it decides the scale of the output. Frameworks have six places for it.

Example
    The row (−0.001, 0.001) has variance 1e-6; eps is 1e-5. Right is ±0.302. Added to the deviation it is ±0.990, to
    the sum of squares ±0.408, as a floor ±0.316, twice ±0.218, forgotten ±1.

What to do
    Divide by `sqrt(var + eps)`. If the case with the smallest scale is the worst, eps has the wrong size; if that at
    `scale` = √eps is, it has the wrong place. A row that is rescaled first needs its eps rescaled by the square.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give spreads around √eps."""
    root = target.eps**0.5
    for dtype in target.dtypes:
        for width in (16, 100) if quick else (7, 16, 100, 768):
            for factor in (0.1, 0.3, 1.0, 3.0, 10.0) if root else (1e-3, 1e-6):
                yield Case(width, dtype=dtype, pattern="balanced", scale=(root or 1.0) * factor)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the definition, roughly."""
    return against_exact(target, case, tolerance=3e-3)
