# SPDX-License-Identifier: MIT
"""This file checks that neither side adds 1 to gamma once too often or too seldom.

What it checks
    offset + w on both sides: equal, or apart by exactly 1, but for rounding.

Why it matters
    Gemma, Nemotron and others store w and multiply by 1 + w; a converter that adds the 1 must tell the runtime not to.

Example
    output_norm held 9.6834 where the original had 8.6856, and the runtime added 1 again: the output was 10 % too large
    there, and doubled where w is 0.

What to do
    Add 1 to the stored values, or take it off, or set the flag that says which they are.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.parameters import both, near, same
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair whose gammas are 1 apart."""
    for pair, effect in compared.each():
        held = both(pair)
        if held is None or same(*held):
            continue
        a, b = held
        held_by = pair.b.scale.name if pair.b.scale else "gamma"
        for more, less, step in (("B", "A", -1.0), ("A", "B", 1.0)):
            if near(a, b.values + step, b):
                yield finding(
                    "gamma-offset", pair, effect, effect.of("gamma", "scale_offset"),
                    f"{more} multiplies by 1 more than {less}: mean gamma {a.values.mean():.4g} in A, "
                    f"{b.values.mean():.4g} in B.",
                    f"{'take 1 off' if more == 'B' else 'add 1 to'} {held_by} of B.",
                    a=float(a.values.mean()), b=float(b.values.mean()),
                )  # fmt: skip
                break
