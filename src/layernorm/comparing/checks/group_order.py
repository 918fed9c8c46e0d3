# SPDX-License-Identifier: MIT
"""This file checks that both norms deal the channels to their groups in the same way.

Groups are of neighbouring channels on one side, and interleaved on the other.

What it checks
    Whether channel c of C is in group c // (C / G), as in PyTorch, ONNX and Keras, or in group c mod G, as in MLX
    unless it is told pytorch_compatible.

Why it matters
    Shapes and parameters are the same, and every value is normalized with others.

Example
    With 4 channels and 2 groups, channels 0 and 1 go together, or channels 0 and 2.

What to do
    MLX: pass pytorch_compatible=True. Elsewhere permute the channels before and after.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.comparing.sets import same_sets
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair whose groups are dealt differently."""
    for pair, effect in compared.each():
        a, b = pair.a.spec, pair.b.spec
        if a.groups == b.groups and differ(pair, "group_order") and same_sets(pair, effect) is False:
            yield finding(
                "group-order", pair, effect, effect.of("group_order"),
                f"A's groups are {a.group_order}, B's {b.group_order}.",
                "MLX: pytorch_compatible=True; elsewhere permute the channels.", a=a.group_order, b=b.group_order,
            )  # fmt: skip
