# SPDX-License-Identifier: MIT
"""This file finds which spec a few operations compute, from nothing but their numbers, and proves it on five inputs.

Nothing here looks at how the operations are spelled. Which values share statistics is seen by changing one value and
looking what changes; which array is gamma, by having drawn every parameter at random beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from layernorm.models.evaluate import Array, evaluate
from layernorm.models.graph import Node
from layernorm.ops.layout import layout_of
from layernorm.ops.reference import statistics
from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import EpsAt, NormSpec, Unknown, plain_axes

# Disagreement in units of the output's largest value. True norms end near 1e-14, moments of offset inputs near 1e-11.
AGREE = 1e-9
# So large a spread that no epsilon counts, and squares are far from overflow.
HUGE = 2.0**40
_DRAWS = 2
# Each is tried in eight places, on inputs of six sizes for each; a norm has one or two.
MOST_NUMBERS = 16

ShiftAs = Literal["itself", "negative", "times scale"]


@dataclass(frozen=True)
class Trial:
    """The operations that depend on one value, the root, ready to run on any array in its place."""

    root: str
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    """What the nodes read besides the root; parameters are drawn at random, so that they can be told apart."""
    parameters: Mapping[str, Array]
    """Those of more than one value that may be gamma or beta."""
    numbers: Mapping[str, float]
    """Those of one value that may be an epsilon."""
    candidates: tuple[str, ...]
    """Outputs that may be a norm's, in order of execution."""
    like: tuple[str, ...] = ()
    """Values from outside of which only the shape is asked: held to be the root's."""
    own_shape: tuple[str, ...] = ()
    """Constants that say the root's shape."""

    def run(self, x: Array) -> dict[str, Array]:
        """Give the candidates' values for one array."""
        shape = dict.fromkeys(self.own_shape, np.array(x.shape))
        values = evaluate(self.nodes, {**self.constants, **shape, **dict.fromkeys(self.like, x), self.root: x})
        return {name: values[name] for name in self.candidates if name in values and values[name].shape == x.shape}


class Parameter(NamedTuple):
    """A constant found to be gamma or beta, and how it enters."""

    name: str
    axes: tuple[int, ...] | Literal["group"]
    offset: Literal[0, 1] = 0
    shift_as: ShiftAs = "itself"


@dataclass(frozen=True)
class Fit:
    """A candidate output, the spec (axes from the front) that computes it, and how closely."""

    output: str
    spec: NormSpec
    shape: tuple[int, ...]
    scale: Parameter | None
    shift: Parameter | None
    eps: str | None
    """The name of the constant that is epsilon."""
    worst: float
    """The largest disagreement over the five inputs."""

    @property
    def strength(self) -> tuple[int, bool]:
        """Rank fits of one chain of operations: more parameters, and means before sums."""
        return (self.scale is not None) + (self.shift is not None), self.spec.spread != "l2"


class Miss(NamedTuple):
    """A candidate output that no spec computes, and what the nearest one gets wrong."""

    output: str
    why: str
    error: float


class _Line(NamedTuple):
    """y = γ·x̂ + β, with γ and β of x's shape."""

    spec: NormSpec
    gamma: Array
    beta: Array
    error: float


def fit(trial: Trial, shape: tuple[int, ...]) -> tuple[list[Fit], list[Miss]]:
    """Find the spec of every candidate output that has the root's shape."""
    draw = np.random.default_rng(0)
    huge = _huge(draw, shape, _DRAWS)
    runs = [trial.run(x) for x in huge]
    groups = _sharing(trial, draw, shape)
    xhats = {spec: _stacked(huge, spec) for shared in set(groups.values()) for spec in _kinds(shared)}
    fits, misses = [], []
    for name in trial.candidates:
        values = [run[name] for run in runs if name in run and np.isfinite(run[name]).all()]
        if name not in groups or len(values) < len(huge):
            continue
        lines = [_line(spec, xhats[spec], np.stack(values)) for spec in _kinds(groups[name])]
        found = _confirmed(trial, name, lines, shape)
        if isinstance(found, Fit):
            fits.append(found)
        else:
            misses.append(found)
    return fits, misses


