# SPDX-License-Identifier: MIT
"""This file replays a record on an array: what its spec and parameters give in float64, and how far off an honest
implementation of it may be.

With n values a set of statistics, x̂ the exact normalized value, D the denominator, ρ the bare one over D, and u half an
ulp of 1 in the type of the statistics, the error allowed to an element is the sum of

    4u·(|γ·x̂| + |γ|·ρ + |β|)         what this package promises for itself (docs/numerics.md)
    s·u·|γ|·mean|x|/D                the sum for the mean, where one is taken off
    s·u·|γ·x̂|·(1 + (m² + σ²)/D²)     the sum of squares; its second part where E[x²] − E[x]² may be what is computed
    4u·|γ|·(|x| + |m|)/D             for stored statistics instead of both: they are applied as x·(γ/D) + (β − m·γ/D)
    half an ulp of the output's type at y, and of x's type at γ·x̂ where x̂ is rounded before γ
    half an ulp of γ and of β in the narrower type, where the two sides keep them in different ones

with s = 2√n + 1, for others add in float32, from left to right if they like. n·u is the worst that this can come to,
and √n·u/3 the usual, roundings being uniform and independent (Higham and Mary, A New Approach to Probabilistic Rounding
Error Analysis, SIAM J. Sci. Comput. 41, 2019): 2√n·u is six times that, and 1/n is rounded too. Where E[x²] − E[x]² is
known to be computed, s of the second part is n + 1: on rows of like values roundings are not independent (9 times the
usual was seen, of OpenVINO), and cancelling shows it. What a model keeps as integers may besides be half a step off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.ops.layout import Layout, Parameter, ParameterAxes, layout_of
from layernorm.ops.reference import Row, forward
from layernorm.runtimes.tap import Tap
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.errors import ArgumentError, FileError, SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

Array = NDArray[Any]

# None of these stretches a difference, so the error allowed before one is allowed after it.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "": lambda y: y,
    "RELU": lambda y: np.maximum(y, 0),
    "RELU6": lambda y: np.clip(y, 0, 6),
    "RELU_N1_TO_1": lambda y: np.clip(y, -1, 1),
    "TANH": np.tanh,
}


@dataclass(frozen=True)
class Replay:
    """What a record gives for one array, all of that array's shape and float64."""

    y: Array
    xhat: Array
    bound: Array
    """The error allowed to an implementation in this record's types, but for the rounding of its output."""

    def residual(self, tap: Tap) -> float:
        """Give the largest difference to a tap's output in units of what is allowed; at most 1 fits, NaN never does.

        The tap's input must be what was replayed.
        """
        expected, given = ACTIVATIONS[tap.activation](self.y), tap.output.astype(np.float64)
        allowed = self.bound + _rounding(tap.output.dtype.name) * np.abs(expected) + _smallest(tap.output.dtype.name)
        allowed = allowed + (np.abs(self.xhat) * tap.scale_step + tap.shift_step + tap.output_step) / 2
        allowed = allowed + tap.coarse
        with np.errstate(all="ignore"):
            off = np.abs(given - expected) / allowed
        same = (given == expected) | (np.isnan(given) & np.isnan(expected))
        return float(np.max(np.where(same, 0.0, np.where(np.isnan(off), math.inf, off)), initial=0.0))


def replay(record: NormRecord, x: Array, like: NormRecord | None = None) -> Replay | None:
    """Compute what a record says of x, and the error allowed to who computes it in the types of `like`, or its own.

    None where the record does not say enough: an epsilon that is unknown, a gamma that the network computes, statistics
    that are updated.
    """
    # the types in which a runtime rounds are allowed for by the bound; the replay itself does not round
    spec = replace(
        record.spec, stats_dtype="float64", cast_before_scale=False, variance_by="centered", round_each=False
    )
    if spec.unknown() or spec.statistics == "updated" or not x.size or not x.ndim:
        return None
    if spec.eps_at != "none" and not (isinstance(spec.eps, float) and 0 <= spec.eps < math.inf):
        return None
    try:
        layout = layout_of(x.shape, spec)
        gamma = _parameter(record.scale, layout.scale_axes, layout)
        beta = _parameter(record.shift, layout.shift_axes, layout)
        given = None
        if spec.statistics == "stored":
            given = _stored("mean", record.mean, layout), _stored("var", record.variance, layout)
    except (SpecError, ArgumentError, FileError):
        return None
    rows = np.ascontiguousarray(layout.rows_of(x)).astype(np.float64)
    y, row = forward(rows, spec, gamma, beta, given)
    with np.errstate(all="ignore"):
        xhat = row.numerator / row.denominator
        bound = _bound(rows, row, xhat, spec, (like or record).spec, x.dtype.name, gamma, beta)
        if like is not None:
            bound = bound + _apart(record.scale, like.scale) * np.abs(xhat if gamma is None else xhat * gamma.per_row())
            bound = bound + _apart(record.shift, like.shift) * np.abs(beta.per_row() if beta is not None else 0.0)
    return Replay(layout.array_of(y), layout.array_of(xhat), layout.array_of(bound))


