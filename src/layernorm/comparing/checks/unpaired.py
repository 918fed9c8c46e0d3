# SPDX-License-Identifier: MIT
"""This file lists norms that only one of the models has.

What it checks
    What is left when every rule of pairing has been tried, and was not folded.

Why it matters
    A model without its last norm, or without those of queries and keys, runs and is worse.

Example
    OPT models end with a norm, all but one; a port left it out everywhere.

What to do
    See whether the other side has it under another name, and give the pair with --map; else add the norm.
"""

from __future__ import annotations

from collections.abc import Iterator

from layernorm.comparing.checks.folded import can_be_folded
from layernorm.comparing.compared import Compared, Side
from layernorm.models.norm_record import Finding, NormRecord, Severity


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each norm without a partner."""
    pairing = compared.pairing
    for left, other, which, there in (
        (pairing.left_a, compared.b, "A", "B"), (pairing.left_b, compared.a, "B", "A")
    ):  # fmt: skip
        for record in left:
            if can_be_folded(record, other):
                continue
            name = (record.name, None) if which == "A" else (None, record.name)
            hidden, doubt = _cannot_show(record, other), unidentified(record, other)
            why = f"; {there}'s file names tensors only and cannot show a norm without any" if hidden else ""
            remedy = f"add it to {there}, or name its partner with --map."
            if doubt is not None:
                why = f"; {there} has {doubt}, of which its file does not say what they are"
                remedy = f"pass an export of {there}, or in Python its torch.nn.Module, which say what each layer is."
            severity: Severity = "info" if hidden or doubt is not None else "major"
            sentence = f"only {which} has it: {record.spec.formula()}{why}."
            yield Finding("unpaired", severity, name[0], sentence, remedy, {}, name[1])


def unidentified(record: NormRecord, other: Side) -> str | None:
    """Name the tensors of a norm's name that the other side holds, and that may be a norm or not."""
    for item in other.found.unidentified:
        if any(place.startswith(f"{record.name}.") for place in item.where.split(", ")):
            return item.where
    return None


def _cannot_show(record: NormRecord, other: Side) -> bool:
    """Tell whether the other file, having neither graph nor layers, could not show a norm without parameters."""
    return record.scale is None and record.shift is None and other.model.graph is None and not other.model.layers
