# SPDX-License-Identifier: MIT
"""This file gives tests arrays on which a wrong epsilon shows, and how far float32 code may be from ours on them.

The spread of x is √10·√eps (in units of x, 10·eps), so that eps is a tenth of the variance and no rounding hides
it. Its mean is half its spread, so little cancels: what happens near large means is for other tests.
"""

import math
from dataclasses import dataclass

import numpy as np

from layernorm.ops.layout import layout_of

SHAPE = (2, 64, 3, 96)  # all lengths differ: a parameter along the wrong axis does not fit
U = 2.0**-24


@dataclass(frozen=True, eq=False)
class Example:
    """An input with everything that a layer of this spec needs; None where it has none of it.

    `wide_gamma` and `wide_beta` have one axis for each of x's. `size` values share one set of statistics, and `kappa`
    is the largest ratio of root mean square to standard deviation among these sets.
    """

    x: np.ndarray
    gamma: np.ndarray | None
    beta: np.ndarray | None
    mean: np.ndarray | None
    var: np.ndarray | None
    wide_gamma: np.ndarray | None
    wide_beta: np.ndarray | None
    size: int
    kappa: float


def example(spec, shape=SHAPE, seed=0):
    draw = np.random.default_rng(seed)
    layout = layout_of(shape, spec)
    spread = _spread(spec, layout.columns)
    x = spread * (draw.normal(size=shape) + (0.0 if spec.spread == "l2" else 0.5))
    if spec.spread == "l2":  # lengths on both sides of a floor, and no length at all
        x *= np.geomspace(0.1, 10, shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
        if spec.eps_at != "none":
            x[0, 0] = 0
    mean = var = None
    if spec.statistics != "input":
        kept = [layout.split[a] for a in layout.kept]
        mean = (spread * draw.uniform(-1, 1, kept)).astype(np.float32)
        var = (spread**2 * draw.uniform(0.5, 2, kept)).astype(np.float32)
    gamma = _parameter(layout, layout.scale_axes, draw.choice([-1, 1]) * draw.uniform(0.5, 2, 10**5))
    beta = _parameter(layout, layout.shift_axes, draw.normal(size=10**5))
    rows = layout.rows_of(x)
    kappa = 1.0
    if spec.spread == "std" and spec.statistics == "input":
        kappa = float(np.max(np.sqrt(np.mean(rows**2, axis=-1)) / np.std(rows, axis=-1)))
    return Example(
        x.astype(np.float32), gamma, beta, mean, var, _wide(layout, gamma, layout.scale_axes),
        _wide(layout, beta, layout.shift_axes), layout.columns, kappa,
    )  # fmt: skip


def allowed(spec, given, y):
    """Give how far another float32 implementation may be from our y, element by element.

    Ours is within 4u(|γx̂| + |γ| + |β|) of the truth. Theirs, with κ = rms/σ and n values to a mean:

    * A float32 sum of n values of one sign is off by more than λ√n·u of itself with probability 2exp(−λ²/2) at most,
      in whatever order it is done (Higham and Mary 2019); λ = 4, s = 4√n·u.
    * The mean is off by s·rms: κ·s·|γ| in y.
    * The variance is off by s in two passes, by (κ² + 2κ²)·s as E[x²] − E[x]²: half of that, 1.5κ²·s·|γx̂|, in y.
    * Six roundings on the way, of at most |γx̂| + 2κ|γ| + |β|, even in the form x·a + (β − mean·a).

    Uncentred norms have no mean to be off, and no |γ|.
    """
    gamma, beta = (0.0 if p is None else np.abs(p.astype(np.float64)) for p in (given.wide_gamma, given.wide_beta))
    gamma = 1.0 if given.wide_gamma is None else gamma + spec.scale_offset
    signed = 0.0 if given.wide_beta is None else given.wide_beta.astype(np.float64)
    size = np.abs(y.astype(np.float64) - signed) + (2 * given.kappa * gamma if spec.centered else 0) + beta
    summed = 0 if spec.statistics == "stored" else 1.5 * given.kappa**2 * 4 * math.sqrt(given.size)
    return (4 + 6 + summed) * U * size


def worst(theirs, ours, bound):
    """Give the largest difference in units of what is allowed; NaN counts as infinitely far."""
    assert theirs.shape == ours.shape
    assert theirs.dtype == ours.dtype
    distance = np.abs(theirs.astype(np.float64) - ours.astype(np.float64)) / np.maximum(bound, 1e-300)
    return float(np.max(np.where(np.isnan(distance), np.inf, distance)))


def _spread(spec, columns):
    if spec.eps_at == "none" or spec.eps < 1e-40:
        return 1.0
    match spec.eps_at:
        case "deviation":
            return 10 * spec.eps
        case "deviation_floor":
            return spec.eps / (math.sqrt(columns) if spec.spread == "l2" else 1)
        case "variance_floor":
            return math.sqrt(spec.eps / (columns if spec.spread == "l2" else 1))
        case "sum":
            return math.sqrt(10 * spec.eps / columns)
    return math.sqrt(10 * spec.eps)


def _parameter(layout, axes, values):
    if axes is None:
        return None
    shape = layout.parameter_shape(axes)
    return values[: math.prod(shape)].reshape(shape).astype(np.float32)


def _wide(layout, value, axes):
    if value is None:
        return None
    if axes == "group":
        value, axes = np.repeat(value, layout.shape[layout.channel_axis] // len(value)), (layout.channel_axis,)
    return value.reshape([n if a in axes else 1 for a, n in enumerate(layout.shape)])
