# SPDX-License-Identifier: MIT
"""This file tells whether two norms share their statistics among the same values."""

from layernorm.comparing.effect import Effect
from layernorm.comparing.pairing import Pair
from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec


def same_sets(pair: Pair, effect: Effect) -> bool | None:
    """Tell whether axes and groups come to the same for one array; None where a side does not say them.

    One group of every channel is what an instance norm without groups over all axes is, and so on.
    """
    specs = []
    for spec, partner in ((pair.a.spec, pair.b.spec), (pair.b.spec, pair.a.spec)):
        if UNKNOWN in (spec.axes, spec.groups):
            return None
        if spec.groups is None:  # nothing is dealt, whatever the other two fields leave open
            specs.append(NormSpec(axes=spec.axes))
            continue
        if spec.channel_axis is UNKNOWN:
            return None
        said = [order for order in (spec.group_order, partner.group_order) if order not in (UNKNOWN, None)]
        order = said[0] if said else "blocked"
        specs.append(NormSpec(axes=spec.axes, groups=spec.groups, channel_axis=spec.channel_axis, group_order=order))
    try:
        return specs[0].same_as(specs[1], effect.shape)
    except SpecError:
        return False
