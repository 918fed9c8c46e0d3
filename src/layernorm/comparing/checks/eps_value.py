# SPDX-License-Identifier: MIT
"""This file checks that both norms add the same epsilon.

What it checks
    The two epsilons, after rounding to the narrower of the types in which they are kept; of stored statistics,
    variance + epsilon, for a converter may have made up for the difference in the variance.

Why it matters
    Where a row varies little, epsilon decides its output. It is a tenth of the reported conversion faults, and tests on
    random data do not see it.

Example
    A row of root mean square 0.01 is multiplied by 99.50 with 1e-6, by 95.35 with 1e-5.

What to do
    Set B's epsilon to A's; read it from the model's own configuration, not from a class's default.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.epsilon import acting, alike, compensated, same_place
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair with another epsilon."""
    for pair, effect in compared.each():
        a, b = acting(pair.a), acting(pair.b)
        if not a or not b or alike(pair, a, b) or not same_place(pair) or compensated(pair):
            continue
        yield finding(
            "eps-value", pair, effect, effect.of("eps"),
            f"A's epsilon is {pair.a.spec.eps:g}, B's {pair.b.spec.eps:g}.",
            f"set the epsilon of {pair.b.where or pair.b.name} to {pair.a.spec.eps:g}.", a=a, b=b,
        )  # fmt: skip
