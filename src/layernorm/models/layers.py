# SPDX-License-Identifier: MIT
"""This file makes records of layers: a class of PyTorch or Keras, its settings, and what they mean as a NormSpec.

A new class is one row: a function that reads the settings. Of a class that no row names, its name, eps and parameters
are believed, and the rest stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from layernorm.models.model_file import Layer
from layernorm.models.norm_record import Evidence, NormRecord
from layernorm.models.placement import by_name
from layernorm.models.settings import EPSILONS, Unreadable, plain
from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec, Unknown
from layernorm.spec.variants import VARIANTS

Size = int | Unknown

# As many as NumPy knew for long; a file that names axis 10⁹ would have as many listed.
MOST_AXES = 32


class _Reading:
    """A layer being read: settings by name, and from where each field came."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.settings = {name: plain(value) for name, value in layer.settings.items()}
        self.evidence: dict[str, Evidence] = {}
        self.size: Size = UNKNOWN

    def setting(self, field: str, name: str, default: Any, *also: str) -> Any:
        """Give a setting, or the class' default where the file leaves it out, and note which it was.

        One that is there and cannot be read is unknown.
        """
        for key in (name, *also):
            if key in self.settings:
                value = self.settings[key]
                if isinstance(value, Unreadable):
                    self.evidence[field] = Evidence("unknown", f"{key} is {value.why}")
                    return UNKNOWN
                self.evidence[field] = Evidence("module", key)
                return value
        silent = default is UNKNOWN
        said = f"it keeps no {name}" if silent else f"{self.layer.kind}: {name}={default!r}"
        self.evidence[field] = Evidence("unknown" if silent else "default", said)
        return default

    def eps(self, default: float | Unknown, *names: str) -> float | Unknown:
        value = self.setting("eps", names[0], default, *names[1:])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if value is not UNKNOWN:
            self.evidence["eps"] = Evidence("unknown", f"{self.evidence['eps'].detail} is {value!r:.40}, no number")
        return UNKNOWN

    def width(self, *roles: str) -> Size:
        """Give the length of the first parameter there is."""
        for role in roles or ("scale", "shift", "mean"):
            if role in self.layer.tensors and self.layer.tensors[role].shape:
                return self.layer.tensors[role].shape[-1]
        return UNKNOWN

    def has(self, role: str) -> bool:
        return role in self.layer.tensors

    def affine(self, spec: NormSpec, axes: Any, shift: Any = None) -> NormSpec:
        """Set the axes of scale and shift by which of them the layer has."""
        if shift is None:
            shift = axes
        for field, role in (("scale_axes", "scale"), ("shift_axes", "shift")):
            why = self.layer.tensors[role].unread if self.has(role) else ""
            said = f"it has {'a' if self.has(role) else 'no'} {role}"
            self.evidence[field] = Evidence("module", f"{said}, whose values are not known: {why}" if why else said)
        return replace(
            spec, scale_axes=axes if self.has("scale") else None, shift_axes=shift if self.has("shift") else None
        )

    def variant(self, name: str) -> NormSpec:
        """Take a row of the variants, whose source is the class' own code."""
        spec = VARIANTS[name]
        # PyTorch and Keras compute float64 in float64
        return (
            replace(spec, stats_dtype="float64")
            if self.layer.dtype == "float64" and spec.stats_dtype == "float32"
            else spec
        )


Read = Callable[[_Reading], NormSpec | None]


def _torch_layer(reading: _Reading) -> NormSpec:
    spec = replace(reading.variant("pytorch-layer"), eps=reading.eps(1e-5, "eps"))
    return _over_shape(reading, spec)


def _torch_rms(reading: _Reading) -> NormSpec:
    spec = reading.variant("pytorch-rms")
    if reading.settings.get("eps") is None:
        double = reading.layer.dtype == "float64"
        spec = replace(spec, eps=2.0**-52 if double else 2.0**-23)
        reading.evidence["eps"] = Evidence("default", f"eps=None: finfo({'float64' if double else 'float32'}).eps")
    else:
        spec = replace(spec, eps=reading.eps(0.0, "eps"))
    return _over_shape(reading, spec)


