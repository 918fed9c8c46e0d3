# SPDX-License-Identifier: MIT
"""This file draws norms and inputs, computes the outputs by hand in NumPy, and asks `infer` which norm it was.

Run as a script it prints the figures of 2 000 draws:  python tests/comparing/draws.py [COUNT] [SEED] [FIRST]

Two questions a draw. Is the truth in the returned set? Is each returned norm one that this file's own float64
arithmetic finds within the bound too, gamma and beta solved for anew: then the set is no larger than the class of those
that are? The bound is written out here once more, and so is every formula.
"""

import math
import sys
import time
from dataclasses import dataclass, replace
from itertools import islice

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16
import numpy as np

import layernorm as ln
from layernorm.spec.norm_spec import NormSpec

U = 2.0**-24
USUAL = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7, 1e-4, 2.0**-23)


@dataclass(frozen=True, eq=False)
class Draw:
    """One norm, its input and output, and what is told of its parameters."""

    truth: NormSpec
    x: np.ndarray
    y: np.ndarray
    gamma: np.ndarray | None
    beta: np.ndarray | None
    given_gamma: np.ndarray | None
    given_beta: np.ndarray | None


def draw(rng):
    """Draw a norm, an input of at least four rows, and what is told."""
    while True:
        drawn = _draw(rng)
        # what overflows in float16 leaves nothing to tell a norm by
        if np.isfinite(drawn.y).all() and np.ptp(drawn.y):
            return drawn


def _draw(rng):
    spec, shape = _kind(rng)
    spread = 10 ** rng.uniform(-2.5, 1.5)
    x = rng.standard_normal(shape) * spread
    if rng.random() < 0.5:  # rows of unlike spread, along the first axis
        x *= np.exp(rng.normal(0, 1, (shape[0], *[1] * (len(shape) - 1))))
    x += rng.choice([0, 1, 30]) * spread * rng.normal()
    x = x.astype(np.float32)
    told = "both" if rng.random() < 0.4 else "gamma" if rng.random() < 0.2 else "none"
    # where every set has a gamma of its own that nobody tells, an epsilon does not show
    spec = replace(spec, **_eps(rng, spec, x, usual=spec.kind == "batch" and told == "none"))
    if spec.spread == "std" and rng.random() < 0.15:
        spec = replace(spec, ddof=1)
    carried = spec.scale_axes
    affine = rng.choice(["none", "gamma", "both"], p=[0.2, 0.25, 0.55])
    shape_of = None if carried is None else tuple(shape[a] for a in spec.resolve(len(shape)).scale_axes)
    gamma = None if affine == "none" else rng.normal(1, 0.4, shape_of)
    beta = rng.normal(0, 0.5, shape_of) if affine == "both" else None
    known = told != "none" and gamma is not None
    offset = 1 if known and rng.random() < 0.2 else 0
    if offset:
        gamma = gamma - 1
    spec = replace(
        spec, scale_axes=None if gamma is None else carried, shift_axes=None if beta is None else carried,
        scale_offset=offset, **_rounding(rng),
    )  # fmt: skip
    gamma, beta = (None if p is None else p.astype(np.float32) for p in (gamma, beta))
    y = outcome(spec, x, gamma, beta).astype(np.float32)
    return Draw(spec, x, y, gamma, beta, gamma if known else None, beta if told == "both" else None)


