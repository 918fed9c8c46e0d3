# SPDX-License-Identifier: MIT
"""This file measures a difference: how far apart two norms are on probe arrays, in units of the output.

A probe is an ordinary array, one whose rows are nearly constant, one far from zero, a tiny one, and where statistics
are in float16 one whose squares overflow. None has the mean zero throughout, which would hide an RMS norm that stands
for a layer norm.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.comparing.hypothesis import Hypothesis, outcome
from layernorm.comparing.pairing import Pair
from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord, Severity
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.errors import ArgumentError, SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec, plain_axes

Array = NDArray[Any]

MINOR = 1e-3
# Axes that no parameter fixes are this long.
LENGTHS = (3, 4, 5, 2, 2, 2)
# A probe of more values would take more than a tenth of a second.
MOST = 2**20
PARAMETERS = ("gamma", "beta", "mean", "variance")


class Effect:
    """What the differences of one pair do to the output, one by one or together.

    >>> from layernorm.models.norm_record import NormRecord
    >>> spec = NormSpec(eps=1e-12)
    >>> a, b = (NormRecord(n, "", "named", replace(spec, eps=e), {}) for n, e in (("a", 1e-12), ("b", 1e-5)))
    >>> Effect(Pair(a, b, "map")).of("eps") > 0.1
    True
    """

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        kinds = {pair.a.dtype, pair.b.dtype} & DTYPES.keys()
        # where the files do not say what is normalized, float32 is
        self.dtype = min(kinds, key=lambda name: DTYPES[name].digits, default="float32")
        usual = NormSpec(stats_dtype=DTYPES[self.dtype].compute)
        self.a, self.b = _filled(pair.a, pair.b, usual), _filled(pair.b, pair.a, usual)

    def of(self, *names: str) -> float:
        """Give the largest change of A's output if A had these fields or parameters of B's, or all if none is named.

        In units of the root mean square of A's output on the same probe; infinite where one of the two is not finite
        or cannot be worked out at all.
        """
        return max(self.by_probe(*names).values())

    def by_probe(self, *names: str) -> dict[str, float]:
        """Give the change on each probe."""
        changed = self.b if not names else _with(self.a, self.b, names)
        return {name: _change(self.a, changed, x) for name, x in self.probes.items()}

    def severity(self, change: float) -> Severity:
        """Say how bad a change is: below an ulp of the output's type, below a thousandth, or more."""
        if not change >= 2.0 ** (1 - DTYPES[self.dtype].digits):
            return "info"
        return "minor" if change < MINOR else "major"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """A shape that both norms can take."""
        return _shape(self.a, self.b)

    @cached_property
    def probes(self) -> Mapping[str, Array]:
        """Arrays of that shape; where only the shape is asked for, they are not made: 1.4 of 2.6 s for 400 norms."""
        shape = self.shape
        random = np.random.default_rng(zlib.crc32(repr(shape).encode()))
        eps = max((h.spec.eps for h in (self.a, self.b) if isinstance(h.spec.eps, float) and h.spec.eps > 0), default=0)
        spread = math.sqrt(eps) or 1e-3
        ordinary = random.standard_normal(shape) + np.linspace(-0.5, 1.5, shape[-1])
        made = {
            "ordinary": ordinary,
            "nearly constant": 1 + spread * random.standard_normal(shape),
            # 16 bits hold no deviation of 1 about a thousand
            "far from zero": (1000 if self.dtype in ("float32", "float64") else 100) + random.standard_normal(shape),
            "tiny": 1e-4 * ordinary,
        }
        # files may say the type of the statistics and not that of x
        if "float16" in (self.dtype, self.a.spec.stats_dtype, self.b.spec.stats_dtype):
            made["large"] = 300 * ordinary
        return {name: _stored(x, self.dtype) for name, x in made.items()}


