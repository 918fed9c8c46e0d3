# SPDX-License-Identifier: MIT
"""This file checks that both norms take their statistics from the same place.

One side uses the input's own statistics, the other stored ones.

What it checks
    Whether mean and variance are of the input, stored, or stored ones updated by the input.

Why it matters
    A batch norm with the statistics of its batch depends on what else is in the batch; an instance norm exported with
    the input's own gives other numbers than one with the running ones.

Example
    A fresh instance norm that tracks statistics returns x / √(1 + 1e-5) in evaluation; exported, it standardizes each
    row.

What to do
    Export the model after model.eval(), or set training_mode to 0 and give the stored statistics.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side keeps statistics and the other does not."""
    said = {"input": "the input's own", "stored": "stored", "updated": "stored ones, updated by the input"}
    for pair, effect in compared.each():
        if differ(pair, "statistics"):
            a, b = pair.a.spec.statistics, pair.b.spec.statistics
            yield finding(
                "statistics", pair, effect, effect.of(), f"A's statistics are {said[str(a)]}, B's {said[str(b)]}.",
                "export after model.eval(), or set training_mode to 0.", a=a, b=b,
            )  # fmt: skip
