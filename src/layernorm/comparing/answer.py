# SPDX-License-Identifier: MIT
"""This file answers which norm turns one array into another: the simplest, those like it, and what would tell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from layernorm.comparing.bound import storage_of
from layernorm.comparing.fitting import Free
from layernorm.comparing.hypothesis import Hypothesis
from layernorm.comparing.search import Candidate, Said, search
from layernorm.comparing.sharing import Carried, carriers, sharings
from layernorm.comparing.telling import told_apart
from layernorm.ops.arrays import array_of
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]

# Of so many rivals the sentence on what would tell is made; they are picked to differ in every field that any does.
RIVALS = 24
# Of so many axes every choice is tried: 63 of six. Ten would take a minute and sixteen an hour.
MOST_AXES = 6
SCALED = "an input a hundred times as large would tell: only what is no norm gives a hundred times as much"


@dataclass(frozen=True)
class Answer:
    """Which norm turns x into y.

    Args:
        spec: the simplest one that fits; None if none of the listed kinds does.
        residual: its largest error in units of the bound of docs/numerics.md; at most 1.
        gamma, beta: what was given or solved for, along the axes that the spec says.
        equivalent: the other specs that fit.
        would_tell: an input that would tell them from the first.
        others: the nearest of those that do not fit, with their residuals.
        kind: the type of y's numbers, which may be narrower than that of its array.
        notes: what these arrays cannot tell, and why.
        unchanged: whether y is x itself.
    """

    spec: NormSpec | None
    residual: float | None
    gamma: Array | None
    beta: Array | None
    equivalent: Sequence[NormSpec]
    would_tell: str | None
    others: Sequence[tuple[NormSpec, float]]
    kind: str
    notes: Sequence[str]
    unchanged: bool = False


def answer(x: ArrayLike, y: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None) -> Answer:
    """Find the norm that turns x into y; gamma and beta are solved for where they are not given.

    Raises:
        ArgumentError: the arrays differ in shape, are empty, not finite, or constant.
        ArrayTypeError: one is not an array of real numbers.
    """
    x, y = array_of(x, "x"), array_of(y, "y")
    known = [None if value is None else array_of(value, name) for name, value in (("gamma", gamma), ("beta", beta))]
    _check(x, y)
    x = x.astype(np.dtype(storage_of(x)))
    for name, value in zip(("gamma", "beta"), known, strict=True):
        if value is not None and not (value.size and np.isfinite(value.astype(np.float64)).all()):
            raise ArgumentError(f"{name} of shape {value.shape} is empty or holds NaN or infinity; pass what the "
                                "layer has.", name)  # fmt: skip
    found = search(x, y, *known)
    chosen = found.fits[0].candidate if found.fits else None
    if found.unchanged:
        return Answer(None, None, None, None, (), SCALED, (), found.kind, (), unchanged=True)
    notes = _notes(x.shape, chosen, *known)
    others = [(c.spec(x.ndim), c.told.residual) for c in found.others]
    if chosen is None:
        return Answer(None, None, None, None, (), None, others, found.kind, notes)
    first, *rest = (_hypothesis(said, x.shape, *known) for said in found.fits)
    rivals = _picked(first, rest)
    sentence, left = told_apart(first, rivals, x.shape, found.kind) if rest else (None, [])
    if left:
        sentence = "; ".join(s for s in (sentence, _beyond(left, chosen)) if s)
    if sentence and len(rivals) < len(rest):
        sentence = f"of {len(rivals)} that stand for all {len(rest)} others: {sentence}"
    return Answer(
        first.spec, chosen.told.residual, first.gamma, first.beta, [h.spec for h in rest], sentence, others,
        found.kind, notes,
    )  # fmt: skip


def _check(x: Array, y: Array) -> None:
    if x.shape != y.shape:
        raise ArgumentError(f"x has shape {x.shape} but y has {y.shape}; pass a norm's input and its output.", "y")
    if not x.size:
        raise ArgumentError(f"x has shape {x.shape}, which holds no values; pass a norm's input.", "x")
    for name, values in (("x", x), ("y", y)):
        bad = int(np.sum(~np.isfinite(values.astype(np.float64))))
        if bad:
            raise ArgumentError(
                f"{bad} of {name}'s {values.size} values are NaN or infinite; leave out the rows that have them.", name,
            )  # fmt: skip
    long = [a for a, n in enumerate(x.shape) if n > 1]
    if not long:
        raise ArgumentError(f"x has shape {x.shape}, so there is nothing to average over; pass whole rows.", "x")
    if len(long) > MOST_AXES:
        raise ArgumentError(
            f"x has shape {x.shape}, {len(long)} axes of more than one value, and norms over at most {MOST_AXES} are "
            "looked for; join neighbouring axes with reshape.", "x",
        )  # fmt: skip
    wide = x.astype(np.float64)
    if not np.ptp(wide, axis=long[-1]).any():
        raise ArgumentError(
            "every row of x holds one value over and over, and no norm can be told from such rows; pass an input "
            "that varies.", "x",
        )  # fmt: skip
    if not np.ptp(y.astype(np.float64)):
        raise ArgumentError(
            f"y holds the one value {float(y.reshape(-1)[0]):g}, which every norm with gamma 0 gives; pass an output "
            "that varies.", "y",
        )  # fmt: skip


def _hypothesis(said: Said, shape: tuple[int, ...], gamma: Array | None, beta: Array | None) -> Hypothesis:
    roles, told = said.candidate.roles, said.candidate.told

    def natural(carried: Carried | None, role: object, solved: Array, known: Array | None) -> Array | None:
        if carried is None:
            return None
        if not isinstance(role, Free):
            return known
        if carried == "group":
            return solved.reshape(-1)
        return solved.reshape([shape[a] for a in carried])

    return Hypothesis(
        "", "", said.spec, natural(roles.scale, roles.gamma, told.gamma, gamma),
        natural(roles.shift, roles.beta, told.beta, beta),
    )  # fmt: skip


def _picked(first: Hypothesis, rest: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Pick, for every set of fields in which a rival differs, the one whose epsilon is nearest and the one farthest."""
    groups: dict[object, list[Hypothesis]] = {}
    for h in rest:
        changed = {f: getattr(h.spec, f) for f in _fields(first.spec, h.spec) if f != "eps"}
        groups.setdefault(tuple(changed.items()), []).append(h)

    def far(h: Hypothesis) -> float:
        a, b = (float(s.eps) if isinstance(s.eps, float) and s.eps > 0 else 1e-30 for s in (first.spec, h.spec))
        return abs(math.log(a / b))

    picked: list[Hypothesis] = []
    for group in sorted(groups.values(), key=lambda g: len(_fields(first.spec, g[0].spec))):
        group.sort(key=far)
        picked += [group[0]] if len(group) == 1 else [group[0], group[-1]]
    return picked[:RIVALS]


