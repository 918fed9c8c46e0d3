# SPDX-License-Identifier: MIT
"""This file checks that both norms split the channels into as many groups.

The number of groups differs.

What it checks
    Into how many groups channels are split; one group of all channels against statistics for each channel is among it.

Why it matters
    Values of other channels enter each mean and deviation.

Example
    x = 0 … 15 of shape (1, 4, 2, 2): with one group the last value is 1.627, normalized channel by channel 1.342.

What to do
    Set num_groups to A's; PyTorch and ONNX call it num_groups, Keras groups.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.sets import same_sets
from layernorm.models.norm_record import Finding
from layernorm.spec.norm_spec import UNKNOWN


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair with another number of groups."""
    for pair, effect in compared.each():
        a, b = pair.a.spec.groups, pair.b.spec.groups
        if UNKNOWN in (a, b) or a == b or same_sets(pair, effect) is not False:
            continue
        change = effect.of("axes", "groups", "channel_axis", "group_order")
        yield finding(
            "groups", pair, effect, change, f"A has {_said(a)}, B {_said(b)}.",
            "set num_groups to A's." if b is not None else "use a group norm with A's num_groups.", a=a, b=b,
        )  # fmt: skip


def _said(groups: object) -> str:
    return "no groups" if groups is None else "one group" if groups == 1 else f"{groups} groups"
