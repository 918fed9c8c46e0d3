# SPDX-License-Identifier: MIT
"""This file carries one call: it checks the arrays, lays them out as rows, picks the backend and runs it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from layernorm.ops.arrays import array_of
from layernorm.ops.backends import choose
from layernorm.ops.layout import Array, Layout, Parameter, ParameterAxes, layout_of
from layernorm.ops.memory import empty
from layernorm.ops.reference import backward as differentiated
from layernorm.ops.reference import forward as normalized
from layernorm.ops.reference import rounded, row_of, xhat_of
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.errors import ArgumentError, SpecError
from layernorm.spec.norm_spec import Axes, NormSpec


class Stats(NamedTuple):
    """What a forward pass saves for the backward pass: three arrays, normalized axes kept as 1.

    They are of the compute type: float64 for float64 input, else float32. The mean is `mean + residue`: near a
    large offset the rounding of a single float32 mean puts gradients off by thousands of ulp.
    """

    mean: Array
    residue: Array
    rstd: Array


@dataclass(frozen=True)
class Plan:
    """How `normalize` would run a spec on an array, and why; printing it says so in one line."""

    backend: str
    layout: str
    rows: int
    columns: int
    threads: int
    why: str

    def __str__(self) -> str:
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        told = f"{self.backend}: {self.rows} rows of {self.columns}, {self.layout}, {threads}"
        return told + (f" ({self.why})" if self.why else "")


class Call:
    """What a call needs and what follows from the spec and from the shape and type of x alone."""

    def __init__(
        self, spec: NormSpec, shape: tuple[int, ...], dtype: np.dtype[Any], backend: str | None = None
    ) -> None:
        self.spec = spec
        self.layout = _layout(shape, spec)
        self.backend, self.why = choose(spec, dtype.name, backend)
        self.compute = np.dtype(DTYPES[dtype.name].compute)
        direct = getattr(self.backend, "direct", None)
        self.direct = None if direct is None else direct(spec, self.layout, dtype)

    def forward(
        self, x: Array, gamma: object, beta: object, out: Array | None = None, return_stats: bool = False, **stored: Any
    ) -> Array | tuple[Array, Stats]:
        """Normalize x, which has this shape and type; see `functional.normalize`."""
        y = empty(x.shape, x.dtype) if out is None else out
        stats = np.full((3, self.layout.rows), np.nan, self.compute) if return_stats else None
        # the short way would pass over stored statistics, which may be to be refused
        has_stored = stored and any(value is not None for value in stored.values())
        if has_stored or self.direct is None or not self.direct.forward(x, gamma, beta, y, stats):
            self._laid_out(x, gamma, beta, out, y, stats, **stored)
        return y if stats is None else (y, Stats(*(self.layout.statistics_of(s) for s in stats)))

    def backward(
        self, dy: object, x: Array, gamma: object, stats: Sequence[object]
    ) -> tuple[Array, Array | None, Array]:
        """Differentiate at x, which has this shape and type, from saved statistics; see `functional`."""
        if self.direct is not None and isinstance(stats, tuple) and len(stats) == 3:
            dx = empty(x.shape, x.dtype)
            dgamma = None if gamma is None else np.empty(self.layout.normalized_shape, self.compute)
            dbeta = np.empty(self.layout.normalized_shape, self.compute)
            if self.direct.backward(dy, x, gamma, stats, dx, dgamma, dbeta):
                return dx, dgamma, dbeta
        return backward(dy, x, self.spec, gamma, stats)

    def _laid_out(
        self, x: Array, gamma: object, beta: object, out: Array | None, y: Array, stats: Array | None, **stored: Any
    ) -> None:
        """Do what the backend cannot do with arrays as they are: check them, lay them out as rows and back."""
        layout, spec = self.layout, self.spec
        scale = _parameter("gamma", gamma, layout.scale_axes, layout)
        shift = _parameter("beta", beta, layout.shift_axes, layout)
        given = _given(spec, layout, **stored)
        if out is not None:
            x, scale, shift = _check_out(out, x, scale, shift)
        if not x.size:
            return
        result = y.view(np.ndarray)
        lost = _rows_beyond(x, layout, scale, shift) if self.backend.NAME != "reference" else None
        extra = () if given is None else (given, stored.get("update"))
        rows = layout.rows_of(x)
        if lost is None and layout.is_view(x) and _is_plain(result, layout):
            self.backend.forward(rows, spec, scale, shift, layout.rows_of(result), stats, *extra)
            return
        rows = np.array(rows, order="C")
        slowly = None if lost is None else normalized(rows[lost], spec, _of(scale, lost), _of(shift, lost))[0]
        self.backend.forward(rows, spec, scale, shift, rows, stats, *extra)
        if slowly is not None:
            rows[lost] = slowly
        result[...] = layout.array_of(rows)


def forward(
    x: Array, spec: NormSpec, gamma: object, beta: object, *, out: Array | None = None, return_stats: bool = False,
    backend: str | None = None, **stored: Any,
) -> Array | tuple[Array, Stats]:  # fmt: skip
    """Run a spec on x; see `functional.normalize`."""
    call = (_call_of if isinstance(spec, NormSpec) else Call)(spec, x.shape, x.dtype, backend)
    return call.forward(x, gamma, beta, out, return_stats, **stored)


_call_of = lru_cache(maxsize=1024)(Call)


def backward(
    dy: object,
    x: Array,
    spec: NormSpec,
    gamma: object,
    stats: Sequence[object] | None,
    *,
    mean: object = None,
    var: object = None,
    update: float | None = None,
    backend: str | None = None,
) -> tuple[Array, Array | None, Array]:
    """Differentiate a spec at x; see `functional.normalize_backward`."""
    layout = _layout(x.shape, spec)
    scale = _parameter("gamma", gamma, layout.scale_axes, layout)
    if not _stats_suffice(spec):
        stats = None
    given = _given(spec, layout, mean, var, update) if stats is None else None
    slope = array_of(dy, "dy")
    if slope.shape != x.shape:
        raise ArgumentError(f"dy has shape {slope.shape} but x has {x.shape}; pass the gradient of the output.")
    both = {slope.dtype.name, x.dtype.name}
    wide = np.dtype(np.float32) if both == {"float16", "bfloat16"} else np.promote_types(slope.dtype, x.dtype)
    rows, slopes = (np.ascontiguousarray(layout.rows_of(a)).astype(wide, copy=False) for a in (x, slope))
    chosen, _ = choose(spec, wide.name, backend)
    if stats is None and chosen.NAME != "reference":
        stats = Call(spec, x.shape, x.dtype, chosen.NAME).forward(x, None, None, None, True)[1]
    saved = None if stats is None else _saved(stats, layout, rows)
    dx = np.empty(rows.shape, wide)
    extra = () if given is None else (given, update)
    scale_like, shift_like = _gradients_like(gamma, scale, layout, rows)
    shared = scale_like.parameter.index is None and shift_like.parameter.index is None
    if not x.size:
        sums = np.zeros((2, *rows.shape))
    else:
        sums = chosen.backward(slopes, rows, spec, scale, saved, dx, shared, *extra)
        lost = _rows_beyond(rows, layout, scale) if chosen.NAME != "reference" else None
        if lost is not None and saved is not None:
            row = row_of(rows[lost], spec, saved[:, lost])
            dx[lost] = rounded(differentiated(slopes[lost], rows[lost], spec, _of(scale, lost), row)[0], wide.name)
    if sums is None:  # the parameters differ from row to row
        xhat = xhat_of(rows, spec, saved, *extra)
        sums = slopes.astype(np.float64) * xhat, slopes.astype(np.float64)
    result = _empty_like(x)
    result[...] = layout.array_of(rounded(dx, x.dtype.name) if wide != x.dtype else dx)
    return result, None if gamma is None else scale_like.sum_up(sums[0]), shift_like.sum_up(sums[1])


def plan_of(x: Array, spec: NormSpec, backend: str | None = None) -> Plan:
    """Say how a spec would run on x; see `functional.plan`."""
    call = Call(spec, x.shape, x.dtype, backend)
    layout = call.layout
    view = layout.is_view(x) and _is_plain(x, layout)
    threads = min(call.backend.threads_for(x), max(layout.rows, 1))
    told = "read where they are" if view else "copied to rows and back"
    return Plan(call.backend.NAME, told, layout.rows, layout.columns, threads, call.why)


def axes_of(axis: int | Sequence[int] | None, shape: tuple[int, ...], name: str = "axis") -> Axes:
    """Check an axis argument against a shape and give plain axes from the end, so that specs are shared.

    Raises:
        ArgumentError: x has no axes, or one of these is out of range, repeated, not an integer, or none is named.
    """
    ndim = len(shape)
    if ndim == 0:
        raise ArgumentError("x has no axes (shape ()), so there is nothing to average over; pass a 1-D array or more.")
    if axis is None:
        return tuple(range(-ndim, 0))
    try:
        many = isinstance(axis, Iterable) and np.ndim(axis) > 0
        named = [_integer(a) for a in (axis if many else (axis,))]  # type: ignore[union-attr]
    except TypeError:
        raise ArgumentError(f"{name}={axis!r} is not an axis; pass an int, a tuple of ints, or None for all.") from None
    if not named:
        raise ArgumentError(f"{name}={axis!r} names no axis; name at least one, or pass None for all.")
    for a in named:
        if not -ndim <= a < ndim:
            raise ArgumentError(f"{name}={axis!r} is out of range for x of shape {shape}; use {-ndim} to {ndim - 1}.")
    plain = sorted(a % ndim - ndim for a in named)
    if len(set(plain)) != len(plain):
        raise ArgumentError(f"{name}={axis!r} names an axis of shape {shape} twice; name each once.")
    return tuple(plain)


def _integer(value: object) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    return operator.index(value)  # type: ignore[arg-type]


def checked_eps(eps: object) -> float:
    """Check an epsilon.

    Raises:
        ArgumentError: it is not a finite number of at least 0.
    """
    try:
        if isinstance(eps, (str, bytes, bool)):
            raise TypeError
        value = float(eps)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"eps={eps!r} is not a number; pass one such as 1e-5.") from None
    if not 0 <= value < math.inf:
        raise ArgumentError(f"eps={eps!r} must be finite and at least 0; LayerNorm's usual value is 1e-5.")
    return value


def _layout(shape: tuple[int, ...], spec: NormSpec) -> Layout:
    if not shape:
        axes_of(None, shape)
    unknown = spec.unknown()
    if unknown:
        raise SpecError(
            f"the spec leaves {', '.join(unknown)} unknown, which would change the result; fill in with "
            'spec.assume("bert"), say, or dataclasses.replace.'
        )
    if spec.eps_at != "none":
        checked_eps(spec.eps)
    return layout_of(shape, spec)


def _parameter(name: str, value: object, axes: ParameterAxes, layout: Layout) -> Parameter | None:
    """Check a gamma or beta against its three forms and lay it out; NumPy's broadcasting is not one of them."""
    if value is None:
        return None
    if axes is None:
        field = {"gamma": "scale_axes", "beta": "shift_axes"}[name]
        raise ArgumentError(f"{name} is given but the spec has none ({field}=None); set {field}, or leave {name} out.")
    array = array_of(value, name)
    shape, per_group = layout.shape, axes == "group"
    plain = layout.parameter_shape(axes)
    ndim = len(shape)
    if array.ndim == 0:
        return layout.parameter(array.reshape((1,) * ndim), per_group=False)
    if array.shape == plain:
        if not per_group:
            array = array.reshape([n if a in axes else 1 for a, n in enumerate(shape)])
        return layout.parameter(array, per_group)
    # a 1-D x: (1,) for many columns is a slip, and a scalar can be passed as one
    whole = ndim > 1 and array.ndim == ndim and all(n in (1, m) for n, m in zip(array.shape, shape, strict=True))
    if whole:
        return layout.parameter(array, per_group=False)
    listed = isinstance(value, tuple) and value == shape[-1:]
    slip = f" ({name}={value!r} looks like a shape, not values)" if listed else ""
    raise ArgumentError(
        f"{name} has shape {array.shape} but x has shape {shape}{slip}; pass a scalar, an array of shape {plain}, or "
        f"one with {ndim} axes, each of length 1 or x's."
    )


