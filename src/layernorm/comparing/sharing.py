# SPDX-License-Identifier: MIT
"""This file lists how an array's values may share statistics, and along which axes parameters may lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from layernorm.ops.layout import Layout, layout_of
from layernorm.spec.norm_spec import Axes, GroupOrder, NormSpec

Carried = tuple[int, ...] | Literal["group"]


@dataclass(frozen=True)
class Sharing:
    """Which values of an array share one set of statistics: plain axes, one of which may be dealt into groups."""

    axes: tuple[int, ...]
    channel: int | None = None
    groups: int | None = None
    order: GroupOrder | None = None

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Say how an array of this shape becomes rows."""
        return layout_of(
            shape,
            NormSpec(axes=self.axes, channel_axis=self.channel, groups=self.groups, group_order=self.order),
        )

    def split_axes(self, carried: Carried, layout: Layout) -> tuple[int, ...]:
        """Give the axes of the split array that a parameter lies along."""
        if carried == "group":
            return () if layout.group_axis is None else (layout.group_axis,)
        plain = tuple(a for a in carried if isinstance(a, int))
        if self.channel is None:
            return plain
        c = self.channel
        return tuple(sorted({b for a in plain for b in ((a, a + 1) if a == c else (a + (a > c),))}))

    def written(self, ndim: int, carried: Iterable[Carried]) -> tuple[Axes, int | None]:
        """Write the axes and the channel axis as a person would: (-1,), ("2:",), (0, "2:")."""
        others = tuple(a for a in range(ndim) if a != 0)
        if self.groups is not None:
            if self.axes == others:
                return ("1:",), (1 if self.channel == 1 else -1)
            return written(self.axes, ndim), (-1 if self.channel == ndim - 1 else self.channel)
        first = any(c == (1,) for c in carried) or not list(carried)
        if first and 1 not in self.axes and ndim > 2 and self.axes in (others[1:], (0, *others[1:])):
            run: Axes = ("2:",)
            # of three axes the last alone is more often the features than the places
            if 0 in self.axes or ndim > 3 or any(c == (1,) for c in carried):
                return ((0, *run) if 0 in self.axes else run), None
        return written(self.axes, ndim), None


def written(axes: tuple[int, ...], ndim: int) -> Axes:
    """Write plain axes from the end where they are the last ones."""
    trailing = axes == tuple(range(ndim - len(axes), ndim))
    return tuple(a - ndim for a in axes) if trailing and (len(axes) < ndim or ndim == 1) else axes


def sharings(shape: tuple[int, ...]) -> Iterator[Sharing]:
    """List them, the usual ones first: the last axes, then any axes, then groups of a channel axis.

    >>> [(s.axes, s.groups) for s in sharings((5, 3))]
    [((1,), None), ((0, 1), None), ((0,), None)]
    """
    ndim = len(shape)
    long = [a for a, n in enumerate(shape) if n > 1]
    subsets = [c for r in range(1, len(long) + 1) for c in combinations(long, r)]
    last = [tuple(long[-r:]) for r in range(1, len(long) + 1)]
    yield from (Sharing(axes) for axes in [*last, *(s for s in subsets if s not in last)])
    for channel in dict.fromkeys((1, ndim - 1)):
        if not 0 < channel < ndim:
            continue
        rest = tuple(a for a in long if a not in (0, channel))
        for axes in dict.fromkeys((tuple(sorted((channel, *rest))), (channel,))):
            for groups in range(2, shape[channel]):
                if shape[channel] % groups == 0:
                    yield Sharing(axes, channel, groups, "blocked")
                    yield Sharing(axes, channel, groups, "interleaved")


def carriers(sharing: Sharing, shape: tuple[int, ...], unknowns: int) -> list[Carried]:
    """List the axes along which parameters that are to be solved for may lie.

    Each of them must be seen more often than there are `unknowns`, or any y would fit.
    """
    ndim = len(shape)
    named: list[Carried] = []
    if sharing.groups is not None:
        named = [(sharing.channel or 0,), "group"]
    else:
        if 0 not in sharing.axes or ndim == 1:
            named.append(sharing.axes)
        named += [(ndim - 1,), (1,)] if ndim > 2 else [(ndim - 1,)]
    layout = sharing.layout(shape)
    size = math.prod(shape)
    kept: list[Carried] = []
    for carried in dict.fromkeys(named):
        count = math.prod(layout.split[a] for a in sharing.split_axes(carried, layout))
        if count > 1 and size // count > unknowns:
            kept.append(carried)
    return kept


def matches(known: tuple[int, ...], sharing: Sharing, shape: tuple[int, ...]) -> list[Carried]:
    """List the axes along which a parameter of this shape may lie.

    >>> matches((8,), Sharing((1,)), (8, 8))
    [(1,), (0,)]
    """
    if math.prod(known) == 1:
        return [sharing.axes]
    if len(known) == len(shape) and all(n in (1, m) for n, m in zip(known, shape, strict=True)):
        return [tuple(a for a, n in enumerate(known) if n > 1)]
    found: list[Carried] = [
        axes for axes in combinations(range(len(shape)), len(known)) if tuple(shape[a] for a in axes) == known
    ]
    found.reverse()  # the last axes are where parameters mostly lie
    if sharing.groups is not None and known == (sharing.groups,):
        found.append("group")
    return found