def _bound(
    x: Array, row: Row, xhat: Array, spec: NormSpec, rounded: NormSpec, dtype: str, gamma: Parameter | None,
    beta: Parameter | None,
) -> Array:  # fmt: skip
    """Add up the sources of error; `rounded` says in which types, and `spec` what is computed."""
    unit = _rounding(dtype if rounded.stats_dtype in ("input", UNKNOWN) else str(rounded.stats_dtype))
    offset = 1.0 if gamma is None or spec.scale_offset == 1 else 0.0
    scale = np.abs(offset + (gamma.per_row() if gamma else 0.0))
    shift = np.abs(beta.per_row()) if beta else 0.0
    below = row.denominator * row.scale
    each = scale * np.abs(xhat)
    bound = 4 * unit * (each + scale * (row.root / row.denominator) + shift)
    if spec.statistics == "input":
        summed = (2 * math.sqrt(x.shape[1]) + 1) * unit
        if spec.centered:
            bound = bound + summed * scale * np.mean(np.abs(x), axis=1, keepdims=True) / below
        bound = bound + summed * each
        if spec.spread == "std" and rounded.variance_by != "centered":
            summed = summed if rounded.variance_by is UNKNOWN else (x.shape[1] + 1) * unit
            bound = bound + summed * each * (row.mean**2 + (row.root * row.scale) ** 2) / below**2
    else:
        bound = bound + 4 * unit * scale * (np.abs(x) + np.abs(row.mean)) / below
    if rounded.cast_before_scale is not False:
        bound = bound + _rounding(dtype) * each
    return np.asarray(np.broadcast_to(bound, x.shape))


def _parameter(tensor: Tensor | None, axes: ParameterAxes, layout: Layout) -> Parameter | None:
    """Lay a gamma or beta out as the spec says, whatever axes of length 1 the file gives it."""
    if axes is None:
        return None
    if tensor is None:
        raise SpecError("the parameter is computed by the network, so the file does not hold it.")
    values, plain = tensor.values().astype(np.float64), layout.parameter_shape(axes)
    if values.size == 1:
        return layout.parameter(values.reshape((1,) * len(layout.shape)), per_group=False)
    if values.size != math.prod(plain):
        raise SpecError(f"the parameter has shape {tensor.shape}, and {plain} is wanted.")
    if axes == "group":
        return layout.parameter(values.reshape(plain), per_group=True)
    whole = [n if a in axes else 1 for a, n in enumerate(layout.shape)]
    return layout.parameter(values.reshape(whole), per_group=False)


def _stored(name: str, tensor: Tensor | None, layout: Layout) -> Array:
    if tensor is None:
        raise SpecError(f"the stored {name} is not in the file.")
    values, plain = tensor.values().astype(np.float64), tuple(layout.split[a] for a in layout.kept)
    return layout.given(name, values.reshape(plain) if values.size == math.prod(plain) else values)


def _apart(one: Tensor | None, other: Tensor | None) -> float:
    """Give the rounding of the narrower type if two parameters are kept in different ones, as after a conversion."""
    if one is None or other is None or one.dtype == other.dtype:
        return 0.0
    return max(_rounding(one.dtype), _rounding(other.dtype))


def _rounding(dtype: str) -> float:
    """Half an ulp of 1."""
    return 2.0 ** -DTYPES[dtype].digits if dtype in DTYPES else 0.0


def _smallest(dtype: str) -> float:
    return DTYPES[dtype].tiny if dtype in DTYPES else 0.0
