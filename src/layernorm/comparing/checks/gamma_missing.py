# SPDX-License-Identifier: MIT
"""This file checks that both norms have a gamma.

What it checks
    Whether one side has a gamma and the other none; a gamma of ones and none are the same.

Why it matters
    Without it every feature has the same size, whatever was learnt.

Example
    A loader that finds no key of that name leaves gamma at 1, and says so at most in a log.

What to do
    Load it; look whether the other side's file holds it under another name.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.parameters import gamma_of, has_none
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side lacks gamma."""
    for pair, effect in compared.each():
        for side, record, partner in (("B", pair.b, pair.a), ("A", pair.a, pair.b)):
            held = gamma_of(partner, record)
            if not has_none(record, "scale_axes") or held is None or np.all(held.values == 1):
                continue
            low, high = float(held.values.min()), float(held.values.max())
            yield finding(
                "gamma-missing", pair, effect, effect.of("gamma", "scale_axes", "scale_offset"),
                f"{side} has no gamma; the other side's goes from {low:.4g} to {high:.4g}.",
                f"give {side} the values of {partner.scale.name if partner.scale else 'gamma'}.",
                a=None if side == "A" else [low, high], b=None if side == "B" else [low, high],
            )  # fmt: skip
