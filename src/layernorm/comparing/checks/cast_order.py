# SPDX-License-Identifier: MIT
"""This file checks that both norms round to 16 bits on the same side of gamma.

What it checks
    Whether x̂ is rounded to the input's type before gamma multiplies it, where that type has 16 bits.

Why it matters
    Llama and ONNX round before gamma, Gemma and Flax after: a quarter of the results differ by one unit in the last
    place.

Example
    Of 256 float16 values 27 % differ, by at most 0.00195.

What to do
    Move the cast; it seldom matters alone.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair that rounds on another side of gamma."""
    said = {True: "before", False: "after"}
    for pair, effect in compared.each():
        if pair.a.scale is None or effect.dtype not in ("float16", "bfloat16") or not differ(pair, "cast_before_scale"):
            continue
        if pair.a.dtype != pair.b.dtype:
            continue  # weights in 16 bits against a model in float32, which casts nothing
        a, b = pair.a.spec.cast_before_scale, pair.b.spec.cast_before_scale
        yield finding(
            "cast-order", pair, effect, effect.of("cast_before_scale"),
            f"A rounds to {effect.dtype} {said[bool(a)]} gamma, B {said[bool(b)]} it.", "move the cast in B.", a=a, b=b,
        )  # fmt: skip
