# SPDX-License-Identifier: MIT
"""This file checks that both norms stand in the same place of their blocks.

What it checks
    Whether a norm stands before a block's work on one side and after it on the other, where both sides tell.

Why it matters
    The same weights and the same spec give another model.

Example
    post_attention_layernorm is the norm before the feed-forward part in Llama, and one on attention's output in Gemma;
    a loader that takes the one for the other runs a norm too many.

What to do
    Look up the architecture's blocks; map by architecture, not by name.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared
from layernorm.models.norm_record import Finding

TOLD = ("pre", "post")


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of a norm before and one after a block's work."""
    for pair, _ in compared.each():
        a, b = pair.a.placement, pair.b.placement
        if a != b and a in TOLD and b in TOLD:
            said = {"pre": "before", "post": "after"}
            yield Finding(
                "placement", "major", pair.a.name, f"A's stands {said[a]} its block's work, B's {said[b]} it.",
                "see which the architecture has, and move the other.", {"a": a, "b": b}, pair.b.name,
            )  # fmt: skip
