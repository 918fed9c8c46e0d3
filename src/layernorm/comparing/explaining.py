# SPDX-License-Identifier: MIT
"""This file explains a norm that does not do what its file says: it tries what else it may be on what it took and gave.

That is the case of a fault in a runtime, a compiler or a chip, which no file shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from layernorm.comparing.compared import Compared, Side
from layernorm.comparing.divergence import Outcome, Tap
from layernorm.comparing.effect import MINOR
from layernorm.comparing.hypotheses import Tried, alternatives, tried
from layernorm.comparing.pairing import Pair
from layernorm.comparing.running import Which
from layernorm.comparing.telling import told_apart
from layernorm.models.norm_record import Finding, NormRecord
from layernorm.spec.dtypes import DTYPES

# How many norms of the same width to either side may have lent their epsilon or parameters.
NEIGHBOURS = 4


def explained(
    compared: Compared, outcomes: Sequence[Outcome], taps: Mapping[Which, Mapping[str, Tap]]
) -> Iterator[Finding]:
    """Yield a finding for each pair of which one side's output is not what its own file says.

    Args:
        compared: the two models.
        outcomes: what the runs showed, pair by pair.
        taps: by side, `a` or `b`, those of its norms by name.
    """
    for pair, outcome in zip(compared.pairing.pairs, outcomes, strict=True):
        if outcome.status not in ("introduces", "differs"):
            continue
        both: tuple[tuple[Which, NormRecord, NormRecord, Side], ...] = (
            ("b", pair.b, pair.a, compared.b), ("a", pair.a, pair.b, compared.a)
        )  # fmt: skip
        for which, record, partner, side in both:
            tap = taps.get(which, {}).get(record.name)
            if tap is None or tap.input.shape != tap.output.shape or tap.output.dtype.name not in DTYPES:
                continue
            finding = _explanation(which.upper(), pair, record, partner, side, tap, outcome)
            if finding is not None:
                yield finding
                break


def _explanation(
    which: str, pair: Pair, record: NormRecord, partner: NormRecord, side: Side, tap: Tap, outcome: Outcome
) -> Finding | None:
    """Say what a norm does instead of what its file says; None if it does that, or nothing that is known here."""
    supposed = alternatives(record, partner, _neighbours(record, side))
    own, *_ = supposed
    found = tried(tap.input, tap.output, supposed)
    as_said = next((t.residual for t in found if t.hypothesis is own), math.inf)
    fitting = [t for t in found if t.fits and t.hypothesis is not own]
    if as_said <= 1 or not fitting:
        return None
    first, *rivals = fitting
    change = outcome.error if outcome.error is not None else math.inf
    return Finding(
        first.hypothesis.code or "parameter-value", "minor" if change < MINOR else "major", pair.a.name,
        _sentence(which, first, rivals, as_said, len(found), tap),
        f"see how {which} computes {record.where or record.name}: its file is not at fault.",
        {"residual": first.residual, "as the file says": as_said, "tried": len(found), "change": change}, pair.b.name,
    )  # fmt: skip


def _sentence(which: str, first: Tried, rivals: Sequence[Tried], as_said: float, count: int, tap: Tap) -> str:
    said = (
        f"{which}'s numbers are those of {first.hypothesis.words} ({first.residual:.2g} of the error allowed; "
        f"{as_said:.2g} if it did what its file says; {count} things tried)"
    )
    if not rivals:
        return f"{said}."
    words = ", or ".join(t.hypothesis.words for t in rivals[:3])
    more = f", or {len(rivals) - 3} others" if len(rivals) > 3 else ""
    shape, kind = tap.input.shape, tap.output.dtype.name
    telling, _ = told_apart(first.hypothesis, [t.hypothesis for t in rivals], shape, kind)
    return f"{said}, or of {words}{more}" + (f"; {telling}." if telling else ".")


def _neighbours(record: NormRecord, side: Side) -> list[NormRecord]:
    """Give the norms nearest to one that have its width."""
    norms = side.found.norms
    at = next((i for i, norm in enumerate(norms) if norm.name == record.name), 0)
    near = norms[max(0, at - NEIGHBOURS) : at] + norms[at + 1 : at + 1 + NEIGHBOURS]
    size = None if record.scale is None else record.scale.size
    return [norm for norm in near if (None if norm.scale is None else norm.scale.size) == size]
