# SPDX-License-Identifier: MIT
"""This file says in a terminal whether two models agree, and where they do not, why: the first culprit first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from layernorm.models.norm_record import Finding
from layernorm.report.comparison import COUNTS, Comparison
from layernorm.report.norm_table import NARROWEST, paragraph
from layernorm.report.text import number

SAID = {
    "same": "the norms are the same",
    "differs": "the norms differ",
    "inconclusive": "it could not be told whether the norms are the same",
}
FIELDS = {
    "axes": "the axes", "centered": "whether the mean is taken off", "spread": "what is divided by",
    "eps": "epsilon", "scale_offset": "whether gamma is 1 + w",
}  # fmt: skip


def compare_text(comparison: Comparison, width: int = 80) -> str:
    """Write what was found, in lines of at most `width` characters."""
    width = max(width, NARROWEST)
    a, b = comparison.paths
    lines = paragraph(f"A: {a}", width, 0) + paragraph(f"B: {b}", width, 0)
    lines += ["", *paragraph(f"Verdict: {comparison.verdict}; {SAID[comparison.verdict]}.", width, 0)]
    if comparison.headline:
        lines += ["", *_first(comparison, width)]
    lines += ["", *_pairs(comparison, width)]
    rest = [f for f in comparison.findings if f.code not in ("unpaired", "folded")]
    counting = [f for f in comparison.findings if f.severity in COUNTS]
    rest = [f for f in rest if not counting or f is not counting[0]]
    if rest:
        lines += ["", "Also" if counting else "To know", *_grouped(rest, width)]
    left = [f for f in comparison.findings if f.code in ("unpaired", "folded") and f not in counting[:1]]
    if left:
        lines += ["", "Without a partner", *_grouped(left, width)]
    codes = dict.fromkeys(f.code for f in comparison.findings)
    if codes:
        lines += [
            "",
            *paragraph(f"what they mean: {', '.join(f'layernorm explain {code}' for code in codes)}", width, 0),
        ]
    return "\n".join(lines)


def _first(comparison: Comparison, width: int) -> list[str]:
    """Say what comes first, with the number that proves it and what to do."""
    lines = paragraph(f"First: {comparison.headline}", width, 0)
    counting = [f for f in comparison.findings if f.severity in COUNTS]
    if not counting:
        return lines
    first = counting[0]
    proof = _change(first)
    if proof:
        lines += paragraph(proof, width, 2)
    if first.remedy:
        lines += paragraph(f"To do: {first.remedy}", width, 2)
    return lines


def _change(finding: Finding) -> str:
    change = finding.numbers.get("change")
    if not isinstance(change, float):
        return ""
    return f"It changes the output by up to {number(change)} of its root mean square on probes ({finding.severity})."


def _pairs(comparison: Comparison, width: int) -> list[str]:
    pairs, ran = comparison.pairs, comparison.ran
    rules = Counter(pair.rule for pair in pairs)
    statuses = Counter(comparison.status(at) for at in range(len(pairs)))
    said = ", ".join(f"{count} by {rule}" for rule, count in rules.items())
    lines = paragraph(f"{len(pairs) or 'No'} pair{'s' * (len(pairs) != 1)}{f': {said}' if said else ''}.", width, 0)
    if pairs:
        lines += paragraph(", ".join(f"{count} {status}" for status, count in statuses.items()) + ".", width, 2)
    if len(pairs) > 1 and rules.keys() == {"order"}:
        lines += paragraph("Only their order and widths speak for these pairs; --map F.json names others.", width, 2)
    for which, why in ran.why_not.items():
        if why is not None:
            lines += paragraph(f"{which.upper()} was not run: {why.rstrip('.')}.", width, 2)
    for name, norms in comparison.open.items():
        lines += paragraph(
            f"{FIELDS[name]} of {len(norms)} norms is not said by one side, so it was not compared.", width, 2
        )
    return lines


def _grouped(findings: Iterable[Finding], width: int) -> list[str]:
    """Say each finding once, with the first norm that has it and how many more do."""
    held: dict[tuple[str, str, str, str | None], list[Finding]] = {}
    for finding in findings:
        held.setdefault((finding.code, finding.severity, finding.sentence, finding.remedy), []).append(finding)
    lines: list[str] = []
    for (code, severity, sentence, remedy), same in held.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        whole = f"{severity} {code}: {same[0].a or same[0].b}{more}: {sentence}"
        lines += paragraph(whole if remedy is None else f"{whole} To do: {remedy}", width)
    return lines
