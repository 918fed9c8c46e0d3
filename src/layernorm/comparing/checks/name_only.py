# SPDX-License-Identifier: MIT
"""This file checks that norms which are called the same are the same kind.

What it checks
    Pairs of one name of which one side is a layer norm and the other is not.

Why it matters
    The name is what people compare; it says what a layer is meant to be, and not what it computes.

Example
    T5LayerNorm takes no mean off.

What to do
    Go by the specs that are listed.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, known
from layernorm.models.norm_record import Finding

# A group norm whose file does not say the groups looks like a layer norm, and so on.
TELLING = ("groups", "statistics", "scale_axes", "shift_axes")


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of one name and two kinds."""
    for pair, _ in compared.each():
        a, b = pair.a.spec.kind, pair.b.spec.kind
        if pair.rule == "name" and a != b and "other" not in (a, b) and all(known(pair, f) for f in TELLING):
            yield Finding(
                "name-only", "info", pair.a.name, f"both are called {pair.a.name}, but A's is {a} and B's {b}.", None,
                {"a": a, "b": b}, pair.b.name,
            )  # fmt: skip