def _given(
    spec: NormSpec, layout: Layout, mean: object = None, var: object = None, update: float | None = None
) -> tuple[Array, Array] | None:
    wanted = spec.statistics in ("stored", "updated")
    if not wanted:
        if mean is not None or var is not None or update is not None:
            raise ArgumentError(
                'mean, var and update are for stored statistics, but the spec says statistics="input"; leave them '
                'out, or set statistics="stored".'
            )
        return None
    if mean is None or var is None:
        raise ArgumentError(f'statistics="{spec.statistics}" needs both mean and var; pass the running ones.')
    share = isinstance(update, (int, float)) and 0 <= update <= 1
    if (spec.statistics == "updated") != (update is not None) or (update is not None and not share):
        raise ArgumentError(
            f'update={update!r} with statistics="{spec.statistics}": it is the weight of this input in updated '
            "statistics, from 0 to 1 (0.1 where ONNX says momentum=0.9), and belongs to those alone."
        )
    both = [layout.given(name, array_of(v, name)).astype(np.float64) for name, v in (("mean", mean), ("var", var))]
    if np.any(both[1] < 0):
        raise ArgumentError(f"var holds {both[1].min()}, and no variance is negative; were mean and var exchanged?")
    return both[0], both[1]


def _check_out(
    out: object, x: Array, scale: Parameter | None, shift: Parameter | None
) -> tuple[Array, Parameter | None, Parameter | None]:
    """Check out, and copy whatever it would overwrite before it is read."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise ArgumentError(f"out is a {type(out).__name__}; pass a NumPy array of shape {x.shape} and type {x.dtype}.")
    if out.shape != x.shape:
        raise ArgumentError(f"out has shape {out.shape} but the result has {x.shape}; pass one of that shape.")
    if out.dtype.newbyteorder("=") != x.dtype:
        raise ArgumentError(f"out has type {out.dtype} but the result has {x.dtype}; pass one of that type.")
    if not out.flags.writeable:
        raise ArgumentError("out is read-only; pass an array that can be written to.")
    if _overlaps_itself(out):
        raise ArgumentError(f"out has elements that share memory (strides {out.strides}); pass an array that has not.")
    same = out.__array_interface__["data"] == x.__array_interface__["data"] and out.strides == x.strides
    if not same and np.may_share_memory(out, x):
        x = x.copy()
    kept = [
        Parameter(p.values.copy(), p.index, p.gather) if p and np.may_share_memory(out, p.values) else p
        for p in (scale, shift)
    ]
    return x, kept[0], kept[1]


def _rows_beyond(x: Array, layout: Layout, *parameters: Parameter | None) -> Array | None:
    """Find the rows whose float64 parameters the kernels' float32 would lose; None where there are none, as is usual.

    Each row is judged by its own parameters, so that the others keep their bits whatever it holds.
    """
    wide = [p for p in parameters if p is not None and p.values.dtype == np.float64]
    if x.dtype == np.float64 or not wide:
        return None
    beyond = np.zeros(layout.rows, bool)
    for parameter in wide:
        sizes = np.abs(parameter.values)
        held = (sizes == 0) | ((sizes >= 2.0**-126) & (sizes <= DTYPES["float32"].largest)) | ~np.isfinite(sizes)
        wrong = ~held.all(axis=1)
        beyond |= wrong if parameter.index is None else wrong[parameter.index]
    return beyond if beyond.any() else None


def _of(parameter: Parameter | None, rows: Array) -> Parameter | None:
    """Give the parameters of some rows alone."""
    if parameter is None or parameter.index is None:
        return parameter
    return Parameter(parameter.values, parameter.index[rows], parameter.gather)


def _stats_suffice(spec: NormSpec) -> bool:
    """Tell whether dx follows from m, δ and 1/D alone; otherwise it needs σ apart from D, and so x's own statistics."""
    if spec.statistics != "input":
        return spec.statistics == "stored"
    return spec.centered == (spec.spread == "std") and spec.eps_at in ("variance", "sum", "none")


