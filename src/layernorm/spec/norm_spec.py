# SPDX-License-Identifier: MIT
"""This file defines NormSpec, the one value that fully says a normalization layer."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal, Self, get_args

from layernorm.spec.dtypes import DTypeName
from layernorm.spec.errors import SpecError


class Unknown(Enum):
    """The type of `UNKNOWN`: a field that the source does not say. It is printed, never guessed."""

    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __str__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
_U = Literal[Unknown.UNKNOWN]

Axes = tuple[int | str, ...]
GroupOrder = Literal["blocked", "interleaved"]
Spread = Literal["std", "rms", "l2"]
EpsAt = Literal["variance", "deviation", "sum", "variance_floor", "deviation_floor", "none"]
Statistics = Literal["input", "stored", "updated"]
StatsDType = Literal["input"] | DTypeName
VarianceBy = Literal["centered", "moments", "moments_clamped"]
Kind = Literal["layer", "rms", "group", "instance", "batch", "l2", "other"]

_CHOICES: dict[str, tuple[object, ...]] = {
    "group_order": (*get_args(GroupOrder), None),
    "centered": (True, False),
    "spread": get_args(Spread),
    "eps_at": get_args(EpsAt),
    "ddof": (0, 1),
    "scale_offset": (0, 1),
    "statistics": get_args(Statistics),
    "stats_dtype": ("input", *get_args(DTypeName)),
    "cast_before_scale": (True, False),
    "variance_by": get_args(VarianceBy),
    "round_each": (True, False),
}


@dataclass(frozen=True, eq=False)
class NormSpec:
    """Everything that decides what a normalization layer computes, and nothing else.

    The layer is `y = (scale_offset + γ) · x̂ + β` with `x̂ = (x − mean) / denominator`. A field that a
    source does not say is `UNKNOWN`. Two specs are equal when every field that counts is: a spec without
    a scale does not care for `scale_offset`, one with `eps_at="none"` not for `eps`.

    Args:
        axes: the axes that share one set of statistics: integers from the front or the end, and at most
            one open run such as `"2:"`. Layer `(-1,)`, instance `("2:",)`, batch `(0, "2:")`.
        channel_axis: the axis that is split into groups; None where `groups` is.
        groups: into how many groups it is split; the axis itself then stands in `axes`.
        group_order: `blocked` (neighbouring channels share a group) or `interleaved` (channel c is in
            group c mod groups).
        centered: the numerator is x − mean, else x.
        spread: the denominator: `std` of x, `rms` of x, or `l2`, the root of the sum of squares.
        eps: added where `eps_at` says, in units of x² (`variance`, `sum`, `variance_floor`) or of x. Any number: a
            file can hold what no layer should, and `normalize` refuses to run a negative or infinite one.
        eps_at: `variance` (under the root; for `l2` that is the sum), `deviation` (to the root), `sum` (to
            the sum of squares), `variance_floor`, `deviation_floor` (a lower bound), or `none`.
        ddof: the variance divides by n − ddof.
        scale_axes: the axes that gamma carries, `"group"` for one value a group, None if there is none.
        shift_axes: the same for beta.
        scale_offset: 1 where the layer multiplies by 1 + γ.
        statistics: of the current `input`, `stored` running ones, or running ones `updated` by this input.
        stats_dtype: the type in which mean and variance are kept; `input` is x's own.
        cast_before_scale: x̂ is rounded to x's type before γ multiplies it.
        variance_by: `centered` (two passes), `moments` (E[x²] − E[x]²), or that clamped at 0.
        round_each: every operation's result is rounded to `stats_dtype`.
        assumed: names of the fields that `assume` filled in; no part of equality or of the document.

    Raises:
        SpecError: a field has a value it cannot have, or two fields contradict each other.

    >>> print(NormSpec(eps=1e-12, scale_axes=(-1,), shift_axes=(-1,)))
    y = γ·(x − mean) / √(var + 1e-12) + β over axes (-1)
    """

    axes: Axes | _U = (-1,)
    channel_axis: int | _U | None = None
    groups: int | _U | None = None
    group_order: GroupOrder | _U | None = None
    centered: bool | _U = True
    spread: Spread | _U = "std"
    eps: float | _U = 1e-5
    eps_at: EpsAt | _U = "variance"
    ddof: Literal[0, 1] | _U = 0
    scale_axes: Axes | Literal["group"] | _U | None = None
    shift_axes: Axes | Literal["group"] | _U | None = None
    scale_offset: Literal[0, 1] | _U = 0
    statistics: Statistics | _U = "input"
    stats_dtype: StatsDType | _U = "float64"
    cast_before_scale: bool | _U = False
    variance_by: VarianceBy | _U = "centered"
    round_each: bool | _U = False
    assumed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("axes", "scale_axes", "shift_axes"):
            value = getattr(self, name)
            if value is UNKNOWN or (name != "axes" and (value is None or value == "group")):
                continue
            object.__setattr__(self, name, _tidy_axes(name, value))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            # bool and int compare equal in Python; ddof=True and centered=1 are slips all the same
            fits = any(value == c and type(value) is type(c) for c in choices)
            if value is not UNKNOWN and not fits:
                shown = ", ".join(repr(c) for c in choices)
                raise SpecError(f"{name}={value!r} is not one of {shown}; use UNKNOWN where a source is silent.")
        if self.eps is not UNKNOWN:
            try:
                if isinstance(self.eps, (bool, str, bytes)):
                    raise TypeError
                object.__setattr__(self, "eps", float(self.eps))
            except (TypeError, ValueError, OverflowError):
                raise SpecError(f"eps={self.eps!r} is not a number; use UNKNOWN where a source is silent.") from None
        self._check_groups()

    def _check_groups(self) -> None:
        for name in ("channel_axis", "groups"):
            value = getattr(self, name)
            if value is not UNKNOWN and value is not None and type(value) is not int:
                raise SpecError(f"{name}={value!r} is not an integer; give the plain int.")
        if isinstance(self.groups, int) and self.groups < 1:
            raise SpecError(f"groups={self.groups} splits nothing; give 1 or more, or None for no groups.")
        if self.groups is None:
            if self.channel_axis not in (None, UNKNOWN) or self.group_order not in (None, UNKNOWN):
                raise SpecError(
                    f"channel_axis={self.channel_axis!r} and group_order={self.group_order!r} say how groups "
                    "are dealt, but groups is None; set groups, or leave both out."
                )
            if "group" in (self.scale_axes, self.shift_axes):
                raise SpecError('a scale or shift per "group" needs groups; set groups and channel_axis.')
        elif self.groups is not UNKNOWN and self.channel_axis is None:
            raise SpecError(f"groups={self.groups} needs the axis to split; set channel_axis.")

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def kind(self) -> Kind:
        """Name the family, computed from the fields: layer, rms, group, instance, batch, l2 or other."""
        if self.centered is False and self.spread in ("rms", "l2"):
            return "rms" if self.spread == "rms" else "l2"
        if self.centered is not True or self.spread != "std" or self.axes is UNKNOWN:
            return "other"
        if self.statistics in ("stored", "updated"):
            return "batch"
        if self.groups not in (None, UNKNOWN):
            return "group"
        carried = {a for axes in (self.scale_axes, self.shift_axes) if isinstance(axes, tuple) for a in axes}
        own = bool(carried) and carried <= set(self.axes)  # a batch norm's parameters lie along the axis it keeps
        if 0 in self.axes and self.axes != (0, "1:") and not own:
            return "batch"
        elsewhere = bool(carried) and carried.isdisjoint(self.axes) and not _covers(self.axes, carried)
        return "instance" if elsewhere or (self.axes == ("2:",) and not carried) else "layer"

    def unknown(self) -> tuple[str, ...]:
        """Name the unknown fields that count: those whose value could change a number."""
        return tuple(name for name, value in self._counting.items() if value is UNKNOWN)

    @cached_property
    def _counting(self) -> dict[str, object]:
        """Every field by name, those that cannot matter beside the others set to None."""
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "assumed"}
        idle: set[str] = set()
        if self.groups is None:
            idle |= {"channel_axis", "group_order"}
        if self.groups == 1:
            idle.add("group_order")
        if self.eps_at == "none" or self.eps == 0:
            idle |= {"eps", "eps_at"}
        if self.spread in ("rms", "l2") or self.statistics == "stored":
            idle.add("variance_by")
            # an eps on the sum of stored squares is divided by n − ddof all the same
            if self.spread != "std" or self.eps_at != "sum":
                idle.add("ddof")
        if self.scale_axes is None:
            idle.add("scale_offset")
            if self.shift_axes is None:
                idle.add("cast_before_scale")
        said |= dict.fromkeys(idle)
        if self.spread == "l2" and said["eps_at"] == "variance":
            said["eps_at"] = "sum"
        if isinstance(said["eps"], float) and math.isnan(said["eps"]):
            said["eps"] = "nan"  # a spec is equal to its copy
        return said

    def __getstate__(self) -> dict[str, Any]:
        # without the cached hash: strings hash otherwise in the next process
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NormSpec):
            return NotImplemented
        return self._counting == other._counting

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self._counting.values()))

    # -- where it stands in an array ----------------------------------------------------------------------

    def resolve(self, ndim: int) -> Self:
        """Give the same spec with every axis a plain integer from 0 to ndim − 1, in rising order.

        Raises:
            SpecError: an axis is unknown, out of range or named twice, or none is left.

        >>> NormSpec(axes=(0, "2:")).resolve(4).axes
        (0, 2, 3)
        """
        if self.axes is UNKNOWN:
            raise SpecError("axes is unknown, so nothing says what to average over; fill it in with assume().")
        changes: dict[str, Any] = {"axes": _plain_axes("axes", self.axes, ndim)}
        for name in ("scale_axes", "shift_axes"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                changes[name] = _plain_axes(name, value, ndim)
        if isinstance(self.channel_axis, int):
            (changes["channel_axis"],) = _plain_axes("channel_axis", (self.channel_axis,), ndim)
            if changes["channel_axis"] not in changes["axes"]:
                raise SpecError(
                    f"channel_axis={self.channel_axis} is split into groups but is not in axes={self.axes}; "
                    "a group's statistics run over its channels, so add it."
                )
        return dataclasses.replace(self, **changes)

    def same_as(self, other: NormSpec | str, shape: Sequence[int]) -> bool:
        """Tell whether both specs, or this and the norm of that name, compute the same on an array of this shape.

        Groups of one channel are instance normalization, one group is none, axes of length 1 average
        nothing, and an epsilon added to a sum of n squares is n times one added to their mean.

        >>> group = NormSpec(axes=("1:",), channel_axis=1, groups=6, group_order="blocked")
        >>> group.same_as(NormSpec(axes=("2:",)), (2, 6, 5))
        True
        """
        from layernorm.spec.variants import named

        return self._at(tuple(shape)) == named(other)._at(tuple(shape))

    def _at(self, shape: tuple[int, ...]) -> dict[str, object]:
        spec = self.resolve(len(shape))
        said = dict(spec._counting)
        axes = {a for a in plain_axes(spec) if shape[a] != 1}
        if isinstance(spec.groups, int) and isinstance(spec.channel_axis, int):
            channels = shape[spec.channel_axis]
            if spec.groups in (1, channels):
                if spec.groups == channels:
                    axes.discard(spec.channel_axis)
                for name in ("scale_axes", "shift_axes"):
                    if said[name] == "group":
                        said[name] = (spec.channel_axis,) if spec.groups == channels else ()
                said |= {"groups": None, "channel_axis": None, "group_order": None}
        size = math.prod(shape[a] for a in axes) // (said["groups"] if isinstance(said["groups"], int) else 1)
        if said["eps_at"] == "sum" and spec.spread in ("std", "rms") and isinstance(spec.eps, float):
            divisor = size - (spec.ddof if spec.spread == "std" and isinstance(spec.ddof, int) else 0)
            # 12 digits: eps·n / n need not come back to the last bit
            said |= {"eps_at": "variance", "eps": float(f"{spec.eps / max(divisor, 1):.12g}")}
        elif isinstance(said["eps"], float):
            said["eps"] = float(f"{said['eps']:.12g}")
        said["axes"] = frozenset(axes)
        for name in ("scale_axes", "shift_axes"):
            if isinstance(said[name], tuple):
                said[name] = frozenset(a for a in said[name] if shape[a] != 1)  # type: ignore[attr-defined]
        return said

    def assume(self, other: NormSpec | str) -> Self:
        """Fill every unknown field from another spec, or the norm of that name, and mark it in `assumed`.

        >>> NormSpec(eps=UNKNOWN).assume(NormSpec(eps=1e-12)).eps
        1e-12
        """
        from layernorm.spec.variants import named

        other = named(other)
        filled = {
            f.name: getattr(other, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) is UNKNOWN and getattr(other, f.name) is not UNKNOWN
        }
        return dataclasses.replace(self, **filled, assumed=self.assumed | frozenset(filled))

    # -- how it is written --------------------------------------------------------------------------------

    def formula(self) -> str:
        """Write the computation as one line of mathematics.

        >>> NormSpec(centered=False, spread="rms", scale_axes=(-1,), scale_offset=1).formula()
        'y = (1 + γ)·x / √(mean(x²) + 1e-05)'
        """
        scale = {None: "", UNKNOWN: "[γ?]·"}[self.scale_axes] if self.scale_axes in (None, UNKNOWN) else "γ·"
        if scale == "γ·" and self.scale_offset != 0:
            scale = "(1 + γ)·" if self.scale_offset == 1 else "([1?] + γ)·"
        numerator = {True: "(x − mean)", False: "x", UNKNOWN: "(x [− mean?])"}[self.centered]
        shift = {None: "", UNKNOWN: " [+ β?]"}[self.shift_axes] if self.shift_axes in (None, UNKNOWN) else " + β"
        return f"y = {scale}{numerator} / {self._denominator()}{shift}"

    def _denominator(self) -> str:
        eps = f"{self.eps!r}" if self.eps is not UNKNOWN else "ε?"
        square, root, total = {
            "std": ("var", "std", "Σ(x − mean)²"),
            "rms": ("mean(x²)", "rms(x)", "Σx²"),
            "l2": ("Σx²", "‖x‖", "Σx²"),
            UNKNOWN: ("spread?²", "spread?", "Σ?"),
        }[self.spread]
        count = "" if self.spread == "l2" else " / n"
        if self.ddof == 1 and self.spread == "std":
            square, root, count = "var₁", "std₁", " / (n − 1)"
        return {
            "variance": f"√({square} + {eps})",
            "deviation": f"({root} + {eps})",
            "sum": f"√(({total} + {eps}){count})",
            "variance_floor": f"√max({square}, {eps})",
            "deviation_floor": f"max({root}, {eps})",
            "none": f"{root}",
            UNKNOWN: f"{root} with {eps} somewhere",
        }[self.eps_at]

    def __str__(self) -> str:
        where = "axes ?" if self.axes is UNKNOWN else f"axes ({', '.join(map(str, self.axes))})"
        said = [f"{self.formula()} over {where}"]
        if self.groups is not None:
            said.append(f"{self.groups} {self.group_order or ''} groups of axis {self.channel_axis}")
        if self.statistics != "input":
            said.append(f"{self.statistics} statistics")
        if self.stats_dtype != "float64":
            said.append(f"statistics in {self.stats_dtype}")
        if self.variance_by != "centered":
            said.append(f"variance by {self.variance_by}")
        if self._counting["cast_before_scale"]:
            said.append("rounded before γ" if self.cast_before_scale is True else "rounded before γ: unknown")
        if self.round_each is not False:
            said.append("every step rounded" if self.round_each is True else "every step rounded: unknown")
        if self.assumed:
            said.append(f"assumed: {', '.join(sorted(self.assumed))}")
        return "; ".join(said)

    def spelling(self) -> dict[str, str]:
        """Say how PyTorch, Keras, Flax and ONNX write this layer, or why each cannot.

        Each value is an expression that makes the layer, with `x` for the input array, or a sentence
        that begins with "cannot:". It computes the same up to rounding: no framework's layer can be told where
        to round, so `stats_dtype`, `cast_before_scale`, `variance_by` and `round_each` are passed over.

        >>> NormSpec(axes=(-1,), eps=1e-12, scale_axes=(-1,), shift_axes=(-1,)).spelling()["pytorch"]
        'torch.nn.LayerNorm(x.shape[-1:], eps=1e-12)'
        """
        from layernorm.spec.spelling import FRAMEWORKS

        return {name: spell(self) for name, spell in FRAMEWORKS.items()}

    def to_json(self) -> dict[str, Any]:
        """Give the spec as the documents hold it: plain JSON values, "unknown" for UNKNOWN."""
        said: dict[str, Any] = {"kind": self.kind}
        for f in dataclasses.fields(self):
            if f.name == "assumed":
                continue
            value = getattr(self, f.name)
            if isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, float) and not math.isfinite(value):
                value = str(value)
            said[f.name] = str(value) if value is UNKNOWN else value
        return said

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            SpecError: a field is missing or unheard of, or `kind` contradicts the other fields.
        """
        if not isinstance(document, Mapping):
            raise SpecError(f"a spec's document is a {type(document).__name__}; pass the object that to_json() gave.")
        names = {f.name for f in dataclasses.fields(cls)} - {"assumed"}
        missing, extra = names - document.keys(), document.keys() - names - {"kind"}
        if missing or extra:
            raise SpecError(
                f"a spec's document lacks {sorted(missing)} and has {sorted(extra)} too many; "
                'write every field of NormSpec, "unknown" where the source is silent.'
            )
        said: dict[str, Any] = {name: UNKNOWN if document[name] == "unknown" else document[name] for name in names}
        if said["eps"] in ("nan", "inf", "-inf"):
            said["eps"] = float(said["eps"])
        spec = cls(**said)
        if document.get("kind", spec.kind) != spec.kind:
            raise SpecError(f"kind is {document['kind']!r}, but the fields make it {spec.kind!r}; mend one.")
        return spec


