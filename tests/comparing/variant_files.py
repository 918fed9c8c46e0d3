# SPDX-License-Identifier: MIT
"""This file writes models of named variants: any NormSpec as ONNX, and in other formats what these can say.

Each format has a function that says why it cannot hold a model, and one that writes it. ONNX is written twice over:
by operators that are norms, and by single operations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from models.drafts import Draft
from small_files import checkpoint, drawn, keras_file, llama_cpp

from layernorm.spec.norm_spec import NormSpec

NARROW = {"float16": (np.float16, 10), "bfloat16": (ml_dtypes.bfloat16, 16)}
STEPS = ("eps_at", "ddof", "variance_by", "spread", "centered")


@dataclass(frozen=True)
class Norm:
    """One norm: gamma is what the file keeps, so that `scale_offset` is yet to be added."""

    name: str
    spec: NormSpec
    gamma: np.ndarray | None = None
    beta: np.ndarray | None = None
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None
    wide: bool = True
    """Whether a norm of 16-bit arrays has its statistics in float32."""
    cast_first: bool = False
    gone: bool = False

    @property
    def whole(self):
        """Gamma as it multiplies."""
        return None if self.gamma is None else (self.gamma + self.spec.scale_offset).astype(np.float32)


@dataclass(frozen=True)
class Model:
    """Norms one after the other; `row` is the variant, `shape` what they normalize, `post` where they stand."""

    row: str
    shape: tuple
    norms: tuple
    dtype: str = "float32"
    blocks: bool = False
    post: bool = False

    @property
    def left(self):
        return [norm for norm in self.norms if not norm.gone]


def plain(axes, ndim):
    """Write axes out, each from the front."""
    whole = []
    for axis in axes:
        whole += range(int(axis[:-1]), ndim) if isinstance(axis, str) else [axis % ndim]
    return tuple(whole)


# -- ONNX ---------------------------------------------------------------------------------------------------


def _onnx(model, folder, operations):
    b = Draft(model.shape, NARROW[model.dtype][0] if model.dtype in NARROW else np.float32, opset=23)
    random = np.random.default_rng(7)
    y = b.x
    for norm in model.left:
        if not model.blocks:
            y = (
                operations(b, b("Add", y, b.x), norm, model)
                if model.post
                else b("Add", y, operations(b, y, norm, model))
            )
            continue
        w = random.normal(0, 0.25, (model.shape[-1],) * 2).astype(np.float32)
        if model.post:
            y = operations(b, b("Add", y, b("MatMul", y, w)), norm, model)
        else:
            y = b("Add", y, b("MatMul", operations(b, y, norm, model), w))
    folder.mkdir(parents=True, exist_ok=True)
    return drawn(folder / "model.onnx", b, y)


def write_loose(model, folder):
    return _onnx(model, folder, _loose)


def _loose(b, x, norm, model):
    spec, narrow = norm.spec, model.dtype in NARROW
    if spec.statistics == "stored":
        return _fused(b, x, norm, model)
    wide = np.float32 if norm.wide or not narrow else NARROW[model.dtype][0]
    y = b("Cast", x, to=1) if narrow and norm.wide else x
    y = _normalized(b, y, spec, model.shape, norm.name if norm.gamma is None and norm.beta is None else None, wide)
    ndim = len(model.shape)
    down = narrow and norm.wide
    if down and (norm.cast_first or norm.gamma is None):
        y, down = b("Cast", y, to=NARROW[model.dtype][1]), False
    now = wide if down or not narrow else NARROW[model.dtype][0]
    if norm.gamma is not None:
        gamma = b.const(_along(norm.gamma, spec.scale_axes, ndim), f"{norm.name}.weight", now)
        y = b("Mul", y, b("Add", gamma, b.const(1.0, dtype=now)) if spec.scale_offset else gamma)
    if norm.beta is not None:
        y = b("Add", y, b.const(_along(norm.beta, spec.shift_axes, ndim), f"{norm.name}.bias", now))
    return b("Cast", y, to=NARROW[model.dtype][1]) if down else y


def _normalized(b, x, spec, shape, name, dtype):
    """Write x̂ by the fields of a spec; groups by splitting the axis of channels in two."""
    ndim, axes, split = len(shape), plain(spec.axes, len(shape)), tuple(shape)
    if spec.groups is not None:
        at = spec.channel_axis % ndim
        pair = [spec.groups, shape[at] // spec.groups]
        blocked = spec.group_order == "blocked"
        split = (*shape[:at], *(pair if blocked else pair[::-1]), *shape[at + 1 :])
        within = at + 1 if blocked else at
        axes = (*(a for a in axes if a < at), within, *(a + 1 for a in axes if a > at))
        x = b("Reshape", x, np.array(split, np.int64))
    n = int(np.prod([split[a] for a in axes]))

    def number(value):
        return b.const(value, dtype=dtype)

    mean = b.mean(x, axes) if spec.centered or spec.spread == "std" else None
    d = b("Sub", x, mean) if mean is not None else x
    if spec.spread == "std" and spec.variance_by != "centered":
        square = b("Sub", b.mean(b("Mul", x, x), axes), b("Mul", mean, mean))
        square = b("Max", square, number(0.0)) if spec.variance_by == "moments_clamped" else square
    else:
        of = d if spec.spread == "std" else x
        square = b("Mul", of, of)
        square = b.sum(square, axes) if spec.spread == "l2" or spec.eps_at == "sum" else b.mean(square, axes)
    if spec.ddof:
        square = b("Mul", square, number(n / (n - 1)))
    y = b("Div", d if spec.centered else x, _root(b, square, spec, n, number), name=name)
    if spec.groups is not None:
        y = b("Reshape", y, np.array(shape, np.int64), name=name)
    return y


def _root(b, square, spec, n, number):
    eps = None if spec.eps_at == "none" else number(spec.eps)
    match spec.eps_at:
        case "none":
            return b("Sqrt", square)
        case "variance":
            return b("Sqrt", b("Add", square, eps))
        case "sum":
            total = b("Add", square, eps)
            return b("Sqrt", total if spec.spread == "l2" else b("Div", total, number(float(n))))
        case "variance_floor":
            return b("Sqrt", b("Max", square, eps))
        case "deviation":
            return b("Add", b("Sqrt", square), eps)
    return b("Max", b("Sqrt", square), eps)


def _along(value, axes, ndim):
    """Lay a parameter along its axes."""
    at = plain(axes, ndim)
    shape = [1] * ndim
    for axis, n in zip(at, value.shape, strict=True):
        shape[axis] = n
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return value.reshape(shape)


def cannot_loose(model):
    for norm in model.left:
        if norm.spec.statistics == "stored" and (why := _no_operator(norm, model)):
            return why
        if norm.spec.spread == "l2":
            return "a vector over its length, in single operations, is taken for no layer norm"
        if norm.spec.eps_at == "sum" and norm.spec.variance_by != "centered":
            return "no sum of moments"
    return None


def write_fused(model, folder):
    return _onnx(model, folder, _fused)


def _fused(b, x, norm, model):
    spec = norm.spec
    leaves = {"weight": norm.whole, "bias": norm.beta}
    op, attributes = _operator(spec, len(model.shape))
    if op == "BatchNormalization":
        n = model.shape[1]
        leaves["mean"] = np.zeros(n) if norm.mean is None else norm.mean
        leaves["variance"] = np.ones(n) if norm.variance is None else norm.variance
    if op in ("LayerNormalization", "RMSNormalization") and not norm.wide:
        attributes["stash_type"] = NARROW[model.dtype][1]
    held = [b.const(v, f"{norm.name}.{leaf}") for leaf, v in leaves.items() if v is not None]
    y = b(op, x, *held, name=norm.name, epsilon=spec.eps, **attributes)
    if attributes.get("training_mode"):
        b.nodes[-1].output.extend([f"{norm.name}.new_mean", f"{norm.name}.new_variance"])
    return y


def _operator(spec, ndim):
    axes = plain(spec.axes, ndim)
    if spec.statistics == "stored" or (spec.groups is None and axes == (0, *range(2, ndim))):
        return "BatchNormalization", {} if spec.statistics == "stored" else {"training_mode": 1}
    if spec.groups is not None:
        return "GroupNormalization", {"num_groups": spec.groups}
    if axes == tuple(range(2, ndim)) and spec.scale_axes is not None and plain(spec.scale_axes, ndim) == (1,):
        return "InstanceNormalization", {}
    return "RMSNormalization" if spec.spread == "rms" else "LayerNormalization", {"axis": axes[0] - ndim}


def _no_operator(norm, model):
    """Say why no operator of ONNX computes a norm."""
    spec, ndim = norm.spec, len(model.shape)
    kind = "rms" if spec.spread == "rms" else "layer"
    usual = NormSpec(centered=kind == "layer", spread="std" if kind == "layer" else "rms")
    if any(getattr(spec, f) != getattr(usual, f) for f in STEPS) or not norm.wide or norm.cast_first:
        return "no operator takes such steps"
    op, _ = _operator(spec, ndim)
    along = (None if spec.scale_axes is None else plain(spec.scale_axes, ndim),
             None if spec.shift_axes is None else plain(spec.shift_axes, ndim))  # fmt: skip
    if op in ("LayerNormalization", "RMSNormalization"):
        axes = plain(spec.axes, ndim)
        if axes != tuple(range(axes[0], ndim)) or along[0] != axes or along[1] not in (None, axes):
            return "the operator has axes to the last, and gamma along them"
        return "the operator has no beta" if op == "RMSNormalization" and norm.beta is not None else None
    if kind == "rms":
        return "no operator of this kind is without a mean"
    if spec.groups is not None and (spec.group_order != "blocked" or spec.channel_axis != 1):
        return "the operator's groups are of neighbours along axis 1"
    if op == "BatchNormalization" and plain(spec.axes, ndim)[:2] != (0, 2):
        return "the operator keeps axis 1"
    return None if along == ((1,), (1,)) else "the operator needs gamma and beta, along axis 1"


def cannot_fused(model):
    if model.dtype != "float32":
        return "in 16 bits it is written by single operations"
    return next((why for norm in model.left if (why := _no_operator(norm, model))), None)


# -- PyTorch modules ----------------------------------------------------------------------------------------


def write_modules(model, folder):
    import torch

    root = torch.nn.Module()
    for norm in model.left:
        at = root
        *parents, last = norm.name.split(".")
        for parent in parents:
            if not hasattr(at, parent):
                at.add_module(parent, torch.nn.Module())
            at = getattr(at, parent)
        made = _module(norm, model)
        for name, value in (("weight", norm.whole), ("bias", norm.beta), ("running_mean", norm.mean),
                            ("running_var", norm.variance)):  # fmt: skip
            if value is not None:
                getattr(made, name).data = torch.from_numpy(np.array(value, np.float32))
        at.add_module(last, made)
    return root.eval()


def _module(norm, model):
    import torch

    spec, nn = norm.spec, torch.nn
    op, _ = _operator(spec, len(model.shape)) if norm.gamma is not None else (_bare(spec, len(model.shape)), None)
    affine, c = norm.gamma is not None, model.shape[1]
    if op in ("LayerNormalization", "RMSNormalization"):
        over = [model.shape[a] for a in plain(spec.axes, len(model.shape))]
        if op == "RMSNormalization":
            return nn.RMSNorm(over, eps=spec.eps, elementwise_affine=affine)
        return nn.LayerNorm(over, eps=spec.eps, elementwise_affine=affine, bias=norm.beta is not None)
    if op == "GroupNormalization":
        return nn.GroupNorm(spec.groups, c, eps=spec.eps, affine=affine)
    if op == "InstanceNormalization":
        return nn.InstanceNorm2d(c, eps=spec.eps, affine=affine)
    return nn.BatchNorm2d(c, eps=spec.eps, affine=affine, track_running_stats=spec.statistics == "stored")


def _bare(spec, ndim):
    """Name the operator of a norm without gamma."""
    instance = spec.centered and ndim == 4 and plain(spec.axes, ndim) == (2, 3)
    return "InstanceNormalization" if instance else _operator(spec, ndim)[0]


def cannot_modules(model):
    if model.dtype != "float32" or model.blocks:
        return "modules are written in float32, without what is between them"
    for norm in model.left:
        channels = len(model.shape) == 4 and norm.spec.axes != (-1,)
        if (norm.gamma is None) != (norm.beta is None) and (channels or norm.gamma is None):
            return "gamma and beta come together"
        spec, ndim = norm.spec, len(model.shape)
        if norm.gamma is None:
            if spec.eps_at != "variance" or spec.ddof or spec.variance_by != "centered" or norm.beta is not None:
                return "no module takes such steps"
            if (spec.centered, spec.spread) not in ((True, "std"), (False, "rms")) or spec.group_order == "interleaved":
                return "no module of this kind"
            axes = plain(spec.axes, ndim)
            if spec.groups is None and spec.spread == "rms" and axes != tuple(range(axes[0], ndim)):
                return "no module over such axes"
            if spec.groups is None and axes != (0, 2, 3) and axes != tuple(range(axes[0], ndim)):
                return "no module over such axes"
        elif why := _no_operator(norm, model):
            return why
    return None


# -- Keras --------------------------------------------------------------------------------------------------


def write_keras(model, folder):
    import keras

    layers, values = [], []
    for norm in model.left:
        spec, name = norm.spec, norm.name.replace(".", "_")
        has = {"scale": norm.gamma is not None, "center": norm.beta is not None}
        if spec.groups is not None:
            layer = keras.layers.GroupNormalization(spec.groups, epsilon=spec.eps, name=name, **has)
        elif spec.statistics == "stored":
            layer = keras.layers.BatchNormalization(epsilon=spec.eps, name=name, **has)
        elif spec.spread == "l2":
            layer = keras.layers.UnitNormalization(name=name)
        elif spec.spread == "rms":
            layer = keras.layers.RMSNormalization(epsilon=spec.eps, name=name)
        else:
            layer = keras.layers.LayerNormalization(epsilon=spec.eps, name=name, **has)
        layers.append(layer)
        values += [v for v in (norm.whole, norm.beta, norm.mean, norm.variance) if v is not None]
    folder.mkdir(parents=True, exist_ok=True)
    return keras_file(folder / "model.keras", model.shape[1:], *layers, values=values)


def cannot_keras(model):
    if model.dtype != "float32" or model.blocks:
        return "Keras models are written in float32, without what is between the layers"
    for norm in model.left:
        spec, ndim = norm.spec, len(model.shape)
        last = (ndim - 1,)
        if any(axes is not None and plain(axes, ndim) != last for axes in (spec.scale_axes, spec.shift_axes)):
            return "gamma lies along the last axis"
        if spec.spread == "l2":
            if (spec.eps, spec.eps_at, spec.axes, norm.gamma) != (1e-12, "deviation_floor", (-1,), None):
                return "UnitNormalization has one epsilon and no gamma"
            continue
        if spec.eps_at != "variance" or spec.ddof or spec.variance_by != "centered" or not norm.wide:
            return "no layer takes such steps"
        if spec.groups is not None:
            if (spec.group_order, spec.channel_axis, spec.centered) != ("blocked", -1, True):
                return "its groups are of neighbours along the last axis"
        elif spec.statistics == "stored":
            if plain(spec.axes, ndim) != tuple(range(ndim - 1)):
                return "batch norms are written along the last axis"
        elif plain(spec.axes, ndim) != last:
            return "layer norms are written over the last axis"
        elif spec.spread == "rms":
            if norm.gamma is None or norm.beta is not None:
                return "RMSNormalization has gamma and no beta"
        elif not spec.centered:
            return "rms_scaling is another row"
    return None


# -- weights by name ----------------------------------------------------------------------------------------


class Named(NamedTuple):
    """How the checkpoints of a row say it: type and key of the configuration, architecture and name in GGUF."""

    kind: str
    key: str
    arch: str | None = None
    gguf_key: str = "attention.layer_norm_rms_epsilon"
    gguf_name: str = "blk.{}.attn_norm"


NAMED = {
    "bert": Named("bert", "layer_norm_eps", "bert", "attention.layer_norm_epsilon", "blk.{}.layer_output_norm"),
    "cohere": Named("cohere", "layer_norm_eps"),
    "nemotron": Named("nemotron", "norm_eps", "nemotron", "attention.layer_norm_epsilon"),
    "llama": Named("llama", "rms_norm_eps", "llama"),
    "glm4": Named("glm4", "rms_norm_eps"),
    "olmo2": Named("olmo2", "rms_norm_eps"),
    "gemma": Named("gemma", "rms_norm_eps", "gemma"),
}


def cannot_checkpoint(model):
    """Say what names, shapes and one epsilon do not tell."""
    if model.row not in NAMED or model.dtype != "float32" or model.blocks:
        return "no configuration says such norms"
    from layernorm.spec.variants import VARIANTS

    row = VARIANTS[model.row]
    for norm in model.left:
        said = (norm.spec.axes, norm.spec.scale_offset, *(getattr(norm.spec, f) for f in STEPS))
        if said != (row.axes, row.scale_offset, *(getattr(row, f) for f in STEPS)):
            return "a configuration names the norm of all layers at once"
        if norm.spec.eps != model.left[0].spec.eps or norm.gamma is None:
            return "all norms have one epsilon and a gamma"
        if norm.beta is not None and row.shift_axes is None:
            return "this architecture has no beta"
    return None


def _tensors(model):
    return {
        f"{norm.name}.{leaf}": value
        for norm in model.left for leaf, value in (("weight", norm.gamma), ("bias", norm.beta)) if value is not None
    }  # fmt: skip


def write_safetensors(model, folder):
    said = NAMED[model.row]
    return checkpoint(folder, {"model_type": said.kind, said.key: model.left[0].spec.eps}, _tensors(model))


def write_state(model, folder):
    said = NAMED[model.row]
    return checkpoint(folder, {"model_type": said.kind, said.key: model.left[0].spec.eps}, _tensors(model), "torch")


def cannot_gguf(model):
    return cannot_checkpoint(model) or (None if NAMED[model.row].arch else "llama.cpp names it otherwise")


def write_gguf(model, folder):
    said = NAMED[model.row]
    tensors = {}
    for k, norm in enumerate(model.norms):
        held = {} if norm.gone else {"weight": norm.whole, "bias": norm.beta}
        tensors |= {f"{said.gguf_name.format(k)}.{leaf}": v for leaf, v in held.items() if v is not None}
    folder.mkdir(parents=True, exist_ok=True)
    return llama_cpp(
        folder / "model.gguf", said.arch, {f"{said.arch}.{said.gguf_key}": model.left[0].spec.eps}, tensors
    )


class Format(NamedTuple):
    """A format: why it cannot hold a model, None if it can, and how it is written."""

    cannot: Callable
    write: Callable
    once: bool = False
    """Whether it says kind and epsilon once for all norms."""


FORMATS = {
    "onnx": Format(cannot_fused, write_fused), "operations": Format(cannot_loose, write_loose),
    "modules": Format(cannot_modules, write_modules), "keras": Format(cannot_keras, write_keras),
    "safetensors": Format(cannot_checkpoint, write_safetensors, True),
    "state": Format(cannot_checkpoint, write_state, True), "gguf": Format(cannot_gguf, write_gguf, True),
}  # fmt: skip
