# SPDX-License-Identifier: MIT
"""This file tells a norm that was merged into another layer from one that is missing.

What it checks
    Batch norms without a partner, where the other model's names speak of norms that were folded.

Why it matters
    A folded norm is computed, as part of a convolution's weights: nothing is missing, and nothing can be compared.

Example
    The same network has 3 batch norms as a SavedModel and none as TFLite; the outputs agree.

What to do
    Nothing. To compare norm by norm, export without folding.
"""

from __future__ import annotations

from collections.abc import Iterator

from layernorm.comparing.compared import Compared, Side
from layernorm.models.norm_record import Finding, NormRecord


def can_be_folded(record: NormRecord, other: Side) -> bool:
    """Tell whether the other model has merged such a norm into a layer."""
    if record.spec.statistics != "stored":
        return record.form == "folded"
    return any(finding.code == "folded" for finding in other.found.risks) or record.form == "folded"


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each norm that the other side has merged into a layer."""
    pairing = compared.pairing
    for record in pairing.left_a:
        if can_be_folded(record, compared.b):
            yield Finding("folded", "info", record.name, "B has merged it into another layer.", None, {}, None)
    for record in pairing.left_b:
        if can_be_folded(record, compared.a):
            yield Finding("folded", "info", None, "A has merged it into another layer.", None, {}, record.name)