def plain_axes(spec: NormSpec) -> tuple[int, ...]:
    """Give the axes of a resolved spec, which are integers all."""
    return tuple(a for a in spec.axes if isinstance(a, int)) if isinstance(spec.axes, tuple) else ()


def _tidy_axes(name: str, axes: object) -> Axes:
    """Order axes front to back; write a run from the end as its integers, which are the same."""
    if isinstance(axes, (int, str, bytes)) or not isinstance(axes, Sequence):
        raise SpecError(f'{name}={axes!r} is not a sequence of axes; write it as a tuple, say (-1,) or ("2:",).')
    tidy: list[int | str] = []
    for axis in axes:
        if isinstance(axis, str) and re.fullmatch(r"-[0-9]{1,2}:", axis):
            tidy.extend(range(int(axis[:-1]), 0))
        elif (isinstance(axis, str) and re.fullmatch(r"[0-9]{1,2}:", axis)) or type(axis) is int:
            tidy.append(axis)
        else:
            raise SpecError(f'{name} holds {axis!r}; an axis is an int or an open run such as "2:".')
    if not tidy:
        raise SpecError(f"{name} is empty; name at least one axis.")
    if len(set(tidy)) != len(tidy) or sum(isinstance(a, str) for a in tidy) > 1:
        raise SpecError(f"{name}={tuple(axes)!r} names an axis twice; name each once, with at most one open run.")
    return tuple(sorted(tidy, key=lambda a: (int(str(a).rstrip(":")) < 0, int(str(a).rstrip(":")))))


def _plain_axes(name: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    plain: list[int] = []
    for axis in axes:
        if isinstance(axis, str):
            plain.extend(range(int(axis[:-1]), ndim))
        elif -ndim <= axis < ndim:
            plain.append(axis % ndim)
        else:
            raise SpecError(f"{name} names axis {axis}, but the array has {ndim} axes ({-ndim} to {ndim - 1}).")
    if len(set(plain)) != len(plain):
        raise SpecError(f"{name}={axes!r} names an axis twice in an array of {ndim} axes; name each once.")
    if not plain:
        raise SpecError(f"{name}={axes!r} names no axis of an array of {ndim} axes; it needs a larger one.")
    return tuple(sorted(plain))


def _covers(axes: Axes, carried: set[int | str]) -> bool:
    """Tell whether an open run in `axes` takes in every carried axis, as "1:" takes in -1."""
    runs = [int(a[:-1]) for a in axes if isinstance(a, str)]
    starts = [a if isinstance(a, int) else int(a[:-1]) for a in carried]
    return bool(runs) and all(start < 0 or start >= runs[0] for start in starts)