def _over_shape(reading: _Reading, spec: NormSpec) -> NormSpec:
    """Normalize the last axes, as many as `normalized_shape` or the scale has."""
    shape = reading.setting("axes", "normalized_shape", None, "hidden_size", "dim")
    shape = (shape,) if type(shape) is int else shape
    if not isinstance(shape, tuple) and reading.has("scale"):
        shape = reading.layer.tensors["scale"].shape
        reading.evidence["axes"] = Evidence("shape", str(shape))
    if not isinstance(shape, tuple) or not shape or not all(type(n) is int and n >= 0 for n in shape):
        reading.evidence["axes"] = Evidence("unknown", "neither a shape nor a scale says which axes")
        return replace(reading.affine(spec, UNKNOWN), axes=UNKNOWN)
    axes = tuple(range(-len(shape), 0))
    reading.size = 1
    for length in shape:
        reading.size *= length
    return replace(reading.affine(spec, axes), axes=axes)


def _torch_group(reading: _Reading) -> NormSpec:
    groups = reading.setting("groups", "num_groups", UNKNOWN)
    spec = replace(reading.variant("pytorch-group"), eps=reading.eps(1e-5, "eps"))
    return reading.affine(replace(spec, groups=groups if type(groups) is int and groups > 0 else UNKNOWN), (1,))


def _torch_batch(reading: _Reading) -> NormSpec:
    spec = replace(reading.variant("pytorch-batch"), eps=reading.eps(1e-5, "eps"))
    return reading.affine(_stored(reading, spec), (1,))


def _frozen_batch(reading: _Reading) -> NormSpec:
    spec = replace(reading.variant("pytorch-batch"), eps=reading.eps(1e-5, "eps"))
    reading.evidence["statistics"] = Evidence("module", "frozen")
    return reading.affine(replace(spec, statistics="stored"), (1,))


def _torch_instance(reading: _Reading) -> NormSpec:
    spec = replace(reading.variant("pytorch-instance"), eps=reading.eps(1e-5, "eps"))
    spec = _stored(reading, spec)
    if spec.statistics == "stored":  # running ones are the same for every sample
        spec = replace(spec, axes=(0, "2:"))
    return reading.affine(spec, (1,))


def _stored(reading: _Reading, spec: NormSpec) -> NormSpec:
    """Use running statistics where the layer keeps them and is not being trained."""
    if not (reading.has("mean") and reading.has("variance")):
        reading.evidence["statistics"] = Evidence("module", "it keeps no running statistics")
        return replace(spec, statistics="input")
    training = reading.layer.training
    reading.evidence["statistics"] = Evidence("module", f"training={training}")
    return replace(spec, statistics="input" if training else "stored")


def _hugging_face(variant: str) -> Read:
    """Read a class that multiplies the last axis, with its eps under one of the usual names."""

    def read(reading: _Reading) -> NormSpec:
        spec = reading.variant(variant)
        default = spec.eps if isinstance(spec.eps, float) else 0.0
        spec = replace(spec, eps=reading.eps(default, "variance_epsilon", "eps", "epsilon"))
        scale = reading.layer.tensors.get("scale")
        reading.size = reading.width()
        # one scale a head, if it has two axes
        return reading.affine(spec, tuple(range(-len(scale.shape), 0)) if scale is not None and scale.shape else (-1,))

    return read


def _channels(reading: _Reading) -> NormSpec:
    """Read a LayerNorm that may have its channels second; it turns the axes and calls PyTorch's own."""
    order = reading.setting("axes", "data_format", "channels_first")
    axes: Any = {"channels_first": (1,), "channels_last": (-1,)}.get(order, UNKNOWN)
    reading.size = reading.width()
    return replace(reading.affine(reading.variant("pytorch-layer"), axes), axes=axes, eps=reading.eps(1e-6, "eps"))