def again(trial: Trial, before: Fit, eps: float | Unknown) -> Fit | None:
    """Prove a fit that the same operations with another epsilon had, on this trial's numbers; None if it is none."""
    shape, spec = before.shape, replace(before.spec, eps=eps)
    draw = np.random.default_rng(0)
    huge = _huge(draw, shape, 1)  # two points make a line; the proof is to come
    values = [trial.run(x).get(before.output) for x in huge]
    if any(y is None or not np.isfinite(y).all() for y in values):
        return None
    line = _line(spec, _stacked(huge, spec), np.stack([y for y in values if y is not None]))
    found = _parameters(trial, line) if line.error <= AGREE else None
    if found != (before.scale, before.shift):
        return None
    wrong, worst = _proof(trial, before.output, line, shape)
    return None if wrong else replace(before, spec=spec, worst=worst)


# -- what shares statistics -------------------------------------------------------------------------------


def _sharing(trial: Trial, draw: np.random.Generator, shape: tuple[int, ...]) -> dict[str, NormSpec]:
    """Say over which axes and groups each candidate shares statistics, as a spec that says nothing else."""
    x = draw.standard_normal(shape)
    before = trial.run(x)
    found: dict[str, NormSpec | None] = {}
    for corner in (0, -1):
        at = (corner,) * len(shape)
        changed = x.copy()
        changed[at] += 3
        for name, after in trial.run(changed).items():
            spec = _domain(before[name] != after) if name in before else None
            found[name] = spec if name not in found or found[name] == spec else None
    return {name: spec for name, spec in found.items() if spec is not None}


def _domain(changed: Array) -> NormSpec | None:
    """Read from the places that changed with one value which axes, and which part of a channel axis, they span."""
    places = np.argwhere(changed)
    along = [np.unique(places[:, a]) for a in range(changed.ndim)]
    if len(places) < 2 or math.prod(map(len, along)) != len(places):
        return None
    axes = tuple(a for a, seen in enumerate(along) if len(seen) > 1)
    parts = [a for a in axes if len(along[a]) < changed.shape[a]]
    if not parts:
        return NormSpec(axes=axes)
    channel, seen = parts[0], along[parts[0]]
    groups, rest = divmod(changed.shape[channel], len(seen))
    steps = set(np.diff(seen).tolist())
    if len(parts) > 1 or rest or steps not in ({1}, {groups}) or (steps == {1} and seen[0] % len(seen)):
        return None
    order: Literal["blocked", "interleaved"] = "blocked" if steps == {1} else "interleaved"
    return NormSpec(axes=axes, channel_axis=channel, groups=groups, group_order=order)


def _huge(draw: np.random.Generator, shape: tuple[int, ...], count: int) -> list[Array]:
    """Draw arrays, and the negative of each: of two values that are normalized each is −1 or 1, and has to be both."""
    drawn = [HUGE * draw.standard_normal(shape) for _ in range(count)]
    return [*drawn, *(-x for x in drawn)]


# -- which norm, up to a line -----------------------------------------------------------------------------


def _kinds(shared: NormSpec) -> Iterator[NormSpec]:
    """Give the norms whose outputs no factor turns into each other."""
    bare = replace(shared, eps=0.0, eps_at="none")
    yield bare
    yield replace(bare, centered=False, spread="rms")
    yield replace(bare, centered=False)


def _siblings(spec: NormSpec, n: int) -> Iterator[tuple[NormSpec, float]]:
    """Give the norms whose output is this one's, divided by a factor."""
    yield spec, 1.0
    if spec.spread == "rms":
        yield replace(spec, spread="l2"), math.sqrt(n)
    elif n > 1:
        yield replace(spec, ddof=1), math.sqrt(n / (n - 1))


def normalized(x: Array, spec: NormSpec) -> Array:
    """Give x̂ by the reference."""
    layout = layout_of(x.shape, spec)
    with np.errstate(all="ignore"):
        row = statistics(layout.rows_of(x), spec)
        return layout.array_of(row.numerator / row.denominator)


def _stacked(inputs: list[Array], spec: NormSpec) -> Array:
    try:
        return np.stack([normalized(x, spec) for x in inputs])
    except SpecError:  # channels that do not split so
        return np.full((len(inputs), *inputs[0].shape), np.nan)


def _line(spec: NormSpec, xhat: Array, y: Array) -> _Line:
    """Fit γ and β at every place, by least squares over the inputs."""
    with np.errstate(all="ignore"):
        middle, deviation = y.mean(0), xhat - xhat.mean(0)
        gamma = (deviation * (y - middle)).sum(0) / (deviation**2).sum(0)
        beta = middle - gamma * xhat.mean(0)
    return _Line(spec, gamma, beta, _error(y, gamma * xhat + beta))


