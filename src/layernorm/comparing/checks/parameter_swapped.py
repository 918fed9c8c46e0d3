# SPDX-License-Identifier: MIT
"""This file checks that a norm does not hold another norm's parameters.

What it checks
    Where gamma or beta differs: whether B's is that of another norm of A, or whether gamma and beta were exchanged.

Why it matters
    Two norms of a block have the same shape, so a wrong mapping of names loads without a word.

Example
    A loader read layer_000/rms_norm/scale twice: the norm before the feed-forward part had that of attention.

What to do
    Mend the mapping of names for the norm that is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layernorm.comparing.compared import Compared, finding
from layernorm.comparing.pairing import Pair
from layernorm.comparing.parameters import Parameter, beta_of, both, near, same
from layernorm.models.norm_record import Finding, NormRecord


def check(compared: Compared) -> Iterator[Finding]:
    """Yield a finding for each pair of which B holds what belongs elsewhere."""
    for pair, effect in compared.each():
        for parameter, whose in (("gamma", owner(compared, pair)), ("beta", beta_owner(compared, pair))):
            if whose is None:
                continue
            name, mine = whose
            yield finding(
                "parameter-swapped", pair, effect, effect.of("gamma", "beta", "scale_offset"),
                f"B's {parameter} is {name}.", f"load {mine} there.", a=pair.a.name, b=name,
            )  # fmt: skip
            break


def owner(compared: Compared, pair: Pair) -> tuple[str, str] | None:
    """Say whose gamma B holds, if it is not its own, and what it should hold."""
    held = both(pair)
    if held is None or same(*held) or apart_by_one(*held):
        return None
    _, b = held
    if np.all(b.values == b.values.flat[0]):
        return None  # untrained, or lost
    mine = pair.a.scale.name if pair.a.scale else pair.a.name
    beta = beta_of(pair.a)
    # what modulates a norm is kept as a shift and a scale to which 1 is added
    if beta is not None and (same(beta, b) or near(beta, b.values - 1, b)):
        return "A's beta of the same norm", mine
    return _others(pair, compared.gammas(pair.b).of(b), mine)


def beta_owner(compared: Compared, pair: Pair) -> tuple[str, str] | None:
    """Say whose beta B holds, if it is not its own, and what it should hold."""
    a, b = beta_of(pair.a), beta_of(pair.b)
    if a is None or b is None or same(a, b) or np.all(b.values == b.values.flat[0]):
        return None
    mine = pair.a.shift.name if pair.a.shift else pair.a.name
    return _others(pair, compared.betas.of(b), mine)


def _others(pair: Pair, holders: Iterator[NormRecord], mine: str) -> tuple[str, str] | None:
    other = next((holder for holder in holders if holder is not pair.a), None)
    return None if other is None else (f"that of {other.name} in A", mine)


def apart_by_one(a: Parameter, b: Parameter) -> bool:
    """Tell whether gammas differ by the 1 alone."""
    return near(a, b.values - 1, b) or near(a, b.values + 1, b)
