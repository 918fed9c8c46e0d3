# SPDX-License-Identifier: MIT
"""This file holds what every check looks at: two models, their pairs, what each difference does, what is left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from layernorm.comparing.effect import Effect
from layernorm.comparing.holders import Holders
from layernorm.comparing.pairing import Pair, Pairing, paired
from layernorm.comparing.parameters import beta_of, gamma_of
from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import Finding, Found, NormRecord
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
    _gammas: dict[object, Holders] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def pairing(self) -> Pairing:
        """Which norm of A is which of B."""
        return paired(self.a.found.norms, self.b.found.norms, self.names)

    @cached_property
    def effects(self) -> list[Effect]:
        """What the differences of each pair do."""
        return [Effect(pair) for pair in self.pairing.pairs]

    def gammas(self, partner: NormRecord) -> Holders:
        """Which norms of A hold a gamma; where A leaves the offset open, as this norm of B has it."""
        offset = partner.spec.scale_offset
        if offset not in self._gammas:
            self._gammas[offset] = Holders(self.a.found.norms, lambda record: gamma_of(record, partner))
        return self._gammas[offset]

    @cached_property
    def betas(self) -> Holders:
        """Which norms of A hold a beta."""
        return Holders(self.a.found.norms, beta_of)

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
