# SPDX-License-Identifier: MIT
"""This file finds an input on which norms differ that a dump cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layernorm.comparing.hypothesis import Hypothesis, outcome
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.errors import ArgumentError, SpecError

Array = npt.NDArray[Any]

# A part of the output's own size that no rounding of a float32 makes, and of a 16-bit type.
CLEAR = {"float32": 1e-5, "float64": 1e-10, "float16": 2e-2, "bfloat16": 2e-2}
# So many places along an axis that carries no parameter are enough to tell by.
PLACES = 8
MOST = 3


@np.errstate(all="ignore")
def told_apart(
    first: Hypothesis, rivals: Sequence[Hypothesis], shape: tuple[int, ...], kind: str
) -> tuple[str | None, list[Hypothesis]]:
    """Describe the inputs that tell rivals from the first, and list those that none of them tells.

    >>> from layernorm.spec.norm_spec import NormSpec
    >>> a, b = (Hypothesis(f"epsilon {eps}", "eps-value", NormSpec(eps=eps)) for eps in (1e-5, 1e-12))
    >>> told_apart(a, [b], (4, 64), "float32")[0]
    'values of mean 0 and standard deviation 1e-06 would tell the other from it (6378 times its size apart)'
    """
    inputs = probes(_smaller(shape, first), kind)
    table: dict[str, list[float]] = {}
    for words, x in inputs.items():
        given = outcome(first, x)[0]
        table[words] = [_apart(given, rival, x) for rival in rivals]
    left = list(range(len(rivals)))
    parts: list[str] = []
    clear = CLEAR[kind]
    while left and len(parts) < MOST:
        # of inputs that tell as many, the one on which the closest is farthest
        def gain(words: str, left: Sequence[int] = tuple(left)) -> tuple[int, float]:
            seen = [table[words][k] for k in left if table[words][k] > clear]
            return len(seen), min(seen, default=0.0)

        best = max(table, key=gain)
        count, least = gain(best)
        if not count:
            break
        far = _far(least)
        whom = f"{count} of the {len(rivals)} others" if len(rivals) > 1 else "the other"
        if len(rivals) > 1 and count == len(rivals):
            whom = f"all {count} others" if count > 2 else "both others"
        parts.append(f"{best} would tell {whom} from it ({'at least ' if count > 1 else ''}{far})")
        left = [k for k in left if not table[best][k] > clear]
    return ("; ".join(parts) or None), [rivals[k] for k in left]


def _far(part: float) -> str:
    if math.isinf(part):
        return "only one of them is finite"
    said = f"{part:.0f} times" if part >= 10 else f"{part:.1%} of" if part >= 1e-3 else f"{part:.0e} of"
    return f"{said} its size apart"


def probes(shape: tuple[int, ...], kind: str) -> dict[str, Array]:
    """Make inputs on which norms differ: ordinary ones never tell an epsilon, zero-mean ones never a mean."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    ramp = np.logspace(-6, 0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    across = np.logspace(-3, 0, shape[-1])
    spike = x.copy()
    spike.reshape(-1)[:: max(shape[-1] * 2, 7)] = 1000.0
    name = kind if kind in ("float16", "bfloat16") else DTYPES[kind].compute
    made = {
        "values of mean 0 and standard deviation 1": x,
        "values of mean 3 and standard deviation 1": 3 + x,
        "values of mean 0 and standard deviation 0.01": 0.01 * x,
        "values of mean 0 and standard deviation 0.0001": 1e-4 * x,
        "values of mean 0 and standard deviation 1e-06": 1e-6 * x,
        "standard deviations that run from 1e-06 to 1 along the first axis": ramp * x,
        "standard deviations that run from 0.001 to 1 along the last axis": across * x,
        "values of mean 10000 and standard deviation 1": 1e4 + x,
        "values of standard deviation 1 and now and then a value of 1000": spike,
        "values of standard deviation 30000": 3e4 * x,
    }
    with np.errstate(over="ignore"):
        return {words: value.astype(np.dtype(name)) for words, value in made.items()}


def _smaller(shape: tuple[int, ...], hypothesis: Hypothesis) -> tuple[int, ...]:
    """Shorten the axes along which no parameter lies."""
    spec = hypothesis.spec.resolve(len(shape))
    carried = {a for axes in (spec.scale_axes, spec.shift_axes) if isinstance(axes, tuple) for a in axes}
    carried |= {spec.channel_axis} if isinstance(spec.channel_axis, int) else set()
    return tuple(n if a in carried or a == len(shape) - 1 else min(n, PLACES) for a, n in enumerate(shape))


def _apart(a: Array, rival: Hypothesis, x: Array) -> float:
    """Say how far an output is from a rival's, in units of its own root mean square."""
    try:
        b = outcome(rival, x)[0]
    except (SpecError, ArgumentError):
        return 0.0
    sound = np.isfinite(a)
    if not np.array_equal(sound, np.isfinite(b)):
        return math.inf
    if not sound.any():
        return 0.0
    size = math.sqrt(np.mean(np.square(a[sound])))
    return float(np.max(np.abs(a[sound] - b[sound]))) / (size or 1.0)
