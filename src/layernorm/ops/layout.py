# SPDX-License-Identifier: MIT
"""This file turns any array and any axes into the rows that a kernel sees; all reshaping is here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from layernorm.spec.errors import ArgumentError, SpecError
from layernorm.spec.norm_spec import NormSpec, plain_axes

Array = npt.NDArray[Any]
ParameterAxes = tuple[int, ...] | Literal["group"] | None


@dataclass(frozen=True)
class Layout:
    """How an array becomes rows: one row holds the values that share one set of statistics.

    The channel axis of a grouped norm is first split in two, so `split` has one axis more than `shape`.
    `kept` and `normalized` are axes of `split`; a row's values stand in the order of those axes, whatever
    the order in memory, so that its bits do not depend on the memory layout.
    """

    shape: tuple[int, ...]
    split: tuple[int, ...]
    kept: tuple[int, ...]
    normalized: tuple[int, ...]
    statistics_shape: tuple[int, ...]
    channel_axis: int | None
    group_axis: int | None
    scale_axes: ParameterAxes
    shift_axes: ParameterAxes

    @property
    def rows(self) -> int:
        """How many sets of statistics there are."""
        return math.prod(self.split[a] for a in self.kept)

    @property
    def columns(self) -> int:
        """How many values share one set."""
        return math.prod(self.split[a] for a in self.normalized)

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        """How long the normalized axes are."""
        return tuple(self.split[a] for a in self.normalized)

    @property
    def is_trailing(self) -> bool:
        """Whether the normalized axes are the last ones, so that rows of a contiguous array follow each other."""
        return self.split == self.shape and self.kept + self.normalized == tuple(range(len(self.shape)))

    def rows_of(self, x: Array) -> Array:
        """Give x as (rows, columns): a view where strides allow it, else a copy."""
        whole = x.reshape(self.split).transpose(self.kept + self.normalized)
        return whole.reshape(self.rows, self.columns)

    def is_view(self, x: Array) -> bool:
        """Tell whether `rows_of(x)` needs no copy and its columns are neighbours in memory."""
        if x.size == 0:
            return True
        rows = self.rows_of(x)
        return np.may_share_memory(rows, x) and (self.columns == 1 or rows.strides[1] == x.itemsize)

    def array_of(self, rows: Array) -> Array:
        """Undo `rows_of`: (rows, columns) back to the array's shape."""
        order = self.kept + self.normalized
        whole = rows.reshape([self.split[a] for a in order])
        return whole.transpose(np.argsort(order)).reshape(self.shape)

    def statistics_of(self, column: Array) -> Array:
        """Give one value a row the array's shape, normalized axes kept as 1."""
        return column.reshape(self.statistics_shape)

    def given(self, name: str, value: Array) -> Array:
        """Lay a stored mean or variance out as (rows, 1).

        It has the shape of the axes that are not normalized, or `statistics_shape`, or is a scalar.
        """
        plain = tuple(self.split[a] for a in self.kept)
        per_axis = [1 if a in self.normalized else n for a, n in enumerate(self.split)]
        if value.shape == plain:
            value = value.reshape(per_axis)
        elif value.ndim == len(self.statistics_shape) and _fits(value.shape, self.statistics_shape):
            value = value if self.group_axis is None else self._split_channels(value)
        elif value.ndim:
            raise ArgumentError(
                f"{name} has shape {value.shape} but x of shape {self.shape} keeps {plain} sets of statistics; "
                f"pass an array of shape {plain} or {self.statistics_shape}, or a scalar."
            )
        return np.broadcast_to(value, per_axis).reshape(-1, 1)

    def parameter_shape(self, axes: tuple[int, ...] | Literal["group"]) -> tuple[int, ...]:
        """Give the shape of a gamma or beta that carries these axes and no others."""
        if axes == "group":
            return tuple(n for a, n in enumerate(self.split) if a == self.group_axis)
        return tuple(self.shape[a] for a in axes)

    def parameter(self, value: Array, per_group: bool) -> Parameter:
        """Lay out a gamma or beta that broadcasts to `shape` (or carries one value a group)."""
        if per_group:
            value = value.reshape([n if a == self.group_axis else 1 for a, n in enumerate(self.split)])
        elif self.channel_axis is not None:
            value = self._split_channels(value)
        kept_shape = [value.shape[a] for a in self.kept]
        distinct = math.prod(kept_shape)
        full = [self.split[a] if a in self.normalized else value.shape[a] for a in range(value.ndim)]
        spread = np.broadcast_to(value, full).transpose(self.kept + self.normalized)
        values = np.ascontiguousarray(spread).reshape(distinct, self.columns)
        if distinct == 1:
            return Parameter(values, None, self._gather(value.shape, per_group))
        index = np.broadcast_to(np.arange(distinct).reshape(kept_shape), [self.split[a] for a in self.kept]).reshape(-1)
        return Parameter(values, np.ascontiguousarray(index), self._gather(value.shape, per_group))

    def _split_channels(self, value: Array) -> Array:
        """Split the channel axis of an array that broadcasts to `shape`, as x's was split."""
        axis = self.channel_axis
        assert axis is not None  # callers ask only where there are groups
        pair: tuple[int, ...] = (1, 1)
        if value.shape[axis] == 1:
            pass
        elif value.shape[axis] == self.shape[axis]:
            pair = self.split[axis : axis + 2]
        else:  # statistics: one value a group
            pair = (value.shape[axis], 1) if self.group_axis == axis else (1, value.shape[axis])
        return value.reshape(value.shape[:axis] + pair + value.shape[axis + 1 :])

    def _gather(self, split_shape: tuple[int, ...], per_group: bool) -> Callable[[Array], Array]:
        """Make the function that sums a gradient of x's shape (as rows) down to the parameter's split shape."""

        def gather(rows: Array) -> Array:
            order = self.kept + self.normalized
            summed_before = len(rows) != self.rows  # a kernel has added the rows already
            sizes = [1 if summed_before and a in self.kept else self.split[a] for a in order]
            whole = rows.reshape(sizes).transpose(np.argsort(order))
            summed = tuple(a for a, n in enumerate(split_shape) if n == 1 and self.split[a] != 1)
            left = tuple(a for a in range(whole.ndim) if a not in summed)
            # summed axes last and contiguous: NumPy adds pairwise only along the fast axis
            lined_up = np.ascontiguousarray(whole.transpose(left + summed))
            count = math.prod(whole.shape[a] for a in summed)
            return np.asarray(lined_up.reshape([whole.shape[a] for a in left] + [count]).sum(axis=-1))

        return gather