def _overlaps_itself(out: Array) -> bool:
    """Tell whether a step along some axis is shorter than what the axes inside it span."""
    span = out.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1):
        if stride < span:
            return out.size > 0
        span += stride * (n - 1)
    return False


def _is_plain(out: Array, layout: Layout) -> bool:
    """Tell whether a kernel can write rows straight into out."""
    if not (layout.is_view(out) and out.dtype.isnative and out.flags.aligned):
        return False
    rows = layout.rows_of(out)
    return layout.rows <= 1 or abs(rows.strides[0]) >= layout.columns * out.itemsize


def _empty_like(x: Array) -> Array:
    return np.empty_like(x, subok=False)


def _compute(x: Array) -> np.dtype[Any]:
    return np.dtype(DTYPES[x.dtype.name].compute)


def _saved(stats: Sequence[object], layout: Layout, rows: Array) -> Array:
    if not isinstance(stats, Sequence) or len(stats) != 3:
        if not isinstance(stats, Sequence):
            raise ArgumentError(f"stats is {stats!r}; pass the Stats that return_stats=True gave.")
        raise ArgumentError(f"stats holds {len(stats)} arrays; pass the Stats that return_stats=True gave.")
    arrays = [array_of(s, "stats") for s in stats]
    for array in arrays:
        if array.shape != layout.statistics_shape:
            raise ArgumentError(
                f"stats has an array of shape {array.shape} but x of shape {layout.shape} has statistics of shape "
                f"{layout.statistics_shape}; pass the Stats of this x and axis."
            )
    return np.stack([a.reshape(-1) for a in arrays]).astype(_compute(rows))