def _fields(a: NormSpec, b: NormSpec) -> list[str]:
    names = (f.name for f in dataclasses.fields(NormSpec) if f.name != "assumed")
    return [n for n in names if getattr(a, n) != getattr(b, n)]


def _beyond(left: Sequence[Hypothesis], chosen: Candidate) -> str:
    """Say what would tell those that no input of this shape and these parameters tells."""
    count = len(left)
    said = f"{count} compute{'s' * (count == 1)} the same on any such input"
    if isinstance(chosen.roles.gamma, Free) or isinstance(chosen.roles.beta, Free):
        return f"{said}: the layer's own gamma and beta would tell"
    return f"{said}: an input of another width, or a narrower type, would tell"


def _notes(shape: tuple[int, ...], chosen: Candidate | None, gamma: Array | None, beta: Array | None) -> list[str]:
    """Say what these arrays cannot tell whatever the norm is."""
    notes = []
    last = next(s for s in sharings(shape))
    unknowns = (gamma is None) + (beta is None)
    if unknowns and not any(c == last.axes for c in carriers(last, shape, unknowns)):
        rows = math.prod(n for a, n in enumerate(shape) if a not in last.axes)
        names = " and ".join(n for n, v in (("gamma", gamma), ("beta", beta)) if v is None)
        notes.append(
            f"{names} along axes {last.axes} cannot {'both ' * (unknowns > 1)}be solved for: each value is seen in "
            f"{rows} row{'s' * (rows != 1)}, and {unknowns + 1} are needed. Norms with fewer of them were tried."
        )
    if chosen is not None and isinstance(chosen.roles.gamma, Free):
        layout = chosen.sharing.layout(shape)
        if {a for a in layout.kept if layout.split[a] > 1} <= set(chosen.roles.gamma.axes):
            notes.append(
                "each gamma belongs to one set of statistics alone, so it takes up whatever epsilon, divisor and "
                "spread are: they cannot be told without gamma."
            )
    return notes
