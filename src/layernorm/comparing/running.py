# SPDX-License-Identifier: MIT
"""This file runs both sides of a comparison on the same inputs, or replays the one that cannot be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from layernorm.comparing.compared import Compared, Side
from layernorm.comparing.divergence import NOT_RUN, Outcome, Tap, outcomes, replayed
from layernorm.spec.errors import ArgumentError, LayerNormError

Which = Literal["a", "b"]


@dataclass(frozen=True)
class Ran:
    """What running showed of each pair, why a side did not run, None if it did, and what passed through its norms."""

    outcomes: list[Outcome]
    why_not: Mapping[Which, str | None]
    taps: Mapping[Which, Mapping[str, Tap]] = field(default_factory=dict)


def ran_both(compared: Compared, inputs: Mapping[str, NDArray[Any]] | None) -> Ran:
    """Run what can be run: both sides, else one on whose taps the other is replayed."""
    from layernorm.runtimes import can_run

    pairs = compared.pairing.pairs
    sides: dict[Which, Side] = {"a": compared.a, "b": compared.b}
    why: dict[Which, str | None] = {which: can_run(side.model) for which, side in sides.items()}
    taps: dict[Which, dict[str, Tap]] = {}
    for which, side in sides.items():
        if why[which] is not None or not pairs:
            continue
        try:
            taps[which] = _tapped(side, sides["a"] if why["a"] is None else side, inputs)
        except LayerNormError as error:
            if inputs is not None and isinstance(error, ArgumentError):
                raise
            why[which] = str(error)
    if not pairs:
        return Ran([], {which: reason or "there are no pairs" for which, reason in why.items()})
    if len(taps) == 2:
        return Ran(outcomes(pairs, taps["a"], taps["b"]), why, taps)
    for which, held in taps.items():
        return Ran(replayed(pairs, held, which), why, taps)
    return Ran([NOT_RUN] * len(pairs), why)


def _tapped(side: Side, signature: Side, inputs: Mapping[str, NDArray[Any]] | None) -> dict[str, Tap]:
    from layernorm.runtimes import inputs_for, seeded_inputs, taps_of

    given = inputs if inputs is not None else seeded_inputs(signature.model)
    return taps_of(side.model, side.found.norms, inputs_for(side.model, given))