def _kind(rng):
    d = int(rng.choice([6, 8, 16, 24, 64, 96]))
    c, side = int(rng.choice([4, 6, 8, 12])), int(rng.choice([3, 4, 5]))
    rows, n = int(rng.integers(4, 17)), int(rng.integers(4, 9))
    image = (n, c, side, side + 1)
    name = rng.choice(
        ["layer", "rms", "l2", "group", "instance", "batch", "scaled", "first", "two"],
        p=[0.28, 0.2, 0.07, 0.13, 0.08, 0.09, 0.04, 0.05, 0.06],
    )
    wide = (rows, d) if rng.random() < 0.6 else (n, 5, d)
    last, channel = {"axes": (-1,), "scale_axes": (-1,)}, {"scale_axes": (1,)}
    match name:
        case "layer":
            return NormSpec(**last), wide
        case "rms":
            return NormSpec(centered=False, spread="rms", **last), wide
        case "l2":
            return NormSpec(centered=False, spread="l2", **last), wide
        case "scaled":
            return NormSpec(centered=False, **last), wide
        case "two":
            return NormSpec(axes=(-2, -1), scale_axes=(-1,)), (n, 5, d)
        case "first":
            return NormSpec(axes=(1,), **channel), image
        case "instance":
            return NormSpec(axes=("2:",), **channel), image
        case "batch":
            return NormSpec(axes=(0, "2:"), **channel), image if rng.random() < 0.5 else (8 * rows, c)
        case _:
            groups = int(rng.choice([g for g in range(2, c) if c % g == 0]))
            order = str(rng.choice(["blocked", "interleaved"]))
            return NormSpec(axes=("1:",), channel_axis=1, groups=groups, group_order=order, **channel), image


def _eps(rng, spec, x, usual):
    places = ["variance", "deviation", "sum", "variance_floor", "deviation_floor", "none"]
    place = str(rng.choice(places, p=[0.6, 0.14, 0.08, 0.06, 0.06, 0.06]))
    if place == "none":
        return {"eps_at": place, "eps": 0.0}
    if usual or rng.random() < 0.85:
        return {"eps_at": place, "eps": float(rng.choice(USUAL))}
    # one that nobody uses, of two digits, where it shows: between a thirtieth and ten times the typical square
    rows = _rows(spec, x)[0]
    square = np.median(rows.var(-1) if spec.centered or spec.spread == "std" else np.mean(rows**2, -1))
    size = {"deviation": np.sqrt(square), "deviation_floor": np.sqrt(square), "sum": square * rows.shape[1]}
    value = size.get(place, square) * 10 ** rng.uniform(-1.5, 1)
    if "floor" in place:  # a floor shows only where it is above some and below others
        value = np.quantile(rows.var(-1) if spec.spread == "std" else np.mean(rows**2, -1), 0.5)
        value = np.sqrt(value) if place == "deviation_floor" else value
        return {"eps_at": "variance", "eps": float(f"{value:.1e}")}
    return {"eps_at": place, "eps": float(f"{value:.1e}")}


def _rounding(rng):
    ways = [{}, {"stats_dtype": "float32"}, {"stats_dtype": "float32", "variance_by": "moments"},
            {"stats_dtype": "float32", "variance_by": "moments_clamped"}, {"stats_dtype": "bfloat16"},
            {"stats_dtype": "float16"}]  # fmt: skip
    return ways[rng.choice(len(ways), p=[0.82, 0.06, 0.04, 0.02, 0.03, 0.03])]


# -- the arithmetic, written out ------------------------------------------------------------------------------


def _rows(spec, x):
    """Give (sets, values) in float64, and the function that undoes it."""
    x = np.asarray(x, np.float64)
    ndim = x.ndim
    plain = []
    for a in spec.axes:
        plain += range(int(a[:-1]), ndim) if isinstance(a, str) else [a % ndim]
    split = list(x.shape)
    if spec.groups is not None:
        c, g = spec.channel_axis % ndim, spec.groups
        per = split[c] // g
        split[c : c + 1] = [g, per] if spec.group_order == "blocked" else [per, g]
        inside = c + 1 if spec.group_order == "blocked" else c
        plain = [inside if a == c else a + (a > c) for a in plain]
    kept = [a for a in range(len(split)) if a not in plain]
    order = kept + sorted(plain)
    moved = x.reshape(split).transpose(order)

    def back(rows):
        return rows.reshape(moved.shape).transpose(np.argsort(order)).reshape(x.shape)

    return moved.reshape(math.prod(split[a] for a in kept), -1), back


def _to(name, values):
    if name == "float64":
        return values
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.dtype(name)).astype(np.float64)


