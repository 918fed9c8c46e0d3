# SPDX-License-Identifier: MIT
"""This file says of each pair of norms whether it introduces a difference between two runs, or only passes it on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from layernorm.comparing.replay import ACTIVATIONS, Replay, replay
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes.tap import Tap
from layernorm.spec.dtypes import DTYPES

__all__ = ["Outcome", "Status", "Tap", "outcomes", "replayed"]

Array = NDArray[Any]
Status = Literal["equal", "differs", "introduces", "propagates", "agrees-on-replay", "not-run"]


class Paired(Protocol):
    """A norm of A and the norm of B that it is compared with."""

    @property
    def a(self) -> NormRecord:
        """The norm of A."""

    @property
    def b(self) -> NormRecord:
        """The norm of B."""


class Outcome(NamedTuple):
    """What running says of one pair.

    Args:
        status: `equal`; `introduces`, its outputs differ more than its inputs explain; `propagates`, its outputs differ
            because its inputs do; `agrees-on-replay` or `differs`, where one side was replayed on the other's taps;
            `not-run`, where numbers are missing.
        gain: of one that propagates, the relative difference of the outputs over that of the inputs, each a root mean
            square over A's own.
        error: the largest difference of the outputs in units of the output's root mean square; None where it is not
            finite, which is where one side is NaN or infinite and the other is not.
        residual: how many times what is allowed (replay.py) B's norm is off from what A's is; at most 1 is none.
    """

    status: Status
    gain: float | None = None
    error: float | None = None
    residual: float | None = None


NOT_RUN = Outcome("not-run")


def outcomes(pairs: Sequence[Paired], taps_a: Mapping[str, Tap], taps_b: Mapping[str, Tap]) -> list[Outcome]:
    """Say of each pair what two runs on the same inputs show.

    The test of a pair is whether B's norm does with its own input what A's would: A's spec and parameters are computed
    on it in float64, and B's output must be within what rounding allows. So a fault is told from a difference that was
    there before however large that is, and a second fault is found behind a first. Where A's norm does not do what
    its record says, or the record does not say enough, B's is tried on A's input; where neither will do, a pair
    introduces a difference only if both inputs are the same to the last digit of their type.

    Args:
        pairs: each with a record `a` and a record `b`.
        taps_a, taps_b: by the records' names; a pair of which one is absent is `not-run`.

    >>> from types import SimpleNamespace
    >>> from layernorm.spec.norm_spec import NormSpec
    >>> record = NormRecord("n", "", "fused", NormSpec(), {})
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> right, wrong = Tap(x, (x - 2.5) / np.sqrt(1.25 + 1e-5)), Tap(x, (x - 2.5) / np.sqrt(1.25 + 1e-3))
    >>> (found,) = outcomes([SimpleNamespace(a=record, b=record)], {"n": right}, {"n": wrong})
    >>> found.status, round(found.error, 5)
    ('introduces', 0.00053)
    """
    return [_outcome(pair, taps_a.get(pair.a.name), taps_b.get(pair.b.name)) for pair in pairs]


def replayed(pairs: Sequence[Paired], taps: Mapping[str, Tap], ran: Literal["a", "b"] = "b") -> list[Outcome]:
    """Say of each pair whether the side that was not run would have given what the other gave.

    Args:
        pairs: each with a record `a` and a record `b`.
        taps: of the side that ran, by its records' names.
        ran: which side that is.
    """
    return [_replayed(pair, taps, ran) for pair in pairs]


def _replayed(pair: Paired, taps: Mapping[str, Tap], ran: Literal["a", "b"]) -> Outcome:
    own, other = (pair.a, pair.b) if ran == "a" else (pair.b, pair.a)
    tap = taps.get(own.name)
    expected = _of(other, tap, own) if tap is not None else None
    if tap is None or expected is None:
        return NOT_RUN
    residual = expected.residual(tap)
    error = _error(ACTIVATIONS[tap.activation](expected.y), tap.output.astype(np.float64))
    return Outcome("agrees-on-replay" if residual <= 1 else "differs", None, error, _finite(residual))


def _outcome(pair: Paired, tap_a: Tap | None, tap_b: Tap | None) -> Outcome:
    if tap_a is None or tap_b is None:
        return NOT_RUN
    tap_a, tap_b = _alike(tap_a, tap_b)
    if tap_a.input.shape != tap_b.input.shape or tap_a.output.shape != tap_b.output.shape:
        return NOT_RUN
    x_a, x_b, y_a, y_b = (v.astype(np.float64) for v in (tap_a.input, tap_b.input, tap_a.output, tap_b.output))
    error = _error(y_a, y_b)
    if np.array_equal(x_a, x_b, equal_nan=True) and np.array_equal(y_a, y_b, equal_nan=True):
        return Outcome("equal", None, 0.0, 0.0)
    same_input = _same(x_a, x_b, tap_a.input.dtype.name, tap_b.input.dtype.name)
    same_output = _same(y_a, y_b, tap_a.output.dtype.name, tap_b.output.dtype.name)
    judged = _judged(pair, tap_a, tap_b)
    residual = None if judged is None else judged.here
    if residual > 1 if residual is not None else same_input and not same_output:
        return Outcome("introduces", None, error, _finite(residual))
    before, after = _relative(x_a, x_b), _relative(y_a, y_b)
    if same_output or before == 0 or (judged is not None and judged.there <= 1):
        return Outcome("equal", None, error, _finite(residual))
    return Outcome("propagates", _finite(after / before), error, _finite(residual))


class _Judged(NamedTuple):
    """How far one side's output is from what the other's norm gives for that side's input, and for its own."""

    here: float
    there: float


