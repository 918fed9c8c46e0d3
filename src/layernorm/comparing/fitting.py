# SPDX-License-Identifier: MIT
"""This file solves for gamma and beta under many denominators at once, and says how far the best ones miss.

With the denominator known, y = γ·x̂ + β is linear in γ and β. Each channel is a weighted least-squares problem of its
own, in float64 (for float64 dumps in NumPy's long double), and all of them are solved in a few sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layernorm.comparing.bound import bound_of
from layernorm.comparing.sharing import Sharing
from layernorm.ops.layout import Layout
from layernorm.spec.norm_spec import Spread

Array = npt.NDArray[Any]
# Elements times denominators that are worked on at once: 2**18 of float64 stay in the second-level cache.
AT_ONCE = 2**18
# Where a set holds one value over and over, y is β alone and allows it next to no error: a β that is really 0 is
# 1e-10 after one pass and 1e-28 after two, and the bound there is 1e-45.
PASSES = 4
# Between these the squares of float64 are numbers of float64.
LEAST, MOST = 1e-150, 1e150
# Steps of Lawson's method, which turns least squares into the least largest error; 16-bit outputs alone need it.
LAWSON = 40


class Free:
    """A parameter that is to be solved for: one number for each place along some axes of the split array."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        self.axes = axes


# A parameter is solved for, known (an array that broadcasts to the split array), or absent.
Parameter = Free | Array | None


class Fit(NamedTuple):
    """How well each of K denominators does, and with which parameters; each array begins with an axis of length K."""

    worst: Array  # the largest error in units of the bound
    rough: Array  # the root mean square error in units of y's own spread
    gamma: Array
    beta: Array


@dataclass(frozen=True, eq=False)
class View:
    """A dump, or a part of it, as one sharing lays it out and one way of rounding sees it.

    x, y and deviation have the split shape; what is one number a set has 1 in place of the `normalized` axes.
    """

    x: Array
    y: Array
    deviation: Array
    squares: Mapping[tuple[Spread, int], Array]  # of each spread and ddof
    spreads: Mapping[Spread, Array]  # the root mean squares that the bound knows, never rounded
    size: int  # how many values share one set
    normalized: tuple[int, ...]
    kind: str  # the type of the output
    picked: tuple[tuple[int, Array], ...] = ()  # the places along kept axes that were taken
    to: Callable[[Array], Array] = np.asarray  # how epsilon is rounded
    each: Callable[[Array], Array] = np.asarray  # how every step's result is
    finish: Callable[[Array], Array] = np.asarray  # how x̂ is

    def fewer(self, limit: int) -> View:
        """Leave values out of every set, whose statistics stay what they are, until there are about `limit`."""
        view, axis = self, max(self.normalized, key=lambda a: self.y.shape[a])
        length = self.y.shape[axis]
        keep = max(min(length, 8), math.ceil(length * limit / self.y.size))
        if keep < length:
            places = np.linspace(0, length - 1, keep).round().astype(int)
            x, y, deviation = (np.take(a, places, axis) for a in (self.x, self.y, self.deviation))
            view = replace(self, x=x, y=y, deviation=deviation, picked=(*self.picked, (axis, places)))
        return view

    def part(self, value: Parameter) -> Parameter:
        """Take the same part of a known parameter."""
        if not isinstance(value, np.ndarray):
            return value
        for axis, places in self.picked:
            if value.shape[axis] > 1:
                value = np.take(value, places, axis)
        return value