def _error(y: Array, expected: Array) -> float:
    """Give the largest disagreement in units of the largest value; infinite where either is no number."""
    error = float(np.max(np.abs(y - expected))) / max(float(np.max(np.abs(expected))), 1e-300)
    return error if math.isfinite(error) else math.inf


# -- which parameters -------------------------------------------------------------------------------------


def _parameters(trial: Trial, line: _Line) -> tuple[Parameter | None, Parameter | None] | None:
    """Find the constants that γ and β are; None where they are none of this model's, or lie along odd axes."""
    scale = shift = None
    carried = _carried(line.gamma)
    if carried:
        scale = _named(trial, line.gamma, carried, line.spec, (0, 1))
    if scale is None and (carried or not _near(line.gamma, 1.0)):
        return None
    if not _near(line.beta, 0.0):
        forms: list[tuple[ShiftAs, Array]] = [("itself", line.beta), ("negative", -line.beta)]
        forms += [("times scale", line.beta / line.gamma)] if scale else []
        for shift_as, values in forms:
            if shift is None and (found := _named(trial, values, _carried(values), line.spec)):
                shift = found._replace(shift_as=shift_as)
        if shift is None:
            return None
    return scale, shift


def _near(values: Array, expected: Array | float) -> bool:
    return bool(np.max(np.abs(values - expected)) <= AGREE * max(1.0, float(np.max(np.abs(expected)))))


def _carried(values: Array) -> tuple[int, ...]:
    """Name the axes along which an array is not constant."""
    tolerance = AGREE * float(np.max(np.abs(values)))
    return tuple(a for a in range(values.ndim) if np.max(np.ptp(values, axis=a)) > tolerance)


def _named(
    trial: Trial, values: Array, carried: tuple[int, ...], spec: NormSpec, offsets: tuple[Literal[0, 1], ...] = (0,)
) -> Parameter | None:
    """Find the constant that these values are, with 1 added or not; one of the file before one made from it."""
    axes = set(plain_axes(spec))
    # a table of positions, say, lies along kept and normalized axes at once, and is no part of a norm
    if not carried or not (
        axes.issuperset(carried) or (len(carried) == 1 and carried != (0,) and axes.isdisjoint(carried))
    ):
        return None
    flat = values[tuple(slice(None) if a in carried else 0 for a in range(values.ndim))].reshape(-1)
    forms: list[tuple[tuple[int, ...] | Literal["group"], Array]] = [(carried, flat)]
    if isinstance(spec.groups, int) and carried == (spec.channel_axis,):
        dealt = flat.reshape(spec.groups, -1) if spec.group_order == "blocked" else flat.reshape(-1, spec.groups).T
        if _near(dealt, dealt[:, :1]):
            forms.append(("group", dealt[:, 0]))
    for name, parameter in trial.parameters.items():
        for said, form in forms:
            for offset in offsets:
                if parameter.size == form.size and _near(form - offset, parameter.reshape(-1)):
                    return Parameter(name, said, offset)
    return None


# -- which epsilon, and the proof -------------------------------------------------------------------------


def _confirmed(trial: Trial, name: str, lines: list[_Line], shape: tuple[int, ...]) -> Fit | Miss:
    nearest = min(lines, key=lambda line: line.error)
    for line in lines:
        if line.error > AGREE:
            continue
        n = layout_of(shape, line.spec).columns
        for spec, factor in _siblings(line.spec, n):
            line = _Line(spec, line.gamma * factor, line.beta, line.error) if factor != 1.0 else line
            found = _parameters(trial, line)
            if found is None:
                continue
            spec, eps, _ = _epsilon(trial, name, line, shape)
            line = line._replace(spec=spec)
            wrong, worst = _proof(trial, name, line, shape)
            if wrong:
                return Miss(name, f"{_short(spec)} disagrees on the {wrong} input by {worst:.1e}", worst)
            scale, shift = found
            spec = replace(
                spec, scale_axes=scale and scale.axes, shift_axes=shift and shift.axes,
                scale_offset=scale.offset if scale else 0, variance_by=_variance_by(trial, name, line, shape),
            )  # fmt: skip
            return Fit(name, spec, shape, scale, shift, eps, worst)
    if nearest.error <= AGREE:
        return Miss(
            name, f"{_short(nearest.spec)} fits only with a factor or shift that is no parameter of the file", 0.0
        )
    wrong, worst = _proof(trial, name, nearest, shape)
    return Miss(name, f"{_short(nearest.spec)}, the nearest norm, disagrees on the {wrong} input by {worst:.1e}", worst)


