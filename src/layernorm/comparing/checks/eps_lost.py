# SPDX-License-Identifier: MIT
"""This file checks that epsilon did not become 0 on one side.

What it checks
    Each side's epsilon, rounded to the type in which it is added.

Why it matters
    Epsilon is what keeps a row of equal values from 0/0. A converter to float16 makes 0 of all below 3e-8.

Example
    1e-8 in a float16 graph is 0: the row (2, 2, 2, 2) becomes NaN, and 0 in the original.

What to do
    Keep the statistics in float32, or set an epsilon that the type holds.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.epsilon import acting
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side adds nothing."""
    for pair, effect in compared.each():
        a, b = acting(pair.a), acting(pair.b)
        if a is None or b is None or (a == 0) == (b == 0):
            continue
        which, other, said = ("B", "A", pair.b.spec) if b == 0 else ("A", "B", pair.a.spec)
        written = "none" if said.eps_at == "none" else f"{said.eps:g}"
        yield finding(
            "eps-lost", pair, effect, effect.of("eps", "eps_at", "stats_dtype", "round_each"),
            f"{which} adds nothing to the denominator (its epsilon is {written}), {other} adds {max(a, b):g}.",
            f"set {which}'s epsilon to {max(a, b):g}, and keep its statistics in float32.", a=a, b=b,
        )  # fmt: skip
