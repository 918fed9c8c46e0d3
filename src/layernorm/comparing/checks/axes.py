# SPDX-License-Identifier: MIT
"""This file checks that both norms share one set of statistics over the same axes.

The axes over which mean and deviation are taken differ.

What it checks
    The axes, after both specs were resolved for one array; axes of length 1 do not count.

Why it matters
    Shapes agree whatever the axes, so nothing complains. Normalizing tokens and features together makes each token
    depend on the others, and on how long the sentence is.

Example
    Of an array (batch, tokens, 384), axes (-1) give each token its own mean; axes (-2, -1) give a sentence one.

What to do
    Set axis (ONNX LayerNormalization, Keras) or normalized_shape (PyTorch) to A's axes.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.comparing.sets import same_sets
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair that normalizes other axes."""
    for pair, effect in compared.each():
        a, b = pair.a.spec, pair.b.spec
        if a.groups != b.groups or same_sets(pair, effect) is not False or differ(pair, "group_order"):
            continue
        yield finding(
            "axes", pair, effect, effect.of("axes", "channel_axis"),
            f"B takes statistics over axes {_said(b.axes)}, A over {_said(a.axes)}.",
            f"set the axes of {pair.b.where or pair.b.name} to {_said(a.axes)}.", a=_plain(a.axes), b=_plain(b.axes),
        )  # fmt: skip


def _said(axes: object) -> str:
    return f"({', '.join(map(str, axes))})" if isinstance(axes, tuple) else str(axes)


def _plain(axes: object) -> object:
    return list(axes) if isinstance(axes, tuple) else str(axes)
