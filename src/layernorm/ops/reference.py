# SPDX-License-Identifier: MIT
"""This file is the definition: what a NormSpec computes, forward and backward, in float64 and plain steps.

It executes every field of a spec, and rounds where the spec says that somebody rounds. It works on rows,
x: (rows, columns); one row shares one set of statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from layernorm.ops.layout import Array, Parameter
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.norm_spec import NormSpec

Rounding = Callable[[Array], Array]


@dataclass(frozen=True)
class Row:
    """What one row's statistics come to; each (rows, 1) but `deviation` (rows, columns).

    Where rows were scaled, `deviation`, `denominator` and `root` are in units of `scale`.
    """

    mean: Array
    residue: Array
    deviation: Array  # x less its own mean, whatever the numerator is
    numerator: Array
    denominator: Array
    root: Array  # the denominator before eps
    scale: Array


def forward(
    x: Array,
    spec: NormSpec,
    gamma: Parameter | None = None,
    beta: Parameter | None = None,
    given: tuple[Array, Array] | None = None,
    update: float | None = None,
) -> tuple[Array, Row]:
    """Normalize rows as the spec says; y comes back in x's type.

    `given` are stored mean and variance, each (rows, 1); `update` is the weight that this input's own
    statistics have in updated ones.
    """
    to_input, to_stats = _rounding(x.dtype.name), _rounding(_stats_dtype(x, spec))
    each: Rounding = to_stats if spec.round_each else _keep
    with np.errstate(all="ignore"):
        row = statistics(x, spec, given, update)
        y = each(row.numerator / row.denominator)
        if spec.cast_before_scale:
            y, each = to_input(y), (to_input if spec.round_each else _keep)
        if gamma is not None:
            y = each(y * each(spec.scale_offset + _float64(gamma.per_row())))
        if beta is not None:
            y = each(y + _float64(beta.per_row()))
        return to_input(y).astype(x.dtype), row


def statistics(x: Array, spec: NormSpec, given: tuple[Array, Array] | None = None, update: float | None = None) -> Row:
    """Take the mean and the denominator of every row."""
    to_stats = _rounding(_stats_dtype(x, spec))
    each: Rounding = to_stats if spec.round_each else _keep
    exact = to_stats is _keep
    n = x.shape[1]
    x = to_stats(_float64(x))
    eps = to_stats(np.asarray(0.0 if spec.eps_at == "none" else spec.eps, np.float64))
    scale = _power_of_two(x, eps, given) if exact else np.ones((len(x), 1))
    x = x / scale

    mean = to_stats(_mean(x))
    deviation, residue = each(x - mean), np.zeros_like(mean)
    if exact:
        # Rounding the mean is itself an error, and near a large offset the largest one: take it out of the
        # deviations. A spec that keeps statistics in a narrower type asks for that error, and gets it.
        rest = _rest(x, -mean, deviation)
        residue = _mean(deviation) + _mean(rest)
        deviation = deviation + (rest - residue)
    numbers, divisor = (deviation, n - spec.ddof) if spec.spread == "std" else (x, n)
    if spec.spread == "std" and spec.variance_by != "centered":
        square = each(to_stats(_mean(each(x * x))) - each(mean * mean)) * (n / divisor)
        square = np.maximum(square, 0) if spec.variance_by == "moments_clamped" else square
    else:
        total = np.sum(each(numbers * numbers), axis=-1, keepdims=True)
        square = to_stats(total if spec.spread == "l2" else total / divisor)
    if given is not None:
        weight = update or 0.0
        both = mean + residue
        mean = (1 - weight) * given[0] / scale + weight * both
        square = (1 - weight) * given[1] / scale**2 + weight * square
        residue = np.zeros_like(mean)
    if spec.eps_at == "sum" and spec.spread != "l2":
        eps = eps / divisor
    root = each(np.sqrt(square))
    denominator = _denominator(square, root, _scaled(eps, scale, spec), spec, each)
    numerator = x if not spec.centered else deviation if given is None else x - mean
    return Row(mean * scale, residue * scale, deviation, numerator, denominator, root, scale)


def _denominator(square: Array, root: Array, eps: Array, spec: NormSpec, each: Rounding) -> Array:
    match spec.eps_at:
        case "variance" | "sum":
            return each(np.sqrt(each(square + eps)))
        case "deviation":
            return each(root + eps)
        case "variance_floor":
            return each(np.sqrt(np.maximum(square, eps)))
        case "deviation_floor":
            return np.maximum(root, eps)
        case _:
            return root


def backward(
    dy: Array,
    x: Array,
    spec: NormSpec,
    gamma: Parameter | None = None,
    row: Row | None = None,
    given: tuple[Array, Array] | None = None,
    update: float | None = None,
) -> tuple[Array, Array]:
    """Give dx and x̂, both (rows, columns) float64; dγ sums dy·x̂ and dβ sums dy.

    With g = γ·dy and D the denominator, the chain rule through the numerator, the mean and D is
    dx = (g − w·mean(g) − w·x̂·Σ(g·x̂)·D′) / D, where D′ = (x − mean)/(n − ddof) over D (over the bare root
    where eps is added to it), and w is how much of the statistics comes from this input: 1, 0 for stored
    ones. Rounding has no gradient: a spec that rounds is differentiated as if it did not.
    """
    with np.errstate(all="ignore"):
        row = row if row is not None else statistics(x, spec, given, update)
        own = {"input": 1.0, "stored": 0.0}.get(str(spec.statistics), update)
        g = _float64(dy)
        if gamma is not None:
            g = g * (spec.scale_offset + _float64(gamma.per_row()))
        xhat = row.numerator / row.denominator
        slope = row.deviation if spec.spread == "std" else _float64(x) / row.scale
        below = row.root if spec.eps_at in ("deviation", "deviation_floor") else row.denominator
        divisor = {"std": x.shape[1] - spec.ddof, "rms": x.shape[1], "l2": 1}[str(spec.spread)]
        slope = slope / (divisor * below)
        if spec.eps_at in ("variance_floor", "deviation_floor"):
            slope = np.where(row.root < row.denominator, 0.0, slope)  # on the floor D is constant
        slope = np.where(row.root == 0, 0.0, slope) if spec.eps_at != "none" else slope
        dx = g
        if own:
            through_mean = _mean(g) if spec.centered else 0.0
            dx = g - own * through_mean - own * slope * np.sum(g * xhat, axis=-1, keepdims=True)
        return np.asarray(dx / row.denominator / row.scale), xhat


def row_of(x: Array, spec: NormSpec, stats: Array) -> Row:
    """Take a row's statistics from what a forward pass saved: m, δ and 1/D, each (rows,)."""
    mean, residue, rstd = stats.astype(np.float64)[:, :, None]
    x = _float64(x)
    deviation = (x - mean) - residue
    with np.errstate(divide="ignore"):
        denominator = 1 / rstd
    numerator = deviation if spec.centered else x
    return Row(mean, residue, deviation, numerator, denominator, denominator, np.ones_like(mean))