def _stranger(reading: _Reading) -> NormSpec | None:
    """Read a class that nobody here knows by its name, its eps and its parameters; None if that says nothing."""
    name = reading.layer.kind.rpartition(".")[2].lower()
    said: dict[str, Any] = {field.name: UNKNOWN for field in fields(NormSpec) if field.name != "assumed"}
    spec = NormSpec(**said)
    rms, layer = "rms" in name, "layernorm" in name and reading.has("shift")
    stored = reading.has("mean") and reading.has("variance")
    if not (rms or layer or stored):
        return None
    spec = replace(spec, eps=reading.eps(UNKNOWN, *EPSILONS))
    for field in fields(spec):
        reading.evidence.setdefault(field.name, Evidence("unknown", f"{reading.layer.kind} is no class that is known"))
    reading.evidence["centered"] = reading.evidence["spread"] = Evidence("name", reading.layer.kind)
    if stored:
        axes = (0, "2:")
        reading.evidence["axes"] = Evidence("convention", "batch normalization")
        return replace(reading.affine(_stored(reading, spec), (1,)), axes=axes, centered=True, spread="std")
    spec = replace(
        spec, centered=not rms, spread="rms" if rms else "std", groups=None, channel_axis=None, group_order=None
    )
    return _over_shape(reading, replace(spec, statistics="input"))


def _keras_axes(reading: _Reading, default: Any = -1) -> Any:
    axis = reading.setting("axes", "axis", default)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if axes and all(type(a) is int for a in axes):
        return axes
    reading.evidence["axes"] = Evidence("unknown", "axis is no number")
    return UNKNOWN


def _keras_layer(reading: _Reading) -> NormSpec:
    scaling = reading.settings.get("rms_scaling") is True
    spec = replace(reading.variant("keras-rms-scaling" if scaling else "keras-layer"), eps=reading.eps(1e-3, "epsilon"))
    if scaling:
        reading.evidence["centered"] = reading.evidence["spread"] = Evidence("module", "rms_scaling")
    return _over_axes(reading, spec)


def _keras_rms(reading: _Reading) -> NormSpec:
    return _over_axes(reading, replace(reading.variant("keras-rms"), eps=reading.eps(1e-6, "epsilon")))


def _over_axes(reading: _Reading, spec: NormSpec) -> NormSpec:
    axes = _keras_axes(reading)
    scale = reading.layer.tensors.get("scale") or reading.layer.tensors.get("shift")
    if scale is not None:
        reading.size = scale.size
    return replace(_keras_affine(reading, spec, axes), axes=axes)


def _keras_affine(reading: _Reading, spec: NormSpec, axes: Any) -> NormSpec:
    """Set the axes of gamma and beta by the tensors, or by what the configuration says where no weights came along."""
    if reading.layer.tensors:
        return reading.affine(spec, axes)
    had: dict[str, Any] = {
        "scale_axes": reading.setting("scale_axes", "scale", True),
        "shift_axes": reading.setting("shift_axes", "center", True) if spec.centered is True else False,
    }
    carried: dict[str, Any] = {
        field: UNKNOWN if there is UNKNOWN else axes if there else None for field, there in had.items()
    }
    return replace(spec, **carried)


def _keras_group(reading: _Reading) -> NormSpec:
    spec = replace(reading.variant("keras-group"), eps=reading.eps(1e-3, "epsilon"))
    groups = reading.setting("groups", "groups", 32)
    if groups == -1:  # as many as channels
        groups = reading.width()
        reading.evidence["groups"] = Evidence("module", "groups=-1, one for each channel")
    axes = _keras_axes(reading)
    if axes is UNKNOWN or len(axes) != 1:
        return replace(spec, axes=UNKNOWN, channel_axis=UNKNOWN, groups=UNKNOWN)
    spec = replace(spec, channel_axis=axes[0], groups=groups if type(groups) is int and groups > 0 else UNKNOWN)
    return _keras_affine(reading, spec, axes)


def _keras_batch(reading: _Reading) -> NormSpec:
    spec = replace(reading.variant("keras-batch"), eps=reading.eps(1e-3, "epsilon"))
    spec = _stored(reading, spec) if reading.layer.tensors else spec
    kept = _keras_axes(reading)
    if kept is UNKNOWN or len(kept) != 1:
        return replace(spec, axes=UNKNOWN)
    axes: Any = UNKNOWN
    shape = reading.settings.get("input_shape")
    if kept[0] == 1:
        axes = (0, "2:")
    elif 1 < kept[0] <= MOST_AXES:
        # Keras 2 writes the axis that -1 came to, so it is the last
        axes = tuple(range(kept[0]))
    elif isinstance(shape, (tuple, list)) and len(shape) + kept[0] > 0:
        axes = tuple(a for a in range(len(shape)) if a != len(shape) + kept[0])
    else:
        reading.evidence["axes"] = Evidence("unknown", f"all but axis {kept[0]}, and the file does not say of how many")
    return replace(_keras_affine(reading, spec, kept), axes=axes)


