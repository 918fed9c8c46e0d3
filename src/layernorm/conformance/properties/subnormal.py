# SPDX-License-Identifier: MIT
"""Numbers below the type's normal range count as what they are.

What it checks
    Rows of whole multiples, up to 3 and up to 300, of the type's smallest subnormal, held to the full bound of `exact`.

Why it matters
    Processors can be told to take such numbers for zero, and one library that does so changes the whole process. In
    float16 they begin at 6e-5, which ordinary activations reach.

Example
    The float16 row (6e-8, 0) with eps = 1e-5 gives (9.4e-6, −9.4e-6). With such numbers taken for zero it gives (0,
    0); with eps = 0 right is (1, −1), and zeros give NaN.

What to do
    Do not compile with -ffast-math (it sets the processor's flag in every program that loads the library), and compute
    16-bit rows in float32, where these numbers are normal.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give small multiples of the smallest number."""
    for dtype in target.dtypes:
        for width in (100,) if quick else (8, 17, 100, 768):
            for scale in (1.0, 100.0):
                yield Case(width, dtype=dtype, pattern="whole", scale=scale)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the exact answer."""
    return against_exact(target, case)