def xhat_of(
    x: Array,
    spec: NormSpec,
    stats: Array | None,
    given: tuple[Array, Array] | None = None,
    update: float | None = None,
) -> Array:
    """Give x̂ as float64 (rows, columns), from saved statistics if there are any."""
    with np.errstate(all="ignore"):
        row = statistics(x, spec, given, update) if stats is None else row_of(x, spec, stats)
        return np.asarray(row.numerator / row.denominator)


def rounded(values: Array, name: str) -> Array:
    """Round float64 values to a type, to nearest and ties to even, and give them back as float64."""
    t = DTYPES[name]
    if name == "float64":
        return values.astype(np.float64, copy=False)
    if name != "bfloat16":
        with np.errstate(over="ignore"):
            return np.asarray(values.astype(name), np.float64)
    # ml_dtypes goes to bfloat16 by way of float32, which rounds twice
    exponent = np.maximum(np.frexp(values)[1], int(np.log2(t.tiny)) + t.digits)
    near = np.ldexp(np.rint(np.ldexp(values, t.digits - exponent)), exponent - t.digits)
    return np.asarray(np.where(np.abs(near) > t.largest, np.copysign(np.inf, near), near))


def _keep(values: Array) -> Array:
    return values


def _rounding(name: str) -> Rounding:
    return _keep if name == "float64" else lambda values: rounded(values, name)


def _stats_dtype(x: Array, spec: NormSpec) -> str:
    return x.dtype.name if spec.stats_dtype == "input" else str(spec.stats_dtype)


def _float64(values: Array) -> Array:
    return np.asarray(values, np.float64)


def _mean(values: Array) -> Array:
    """Average rows by halves, and add what each sum lost in rounding, so that the last digit is right."""
    n = values.shape[-1]
    lost = np.zeros((len(values), 1))
    while (half := values.shape[-1] // 2) > 0:
        a, b, odd = values[:, :half], values[:, half : 2 * half], values[:, 2 * half :]
        total = a + b
        lost += np.sum(_rest(a, b, total), axis=-1, keepdims=True)
        values = np.concatenate([total, odd], axis=-1)
    lost[~np.isfinite(lost)] = 0  # beside an infinity there is nothing to add
    return np.asarray((np.sum(values, axis=-1, keepdims=True) + lost) / n)


def _rest(a: Array, b: Array, total: Array) -> Array:
    """Give a + b - total exactly, where total is a + b rounded (Knuth's two-sum)."""
    from_b = total - a
    return np.asarray((a - (total - from_b)) + (b - from_b))


def _power_of_two(x: Array, eps: Array, given: object) -> Array:
    """Choose by what to divide each row so that its squares neither overflow nor vanish; mostly by 1."""
    if given is not None or not x.size:
        return np.ones((len(x), 1))
    largest = np.max(np.abs(x), axis=-1, keepdims=True)
    # beside an ordinary eps small squares may vanish, but a mean of subnormals needs digits; eps must not overflow
    far = (largest > 2.0**500) | (largest < 2.0**-400)
    lowest = -1000 if eps < 2.0**-600 else -480
    exponent = np.where(far & np.isfinite(largest), np.frexp(largest)[1], 0)
    return np.asarray(np.ldexp(1.0, np.clip(exponent, lowest, 1000)))


def _scaled(eps: Array, scale: Array, spec: NormSpec) -> Array:
    """Express eps in units of the scaled rows; a positive one stays positive, so constant rows give 0."""
    once = eps / scale
    if spec.eps_at not in ("deviation", "deviation_floor"):
        once = once / scale
    return np.asarray(np.where(eps > 0, np.maximum(once, 2.0**-1000), once))