def normalized(spec, x):
    """Give x̂ and ρ of every element, in float64."""
    rows, back = _rows(spec, x)
    to, n = spec.stats_dtype, rows.shape[1]
    rows = _to(to, rows)
    mean = _to(to, rows.mean(-1, keepdims=True))
    deviation = rows - mean
    if to == "float64":
        deviation -= deviation.mean(-1, keepdims=True)
    if spec.spread == "std" and spec.variance_by != "centered":
        square = (_to(to, np.mean(rows * rows, -1, keepdims=True)) - mean * mean) * n / (n - spec.ddof)
        square = np.maximum(square, 0) if spec.variance_by == "moments_clamped" else square
    elif spec.spread == "std":
        square = _to(to, np.sum(deviation**2, -1, keepdims=True) / (n - spec.ddof))
    else:
        square = _to(to, np.sum(rows**2, -1, keepdims=True) / (1 if spec.spread == "l2" else n))
    eps = _to(to, spec.eps)
    divisor = 1 if spec.spread == "l2" else n - (spec.ddof if spec.spread == "std" else 0)
    with np.errstate(all="ignore"):
        root = np.sqrt(square)
        below = {
            "none": root,
            "variance": np.sqrt(square + eps),
            "sum": np.sqrt(square + eps / divisor),
            "deviation": root + eps,
            "variance_floor": np.sqrt(np.maximum(square, eps)),
            "deviation_floor": np.maximum(root, eps),
        }[spec.eps_at]
        top = deviation if spec.centered else rows
        xhat = top / below
        own = deviation if spec.spread == "std" else rows
        rho = np.sqrt(np.mean(own**2, -1, keepdims=True)) / below
    return back(xhat), back(np.broadcast_to(rho, rows.shape))


def _laid(spec, axes, value, shape):
    if value is None or axes is None:
        return None
    if axes == "group":
        c = spec.channel_axis % len(shape)
        per = shape[c] // spec.groups
        value = np.repeat(value, per) if spec.group_order == "blocked" else np.tile(value, per)
        return value.astype(np.float64).reshape([n if a == c else 1 for a, n in enumerate(shape)])
    on = [a % len(shape) for a in axes]
    return np.asarray(value, np.float64).reshape([n if a in on else 1 for a, n in enumerate(shape)])


def outcome(spec, x, gamma, beta):
    """Give y in float64."""
    xhat, _ = normalized(spec, x)
    gamma = _laid(spec, spec.scale_axes, gamma, x.shape)
    beta = _laid(spec, spec.shift_axes, beta, x.shape)
    y = xhat if gamma is None else (spec.scale_offset + gamma) * xhat
    return y if beta is None else y + beta


def miss(spec, drawn):
    """Give the least residual that any gamma and beta have; those that are given are kept."""
    with np.errstate(all="ignore"):
        return _miss(spec, drawn)


def _miss(spec, drawn):
    x, y = drawn.x, drawn.y.astype(np.float64)
    xhat, rho = normalized(spec, x)
    scale = _laid(spec, spec.scale_axes, drawn.given_gamma, x.shape)
    scale = None if scale is None else spec.scale_offset + scale
    shift = _laid(spec, spec.shift_axes, drawn.given_beta, x.shape)
    free_scale, free_shift = (
        spec.scale_axes is not None and scale is None,
        spec.shift_axes is not None and shift is None,
    )
    over = _over(spec, spec.scale_axes if free_scale else spec.shift_axes, x.shape)
    weights = 1 / (np.abs(y) + np.sqrt(np.mean(y**2)) / 4) ** 2
    best = math.inf
    for step in range(60):
        if free_scale and free_shift:
            total = _sum(spec, weights, over)
            zbar, ybar = _sum(spec, weights * xhat, over) / total, _sum(spec, weights * y, over) / total
            z = xhat - zbar
            a = np.nan_to_num(_sum(spec, weights * z * (y - ybar), over) / _sum(spec, weights * z * z, over))
            b = ybar - a * zbar
        elif free_scale:
            b = 0.0 if shift is None else shift
            a = np.nan_to_num(_sum(spec, weights * xhat * (y - b), over) / _sum(spec, weights * xhat**2, over))
        elif free_shift:
            a = 1.0 if scale is None else scale
            b = _sum(spec, weights * (y - a * xhat), over) / _sum(spec, weights, over)
        else:
            a, b = (1.0 if scale is None else scale), (0.0 if shift is None else shift)
        bound = 4 * U * (np.abs(a * xhat) + np.abs(a) * rho + np.abs(b)) + 2.0**-149
        error = np.abs(y - a * xhat - b) / bound
        worst = np.max(np.where(np.isfinite(error), error, np.inf))
        best = min(best, worst)
        if best <= 1 or not (free_scale or free_shift) or worst > 20:
            return best
        # Lawson: the least largest error, by weights that grow where the error is
        weights = 1 / bound**2 if step == 0 else weights * error
        weights = weights / np.max(weights)
    return best


