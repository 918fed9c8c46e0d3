# SPDX-License-Identifier: MIT
"""This file checks that both norms have a beta.

What it checks
    Whether one side has a beta and the other none; a beta of zeros and none are the same.

Why it matters
    Without it the output's mean is zero in every row, whatever was learnt.

Example
    Old checkpoints say gamma and beta where new modules say weight and bias: 25 norms stayed as they began.

What to do
    Load it; look whether the other side's file holds it under another name.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.parameters import beta_of, has_none
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side lacks beta."""
    for pair, effect in compared.each():
        for side, record, partner in (("B", pair.b, pair.a), ("A", pair.a, pair.b)):
            held = beta_of(partner)
            if not has_none(record, "shift_axes") or held is None or np.all(held.values == 0):
                continue
            low, high = float(held.values.min()), float(held.values.max())
            yield finding(
                "beta-missing", pair, effect, effect.of("beta", "shift_axes"),
                f"{side} has no beta; the other side's goes from {low:.4g} to {high:.4g}.",
                f"give {side} the values of {partner.shift.name if partner.shift else 'beta'}.",
                a=None if side == "A" else [low, high], b=None if side == "B" else [low, high],
            )  # fmt: skip