def view_of(x: Array, y: Array, sharing: Sharing, kind: str, limit: int | None = None) -> View:
    """Lay a dump out; with a `limit`, only so many values of it, those with the least and the greatest spread first."""
    layout = sharing.layout(x.shape)
    far = x.dtype == np.float64 and not LEAST < np.abs(x).max() < MOST
    wide = np.longdouble if kind == "float64" or far else np.float64
    split_x, split_y = (a.reshape(layout.split) for a in (x, y))
    picked: list[tuple[int, Array]] = []
    if limit is not None and x.size > limit:
        spread = split_x.std(axis=layout.normalized, dtype=wide)  # of a large dump no wide copy is made
        for axis, keep in _fewer(layout, limit).items():
            place = layout.kept.index(axis)
            others = tuple(a for a in range(spread.ndim) if a != place)
            order = np.argsort(spread.min(axis=others), kind="stable")
            places = np.sort(order[np.unique(np.linspace(0, len(order) - 1, keep).round().astype(int))])
            picked.append((axis, places))
            split_x, split_y = (np.take(a, places, axis) for a in (split_x, split_y))
            spread = np.take(spread, places, place)
    split_x, split_y = (a.astype(wide) for a in (split_x, split_y))
    size = math.prod(layout.split[a] for a in layout.normalized)
    deviation = split_x - split_x.mean(axis=layout.normalized, keepdims=True)
    deviation = deviation - deviation.mean(axis=layout.normalized, keepdims=True)
    variance = np.square(deviation).mean(axis=layout.normalized, keepdims=True)
    square = np.square(split_x).mean(axis=layout.normalized, keepdims=True)
    squares: dict[tuple[Spread, int], Array] = {
        ("std", 0): variance,
        ("std", 1): variance * (size / (size - 1)),
        ("rms", 0): square,
        ("l2", 0): square * size,
    }
    spreads: dict[Spread, Array] = {"std": np.sqrt(variance), "rms": np.sqrt(square), "l2": np.sqrt(square)}
    return View(split_x, split_y, deviation, squares, spreads, size, layout.normalized, kind, tuple(picked))


def _fewer(layout: Layout, limit: int) -> dict[int, int]:
    """Say how many places to keep along which of the kept axes, the first axis shortened first."""
    counts = {a: layout.split[a] for a in layout.kept}
    total = math.prod(layout.split)
    for axis in layout.kept:
        if total <= limit:
            break
        fewer = max(min(counts[axis], 6), math.ceil(counts[axis] * limit / total))
        total = total // counts[axis] * fewer
        counts[axis] = fewer
    return {a: n for a, n in counts.items() if n < layout.split[a]}


