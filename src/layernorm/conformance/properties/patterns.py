# SPDX-License-Identifier: MIT
"""Rows that are nothing like normal ones are right too.

What it checks
    Rows of zeros and ones, ramps, one value of 1000 among normal ones, first columns far from the others, quarters as
    quantized models have them, and those moved off zero, held to the full bound of `exact`.

Why it matters
    Shortcuts rest on a guess of what rows look like: that the first columns tell the mean, that no value lies beyond
    ten spreads, that values come in no order. Trained models have columns a thousand times the others.

Example
    The first 32 columns lie around 100 and the rest around 0. A variance about the mean of the first 32 is off by 179
    ulp at d = 8192 and by 1540 at d = 65 536, where on normal rows the same code is within 1.2.

What to do
    A mean guessed from some columns must be corrected when it turns out to be far off: if δ² > 4·var, move it by δ and
    take the sums again. Never clip x̂.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact, plain_case
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give the patterns, around zero and off it."""
    for dtype in target.dtypes:
        for pattern in ("bits", "ramp", "outlier", "step", "quantized"):
            for width in (768, 8192) if quick else (65, 100, 768, 1025, 4096, 8192, 65536):
                for offset in (0.0,) if quick else (0.0, 7.0):
                    rows = 2 if width > 5000 else 4
                    yield plain_case(target, width, dtype, rows=rows, pattern=pattern, offset=offset)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)
