# SPDX-License-Identifier: MIT
"""This file checks that both norms take, or do not take, the mean off, and divide by the same measure.

A layer norm is an RMS norm on the other side, or an L2 norm, or the reverse.

What it checks
    Whether the numerator is x − mean or x, and whether the denominator is the deviation, the root mean square or the
    length of a row.

Why it matters
    The two differ by the mean of each row. On rows whose mean is near zero, which random test data has, they nearly
    agree.

Example
    Of (1, 2, 3, 4) a layer norm makes (−1.34, −0.45, 0.45, 1.34), an RMS norm (0.37, 0.73, 1.10, 1.46).

What to do
    Replace the one on the wrong side; `layernorm inspect` says how each framework spells it.
"""

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, differ, finding
from layernorm.models.norm_record import Finding, NormRecord


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of different kinds."""
    for pair, effect in compared.each():
        if not differ(pair, "centered", "spread"):
            continue
        yield finding(
            "kind", pair, effect, effect.of("centered", "spread"),
            f"A's is {_said(pair.a)}, B's {_said(pair.b)}.", remedy(pair.a), a=pair.a.spec.kind, b=pair.b.spec.kind,
        )  # fmt: skip


def remedy(record: NormRecord) -> str:
    """Say how PyTorch spells a norm, or what it computes where PyTorch has none."""
    spelled = record.spec.spelling()["pytorch"] if not record.spec.unknown() else "cannot:"
    how = record.spec.formula() if spelled.startswith("cannot:") else spelled
    return f"make it what A has: {how}"


def _said(record: NormRecord) -> str:
    names = {"layer": "a layer norm", "rms": "an RMS norm", "l2": "an L2 norm", "instance": "an instance norm"}
    kind = record.spec.kind
    return names.get(kind, record.spec.formula() if kind == "other" else f"a {kind} norm")