@dataclass(frozen=True)
class Parameter:
    """A gamma or beta as a kernel reads it.

    `values` is (distinct, columns); row i of x uses `values[index[i]]`, or `values[0]` where index is None.
    `gather` sums (rows, columns) down to one number for each of the parameter's own values.
    """

    values: Array
    index: Array | None
    gather: Callable[[Array], Array]

    def per_row(self) -> Array:
        """Give the values for every row: (rows, columns), or (1, columns) that broadcasts."""
        return self.values if self.index is None else self.values[self.index]


@lru_cache(maxsize=1024)
def layout_of(shape: tuple[int, ...], spec: NormSpec) -> Layout:
    """Say how an array of this shape becomes rows under a spec.

    Raises:
        SpecError: the channels cannot be split into that many groups, or an axis is out of range.
    """
    spec = spec.resolve(len(shape))
    axes = plain_axes(spec)
    split, group_axis, statistics = list(shape), None, list(shape)
    channel = spec.channel_axis if isinstance(spec.groups, int) and isinstance(spec.channel_axis, int) else None
    for a in axes:
        statistics[a] = 1
    if isinstance(spec.groups, int) and channel is not None:
        groups = spec.groups
        if shape[channel] % groups:
            raise SpecError(
                f"{shape[channel]} channels (axis {channel} of shape {shape}) do not split into {groups} equal "
                "groups; pass a number that divides them."
            )
        interleaved = spec.group_order == "interleaved"
        pair = [groups, shape[channel] // groups]
        split[channel : channel + 1] = pair[::-1] if interleaved else pair
        group_axis = channel + 1 if interleaved else channel
        inside = channel if interleaved else channel + 1
        axes = tuple(sorted({inside} | {a + 1 if a > channel else a for a in axes if a != channel}))
        statistics[channel] = groups
    kept = tuple(a for a in range(len(split)) if a not in axes)
    carried: list[ParameterAxes] = [
        tuple(a for a in said if isinstance(a, int))
        if isinstance(said, tuple)
        else "group"
        if said == "group"
        else None
        for said in (spec.scale_axes, spec.shift_axes)
    ]
    return Layout(shape, tuple(split), kept, axes, tuple(statistics), channel, group_axis, *carried)


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    return all(n in (1, m) for n, m in zip(shape, into, strict=True))
