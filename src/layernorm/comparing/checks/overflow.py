# SPDX-License-Identifier: MIT
"""This file checks that squares do not overflow on one side alone.

What it checks
    Statistics in float16 on one side and in a wider type on the other, on rows with values of some hundreds.

Why it matters
    float16 ends at 65504, so a value 256 from the mean has an infinite square; the output is then γ·0 + β, finite and
    wrong.

Example
    One value 795 above the mean among 768: the square is 632025. The output was beta alone, and nothing was NaN.

What to do
    Keep the power and the mean in float32, or use the fused operator, whose statistics are.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.effect import MINOR, Effect
from layernorm.comparing.roundings import FIELDS, differ_in_type, statistics_type
from layernorm.models.norm_record import Finding


def overflows(effect: Effect) -> bool:
    """Tell whether the statistics' type changes the output where values are large."""
    return not effect.by_probe(*FIELDS).get("large", 0.0) < MINOR


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side's squares overflow."""
    for pair, effect in compared.each():
        a, b = statistics_type(pair.a), statistics_type(pair.b)
        if "float16" in (a, b) and differ_in_type(pair) and overflows(effect):
            which = "A" if a == "float16" else "B"
            yield finding(
                "overflow", pair, effect, effect.of(*FIELDS),
                f"A's statistics are in {a}, B's in {b}: in {which} squares above 65504 become infinite.",
                f"keep {which}'s statistics in float32.", a=a, b=b,
            )  # fmt: skip
