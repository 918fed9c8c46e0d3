# SPDX-License-Identifier: MIT
"""This file searches for the norms that turn x into y: the sharings first, then the fewest parameters, then rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layernorm.comparing.bound import storage_of
from layernorm.comparing.denominators import MEASURES, PLACES, USUAL, Measure, denominators
from layernorm.comparing.fitting import Fit, Free, Parameter, View, first_weights, project, view_of
from layernorm.comparing.rounding import EXACT, Rounding, roundings
from layernorm.comparing.sharing import Carried, Sharing, carriers, matches, sharings, written
from layernorm.comparing.solving import Explanation, Trial, denominators_of, distinct, explanations, fit_all
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]

# How many values are looked at: to rank all sharings, to solve for epsilon. All of them are looked at in the end.
GLANCE, LOOK = 2048, 8192
# Of the ranked sharings this many are worked out; the right one was among the first 3 in 2 000 draws.
LEADERS = 12
# Where the first comes as near as NEAR, those beyond FAR are only worked out to have some runners-up to tell of.
NEAR, FAR, LEAST = 0.01, 0.3, 4
# Epsilons, in units of the median square, at which sharings are ranked. Between them no gain is off by much.
RANKED = (0.0, 0.1, 1.0, 10.0, 1e3)


@dataclass(frozen=True, eq=False)
class Roles:
    """What gamma and beta are: along which axes, and solved for, known or absent."""

    scale: Carried | None
    gamma: Parameter
    offset: int
    shift: Carried | None
    beta: Parameter


class Candidate(NamedTuple):
    """One norm that may explain the dump."""

    sharing: Sharing
    roles: Roles
    told: Explanation
    rounding: Rounding = EXACT

    def spec(self, ndim: int) -> NormSpec:
        """Write it as a spec."""
        carried = [c for c in (self.roles.scale, self.roles.shift) if c is not None]
        axes, channel = self.sharing.written(ndim, carried)
        scale, shift = (_carried(c, ndim, axes) for c in (self.roles.scale, self.roles.shift))
        measure = self.told.measure
        return replace(
            self.rounding.spec, axes=axes, channel_axis=channel, groups=self.sharing.groups,
            group_order=self.sharing.order, centered=measure.centered, spread=measure.spread, ddof=measure.ddof,
            eps=self.told.eps, eps_at=self.told.place, scale_axes=scale, shift_axes=shift,
            scale_offset=1 if self.roles.offset else 0,
        )  # fmt: skip


class Search(NamedTuple):
    """What was found: those that fit, the simplest first; the best of the others."""

    fits: list[Candidate]
    others: list[Candidate]
    kind: str
    notes: list[str]


def search(x: Array, y: Array, gamma: Array | None, beta: Array | None) -> Search:
    """Find every norm of the listed kinds that turns x into y."""
    kind = storage_of(y)
    known = [_known(name, value, x.shape) for name, value in (("gamma", gamma), ("beta", beta))]
    ranked = _ranked(x, y, kind, *known)
    far = FAR if ranked and ranked[0][0] < NEAR else math.inf
    leaders = [r[1:] for k, r in enumerate(ranked[:LEADERS]) if k < LEAST or r[0] < far]
    fits: list[Candidate] = []
    others: list[Candidate] = []
    looks: dict[Sharing, View] = {}
    able = []
    for sharing, centered, levels in leaders:
        view = looks.setdefault(sharing, view_of(x, y, sharing, kind, LOOK))
        told = _explained(view, sharing, levels[-1], _apart(centered, levels[-1]), others)
        if told:
            able.append((sharing, centered, levels))
    for depth in range(3):
        for sharing, centered, levels in able:
            if depth < len(levels):
                measures = [m for m in MEASURES if m.centered is centered]
                fits += _explained(looks[sharing], sharing, levels[depth], measures)
        fits = _fewest(_on_all(x, y, kind, fits))
        if fits:
            break
    if fits:
        fits += _rounded(looks, fits, x)
    else:
        fits = _only_rounded(x, y, kind, looks, leaders, others)
    fits = _ordered(fits, x.ndim)
    kept = {(c.sharing, c.told.measure.centered) for c in fits}
    rest: dict[object, Candidate] = {}
    for c in sorted(others, key=lambda c: c.told.residual):
        key = (c.sharing, c.told.measure.centered)
        if key not in kept and math.isfinite(c.told.residual):
            rest.setdefault(key, c)
    return Search(fits, list(rest.values())[:5], kind, [])


Levels = list[list[Roles]]


def _ranked(
    x: Array, y: Array, kind: str, gamma: Array | None, beta: Array | None
) -> list[tuple[float, Sharing, bool, Levels]]:
    """Rank sharings, centred or not, by how near a gain that falls with the spread comes to y."""
    found = []
    for place, sharing in enumerate(sharings(x.shape)):
        levels = _levels(sharing, x.shape, gamma, beta)
        view = view_of(x, y, sharing, kind, GLANCE)
        for centered in (True, False):
            scores = [_score(view, centered, roles) for level in levels[-1:] for roles in level]
            if scores:
                found.append((min(scores), place, sharing, centered, levels))
    found.sort(key=lambda f: (f[0], f[1], not f[3]))
    return [(f[0], *f[2:]) for f in found]


def _score(view: View, centered: bool, roles: Roles) -> float:
    numerator = view.deviation if centered else view.x
    gamma, beta = view.part(roles.gamma), view.part(roles.beta)
    if not isinstance(gamma, Free):
        # of a known gamma too the overall factor is left open, for the epsilons here are few
        numerator, gamma = (numerator if gamma is None else numerator * gamma), Free(())
    scores, spread = [math.inf], float(view.y.std()) or 1.0
    for square in (view.variance,) if centered else (view.square, view.variance):
        middle = float(np.median(square)) or 1.0
        below = denominators(square, 1, "variance", [middle * e for e in RANKED])
        with np.errstate(all="ignore"):
            error = project(numerator / below, view.y, first_weights(view, gamma, beta), gamma, beta)[2]
            rough = np.sqrt(np.mean(np.square(error), axis=tuple(range(1, error.ndim))))
        scores.append(float(np.min(np.nan_to_num(rough, nan=np.inf))) / spread)
    return min(scores)


def _levels(sharing: Sharing, shape: tuple[int, ...], gamma: Array | None, beta: Array | None) -> Levels:
    """List what gamma and beta may be, those with the fewest numbers to solve for first."""
    layout = sharing.layout(shape)

    def free(unknowns: int) -> list[tuple[Carried, Parameter]]:
        return [(c, Free(sharing.split_axes(c, layout))) for c in carriers(sharing, shape, unknowns)]

    def given(value: Array, offset: int) -> list[tuple[Carried, Parameter]]:
        return [(c, offset + _spread(value, c, sharing, shape)) for c in matches(value.shape, sharing, shape)]

    if gamma is None and beta is None:
        levels = [
            [Roles(None, None, 0, None, None)],
            [Roles(c, p, 0, None, None) for c, p in free(1)] + [Roles(None, None, 0, c, p) for c, p in free(1)],
            [Roles(c, p, 0, c, p) for c, p in free(2)],
        ]
    elif beta is None and gamma is not None:
        scales = [(c, p, o) for o in (0, 1) for c, p in given(gamma, o)]
        levels = [
            [Roles(c, p, o, None, None) for c, p, o in scales],
            [Roles(c, p, o, s, q) for c, p, o in scales for s, q in free(1)],
        ]
    elif gamma is None and beta is not None:
        shifts = given(beta, 0)
        levels = [
            [Roles(None, None, 0, s, q) for s, q in shifts],
            [Roles(c, p, 0, s, q) for c, p in free(1) for s, q in shifts],
        ]
    else:
        assert gamma is not None and beta is not None
        levels = [
            [Roles(c, p, o, s, q) for o in (0, 1) for c, p in given(gamma, o) for s, q in given(beta, 0)
             if c == s or gamma.shape != beta.shape]
        ]  # fmt: skip
    while len(levels) > 1 and not levels[-1]:
        levels.pop()
    return levels


def _spread(value: Array, carried: Carried, sharing: Sharing, shape: tuple[int, ...]) -> Array:
    """Lay a known parameter out so that it broadcasts to the split array."""
    layout = sharing.layout(shape)
    if value.size == 1:
        return np.full((1,) * len(layout.split), float(value.reshape(-1)[0]))
    on = sharing.split_axes(carried, layout)
    return value.astype(np.float64).reshape([n if a in on else 1 for a, n in enumerate(layout.split)])


def _known(name: str, value: Array | None, shape: tuple[int, ...]) -> Array | None:
    if value is None or any(matches(value.shape, s, shape) for s in sharings(shape)):
        return value
    raise ArgumentError(
        f"{name} has shape {value.shape}, which lies along no axes of x, of shape {shape}; pass one of the length of "
        "an axis or of neighbouring ones.", name,
    )  # fmt: skip


def _fewest(found: list[Candidate]) -> list[Candidate]:
    """Of one sharing keep those that solve for the fewest numbers: a gamma per channel is also one per element."""
    fewest: dict[Sharing, int] = {}
    for c in found:
        fewest[c.sharing] = min(_solved_for(c), fewest.get(c.sharing, _solved_for(c)))
    return [c for c in found if _solved_for(c) == fewest[c.sharing]]


def _solved_for(c: Candidate) -> int:
    pairs = ((c.roles.gamma, c.told.gamma), (c.roles.beta, c.told.beta))
    return sum(values.size for role, values in pairs if isinstance(role, Free))


def _on_all(x: Array, y: Array, kind: str, found: Iterable[Candidate]) -> list[Candidate]:
    """Keep the candidates that fit all values, with the parameters that go best with these."""
    kept: list[Candidate] = []
    groups: dict[tuple[Sharing, Roles, bool], list[Candidate]] = {}
    for c in found:
        groups.setdefault((c.sharing, c.roles, c.told.measure.centered), []).append(c)
    for (sharing, roles, _), group in groups.items():
        view = view_of(x, y, sharing, kind)
        plain = [c for c in group if c.rounding is EXACT]
        if plain:
            below = denominators_of(view, [Trial(*c.told[:4]) for c in plain])
            first, back, factor = distinct(view, below, roles.gamma)
            result = fit_all(view, [plain[k].told.measure for k in first], below[first], roles.gamma, roles.beta)
            for c, j, times in zip(plain, back, factor, strict=True):
                kept += _kept(c, result, j, times)
        for c in group:
            if c.rounding is not EXACT:
                kept += _kept(c, c.rounding.fit(view, x.dtype, c.spec(x.ndim), roles.gamma, roles.beta), 0)
    return kept


def _kept(candidate: Candidate, result: Fit, k: int, times: Any = 1.0) -> list[Candidate]:
    worst = float(result.worst[k])
    if not worst <= 1:
        return []
    told = candidate.told._replace(
        residual=worst,
        gamma=np.asarray(result.gamma[k] * times, np.float64),
        beta=np.asarray(result.beta[k], np.float64),
    )
    return [candidate._replace(told=told)]


def _rounded(looks: dict[Sharing, View], found: Sequence[Candidate], x: Array) -> list[Candidate]:
    """Say which of the candidates also fit if they round in between."""
    more: list[Candidate] = []
    groups: dict[tuple[Sharing, Roles, Measure], list[Candidate]] = {}
    for c in found:
        groups.setdefault((c.sharing, c.roles, c.told.measure), []).append(c)
    for (sharing, roles, _), group in groups.items():
        view = looks[sharing]
        below = denominators_of(view, [Trial(*c.told[:4]) for c in group])
        first, back, factor = distinct(view, below, roles.gamma)
        gamma, beta = view.part(roles.gamma), view.part(roles.beta)
        for way in roundings(x.dtype.name):
            ones = [c._replace(rounding=way) for c in group]
            results = [way.fit(view, x.dtype, ones[k].spec(x.ndim), gamma, beta) for k in first]
            for one, j, times in zip(ones, back, factor, strict=True):
                more += _kept(one, results[j], 0, times)
    return more


def _only_rounded(
    x: Array, y: Array, kind: str, looks: dict[Sharing, View], leaders: Sequence[tuple[Sharing, bool, Levels]],
    others: Sequence[Candidate],
) -> list[Candidate]:  # fmt: skip
    """Find the candidates that fit only if they round in between, among the few that come nearest without."""
    nearest = {(c.sharing, c.told.measure.centered): c for c in sorted(others, key=lambda c: -c.told.residual)}
    best = sorted(nearest.values(), key=lambda c: c.told.residual)[:3]
    for c in best:
        levels = next(ls for s, centered, ls in leaders if (s, centered) == (c.sharing, c.told.measure.centered))
        measures = _apart(c.told.measure.centered, levels[-1])
        usual = [
            c._replace(told=c.told._replace(measure=m, place=p, eps=e, digits=0), roles=roles)
            for roles in levels[-1]
            for m in measures
            for p in m.places()
            for e in ((0.0,) if p == "none" else USUAL)
        ]
        fits = _rounded(looks, usual, x)
        if not fits:
            continue
        for level in levels[:-1]:
            fewer = [f._replace(roles=roles) for f in fits for roles in level]
            kept = _on_all(x, y, kind, fewer)
            if kept:
                return kept
        return _on_all(x, y, kind, fits)
    return []


def _explained(
    view: View, sharing: Sharing, level: Sequence[Roles], measures: Sequence[Measure],
    others: list[Candidate] | None = None,
) -> list[Candidate]:  # fmt: skip
    found: list[Candidate] = []
    for roles in level:
        told, best = explanations(view, measures, roles.gamma, roles.beta)
        found += [Candidate(sharing, roles, e) for e in told]
        if best is not None and others is not None and not told:
            others.append(Candidate(sharing, roles, best))
    return found


def _apart(centered: bool, level: Sequence[Roles]) -> list[Measure]:
    """List the measures that differ by more than a factor, which a gamma that is solved for takes up."""
    own = [m for m in MEASURES if m.centered is centered]
    return (
        [own[0], own[2]]
        if not centered and all(isinstance(r.gamma, Free) for r in level)
        else [own[0]]
        if all(isinstance(r.gamma, Free) for r in level)
        else own
    )


def _ordered(fits: list[Candidate], ndim: int) -> list[Candidate]:
    """Put the simplest first, of those that fit about as well as the best; and say each once."""
    if not fits:
        return []
    least = min(c.told.residual for c in fits)

    def cost(c: Candidate) -> tuple[Any, ...]:
        e = c.told
        usual = USUAL.index(e.eps) if e.eps in USUAL else 0
        return (
            e.residual > 1.2 * least + 0.005, _solved_for(c), c.rounding.rank, e.digits, c.sharing.groups is not None,
            MEASURES.index(e.measure), len(c.sharing.axes), PLACES.index(e.place), usual,
        )  # fmt: skip

    once: dict[NormSpec, Candidate] = {}
    for c in sorted(fits, key=cost):
        once.setdefault(c.spec(ndim), c)
    return list(once.values())


def _carried(carried: Carried | None, ndim: int, axes: Any) -> Any:
    """Write the axes of a parameter: from the end where they are the last, but 1 for channels after the batch."""
    if carried is None or carried == "group":
        return carried
    plain = tuple(a for a in carried if isinstance(a, int))
    channels = plain == (1,) and (ndim > 2 or -1 not in axes)
    return plain if channels and 1 not in axes else written(plain, ndim)