def _filled(record: NormRecord, partner: NormRecord, usual: NormSpec) -> Hypothesis:
    """Fill what a record does not say from its partner, then as most norms are, and read its parameters."""
    spec = record.spec.assume(partner.spec)
    for axes, held in (("scale_axes", record.scale), ("shift_axes", record.shift)):
        if held is not None and getattr(record.spec, axes) is UNKNOWN and getattr(spec, axes) in (UNKNOWN, None):
            # it is there, as a state dict says and no more: most likely along the axes of the other parameter
            along = [said for said in (spec.scale_axes, spec.shift_axes) if said not in (UNKNOWN, None)]
            filled: dict[str, Any] = {axes: along[0] if along else (-1,)}
            spec = replace(spec, **filled)
    spec = spec.assume(usual)
    gamma, beta, mean, variance = map(_array, (record.scale, record.shift, record.mean, record.variance))
    return Hypothesis(record.name, "", spec, gamma, beta, mean, variance)


def _array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.values().astype(np.float64)


def _with(a: Hypothesis, b: Hypothesis, names: tuple[str, ...]) -> Hypothesis:
    own = {name: getattr(b, name) for name in names if name in PARAMETERS}
    fields = {name: getattr(b.spec, name) for name in names if name not in PARAMETERS}
    return replace(a, spec=replace(a.spec, **fields), **own)


def _change(a: Hypothesis, b: Hypothesis, x: Array) -> float:
    try:
        y, other = _output(a, x), _output(b, x)
    except (SpecError, ArgumentError):
        return math.inf
    with np.errstate(all="ignore"):
        if not np.array_equal(np.isfinite(y), np.isfinite(other)):
            return math.inf
        both = np.isfinite(y)
        size = float(np.sqrt(np.mean(np.square(y[both])))) if both.any() else 0.0
        off = float(np.max(np.abs(y - other)[both], initial=0.0))
    return off / size if size else (math.inf if off else 0.0)


def _output(norm: Hypothesis, x: Array) -> Array:
    y, _ = outcome(norm, x)
    return y


def _stored(x: Array, dtype: str) -> Array:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    with np.errstate(over="ignore"):
        return x.astype(dtype)


def _shape(a: Hypothesis, b: Hypothesis) -> tuple[int, ...]:
    """Find a shape that has every axis either norm names, as long as their parameters are."""
    ndim = max(_axes_needed(h.spec) for h in (a, b))
    lengths = list(LENGTHS[:ndim])
    for h in (b, a):  # A's own parameters have the last word
        for axes, value in ((h.spec.scale_axes, h.gamma), (h.spec.shift_axes, h.beta)):
            if value is not None and isinstance(axes, tuple):
                _fit(lengths, h.spec, axes, value)
        if h.spec.statistics != "input" and h.mean is not None:
            spec = h.spec.resolve(ndim)
            kept = [axis for axis in range(ndim) if axis not in plain_axes(spec)]
            if len(kept) == 1:
                lengths[kept[0]] = h.mean.size
    for h in (b, a):
        groups, channel = h.spec.groups, h.spec.channel_axis
        if isinstance(groups, int) and isinstance(channel, int) and lengths[channel] % groups:
            lengths[channel] = 2 * groups
    while math.prod(lengths) > MOST and max(lengths[:-1], default=1) > 1 and lengths[0] > 1:
        lengths[0] -= 1
    return tuple(lengths)


def _fit(lengths: list[int], spec: NormSpec, axes: tuple[int | str, ...], value: Array) -> None:
    plain = plain_axes(replace(spec, axes=axes, groups=None, channel_axis=None, group_order=None).resolve(len(lengths)))
    sizes = [n for n in value.shape if n != 1]
    if len(plain) == 1:
        lengths[plain[0]] = value.size
    elif len(plain) == len(value.shape):
        for axis, n in zip(plain, value.shape, strict=True):
            lengths[axis] = n
    elif len(sizes) == 1:
        lengths[plain[-1]] = sizes[0]


def _axes_needed(spec: NormSpec) -> int:
    needed = 3
    for axes in (spec.axes, spec.scale_axes, spec.shift_axes):
        for axis in axes if isinstance(axes, tuple) else ():
            needed = max(needed, int(axis[:-1]) + 2 if isinstance(axis, str) else max(axis + 1, -axis))
    channel = spec.channel_axis
    return max(needed, channel + 2 if isinstance(channel, int) and channel >= 0 else 0)
