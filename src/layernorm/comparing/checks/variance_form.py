# SPDX-License-Identifier: MIT
"""This file checks that both variances are worked out in the same way, where that changes little.

What it checks
    Whether the variance is the mean of (x − mean)², or E[x²] − E[x]², clamped at 0 or not, where `cancellation` is not
    already said.

Why it matters
    E[x²] − E[x]² loses digits where the mean is large; what it loses on the probes is small here.

Example
    Flax takes the fast form unless use_fast_variance=False.

What to do
    Nothing, unless your rows have a mean far above their deviation.
"""

from collections.abc import Iterator

from layernorm.comparing.checks.cancellation import cancels
from layernorm.comparing.compared import Compared, differ, finding
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which the forms differ."""
    for pair, effect in compared.each():
        if differ(pair, "variance_by") and not cancels(effect):
            a, b = pair.a.spec.variance_by, pair.b.spec.variance_by
            yield finding(
                "variance-form", pair, effect, effect.of("variance_by"),
                f"A works its variance out by {a}, B by {b}.", None, a=a, b=b,
            )  # fmt: skip
