# SPDX-License-Identifier: MIT
"""This file spells a NormSpec in PyTorch, Keras, Flax (linen) and ONNX, or says which field has no place there.

An expression makes the layer, or where there is only a function, its result; `x` is the input array. It computes what
the spec says up to rounding: `stats_dtype`, `cast_before_scale`, `variance_by` and `round_each` are passed over, as no
framework lets a layer choose them all (Flax lets `variance_by` be chosen, and is told). Where it is right for arrays
of one number of axes alone it ends in `if x.ndim == ...`. ONNX operators are those of opset 23; their inputs `scale`
and `bias`, where they carry other axes than the normalized ones, have all of x's, of length 1 where they do not vary.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from layernorm.spec.norm_spec import Axes, NormSpec

_ROUNDING = ("stats_dtype", "cast_before_scale", "variance_by", "round_each")
_FAMILIES = {(True, "std"): "std", (False, "rms"): "rms", (False, "l2"): "l2", (False, "std"): "rms_scaling"}
# Seen in 3.15.1: its torch backend hands any single axis to a PyTorch kernel that takes the last one.
_KERAS_TRAP = "  # not with the torch backend, which normalizes the last axis whatever axis says"


class _Cannot(Exception):
    """The framework has no place for a field; the message names it."""


def _spell(write: Callable[[Any, str], str]) -> Callable[[NormSpec], str]:
    """Check what no framework can say, then write; a refusal becomes a sentence."""

    def told(spec: NormSpec) -> str:
        try:
            return write(spec, _family(spec))
        except _Cannot as why:
            return f"cannot: {why}"

    return told


def _family(spec: NormSpec) -> str:
    unknown = [name for name in spec.unknown() if name not in _ROUNDING]
    if unknown:
        raise _Cannot(f"{', '.join(unknown)} unknown; fill in with assume()")
    family = _FAMILIES.get((bool(spec.centered), str(spec.spread)))
    if family is None:
        raise _Cannot(f"spread={spec.spread!r} of what is not centered, with centered=True")
    if spec.statistics == "updated":
        raise _Cannot("statistics='updated'; layers use this input's statistics or those stored before it")
    if family in ("std", "rms_scaling") and spec.ddof and spec.statistics != "stored":
        raise _Cannot("ddof=1; layers divide the variance by n")
    if spec.scale_offset and spec.scale_axes is not None:
        raise _Cannot("scale_offset=1; layers multiply by the weight alone, so store 1 + γ in it")
    if "group" in (spec.scale_axes, spec.shift_axes):
        raise _Cannot('scale_axes or shift_axes is "group"; layers carry one per channel')
    if family != "std" and (spec.groups is not None or spec.statistics != "input"):
        raise _Cannot(f"groups or stored statistics with spread={spec.spread!r} and centered={spec.centered}")
    if spec.groups is not None and spec.statistics != "input":
        raise _Cannot(f"statistics={spec.statistics!r} with groups")
    return family


# -- the four frameworks --------------------------------------------------------------------------------------


def _pytorch(spec: Any, family: str) -> str:
    axes, on = spec.axes, _parameter_axes(spec)
    if family == "l2":
        _bare(spec, "torch.nn.functional.normalize")
        return f"torch.nn.functional.normalize(x, dim={_one_or_all(axes)}, eps={_floor(spec)!r})"
    eps = f"eps={_under_root(spec)!r}"
    if family == "rms":
        _carries(spec, "torch.nn.RMSNorm", axes, shift=False)
        return f"torch.nn.RMSNorm(x.shape[{_tail(axes)}:], {eps}{'' if on else ', elementwise_affine=False'})"
    if family == "rms_scaling":
        raise _Cannot("centered=False with spread='std'")
    if spec.shift_axes is not None and spec.scale_axes is None:
        raise _Cannot("shift_axes without scale_axes; PyTorch's layers have a bias only beside a weight")
    bias = ", bias=False" if on and spec.shift_axes is None else ""
    if spec.groups is not None:
        _groups_of(spec, "torch.nn.GroupNorm", channel=1)
        return f"torch.nn.GroupNorm({spec.groups}, x.shape[1], {eps}{bias}{'' if on else ', affine=False'})"
    # (-1,) without parameters would pass for the places of an instance norm on three axes
    known_last = on is None and _start(axes) is not None and axes[-1] == -1
    if on in (None, (1,)) and not known_last:
        for kept, name in (((1,), "BatchNorm"), ((0, 1), "InstanceNorm")):
            fits, rank = _rest(axes, kept)
            if fits and (spec.statistics == "input" or name == "BatchNorm"):
                return _torch_channels(spec, name, rank, eps, bias)
    if spec.statistics != "input":
        raise _Cannot("statistics='stored'; PyTorch keeps them for BatchNorm over all axes but 1, weights along 1")
    if on == (1,) and _start(axes) == 1:
        return f"torch.nn.GroupNorm(1, x.shape[1], {eps}{bias})"
    _carries(spec, "torch.nn.LayerNorm", axes)
    return f"torch.nn.LayerNorm(x.shape[{_tail(axes)}:], {eps}{bias}{'' if on else ', elementwise_affine=False'})"


def _torch_channels(spec: Any, name: str, rank: int | None, eps: str, bias: str) -> str:
    """Spell BatchNorm and InstanceNorm, whose class depends on the number of axes."""
    places = "max(x.ndim - 2, 1)" if name == "BatchNorm" else "x.ndim - 2"
    layer = f'getattr(torch.nn, f"{name}{{{places}}}d")' if rank is None else f"torch.nn.{name}{max(rank - 2, 1)}d"
    affine = name == "BatchNorm"
    has = spec.scale_axes is not None
    words = ("" if has == affine else f", affine={has}") + bias
    if name == "BatchNorm" and spec.statistics == "input":
        if not _under_root(spec):
            raise _Cannot(f"eps={spec.eps!r}, eps_at={spec.eps_at!r}; PyTorch's batch statistics want an eps above 0")
        words += ", track_running_stats=False"
    evaluated = ".eval()" if spec.statistics == "stored" else ""
    return f"{layer}(x.shape[1], {eps}{words}){evaluated}{_only(rank)}"


def _keras(spec: Any, family: str) -> str:
    axes, on = spec.axes, _parameter_axes(spec)
    if family == "l2":
        return _keras_unit(spec)
    eps = f"epsilon={_under_root(spec)!r}"
    if family == "rms":
        _carries(spec, "keras.layers.RMSNormalization", axes, shift=False, must=True)
        _tail(axes)  # along other axes its scale is not reshaped, and broadcasts from the right
        return f"keras.layers.RMSNormalization(axis={_all(axes)}, {eps})"
    if family == "rms_scaling":
        _carries(spec, "rms_scaling=True", axes, shift=False, must=True)
        return f"keras.layers.LayerNormalization(axis={_all(axes)}, {eps}, rms_scaling=True)"
    words = eps + ", center=False" * (spec.shift_axes is None) + ", scale=False" * (spec.scale_axes is None)
    grouped = "keras.layers.GroupNormalization(groups={}, axis={}, {})"
    if spec.groups is not None:
        _groups_of(spec, "keras.layers.GroupNormalization", channel=spec.channel_axis)
        return grouped.format(spec.groups, spec.channel_axis, words)
    for c in _channels(on):
        fits, rank = _rest(axes, (c,))
        batch = f"keras.layers.BatchNormalization(axis={c}, {words})"
        if fits and spec.statistics == "stored":
            return batch + _only(rank)
        if fits and on is not None:
            return f"functools.partial({batch}, training=True){_only(rank)}"
    if spec.statistics != "input":
        raise _Cannot("statistics='stored'; Keras keeps them for BatchNormalization over all axes but one")
    for c in () if on is None else _channels(on):
        fits, rank = _rest(axes, (0, c))
        if fits:
            return grouped.format(-1, c, words) + _only(rank)
        if _start(axes) == 1 and c != 0:
            return grouped.format(1, c, words)
    _carries(spec, "keras.layers.LayerNormalization", axes)
    trap = _KERAS_TRAP if _start(axes) is None and _neighbours(axes) else ""
    return f"keras.layers.LayerNormalization(axis={_all(axes)}, {words}){trap}"


def _keras_unit(spec: Any) -> str:
    _bare(spec, "keras.layers.UnitNormalization")
    floor = _floor(spec)
    if floor < 2.0**-126:
        raise _Cannot(f"eps={spec.eps!r}; Keras multiplies by 1 / eps, which float32 must be able to hold")
    if floor == 1e-12:
        return f"keras.layers.UnitNormalization(axis={_all(spec.axes)})"
    return f"keras.ops.normalize(x, axis={_one_or_all(spec.axes)}, order=2, epsilon={floor!r})"


def _flax(spec: Any, family: str) -> str:
    axes, on = spec.axes, _parameter_axes(spec)
    if family in ("l2", "rms_scaling"):
        raise _Cannot(f"centered=False with spread={spec.spread!r}; Flax has no such layer")
    eps = f"epsilon={_under_root(spec)!r}"
    scale = "" if spec.scale_axes is not None else ", use_scale=False"
    words = scale + ("" if spec.shift_axes is not None else ", use_bias=False")
    where = "" if axes == (-1,) else f", reduction_axes={_all(axes, 'tuple')}"
    features = "" if on in (None, (-1,)) else f", feature_axes={_all(on, 'tuple')}"
    if family == "rms":
        _carries(spec, "flax.linen.RMSNorm", on or axes, shift=False)
        return f"flax.linen.RMSNorm({eps}{scale}{where}{features})"
    exact = "" if spec.variance_by == "moments_clamped" else ", use_fast_variance=False"
    if spec.groups is not None:
        _groups_of(spec, "flax.linen.GroupNorm", channel=-1)
        return f"flax.linen.GroupNorm({spec.groups}, {eps}{words}{exact})"
    if spec.statistics == "stored":
        for c in _channels(on):
            fits, rank = _rest(axes, (c,))
            if fits:
                return f"flax.linen.BatchNorm(use_running_average=True, axis={c}, {eps}{words}){_only(rank)}"
        raise _Cannot("statistics='stored'; Flax keeps them for BatchNorm over all axes but one")
    return f"flax.linen.LayerNorm({eps}{words}{where}{features}{exact})"


def _onnx(spec: Any, family: str) -> str:
    axes, scale, shift = spec.axes, spec.scale_axes, spec.shift_axes
    if family == "rms_scaling":
        raise _Cannot("centered=False with spread='std'")
    if family == "l2":
        _bare(spec, "LpNormalization")
        if not 0 < _floor(spec) <= 2.0**-149 or len(axes) != 1 or isinstance(axes[0], str):
            raise _Cannot(
                f"eps_at={spec.eps_at!r} or axes={axes!r}; LpNormalization takes one axis and has no eps, but gives 0 "
                "for an all-zero row, as a floor of 2**-149 does"
            )
        return _node("LpNormalization", ["x"], f"axis={axes[0]}, p=2")
    bare = family == "std" and spec.statistics == "input" and spec.groups is None and scale is None and shift is None
    if bare and spec.eps_at == "deviation" and spec.eps == 1e-9:
        return _node("MeanVarianceNormalization", ["x"], f"axes={_all(axes)}")
    eps = f"epsilon={_under_root(spec)!r}"
    both = scale == shift == (1,)
    if family == "rms":
        _carries(spec, "RMSNormalization", scale or axes, shift=False, must=True)
        return _node("RMSNormalization", ["x", "scale"], f"axis={_tail(axes)}, {eps}")
    if spec.groups is not None:
        _groups_of(spec, "GroupNormalization", channel=1)
        if not both:
            raise _Cannot("scale_axes or shift_axes is None; GroupNormalization requires both inputs")
        return _node("GroupNormalization", ["x", "scale", "bias"], f"num_groups={spec.groups}, {eps}")
    fits, rank = _rest(axes, (1,))
    if both and fits:
        inputs = ["x", "scale", "bias", "mean", "var"]
        if spec.statistics == "stored":
            return _node("BatchNormalization", inputs, eps) + _only(rank)
        return _node("BatchNormalization", inputs, f"{eps}, training_mode=1", ["y", "mean_out", "var_out"]) + _only(
            rank
        )
    if spec.statistics != "input":
        raise _Cannot("statistics='stored'; ONNX has them for BatchNormalization, with scale and bias along axis 1")
    fits, rank = _rest(axes, (0, 1))
    if both and fits:
        return _node("InstanceNormalization", ["x", "scale", "bias"], eps) + _only(rank)
    if scale is None:
        raise _Cannot("scale_axes=None; LayerNormalization requires a scale, so give it ones")
    inputs = ["x", "scale"] + ["bias"] * (shift is not None)
    return _node("LayerNormalization", inputs, f"axis={_tail(axes)}, {eps}")


# -- what they share ------------------------------------------------------------------------------------------


def _node(op: str, inputs: list[str], attributes: str, outputs: tuple[str, ...] | list[str] = ("y",)) -> str:
    named = [", ".join(f'"{name}"' for name in names) for names in (inputs, outputs)]
    return f'onnx.helper.make_node("{op}", [{named[0]}], [{named[1]}], {attributes})'


def _under_root(spec: Any) -> float:
    """Give the epsilon that is added to the variance, 0 for none."""
    if spec.eps_at == "none" or spec.eps == 0:
        return 0.0
    if spec.eps_at != "variance":
        raise _Cannot(f"eps_at={spec.eps_at!r}; layers add their epsilon to the variance")
    return float(spec.eps)


def _floor(spec: Any) -> float:
    """Give the lower bound of the length, 0 for none."""
    if spec.eps_at == "none" or spec.eps == 0:
        return 0.0
    if spec.eps_at == "variance_floor":
        return math.sqrt(spec.eps)
    if spec.eps_at != "deviation_floor":
        raise _Cannot(f"eps_at={spec.eps_at!r}; the length is divided by as it is, or bounded from below")
    return float(spec.eps)


def _parameter_axes(spec: Any) -> Axes | None:
    """Give the axes that both parameters carry."""
    scale, shift = spec.scale_axes, spec.shift_axes
    if scale is not None and shift is not None and not _same(scale, shift):
        raise _Cannot(f"scale_axes={scale!r} and shift_axes={shift!r}; layers carry both along the same axes")
    on: Axes | None = shift if scale is None else scale
    return on


def _carries(spec: Any, layer: str, axes: Axes, shift: bool = True, must: bool = False) -> None:
    """Refuse parameters that a layer cannot have: along other axes, a shift, or no scale."""
    if spec.shift_axes is not None and not shift:
        raise _Cannot(f"shift_axes={spec.shift_axes!r}; {layer} has no shift")
    if spec.scale_axes is None and must:
        raise _Cannot(f"scale_axes=None; {layer} always has a scale")
    for name in ("scale_axes", "shift_axes"):
        carried = getattr(spec, name)
        if carried is not None and not _same(carried, axes):
            raise _Cannot(f"{name}={carried!r}; the parameters of {layer} lie along the axes it normalizes")


def _bare(spec: Any, layer: str) -> None:
    for name in ("scale_axes", "shift_axes"):
        if getattr(spec, name) is not None:
            raise _Cannot(f"{name}={getattr(spec, name)!r}; {layer} has no parameters")


def _groups_of(spec: Any, layer: str, channel: int) -> None:
    """Refuse groups that a layer cannot deal."""
    if spec.channel_axis != channel or channel == 0:
        raise _Cannot(f"channel_axis={spec.channel_axis}; {layer} splits axis {channel}")
    if _start(spec.axes) != 1:
        raise _Cannot(f"axes={spec.axes!r}; {layer} takes every axis but the first")
    if spec.groups != 1 and spec.group_order != "blocked":
        raise _Cannot(f"group_order={spec.group_order!r}; {layer} puts neighbouring channels in a group")
    for name in ("scale_axes", "shift_axes"):
        if getattr(spec, name) not in (None, (channel,)):
            raise _Cannot(f"{name}={getattr(spec, name)!r}; {layer} has parameters along axis {channel}")


def _start(axes: Axes) -> int | None:
    """Say where a run of last axes starts, as a slice would; None if these are not known to be the last."""
    plain = [a for a in axes if isinstance(a, int)]
    runs = [int(a[:-1]) for a in axes if isinstance(a, str)]
    if not runs:
        return -len(plain) if plain == list(range(-len(plain), 0)) else None
    return runs[0] - len(plain) if plain == list(range(runs[0] - len(plain), runs[0])) else None


def _tail(axes: Axes) -> int:
    start = _start(axes)
    if start is None:
        raise _Cannot(f"axes={axes!r}; only a run of last axes can be normalized, so transpose x first")
    return start


def _same(a: Axes, b: Axes) -> bool:
    return a == b or (_start(a) is not None and _start(a) == _start(b))


def _rest(axes: Axes, kept: tuple[int, ...]) -> tuple[bool, int | None]:
    """Tell whether axes are all but the kept ones, and of how many axes an array must be for that: None for any."""
    plain = [a for a in axes if isinstance(a, int)]
    runs = [int(a[:-1]) for a in axes if isinstance(a, str)]
    if runs:
        return sorted([*plain, *kept]) == list(range(runs[0])), None
    rank = len(plain) + len(kept)
    named = [a % rank for a in (*plain, *kept) if -rank <= a < rank]
    return sorted(named) == list(range(rank)), rank


def _only(rank: int | None) -> str:
    return "" if rank is None else f" if x.ndim == {rank} else None"


def _channels(on: Axes | None) -> tuple[int, ...]:
    """Give the axis that may hold the channels, or both where no parameter tells."""
    if on is None:
        return (1, -1)
    return tuple(a for a in on if isinstance(a, int)) if len(on) == 1 else ()


def _neighbours(axes: Axes) -> bool:
    plain = [a for a in axes if isinstance(a, int)]
    return len(plain) == len(axes) and plain == list(range(plain[0], plain[0] + len(plain)))


def _all(axes: Axes, kind: str = "list") -> str:
    """Write all axes as a list or a tuple; from the front where some are, as Keras sorts them by number."""
    mixed = len({str(a).startswith("-") for a in axes}) == 2
    named = [
        f"*range({a[:-1]}, x.ndim)" if isinstance(a, str) else f"x.ndim - {-a}" if mixed and a < 0 else str(a)
        for a in axes
    ]
    if len(axes) == 1 and isinstance(axes[0], str):
        return f"{kind}({named[0][1:]})"
    if kind == "list":
        return f"[{', '.join(named)}]"
    return f"({', '.join(named)}{',' * (len(named) == 1)})"


def _one_or_all(axes: Axes) -> str:
    return str(axes[0]) if len(axes) == 1 and isinstance(axes[0], int) else _all(axes, "tuple")


FRAMEWORKS: Mapping[str, Callable[[NormSpec], str]] = MappingProxyType(
    {"pytorch": _spell(_pytorch), "keras": _spell(_keras), "flax": _spell(_flax), "onnx": _spell(_onnx)}
)
