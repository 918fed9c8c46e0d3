# SPDX-License-Identifier: MIT
"""This file checks that both variances divide by the same number.

What it checks
    Whether the variance divides by n, or by n − 1.

Why it matters
    torch.std divides by n − 1 unless told otherwise, layers divide by n: every output is off by √((n − 1) / n).

Example
    0.866 with 4 features, 0.999 with 512.

What to do
    Pass unbiased=False (PyTorch's std and var) or ddof=0 (NumPy, where it is so anyway).
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.models.norm_record import Finding


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of a population and a sample variance."""
    said = {0: "n", 1: "n − 1"}
    for pair, effect in compared.each():
        if pair.a.spec.spread == pair.b.spec.spread == "std" and differ(pair, "ddof"):
            a, b = pair.a.spec.ddof, pair.b.spec.ddof
            yield finding(
                "ddof", pair, effect, effect.of("ddof"), f"A's variance divides by {said[a]}, B's by {said[b]}.",  # type: ignore[index]
                f"divide by {said[a]}: unbiased={bool(a)} in PyTorch.", a=a, b=b,  # type: ignore[index]
            )  # fmt: skip
