# SPDX-License-Identifier: MIT
"""This file says in a terminal what was found."""

import math
import shlex
from collections.abc import Iterable, Sequence

from layernorm.conformance.conform import Report
from layernorm.conformance.grade import Grade
from layernorm.spec.norm_spec import NormSpec

HEAD = ("property", "verdict", "worst", "ulp", "at")
WRONG = ("fails", "error")
MOST_NAMES = 4
CALL = "  how it is called:  function(x, gamma, beta), all NumPy arrays; gamma and beta may be None"


def conform_text(report: Report, command: str = "layernorm conform TARGET") -> str:
    """Write a report as a table: a property, its verdict, its worst error in what is allowed and in ulp, where.

    The command is what was typed, without --only and --case; what failed is told with the line that runs it again.

    >>> from layernorm.conformance.known import known
    >>> from layernorm.conformance.grade import Grade
    >>> print(conform_text(Report(known("numpy"), (Grade("offset", "holds", 0.5, 2.0, "a case", 7),))).splitlines()[2])
    property  verdict  worst  ulp  at
    """
    target, said = report.target, NormSpec.from_json(report.to_json()["spec"])
    rows = [HEAD, *((g.property, g.verdict, number(g.worst), number(g.ulp), g.at or "-") for g in report.grades)]
    lines = [f"{target.name} {target.version or ''}".strip(), f"  {said.formula()}", *columns(rows, "llrrl")]
    notes = {
        "What went wrong:": [g for g in report.grades if g.verdict in WRONG and g.why],
        "Notes:": [g for g in report.grades if g.verdict == "holds" and g.why],
        "Not applicable:": [g for g in report.grades if g.verdict == "not-applicable" and g.why],
    }
    for title, grades in notes.items():
        lines += ["", title, *_reasons(grades)] if grades else []
    return "\n".join([*lines, "", *_summary(report, command)])


def columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Align rows of cells, each column to the left (l) or the right (r).

    >>> columns([("a", "1"), ("bcd", "10")], "lr")
    ['a     1', 'bcd  10']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(sides))]
    pads = [str.ljust if side == "l" else str.rjust for side in sides]
    return ["  ".join(pad(c, w) for pad, c, w in zip(pads, row, widths, strict=True)).rstrip() for row in rows]


def number(value: float | None) -> str:
    """Write an error in two or three digits, `-` if there is none.

    >>> number(0.31234), number(10662.4), number(float("inf")), number(None)
    ('0.31', '1.1e+04', 'inf', '-')
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "inf"
    return "0" if value == 0 else f"{value:.3g}" if 10 <= value < 1000 else f"{value:.2g}"


def _reasons(grades: Iterable[Grade]) -> list[str]:
    """Say each reason once, with the properties that it is the reason of."""
    held: dict[str, list[str]] = {}
    for grade in grades:
        held.setdefault(grade.why or "", []).append(grade.property)
    few = {why: names if len(names) <= MOST_NAMES else [f"{names[0]} and {len(names) - 1} more"]
           for why, names in held.items()}  # fmt: skip
    return [f"  {', '.join(names)}: {why}" for why, names in few.items()]


def _summary(report: Report, command: str) -> list[str]:
    wrong = [g for g in report.grades if g.verdict in WRONG]
    graded = sum(g.verdict != "not-applicable" for g in report.grades)
    unit = "worst is in units of the allowed error, so at most 1 holds; ulp is the largest error in ulp of its element"
    if not graded:
        return ["None of these properties applies."]
    if not wrong:
        return [f"{'All of ' if graded > 1 else ''}{graded} propert{'ies hold' if graded > 1 else 'y holds'}; {unit}."]
    first = wrong[0]
    again = f"{command} --only {first.property} --case {shlex.quote(first.at or '')}"
    return [
        f"{len(wrong)} of {graded} properties fail{'s' * (len(wrong) == 1)}; {unit}.",
        f"  what it means:  layernorm explain {first.property}",
        f"  to see it again:  {again}",
        *([CALL] if len(wrong) > 1 and all(g.verdict == "error" for g in wrong) else []),
    ]