def _short(spec: NormSpec) -> str:
    """Say a norm in a few words for a sentence."""
    return f"{spec.formula().removeprefix('y = ')} over axes {', '.join(map(str, plain_axes(spec)))}"


def _epsilon(trial: Trial, name: str, line: _Line, shape: tuple[int, ...]) -> tuple[NormSpec, str | None, float]:
    """Find which of the constants is epsilon, and where it enters, on inputs so small that it decides the result."""
    places: tuple[EpsAt, ...] = ("variance", "deviation", "sum", "variance_floor", "deviation_floor")
    positive = dict(islice(((name, value) for name, value in trial.numbers.items() if value > 0), MOST_NUMBERS))
    n = layout_of(shape, line.spec).columns
    alive: list[tuple[NormSpec, str | None]] = [(line.spec, None)]
    alive += [(replace(line.spec, eps=e, eps_at=at), number) for number, e in positive.items() for at in places]
    if line.spec.spread == "rms":  # x·√n / max(‖x‖, e)
        by_length: tuple[tuple[EpsAt, float], ...] = (
            ("deviation", n**-0.5),
            ("variance_floor", 1 / n),
            ("deviation_floor", n**-0.5),
        )
        alive += [
            (replace(line.spec, eps=e * k, eps_at=at), number) for number, e in positive.items() for at, k in by_length
        ]
    draw = np.random.default_rng(1)
    best = math.inf
    for e in dict.fromkeys(positive.values()):
        for size in (math.sqrt(e), e, math.sqrt(e / n)):
            for spread in (size / 2, size * 2):
                if len(alive) == 1:
                    break
                x = spread * draw.standard_normal(shape)
                y = trial.run(x).get(name)
                if y is None:
                    continue
                errors = [_error(y, line.gamma * normalized(x, spec) + line.beta) for spec, _ in alive]
                best = min(errors)
                alive = [a for a, error in zip(alive, errors, strict=True) if error <= max(AGREE, best)]
    spec, number = alive[0]
    if number is None and (zero := next((name for name, value in trial.numbers.items() if value == 0), None)):
        return replace(spec, eps=0.0, eps_at="variance"), zero, best
    return spec, number, best


def _inputs(shape: tuple[int, ...], spec: NormSpec) -> Iterator[tuple[str, Array]]:
    """Give the five inputs of the proof."""
    draw = np.random.default_rng(2)
    eps = spec.eps if isinstance(spec.eps, float) and spec.eps > 0 else 1e-6
    yield "standard normal", draw.standard_normal(shape)
    yield "offset 100", draw.standard_normal(shape) + 100
    yield "spread √ε", math.sqrt(eps) * draw.standard_normal(shape)
    outlier = draw.standard_normal(shape)
    outlier[tuple(n // 2 for n in shape)] = 1e4
    yield "outlier", outlier
    pattern = np.zeros(shape)
    for a, n in enumerate(shape):
        along = [-1 if a == b else 1 for b in range(len(shape))]
        pattern = pattern + np.cos(np.arange(n) * (1.3 + a) + a).reshape(along) * (a + 1)
    yield "patterned", pattern


def _proof(trial: Trial, name: str, line: _Line, shape: tuple[int, ...]) -> tuple[str | None, float]:
    """Name the first input on which operations and reference disagree, and by how much; else the most they differ."""
    worst = 0.0
    for said, x in _inputs(shape, line.spec):
        y = trial.run(x).get(name)
        error = math.inf if y is None else _error(y, line.gamma * normalized(x, line.spec) + line.beta)
        if error > AGREE:
            return said, error
        worst = max(worst, error)
    return None, worst


def _variance_by(
    trial: Trial, name: str, line: _Line, shape: tuple[int, ...]
) -> Literal["centered", "moments", "moments_clamped"]:
    """Tell E[x²] − E[x]² from squared deviations: far from zero it has no digits left, and is as often negative."""
    if line.spec.spread != "std":
        return "centered"
    draw = np.random.default_rng(3)
    rows = 0
    while rows < 64:
        x = 2.0**33 + draw.standard_normal(shape)
        y = trial.run(x).get(name)
        if y is None or _error(y, line.gamma * normalized(x, line.spec) + line.beta) < 1e-3:
            return "centered"
        if np.isnan(y).any():
            return "moments"
        rows += layout_of(shape, line.spec).rows
    return "moments_clamped"