def fit(view: View, numerator: Array, denominator: Array, rho: Array, gamma: Parameter, beta: Parameter) -> Fit:
    """Fit y = γ·(numerator / denominator) + β for each of K denominators.

    Args:
        view: the dump.
        numerator: the split shape.
        denominator: K arrays of the statistics' shape.
        rho: the root mean square of x̂ in each set, K arrays of the statistics' shape.
        gamma, beta: to be solved for, known, or absent.
    """
    step = max(1, AT_ONCE // view.y.size)
    with np.errstate(all="ignore"):
        pieces = [
            _fit(view, view.finish(numerator / denominator[k : k + step]), rho[k : k + step], gamma, beta)
            for k in range(0, len(denominator), step)
        ]
    return Fit(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


def _fit(view: View, z: Array, rho: Array, gamma: Parameter, beta: Parameter) -> Fit:
    y, axes = view.y, tuple(range(1, z.ndim))
    weights = first_weights(view, gamma, beta)
    scale, shift, error = project(z, y, weights, gamma, beta)
    unit = _unit(view, z, rho, scale, shift)
    if isinstance(gamma, Free) or isinstance(beta, Free):
        # the bound depends on γ and β: once more with weights from what was found
        for _ in range(PASSES if (rho == 0).any() else 1):
            weights = 1 / np.square(unit)
            scale, shift, error = project(z, y, weights, gamma, beta)
            unit = _unit(view, z, rho, scale, shift)
        if view.kind in ("float16", "bfloat16"):
            scale, shift, error, unit = _lawson(view, z, rho, gamma, beta, (scale, shift, error, unit))
    worst = np.max(np.abs(error) / unit, axis=axes)
    spread = np.sqrt(np.mean(np.square(y - y.mean()))) or 1.0
    rough = np.sqrt(np.mean(np.square(error), axis=axes)) / spread
    lost = ~np.isfinite(worst)
    return Fit(np.where(lost, np.inf, worst), np.where(lost, np.inf, rough), scale, shift)


def _lawson(view: View, z: Array, rho: Array, gamma: Parameter, beta: Parameter, best: tuple[Array, ...]) -> Any:
    """Lower the largest error: where least squares miss most the weight grows (Lawson 1961).

    Half an ulp of rounding reaches the bound itself, so least squares alone would refuse the truth.
    """
    axes = tuple(range(1, z.ndim))
    scale, shift, error, unit = best
    worst = np.max(np.abs(error) / unit, axis=axes)
    weights = 1 / np.square(unit)
    for _ in range(LAWSON):
        near = (worst > 1) & (worst < 16)
        if not near.any():
            break
        weights = weights * np.abs(error / unit)
        tried_scale, tried_shift, error = project(z, view.y, weights, gamma, beta)
        tried_unit = _unit(view, z, rho, tried_scale, tried_shift)
        now = np.max(np.abs(error) / tried_unit, axis=axes)
        better = (near & (now < worst)).reshape(-1, *[1] * (z.ndim - 1))
        scale, shift = np.where(better, tried_scale, scale), np.where(better, tried_shift, shift)
        worst = np.minimum(worst, np.where(near, now, worst))
    return scale, shift, view.y - scale * z - shift, _unit(view, z, rho, scale, shift)


def first_weights(view: View, gamma: Parameter, beta: Parameter) -> Array:
    """Guess 1/bound² before γ and β are known: from y alone, which has most of them in it."""
    y = view.y
    free = next((p for p in (gamma, beta) if isinstance(p, Free)), None)
    over = tuple(a for a in range(y.ndim) if free is None or a not in free.axes)
    level = np.sqrt(np.mean(np.square(y), axis=over, keepdims=True))
    guess = bound_of(np.abs(y) + level / 2, y, view.kind)
    return np.asarray(1 / np.square(guess))[None]


def project(z: Array, y: Array, weights: Array, gamma: Parameter, beta: Parameter) -> tuple[Array, Array, Array]:
    """Solve for the free parameters by weighted least squares; give γ, β and y − γ·z − β."""
    ones = np.ones((1,) * z.ndim, z.dtype)
    scale = ones if gamma is None else gamma[None] if isinstance(gamma, np.ndarray) else None
    shift = 0 * ones if beta is None else beta[None] if isinstance(beta, np.ndarray) else None
    if scale is None and shift is None:
        # γ may be one number for all channels that have a β each, never the other way round
        over = _over(z, beta)
        total = np.sum(weights + 0 * y, axis=over, keepdims=True)
        middle_z = np.sum(weights * z, axis=over, keepdims=True) / total
        middle_y = np.sum(weights * y, axis=over, keepdims=True) / total
        scale = _slope(weights, z - middle_z, y - middle_y, _over(z, gamma))
        shift = middle_y - scale * middle_z
    elif scale is None:
        scale = _slope(weights, z, y - shift, _over(z, gamma))
    elif shift is None:
        over = _over(z, beta)
        left = np.sum(weights * (y - scale * z), axis=over, keepdims=True)
        shift = left / np.sum(weights * np.ones_like(z), axis=over, keepdims=True)
    assert scale is not None and shift is not None  # each is known, absent, or has been solved for
    scale, shift = (np.broadcast_to(p, (len(z), *p.shape[1:])) for p in (scale, shift))
    return scale, shift, y - scale * z - shift


def _over(z: Array, parameter: Parameter) -> tuple[int, ...]:
    assert isinstance(parameter, Free)  # callers ask only for these
    return tuple(a for a in range(1, z.ndim) if a - 1 not in parameter.axes)


def _slope(weights: Array, z: Array, y: Array, over: tuple[int, ...]) -> Array:
    below = np.sum(weights * z * z, axis=over, keepdims=True)
    above = np.sum(weights * z * y, axis=over, keepdims=True)
    # where x̂ does not vary no γ can be told, and 0 leaves y to β
    return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below > 0))


def _unit(view: View, z: Array, rho: Array, scale: Array, shift: Array) -> Array:
    terms = np.abs(scale * z) + np.abs(scale) * rho + np.abs(shift)
    return bound_of(terms, scale * z + shift, view.kind)