def _over(spec, axes, shape):
    if axes is None or axes == "group":
        return axes
    return tuple(a for a in range(len(shape)) if a not in [b % len(shape) for b in axes])


def _sum(spec, values, over):
    if over != "group":
        return np.sum(values, axis=over, keepdims=True)
    c = spec.channel_axis % values.ndim
    per_channel = np.sum(values, axis=tuple(a for a in range(values.ndim) if a != c))
    g = spec.groups
    dealt = per_channel.reshape((g, -1) if spec.group_order == "blocked" else (-1, g))
    sums = dealt.sum(axis=1 if spec.group_order == "blocked" else 0)
    return _laid(spec, "group", sums, values.shape)


# -- the figures ----------------------------------------------------------------------------------------------


def draws(seed=0, first=0):
    """Draw without end; draw k of a seed is always the same."""
    k = first
    while True:
        yield k, draw(np.random.default_rng([seed, k]))
        k += 1


def judge(drawn):
    """Ask infer; give whether the truth is in the set, whether the set is within the class, its size and the time."""
    start = time.perf_counter()
    found = ln.infer(drawn.x, drawn.y, drawn.given_gamma, drawn.given_beta)
    took = time.perf_counter() - start
    returned = [] if found.spec is None else [found.spec, *found.equivalent]
    has = any(spec.same_as(drawn.truth, drawn.x.shape) for spec in returned)
    within = all(miss(spec, drawn) <= 1 for spec in returned)
    return has, within, len(returned), took, found


def main(count=2000, seed=0, told=False, first=0):
    """Print how often the truth was found, and how often nothing was returned that does not fit."""
    has_truth = within_class = simplest = 0
    sizes, times = [], []
    for k, drawn in islice(draws(seed, first), count):
        has, within, size, took, found = judge(drawn)
        has_truth += has
        within_class += within
        simplest += found.spec is not None and found.spec.same_as(drawn.truth, drawn.x.shape)
        sizes.append(size)
        times.append(took)
        if told and not (has and within):
            print(k, "truth missing" if not has else "set too large", drawn.x.shape, drawn.truth, "|", found.spec,
                  [p is not None for p in (drawn.given_gamma, drawn.given_beta)], f"{miss(drawn.truth, drawn):.3g}",
                  flush=True)  # fmt: skip
        if told and k % 100 == 99:
            print(f"{k + 1} of {count}: {has_truth} truths found, {within_class} sets within the class", flush=True)
    print(
        f"{count} draws (seed {seed}, from {first}): the truth is in the set in {has_truth / count:.2%}, and is the "
        f"first in {simplest / count:.2%}; the set is no larger than the class in {within_class / count:.2%}; "
        f"median size {int(np.median(sizes))}, median time {np.median(times):.2f} s, longest {max(times):.2f} s"
    )
    return has_truth / count, within_class / count


if __name__ == "__main__":
    counts = dict(zip(("count", "seed", "first"), map(int, sys.argv[1:]), strict=False))
    main(**counts, told=True)
