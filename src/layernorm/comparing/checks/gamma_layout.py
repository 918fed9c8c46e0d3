# SPDX-License-Identifier: MIT
"""This file checks that both gammas lie along the same axes.

What it checks
    The shapes of gamma and beta, axes of length 1 aside, the axes that they lie along, and whether one is the other
    transposed.

Why it matters
    A gamma of one value a group, or one that is laid along another axis of the same length, multiplies other values;
    broadcasting hides it.

Example
    ONNX GroupNormalization has one value a group before version 21 and one a channel since.

What to do
    Repeat each group's value for its channels, or transpose the parameter when converting.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.comparing.effect import Effect
from layernorm.comparing.pairing import Pair
from layernorm.comparing.parameters import Parameter, beta_of, gamma_of, same, transposed
from layernorm.comparing.sets import same_sets
from layernorm.models.norm_record import Finding

AXES = {"gamma": "scale_axes", "beta": "shift_axes"}


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair whose gammas or betas have other shapes, or are transposed."""
    for pair, effect in compared.each():
        held = {
            "gamma": (gamma_of(pair.a, pair.b), gamma_of(pair.b, pair.a)),
            "beta": (beta_of(pair.a), beta_of(pair.b)),
        }
        for name, (a, b) in held.items():
            if a is None or b is None:
                continue
            shapes = a.values.shape, b.values.shape
            turned = transposed(a, b)
            if same(a, b) and _elsewhere(pair, effect, name):
                along = [getattr(record.spec, AXES[name]) for record in (pair.a, pair.b)]
                yield finding(
                    "gamma-layout", pair, effect, effect.of(name, AXES[name]),
                    f"A's {name} lies along axes {along[0]}, B's along {along[1]}.", f"lay B's along {along[0]}.",
                    a=str(along[0]), b=str(along[1]),
                )  # fmt: skip
                break
            if (shapes[0] == shapes[1] and not turned) or _spread(pair, a, b):
                continue
            said = "transposed" if turned else f"of shape {shapes[1]}"
            yield finding(
                "gamma-layout", pair, effect, effect.of("gamma", "beta", "scale_axes", "shift_axes"),
                f"A's {name} has shape {shapes[0]}, B's is {said}.",
                "transpose it." if turned else f"give B a {name} of shape {shapes[0]}.",
                a=list(shapes[0]), b=list(shapes[1]),
            )  # fmt: skip
            break


def _elsewhere(pair: Pair, effect: Effect, name: str) -> bool:
    """Tell whether the same values lie along other axes of the same array, which changes the output."""
    if not differ(pair, AXES[name]) or same_sets(pair, effect) is not True:
        return False
    return effect.severity(effect.of(name, AXES[name])) != "info"


def _spread(pair: Pair, a: Parameter, b: Parameter) -> bool:
    """Tell whether one is the other with each value given to every channel of its group."""
    few, many = sorted((a, b), key=lambda parameter: parameter.values.size)
    if not few.values.size or many.values.size % few.values.size:
        return False
    # interleaved groups take channels in turn, blocked ones take neighbours
    dealt = np.tile if "interleaved" in (pair.a.spec.group_order, pair.b.spec.group_order) else np.repeat
    times = many.values.size // few.values.size
    each = Parameter(dealt(few.values, times), dealt(few.near, times))
    return same(each, Parameter(many.values.ravel(), many.near.ravel()))