def _judged(pair: Paired, tap_a: Tap, tap_b: Tap) -> _Judged | None:
    """Judge B by A's norm, or A by B's where A's does not do what its record says; None if neither will do."""
    for record, own, other, like in ((pair.a, tap_a, tap_b, pair.b), (pair.b, tap_b, tap_a, pair.a)):
        itself = _of(record, own, record)
        if itself is None or itself.residual(own) > 1:
            continue
        here, there = _of(record, other, like), _of(record, own, like)
        if here is not None and there is not None:
            # what is coarse on either side may make them differ
            coarse = other._replace(
                scale_step=own.scale_step + other.scale_step, shift_step=own.shift_step + other.shift_step
            )
            return _Judged(here.residual(coarse), there.residual(coarse))
    return None


def _of(record: NormRecord, tap: Tap, like: NormRecord) -> Replay | None:
    if tap.activation not in ACTIVATIONS or tap.input.shape != tap.output.shape:
        return None
    return replay(record, tap.input, like)


def _alike(a: Tap, b: Tap) -> tuple[Tap, Tap]:
    """Make two taps comparable: an activation that one runtime fused is applied to the other."""
    if a.activation != b.activation and {a.activation, b.activation} <= ACTIVATIONS.keys():
        both = a.activation or b.activation
        a, b = (t if t.activation else t._replace(output=ACTIVATIONS[both](t.output), activation=both) for t in (a, b))
    return a, b


def _same(a: Array, b: Array, *dtypes: str) -> bool:
    """Tell whether arrays are equal to half an ulp of each one's type, NaN being equal to NaN."""
    unit = sum(2.0 ** -DTYPES[name].digits for name in dtypes if name in DTYPES)
    with np.errstate(all="ignore"):
        near = (a == b) | (np.abs(a - b) <= unit * np.maximum(np.abs(a), np.abs(b)))
    return bool(np.all(near | (np.isnan(a) & np.isnan(b))))


def _relative(a: Array, b: Array) -> float:
    """Give the root mean square of the difference over that of A; over B's where A is 0."""
    with np.errstate(all="ignore"):
        difference, size = _rms(a - b), _rms(a) or _rms(b)
        return difference / size if size else 0.0


def _error(a: Array, b: Array) -> float | None:
    with np.errstate(all="ignore"):
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        size = _rms(a[np.isfinite(a)]) or _rms(b[np.isfinite(b)])
        largest = float(np.max(off, initial=0.0))
        return _finite(largest / size if size else largest)


def _rms(values: Array) -> float:
    """Take the root mean square, of numbers as large as they come."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if not largest or not math.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.mean((values / largest) ** 2)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
