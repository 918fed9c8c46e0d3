# SPDX-License-Identifier: MIT
"""This file finds the epsilons that explain a dump, for one way of sharing statistics and one kind of parameters.

The usual epsilons are tried as they are. Where none fits, epsilon is solved for: with gamma and beta eliminated it is
the one unknown left, and a few Gauss-Newton steps on its logarithm find it; the shortest decimal that fits is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layernorm.comparing.denominators import USUAL, Measure, denominators
from layernorm.comparing.fitting import Fit, Free, Parameter, View, first_weights, fit, project
from layernorm.spec.norm_spec import EpsAt

Array = npt.NDArray[Any]

STEPS = 12
# So many values are enough for the steps; whatever they find is judged on all that is looked at.
SOLVED_ON = 1024
# No step changes epsilon by more than e² = 7.4 times: from the next power of ten that is never too short for long.
LONGEST = 2.0
MOST_DIGITS = 17
# Beside the nearest usual epsilon these parts of the typical spread are where the steps may start.
NEARBY = (0.1, 1.0, 10.0, 100.0)
# A mean square error beyond this, in units of the bound, is no matter of digits.
FAR = 1e4


class Explanation(NamedTuple):
    """One denominator with the parameters that go best with it."""

    measure: Measure
    place: EpsAt
    eps: float
    digits: int  # 0 for a usual epsilon, else how many digits it takes
    residual: float
    gamma: Array
    beta: Array


class Trial(NamedTuple):
    """A denominator to be tried."""

    measure: Measure
    place: EpsAt
    eps: float
    digits: int


def explanations(
    view: View, measures: Sequence[Measure], gamma: Parameter, beta: Parameter, most: float = 1.0, solve: bool = True
) -> tuple[list[Explanation], Explanation | None]:
    """List the denominators whose largest error is at most `most`, and the best one whether it is or not.

    With `solve` off only the usual epsilons are tried.
    """
    trials = [
        Trial(measure, place, eps, 0)
        for measure in measures
        for place in measure.places()
        for eps in ((0.0,) if place == "none" else USUAL)
    ]
    found, rough, best = _tried(view, trials, gamma, beta, most)
    explained = {(e.measure, e.place) for e in found}
    starts: dict[tuple[Measure, EpsAt], tuple[float, float]] = {}
    for trial, error in zip(trials, rough, strict=True):
        key = (trial.measure, trial.place)
        if trial.place != "none" and key not in explained and error < starts.get(key, (np.inf, 0.0))[0]:
            starts[key] = (float(error), trial.eps)
    if starts and solve:
        solved = _solved(view, [(m, p, eps) for (m, p), (_, eps) in starts.items()], gamma, beta)
        whole = [Trial(m, p, eps, MOST_DIGITS) for (m, p), eps in zip(starts, solved, strict=True) if 0 < eps < np.inf]
        near, _, other = _tried(view, whole, gamma, beta, most)
        rest = [
            Trial(e.measure, e.place, float(f"{e.eps:.{digits - 1}e}"), digits)
            for e in near
            for digits in range(1, MOST_DIGITS)
        ]
        more = _tried(view, rest, gamma, beta, most)[0] if rest else []
        best = min((b for b in (best, other) if b is not None), key=lambda e: e.residual, default=None)
        shortest: dict[tuple[Measure, EpsAt], Explanation] = {}
        for e in [*more, *near]:
            shortest.setdefault((e.measure, e.place), e)
        found += shortest.values()
    return found, best


def _tried(
    view: View, trials: Sequence[Trial], gamma: Parameter, beta: Parameter, most: float
) -> tuple[list[Explanation], Array, Explanation | None]:
    """Try denominators; those that come to the same numbers are worked out once."""
    found: list[Explanation] = []
    rough = np.full(len(trials), np.inf)
    best: Explanation | None = None
    for centered in (True, False):
        which = [k for k, t in enumerate(trials) if t.measure.centered is centered]
        if not which:
            continue
        below = denominators_of(view, [trials[k] for k in which])
        first, back, factor = distinct(view, below, gamma)
        kinds = [trials[which[k]].measure for k in first]
        result = fit_all(view, kinds, below[first], gamma, beta)
        for k, j, times in zip(which, back, factor, strict=True):
            rough[k] = result.rough[j]
            t = trials[k]
            worst = float(result.worst[j])
            if worst <= most or best is None or worst < best.residual:
                scale = np.asarray(result.gamma[j] * times, np.float64)
                e = Explanation(*t, worst, scale, np.asarray(result.beta[j], np.float64))
                if worst <= most:
                    found.append(e)
                if best is None or worst < best.residual:
                    best = e
    found.sort(key=lambda e: trials.index(Trial(*e[:4])))
    return found, rough, best


@np.errstate(all="ignore")  # the root of a variance that came out negative is NaN, and fits nothing
def denominators_of(view: View, trials: Sequence[Trial]) -> Array:
    """Give the denominator of each trial, one after the other."""
    parts = []
    for (measure, place), group in groupby(trials, key=lambda t: (t.measure, t.place)):
        parts.append(denominators(measure, view, place, [t.eps for t in group]))
    return np.concatenate(parts)


def fit_all(view: View, kinds: Sequence[Measure], below: Array, gamma: Parameter, beta: Parameter) -> Fit:
    """Fit denominators of measures that divide the same numerator."""
    with np.errstate(all="ignore"):
        own = np.stack([view.spreads[m.spread] for m in kinds])
        return fit(view, kinds[0].numerator(view), below, own / below, view.part(gamma), view.part(beta))


def distinct(view: View, below: Array, gamma: Parameter) -> tuple[Array, Array, Array]:
    """Find the denominators that differ, up to factors that a free gamma takes up.

    Gives the places of one of each, for every denominator which of these it is, and the factors that gamma then has.
    """
    reference = np.ones_like(below)
    scaled = isinstance(gamma, Free) and view.finish is np.asarray
    if isinstance(gamma, Free) and scaled:
        one = tuple(slice(None) if a in gamma.axes else slice(1) for a in range(below.ndim - 1))
        reference = below[(slice(None), *one)]
    with np.errstate(all="ignore"):
        # a twentieth of a unit of the bound is no difference
        logarithms = np.log(below / reference).reshape(len(below), -1)
        decimals = 17 if view.kind == "float64" else 8
        buckets = np.ascontiguousarray(np.nan_to_num(np.round(logarithms, decimals)) + 0.0)
    # by their bytes: np.unique along an axis makes a type of as many fields as there are sets, 20 times slower
    places: dict[bytes, int] = {}
    back = np.array([places.setdefault(row.tobytes(), len(places)) for row in buckets])
    first = np.array([int(np.argmax(back == j)) for j in range(len(places))])
    with np.errstate(all="ignore"):
        factor = reference / reference[first][back] if scaled else np.ones((len(below), 1))
    return first, back, factor


def _own_size(view: View, measure: Measure, place: EpsAt) -> float:
    """Give the epsilon that is as large as what it is added to."""
    square = float(np.median(measure.square(view)))
    square = square if square > 0 else 1.0
    if place in ("deviation", "deviation_floor"):
        return float(np.sqrt(square))
    return square * measure.divisor(view) if place == "sum" else square


def _solved(
    seen: View, starts: Sequence[tuple[Measure, EpsAt, float]], gamma: Parameter, beta: Parameter
) -> list[float]:
    """Solve for the epsilon of each measure and place, from a start each."""
    # epsilon rounded, or every step, would make a staircase of what has to be smooth
    view = replace(seen, to=np.asarray, each=np.asarray).fewer(SOLVED_ON)
    answers = np.zeros(len(starts))
    scale, shift = view.part(gamma), view.part(beta)
    for centered in (True, False):
        which = [k for k, (m, _, _) in enumerate(starts) if m.centered is centered]
        if not which:
            continue
        numerator = starts[which[0]][0].numerator(view)
        places = [starts[k][:2] for k in which]
        weights = np.sqrt(first_weights(view, scale, shift))

        def misses(
            logs: Array, numerator: Array = numerator, places: Sequence[Any] = places, weights: Array = weights
        ) -> Array:
            below = np.concatenate(
                [denominators(m, view, p, [np.exp(t)]) for (m, p), t in zip(places, logs, strict=True)]
            )
            error = project(numerator / below, view.y, weights * weights, scale, shift)[2]
            return (error * weights).reshape(len(logs), -1)

        with np.errstate(all="ignore"):
            logs = np.log(np.array([starts[k][2] for k in which], view.y.dtype))
            now = misses(logs)
            length = np.sum(now * now, axis=1)
            # far below the spread nothing changes with epsilon, and from there no step would lead on
            own = np.array([_own_size(view, *p) for p in places], view.y.dtype)
            for times in NEARBY:
                there = misses(np.log(own * times))
                shorter = np.sum(there * there, axis=1)
                better = shorter < length
                logs = np.where(better, np.log(own * times), logs)
                now, length = np.where(better[:, None], there, now), np.where(better, shorter, length)
            trust = np.full(len(logs), LONGEST, view.y.dtype)
            for _ in range(STEPS):
                slope = (misses(logs + 1e-4) - now) / 1e-4
                step = -np.sum(slope * now, axis=1) / np.sum(slope * slope, axis=1)
                step = np.clip(np.nan_to_num(step), -trust, trust)
                there = misses(logs + step)
                shorter = np.sum(there * there, axis=1)
                better = shorter < length
                # one that is still far and hardly comes nearer will not arrive
                slow = np.where(length > FAR * now.shape[1], 0.9, 0.999)
                settled = np.where(better, shorter > slow * length, trust < 1e-3)
                logs = np.where(better, logs + step, logs)
                now = np.where(better[:, None], there, now)
                length = np.where(better, shorter, length)
                trust = np.where(better, trust, np.abs(step) / 4)
                if settled.all():
                    break
            answers[which] = np.exp(logs).astype(np.float64)
    return [float(a) for a in answers]
