# SPDX-License-Identifier: MIT
"""This file checks that neither variance cancels where the other's does not.

What it checks
    E[x²] − E[x]² against (x − mean)², each in the type of its statistics, on rows far from zero.

Why it matters
    Of a mean m and a deviation σ, the squares have (m/σ)² times the variance's size: their rounding alone may exceed
    it, and the difference may be negative, and its root NaN.

Example
    (40000, 40001, 40002, 40003) in float32: E[x²] − E[x]² is −128, the variance 1.25.

What to do
    Take the variance about the mean; ONNX: replace the nodes by LayerNormalization; Flax: use_fast_variance=False.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.comparing.effect import MINOR, Effect
from layernorm.comparing.pairing import Pair
from layernorm.models.norm_record import Finding
from layernorm.spec.norm_spec import UNKNOWN

MOMENTS = ("moments", "moments_clamped")


def cancels(effect: Effect) -> bool:
    """Tell whether the way to the variance changes the output on any probe; in 16 bits a nearly constant row does."""
    return not effect.of("variance_by") < MINOR


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side's variance cancels."""
    for pair, effect in compared.each():
        if differ(pair, "variance_by") and cancels(effect):
            a, b = pair.a.spec.variance_by, pair.b.spec.variance_by
            yield finding(
                "cancellation", pair, effect, effect.of("variance_by"), *_said(a, b), a=a, b=b,
            )  # fmt: skip
        elif (silent := _beside_unknown(pair)) is not None:
            yield silent


def _beside_unknown(pair: Pair) -> Finding | None:
    """Say that one side cancels where the other's file is silent: a fact to know, for the other may do so too."""
    a, b = pair.a.spec.variance_by, pair.b.spec.variance_by
    if UNKNOWN not in (a, b) or not any(way in MOMENTS for way in (a, b)):
        return None
    which, silent = ("B", "A") if a is UNKNOWN else ("A", "B")
    return Finding(
        "cancellation", "info", pair.a.name,
        f"{which} takes E[x²] − E[x]², which cancels where the mean is large; {silent} does not say how it does.",
        f"take the variance about the mean in {which}.",
        {"a": "unknown" if a is UNKNOWN else a, "b": "unknown" if b is UNKNOWN else b}, pair.b.name,
    )  # fmt: skip


def _said(a: object, b: object) -> tuple[str, str]:
    """Say what cancels and what to do; both sides may, one with the variance clamped at 0."""
    if "centered" not in (a, b):
        which = "A" if a == "moments" else "B"
        return (
            f"both take E[x²] − E[x]², which cancels where the mean is large; {which} does not clamp it at 0.",
            "take the variance about the mean in both.",
        )
    which = "B" if a == "centered" else "A"
    return (
        f"{which} takes E[x²] − E[x]², which cancels where the mean is large, the other side (x − mean)².",
        f"take the variance about the mean in {which}.",
    )
