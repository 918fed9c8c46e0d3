# SPDX-License-Identifier: MIT
"""The mean is taken off where the norm says so, and not where it does not.

What it checks
    Rows of 1000 values whose mean is three times their spread, so large that eps does not show, to within 1e-2 of the
    definition: layer norm gives values around 0, RMS norm around 0.95.

Why it matters
    RMS norm and layer norm agree on rows of mean zero, which is what a freshly initialized model has. A checkpoint
    loaded into the other one starts well and drifts off.

Example
    The row (2, 4) becomes (−1, 1) in layer norm and (0.632, 1.265) in RMS norm.

What to do
    Exchange LayerNorm and RMSNorm in the model, or find the `center`, `use_mean` or `subtract_mean` switch.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact, plain_case
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give a mean above and one below zero."""
    yield plain_case(target, 1000, offset=3.0)
    yield plain_case(target, 1000, offset=-3.0)


def measure(target: Target, case: Case) -> Measured:
    """Compare with the definition, roughly."""
    return against_exact(target, case, tolerance=1e-2)
