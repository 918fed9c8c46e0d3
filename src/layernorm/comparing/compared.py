# SPDX-License-Identifier: MIT
"""This file holds what every check looks at: two models, their pairs, what each difference does, what is left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from layernorm.comparing.effect import Effect
from layernorm.comparing.pairing import Pair, Pairing, paired
from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import Finding, Found
from layernorm.spec.norm_spec import UNKNOWN


@dataclass(frozen=True)
class Side:
    """One of the two models and what was found in it."""

    model: ModelFile
    found: Found


@dataclass(frozen=True)
class Compared:
    """Two models side by side."""

    a: Side
    b: Side
    names: Mapping[str, str] | None = None
    """The user's own pairs."""

    @cached_property
    def pairing(self) -> Pairing:
        """Which norm of A is which of B."""
        return paired(self.a.found.norms, self.b.found.norms, self.names)

    @cached_property
    def effects(self) -> list[Effect]:
        """What the differences of each pair do."""
        return [Effect(pair) for pair in self.pairing.pairs]

    def each(self) -> Iterator[tuple[Pair, Effect]]:
        """Give every pair with its effect."""
        return zip(self.pairing.pairs, self.effects, strict=True)


def known(pair: Pair, field: str) -> bool:
    """Tell whether both sides say a field of the spec; what one does not say is no difference."""
    return UNKNOWN not in (getattr(pair.a.spec, field), getattr(pair.b.spec, field))


def differ(pair: Pair, *fields: str) -> bool:
    """Tell whether both sides say a field, and not the same."""
    return any(known(pair, f) and getattr(pair.a.spec, f) != getattr(pair.b.spec, f) for f in fields)


def finding(
    code: str, pair: Pair, effect: Effect, change: float, sentence: str, remedy: str | None, **numbers: Any
) -> Finding:
    """Write a difference of one pair down, its severity by what it changes."""
    return Finding(
        code, effect.severity(change), pair.a.name, sentence, remedy, {**numbers, "change": change}, pair.b.name
    )
