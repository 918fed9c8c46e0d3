# SPDX-License-Identifier: MIT
"""This file defines Hypothesis, a norm that may have made an output, and works out what it would have given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from layernorm.ops.layout import Layout, layout_of
from layernorm.ops.reference import Row, rounded, statistics
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A norm that may have made an output, everything that it takes included.

    Args:
        words: what is supposed, to be read after "the numbers are those of".
        code: the finding that it would be, as `layernorm explain` knows it; empty where it would be none.
        spec: the norm, without unknown fields.
        gamma, beta: its parameters, along the axes that the spec says.
        mean, variance, update: stored statistics, and the weight of the input's own in updated ones.
        then: an activation after the norm, by its name in `ACTIVATIONS`.
        divided_by: what x is divided by first, while epsilon stays as it is: a number, or each row's `peak`.
        inverted: x̂ is multiplied by the denominator instead of divided.
    """

    words: str
    code: str
    spec: NormSpec
    gamma: Array | None = None
    beta: Array | None = None
    mean: Array | None = None
    variance: Array | None = None
    update: float | None = None
    then: str | None = None
    divided_by: float | Literal["peak"] | None = None
    inverted: bool = False


@np.errstate(all="ignore")
def outcome(hypothesis: Hypothesis, x: Array) -> tuple[Array, Array]:
    """Give the output in float64, before it is rounded to its type, and |γ·x̂| + |γ|·ρ + |β| of every element.

    Raises:
        SpecError: the spec does not go with x's shape.
        ArgumentError: a parameter does not.
    """
    spec = hypothesis.spec
    layout = layout_of(x.shape, spec)
    rows = layout.rows_of(_divided(hypothesis, x, layout))
    given = _given(hypothesis, layout)
    row = statistics(rows, spec, given, hypothesis.update)
    to_input, to_stats = _rounding(x.dtype.name), _rounding(_stats_dtype(x, spec))
    each = to_stats if spec.round_each else _as_it_is
    normalized = each(_over(row, hypothesis.inverted))
    if spec.cast_before_scale:
        normalized, each = to_input(normalized), (to_input if spec.round_each else _as_it_is)
    gamma, beta = (
        None if value is None or axes is None else _parameter(name, value, axes, layout)
        for name, value, axes in (
            ("gamma", hypothesis.gamma, layout.scale_axes), ("beta", hypothesis.beta, layout.shift_axes),
        )
    )  # fmt: skip
    scale = each(spec.scale_offset + gamma) if gamma is not None else np.ones((1, 1))
    result = each(normalized * scale) if gamma is not None else normalized
    result = each(result + beta) if beta is not None else result
    rho = np.sqrt(np.mean(np.square(normalized), axis=-1, keepdims=True))
    terms = np.abs(normalized * scale) + np.abs(scale) * rho + (0 if beta is None else np.abs(beta))
    if hypothesis.then is not None:
        result = ACTIVATIONS[hypothesis.then](result)
        # no activation here has a slope above 1.13, and the last rounding is one of its own
        terms = 1.2 * np.broadcast_to(terms, result.shape) + np.abs(result)
    terms = np.ascontiguousarray(np.broadcast_to(terms, result.shape))
    return layout.array_of(result), layout.array_of(terms)


def _divided(hypothesis: Hypothesis, x: Array, layout: Layout) -> Array:
    if hypothesis.divided_by is None:
        return x
    if hypothesis.divided_by == "peak":
        rows = layout.rows_of(x).astype(np.float64)
        return layout.array_of(rows / np.max(np.abs(rows), axis=-1, keepdims=True))
    return np.asarray(x.astype(np.float64) / hypothesis.divided_by)


def _over(row: Row, inverted: bool) -> Array:
    return row.numerator * row.scale * row.denominator * row.scale if inverted else row.numerator / row.denominator


def _given(hypothesis: Hypothesis, layout: Layout) -> tuple[Array, Array] | None:
    if hypothesis.spec.statistics not in ("stored", "updated"):
        return None
    if hypothesis.mean is None or hypothesis.variance is None:
        raise ArgumentError("stored statistics are supposed and there are none; give mean and variance.")
    return (
        layout.given("mean", hypothesis.mean.astype(np.float64)),
        layout.given("variance", hypothesis.variance.astype(np.float64)),
    )


def _parameter(name: str, value: Array, axes: Any, layout: Layout) -> Array:
    value = np.asarray(value, np.float64)
    ndim = len(layout.shape)
    whole = value.ndim == ndim and all(n in (1, m) for n, m in zip(value.shape, layout.shape, strict=True))
    if value.size == 1:
        value, per_group = value.reshape((1,) * ndim), False
    elif value.shape == layout.parameter_shape(axes):
        per_group = axes == "group"
        if not per_group:
            value = value.reshape([n if a in axes else 1 for a, n in enumerate(layout.shape)])
    elif whole:
        per_group = False
    else:
        raise ArgumentError(f"{name} of shape {value.shape} does not lie along axes {axes} of {layout.shape}.")
    return layout.parameter(value, per_group).per_row()


def _stats_dtype(x: Array, spec: NormSpec) -> str:
    return x.dtype.name if spec.stats_dtype == "input" else str(spec.stats_dtype)


def _as_it_is(values: Array) -> Array:
    return values


def _rounding(name: str) -> Callable[[Array], Array]:
    return _as_it_is if name == "float64" else lambda values: rounded(values, name)


def _sigmoid(y: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-y)))


def _gelu(y: Array) -> Array:
    return np.asarray(0.5 * y * (1 + np.vectorize(math.erf, otypes=[float])(y / math.sqrt(2))))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "ReLU": lambda y: np.maximum(y, 0),
        "ReLU6": lambda y: np.clip(y, 0, 6),
        "SiLU": lambda y: y * _sigmoid(y),
        "GELU": _gelu,
        "sigmoid": _sigmoid,
        "tanh": np.tanh,
    }
)
