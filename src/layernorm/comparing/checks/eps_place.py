# SPDX-License-Identifier: MIT
"""This file checks that both norms add epsilon in the same place.

What it checks
    Whether epsilon is added to the variance, under the root, to the root, to the sum of squares, or is a lower bound.

Why it matters
    1e-5 under the root keeps the denominator above 3e-3, beside the root above 1e-5.

Example
    Of a variance of 0.01 and an epsilon of 1e-3, √(0.01 + 1e-3) is 0.10488 and √0.01 + 1e-3 is 0.10100: 3.8 % apart.

What to do
    Move epsilon, or give the other side the epsilon that comes nearest on your data.
"""

from collections.abc import Iterator
from dataclasses import replace

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.comparing.effect import Effect
from layernorm.comparing.epsilon import acting
from layernorm.models.norm_record import Finding
from layernorm.spec.errors import SpecError

PLACES = {
    "variance": "to the variance", "deviation": "to the deviation", "sum": "to the sum of squares",
    "variance_floor": "as the least variance", "deviation_floor": "as the least deviation",
}  # fmt: skip


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair that adds epsilon in another place."""
    for pair, effect in compared.each():
        a, b = pair.a.spec, pair.b.spec
        if not differ(pair, "eps_at") or not acting(pair.a) or not acting(pair.b) or _same(effect):
            continue
        yield finding(
            "eps-place", pair, effect, effect.of("eps", "eps_at"),
            f"A adds epsilon {a.eps:g} {PLACES[str(a.eps_at)]}, B {b.eps:g} {PLACES[str(b.eps_at)]}.",
            f"add it {PLACES[str(a.eps_at)]}.", a=a.eps_at, b=b.eps_at,
        )  # fmt: skip


def _same(effect: Effect) -> bool:
    """Tell whether an epsilon in the sum is the other's in the variance, n times as large."""
    a, b = effect.a.spec, effect.b.spec  # in which what one side does not say is filled in
    try:
        return a.same_as(replace(a, eps=b.eps, eps_at=b.eps_at), effect.shape)
    except SpecError:
        return False