def _keras_unit(reading: _Reading) -> NormSpec:
    return replace(reading.variant("keras-unit"), axes=_keras_axes(reading))


# transformers' classes of Llama's kind: x is rounded before the scale
_LLAMA = (
    "LlamaRMSNorm MistralRMSNorm MixtralRMSNorm Qwen2RMSNorm Qwen2MoeRMSNorm Qwen3RMSNorm Qwen3MoeRMSNorm Phi3RMSNorm "
    "DeepseekV2RMSNorm DeepseekV3RMSNorm SmolLM3RMSNorm GraniteRMSNorm GlmRMSNorm Glm4RMSNorm PixtralRMSNorm"
)

TORCH: dict[str, Read] = {
    "LayerNorm": _torch_layer,
    "FusedLayerNorm": _torch_layer,
    "RMSNorm": _torch_rms,
    "GroupNorm": _torch_group,
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), _torch_batch),
    **dict.fromkeys(("LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d"), _torch_batch),
    **dict.fromkeys(("FrozenBatchNorm2d",), _frozen_batch),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), _torch_instance),
    **dict.fromkeys(("LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d"), _torch_instance),
    **dict.fromkeys(("ConvNextLayerNorm", "LayerNorm2d"), _channels),
    **dict.fromkeys(_LLAMA.split(), _hugging_face("llama1")),
    **dict.fromkeys(("MambaRMSNorm", "MambaRMSNormGated"), _hugging_face("mamba")),
    **dict.fromkeys(("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm", "LongT5LayerNorm"), _hugging_face("t5")),
    **dict.fromkeys(("Olmo2RMSNorm", "Olmo3RMSNorm", "GptOssRMSNorm"), _hugging_face("olmo2")),
    **dict.fromkeys(
        ("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "RecurrentGemmaRMSNorm", "VaultGemmaRMSNorm",
         "T5GemmaRMSNorm", "Qwen3NextRMSNorm"),
        _hugging_face("gemma"),
    ),
    **dict.fromkeys(("CohereLayerNorm", "Cohere2LayerNorm"), _hugging_face("cohere")),
    "NemotronLayerNorm1P": _hugging_face("nemotron"),
    "OlmoLayerNorm": _hugging_face("olmo"),
}  # fmt: skip

KERAS: dict[str, Read] = {
    "LayerNormalization": _keras_layer,
    "RMSNormalization": _keras_rms,
    "GroupNormalization": _keras_group,
    "BatchNormalization": _keras_batch,
    "SyncBatchNormalization": _keras_batch,
    "UnitNormalization": _keras_unit,
}


def record_of(layer: Layer) -> NormRecord | None:
    """Make the record of a layer; None if nothing is known of its class.

    >>> record_of(Layer("torch", "LayerNorm", "norm", "", {"normalized_shape": (8,), "eps": 1e-6}, {})).spec.eps
    1e-06
    """
    reading = _Reading(layer)
    try:
        if layer.framework == "torch":
            spec = TORCH.get(layer.kind, _stranger)(reading)
        else:
            spec = KERAS[layer.kind](reading) if layer.kind in KERAS else None
    except SpecError:  # axes named twice or the like, which the framework itself would refuse
        return None
    if spec is None:
        return None
    for field in fields(spec):
        if field.name != "assumed":
            reading.evidence.setdefault(field.name, Evidence("module", layer.kind))
    dtype = layer.dtype if "float" in layer.dtype else "unknown"
    held: dict[str, Any] = {role: tensor for role, tensor in layer.tensors.items() if not tensor.unread}
    place = by_name(layer.name, frozenset({layer.name}))
    return NormRecord(layer.name, layer.where, "layer", spec, reading.evidence, dtype, reading.size, place, **held)
