# SPDX-License-Identifier: MIT
"""This file searches for the norms that turn x into y: first sharings, then the fewest parameters, then rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layernorm.comparing.bound import storage_of
from layernorm.comparing.denominators import MEASURES, PLACES, USUAL, Measure, denominators
from layernorm.comparing.fitting import Free, Parameter, View, first_weights, project, view_of
from layernorm.comparing.rounding import EXACT, Rounding, roundings
from layernorm.comparing.sharing import Carried, Sharing, carriers, matches, sharings, written
from layernorm.comparing.solving import Explanation, Trial, denominators_of, distinct, explanations, fit_all
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]

# How many values are looked at: to rank all sharings, to solve for epsilon, to check whatever fits. The sets with the
# least and the greatest spread are among them, and the first answer is checked on all values.
GLANCE, LOOK, CHECK = 2048, 4096, 2**17
# Of the ranked sharings this many are worked out; the right one was among the first 3 in 2 000 draws.
LEADERS = 12
# Where the first comes as near as NEAR, those beyond FAR are only worked out to have some runners-up to tell of.
NEAR, FAR, LEAST = 0.01, 0.3, 4
# So many that deal no groups are among them in any case.
PLAIN = 6
# Beside 1 and beside y's spread, a gamma or beta as near as this to none may be rounding.
ABSENT = 1e-3
# Nobody writes an epsilon of more digits, so a way of rounding that does with fewer is preferred.
MOST_WRITTEN = 2
# What rounding the output alone may cost, in units of the bound: half an ulp of a float32 is a quarter, and a bit for
# sums. Below it no residual is a reason to prefer one spec to another.
HALF_ULP = 0.27
# Where nothing fits as it is, the nearest are tried with every way of rounding.
NEAREST = 6
# Of what gamma and beta may be, only what comes within so many times the nearest.
ASIDE = 100
# Epsilons, in units of the median square, at which sharings are ranked. Between them no gain is off by much.
RANKED = (0.0, 0.1, 0.4, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e5)


@dataclass(frozen=True, eq=False)
class Roles:
    """What gamma and beta are: along which axes, and solved for, known or absent."""

    scale: Carried | None
    gamma: Parameter
    offset: int
    shift: Carried | None
    beta: Parameter


Levels = list[list[Roles]]


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


class Said(NamedTuple):
    """A candidate and its spec."""

    spec: NormSpec
    candidate: Candidate


class Search(NamedTuple):
    """What was found: those that fit, the simplest first; the best of the others; nothing where y is x itself."""

    fits: list[Said]
    others: list[Candidate]
    kind: str
    unchanged: bool = False


@dataclass(frozen=True, eq=False)
class Leader:
    """A sharing that comes near, centred or not, and what gamma and beta may be under it."""

    sharing: Sharing
    centered: bool
    levels: Levels
    distant: bool = False  # only looked at to have a runner-up


def search(x: Array, y: Array, gamma: Array | None, beta: Array | None) -> Search:
    """Find every norm of the listed kinds that turns x into y."""
    kind = storage_of(y)
    known = [_known(name, value, x.shape) for name, value in (("gamma", gamma), ("beta", beta))]
    if np.array_equal(x, y):
        # beside an epsilon of 1e13 every norm is a factor, and some would fit
        return Search([], [], kind, unchanged=True)
    leaders = _leaders(x, y, kind, *known)
    looks = {sharing: view_of(x, y, sharing, kind, LOOK) for sharing in dict.fromkeys(k.sharing for k in leaders)}
    checks = cache(partial(view_of, x, y, kind=kind, limit=CHECK))
    others: list[Candidate] = []
    ways = roundings(x.dtype.name)
    fits = _found(EXACT, leaders, looks, checks, x, others)
    if fits:
        # what fits as it is may fit with rounding too, with the same epsilon or with another
        again = _with_less(fits, leaders, y) + _as_found(fits)
        for way in ways:
            for leader in again:
                fits += _found(way, [leader], looks, checks, x, [])
    else:
        places = {(c.sharing, c.told.measure.centered): c.told.residual for c in sorted(others, key=_far)[::-1]}
        nearest = sorted(leaders, key=lambda k: places.get((k.sharing, k.centered), math.inf))
        near = [k for k in leaders if k in leaders[:NEAREST] or k in nearest[:NEAREST] or k in leaders[LEADERS:]]
        near = [Leader(k.sharing, k.centered, [*k.levels[:-1], _nearest(k, others)]) for k in near]
        for way in ways:
            fits += _found(way, near, looks, checks, x, [])
    ordered = _ordered(fits, x.shape)
    while ordered and not (first := _kept(partial(view_of, x, y, kind=kind), [ordered[0].candidate], x)):
        ordered = ordered[1:]
    if ordered:
        ordered[0] = Said(ordered[0].spec, first[0])
    kept = {(c.sharing, c.told.measure.centered) for _, c in ordered}
    rest: dict[object, Candidate] = {}
    for c in sorted(others, key=_far):
        key = (c.sharing, c.told.measure.centered)
        if key not in kept and math.isfinite(c.told.residual):
            rest.setdefault(key, c)
    return Search(ordered, list(rest.values())[:5], kind)


def _nearest(leader: Leader, others: Sequence[Candidate]) -> list[Roles]:
    """Give the parameters of a leader that come near, beside the others; rounding makes no difference of that size."""
    misses = {id(c.roles): c.told.residual for c in others}
    least = min((misses.get(id(r), math.inf) for r in leader.levels[-1]), default=math.inf)
    return [r for r in leader.levels[-1] if misses.get(id(r), math.inf) <= ASIDE * least]


def _as_found(fits: Sequence[Candidate]) -> list[Leader]:
    """Give the leaders of what fits, with the parameters with which it does."""
    found = dict.fromkeys((c.sharing, c.told.measure.centered, c.roles) for c in fits)
    return [Leader(sharing, centered, [[roles]]) for sharing, centered, roles in found]


def _with_less(fits: Sequence[Candidate], leaders: Sequence[Leader], y: Array) -> list[Leader]:
    """Give the leaders of what fits, without the parameters that come out as nearly none, or with fewer numbers.

    A beta of 1e-7 may be what a mean rounded to float32 left behind, and one for each of many values takes up more.
    """
    size = float(np.std(y.astype(np.float64)))
    less: dict[int, Leader] = {}
    for c in fits:
        lost = [np.abs(c.told.beta).max() < ABSENT * size] if isinstance(c.roles.beta, Free) else []
        lost += [np.abs(c.told.gamma - 1).max() < ABSENT] if isinstance(c.roles.gamma, Free) else []
        many = any(isinstance(p, tuple) and len(p) > 1 for p in (c.roles.scale, c.roles.shift))
        for k in leaders if any(lost) or many else []:
            if k.sharing == c.sharing and k.centered == c.told.measure.centered:
                depth = next(d for d, level in enumerate(k.levels) if c.roles in level)
                along_one = [r for r in k.levels[depth] if many and r.scale != c.roles.scale]
                levels = (k.levels[:depth] if any(lost) else []) + ([along_one] if along_one else [])
                less[id(k)] = Leader(k.sharing, k.centered, levels)
    return [k for k in less.values() if k.levels]


def _far(c: Candidate) -> float:
    return c.told.residual


def _found(
    way: Rounding, leaders: Sequence[Leader], looks: Mapping[Sharing, View], checks: Callable[[Sharing], View],
    x: Array, others: list[Candidate],
) -> list[Candidate]:  # fmt: skip
    """Find what fits under one way of rounding, with the fewest parameters that do."""
    able = []
    for k in leaders:
        # seen first, for what is rounded is taken from whole sets
        view = way.seen(looks[k.sharing], x.dtype.name).fewer(LOOK)
        only = len(k.levels) == 1 and way is not EXACT  # nothing is known of fewer parameters
        measures = _apart(way, k.centered, k.levels[-1])
        if only or _explained(way, view, k.sharing, k.levels[-1], measures, others, not k.distant):
            able.append((k, view))
    for depth in range(max((len(k.levels) for k, _ in able), default=0)):
        fits: list[Candidate] = []
        for k, view in able:
            if depth < len(k.levels):
                measures = [m for m in MEASURES if m.centered is k.centered]
                fits += _explained(way, view, k.sharing, k.levels[depth], measures)
        fits = _fewest(_kept(checks, fits, x))
        if fits:
            return fits
    return []


def _leaders(x: Array, y: Array, kind: str, gamma: Array | None, beta: Array | None) -> list[Leader]:
    """Rank sharings, centred or not, by how near a gain that falls with the spread comes to y; give the first ones."""
    ranked = []
    for place, sharing in enumerate(sharings(x.shape)):
        levels = _levels(sharing, x.shape, gamma, beta)
        view = view_of(x, y, sharing, kind, GLANCE).fewer(GLANCE)  # a long set has many values, too
        for centered in (True, False):
            scores = [_score(view, centered, roles) for roles in levels[-1]]
            if scores:
                ranked.append((min(scores), place, not centered, Leader(sharing, centered, levels)))
    ranked.sort(key=lambda r: r[:3])
    far = FAR if ranked and ranked[0][0] < NEAR else math.inf
    first = [r for k, r in enumerate(ranked[:LEADERS]) if k < LEAST or r[0] < far]
    # beside a large epsilon every gain is nearly constant, and many ways to deal groups come as near as the truth
    plain = [r for r in ranked if r[3].sharing.groups is None and r[0] < far][:PLAIN]
    # where rounding blurs everything alike the usual ones are not left to chance
    ndim, level = x.ndim, 3 * ranked[0][0] if ranked else 0.0
    usual = {(ndim - 1,), tuple(range(1, ndim)), tuple(range(2, ndim)), (0, *range(2, ndim))}
    plain += [r for r in ranked if r[3].sharing.groups is None and r[3].sharing.axes in usual and r[0] <= level]
    chosen = first + [r for k, r in enumerate(plain) if r not in first and r not in plain[:k]]
    return [replace(r[3], distant=r[0] >= far) for r in chosen]


def _score(view: View, centered: bool, roles: Roles) -> float:
    numerator = view.deviation if centered else view.x
    gamma, beta = view.part(roles.gamma), view.part(roles.beta)
    if not isinstance(gamma, Free):
        # of a known gamma too the overall factor is left open, for the epsilons here are few
        numerator, gamma = (numerator if gamma is None else numerator * gamma), Free(())
    scores, spread = [math.inf], float(view.y.std()) or 1.0
    for measure in (MEASURES[0],) if centered else (MEASURES[2], MEASURES[4]):
        middle = float(np.median(measure.square(view))) or 1.0
        below = denominators(measure, view, "variance", [middle * e for e in RANKED])
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


def _kept(
    views: Mapping[Sharing, View] | Callable[[Sharing], View], found: Iterable[Candidate], x: Array
) -> list[Candidate]:
    """Keep the candidates that fit these views, with the parameters that go best with them."""
    kept: list[Candidate] = []
    groups: dict[Any, list[Candidate]] = {}
    for c in found:
        groups.setdefault((c.sharing, c.roles, c.rounding, c.told.measure.centered), []).append(c)
    for (sharing, roles, way, _), group in groups.items():
        view = way.seen(views(sharing) if callable(views) else views[sharing], x.dtype.name)
        below = denominators_of(view, [Trial(*c.told[:4]) for c in group])
        first, back, factor = distinct(view, below, roles.gamma)
        result = fit_all(view, [group[k].told.measure for k in first], below[first], roles.gamma, roles.beta)
        for c, j, times in zip(group, back, factor, strict=True):
            worst = float(result.worst[j])
            if worst <= 1:
                gamma, beta = np.asarray(result.gamma[j] * times, np.float64), np.asarray(result.beta[j], np.float64)
                kept.append(c._replace(told=c.told._replace(residual=worst, gamma=gamma, beta=beta)))
    return kept


def _explained(
    way: Rounding, view: View, sharing: Sharing, level: Sequence[Roles], measures: Sequence[Measure],
    others: list[Candidate] | None = None, solve: bool = True,
) -> list[Candidate]:  # fmt: skip
    found: list[Candidate] = []
    for roles in level:
        # with rounding an epsilon is solved for only where no usual one fits: that is most of the time
        told, best = explanations(view, measures, roles.gamma, roles.beta, solve=solve and way is EXACT)
        if solve and way is not EXACT and not told:
            told, best = explanations(view, measures, roles.gamma, roles.beta)
        found += [Candidate(sharing, roles, e, way) for e in told]
        if best is not None and others is not None and not told:
            others.append(Candidate(sharing, roles, best, way))
    return found


def _apart(way: Rounding, centered: bool, level: Sequence[Roles]) -> list[Measure]:
    """List the measures that differ by more than a factor, which a gamma that is solved for takes up."""
    own = [m for m in MEASURES if m.centered is centered]
    if way.spec.stats_dtype in ("float16", "bfloat16") or not all(isinstance(r.gamma, Free) for r in level):
        return own  # rounded to so few digits a factor is more than one
    return own[:1] if centered else [own[0], own[2]]


def _ordered(fits: list[Candidate], shape: tuple[int, ...]) -> list[Said]:
    """Put the simplest first, of those that fit about as well as the best; and say each once."""
    if not fits:
        return []
    least = min(c.told.residual for c in fits)

    def cost(c: Candidate) -> tuple[Any, ...]:
        e = c.told
        usual = USUAL.index(e.eps) if e.eps in USUAL else 0
        return (
            e.residual > max(1.2 * least, HALF_ULP), _solved_for(c), e.digits > MOST_WRITTEN, c.rounding.rank,
            e.digits,
            c.sharing.groups is not None, MEASURES.index(e.measure), len(c.sharing.axes), PLACES.index(e.place), usual,
        )  # fmt: skip

    once: dict[NormSpec, Candidate] = {}
    for c in sorted(fits, key=cost):
        once.setdefault(c.spec(len(shape)), c)
    told = [Said(spec, c) for spec, c in once.items()]
    # 6.4e-4 added to the sum of 64 squares is 1e-5 added to their mean: nobody meant the former
    usual = {_as_variance(s.candidate, shape) for s in told if s.candidate.told.digits == 0}
    return [s for s in told if s.candidate.told.digits == 0 or _as_variance(s.candidate, shape) not in usual]


def _as_variance(c: Candidate, shape: tuple[int, ...]) -> tuple[object, ...]:
    """Write what is added to the sum as if it were added to the mean."""
    eps, place, measure = c.told.eps, c.told.place, c.told.measure
    if place == "sum" and measure.spread != "l2":
        size = c.sharing.layout(shape).columns
        eps, place = eps / (size - (measure.ddof if measure.spread == "std" else 0)), "variance"
    return (c.sharing, c.roles, measure, c.rounding, place, f"{eps:.12g}")


def _carried(carried: Carried | None, ndim: int, axes: Any) -> Any:
    """Write the axes of a parameter: from the end where they are the last, but 1 for channels after the batch."""
    if carried is None or carried == "group":
        return carried
    plain = tuple(a for a in carried if isinstance(a, int))
    channels = plain == (1,) and (ndim > 2 or -1 not in axes)
    return plain if channels and 1 not in axes else written(plain, ndim)
