# SPDX-License-Identifier: MIT
"""This file checks that both norms keep their statistics in the same type, and round at the same steps.

What it checks
    The type of mean and variance, and whether each operation's result is rounded, where `overflow` is not already said.

Why it matters
    In bfloat16 a mean has three digits. One pass hardly shows it, thirty passes through the same norm do.

Example
    A norm without gamma was not fused and ran in bfloat16: a fifth of the spread was gone after thirty steps.

What to do
    Cast to float32 before the statistics and back after the norm, on the side that does not.
"""

from collections.abc import Iterator

from layernorm.comparing.checks.overflow import overflows
from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.roundings import FIELDS, differ_in_type, statistics_type
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair whose statistics have other types."""
    for pair, effect in compared.each():
        a, b = statistics_type(pair.a), statistics_type(pair.b)
        if not differ_in_type(pair) or ("float16" in (a, b) and overflows(effect)):
            continue
        each = [f"{name}{' at each step' if record.spec.round_each is True else ''}"
                for name, record in ((a, pair.a), (b, pair.b))]  # fmt: skip
        yield finding(
            "precision", pair, effect, effect.of(*FIELDS), f"A rounds its statistics to {each[0]}, B to {each[1]}.",
            "keep the statistics of both in the wider type.", a=a, b=b,
        )  # fmt: skip