@dataclass(frozen=True)
class _Gradient:
    """The form in which a parameter's gradient is given back."""

    parameter: Parameter
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def sum_up(self, rows: Array) -> Array:
        total = self.parameter.gather(np.atleast_2d(rows)).reshape(self.shape)
        return rounded(total, self.dtype.name).astype(self.dtype)


def _gradients_like(gamma: object, scale: Parameter | None, layout: Layout, rows: Array) -> tuple[_Gradient, _Gradient]:
    """Say what dgamma and dbeta are like: gamma's shape and type, else the shape that the spec names."""
    own = layout.normalized if layout.channel_axis is None else (layout.channel_axis,)
    axes = layout.scale_axes or layout.shift_axes or own
    per_group = axes == "group"
    shape = layout.parameter_shape(axes)
    spread = shape if per_group else tuple(n if a in axes else 1 for a, n in enumerate(layout.shape))
    compute = _compute(rows)
    shift = _Gradient(layout.parameter(np.ones(spread), per_group), shape, compute)
    if scale is None:
        return shift, shift
    array = array_of(gamma, "gamma")
    floating = isinstance(gamma, np.ndarray) and gamma.dtype.name in DTYPES
    like = _Gradient(scale, array.shape, array.dtype if floating else compute)
    return like, (like if array.ndim else shift)
