# SPDX-License-Identifier: MIT
"""This file writes one planned model in five formats, each by its own conventions of names and of what it keeps."""

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from models.drafts import Draft
from small_files import chain, checkpoint, drawn, keras_file, llama_cpp

WIDTH, LAYERS = 16, 3
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class CannotSay(Exception):
    """The format has no way to say such a norm."""


@dataclass(frozen=True)
class Norm:
    """What one norm of the plan computes."""

    name: str
    gamma: np.ndarray | None
    beta: np.ndarray | None
    eps: float = 1e-5
    centered: bool = True
    outside: bool = False
    ddof: int = 0
    axes: tuple = (-1,)
    moments: bool = False
    half: bool = False
    """Whether the statistics of a float16 norm are in float16."""
    cast_first: bool = False


@dataclass(frozen=True)
class Plan:
    """A model: its norms, whether it keeps w for 1 + w where the format does, the type of what it normalizes."""

    norms: tuple
    family: str = "layer"
    dtype: str = "float32"

    def with_norm(self, at, **changes):
        norms = list(self.norms)
        norms[at] = replace(norms[at], **changes)
        return replace(self, norms=tuple(norms))

    def everywhere(self, **changes):
        return replace(self, norms=tuple(replace(norm, **changes) for norm in self.norms))


def plan(random, family="layer", eps=1e-5, dtype="float32"):
    """Draw a model of a family: `layer`, `rms`, or `gemma`, an RMS norm whose checkpoint keeps gamma − 1."""
    names = [f"layers.{k}.{part}" for k in range(LAYERS) for part in ("input", "post_attention")] + ["final"]
    gammas = [random.normal(1, 0.25, WIDTH).astype(np.float32) for _ in names]
    betas = [random.normal(0, 0.3, WIDTH).astype(np.float32) if family == "layer" else None for _ in names]
    made = [Norm(n, g, b, eps, family == "layer") for n, g, b in zip(names, gammas, betas, strict=True)]
    return Plan(tuple(made), family, dtype)


# -- ONNX ---------------------------------------------------------------------------------------------------


def onnx_file(plan, folder):
    dtype = np.dtype(plan.dtype)
    b = Draft((2, 5, WIDTH), dtype, opset=23)
    y = b.x
    for norm in plan.norms:
        y = b("Add", y, _operations(b, y, norm, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    return drawn(folder / "model.onnx", b, y)


def _operations(b, x, norm, dtype):
    name = f"model.{_hugging_face(norm.name)}"
    plain = not (norm.outside or norm.ddof or norm.moments or norm.cast_first) and norm.axes == (-1,)
    if plain and norm.gamma is not None and (norm.centered or norm.beta is None):
        inputs = [x, b.const(norm.gamma, f"{name}.weight")]
        inputs += [] if norm.beta is None else [b.const(norm.beta, f"{name}.bias")]
        op = "LayerNormalization" if norm.centered else "RMSNormalization"
        return b(op, *inputs, name=name, epsilon=norm.eps, stash_type=10 if norm.half else 1)
    if norm.half:
        raise CannotSay
    wide = b("Cast", x, to=1) if dtype != np.float32 else x
    if norm.moments:
        mean = b.mean(wide)
        variance = b("Sub", b.mean(b("Mul", wide, wide)), b("Mul", mean, mean))
        root = b("Sqrt", b("Add", variance, b.const(norm.eps, dtype=np.float32)))
        y = b("Div", b("Sub", wide, mean), root, name=name if norm.gamma is None else None)
    else:
        eps = b.const(norm.eps, dtype=np.float32)
        y = chain(
            b, wide, axes=norm.axes, eps=eps, centered=norm.centered, outside=norm.outside, ddof=norm.ddof, name=name
        )
    if dtype != np.float32:
        y = b("Cast", y, to=10)
    if norm.gamma is not None:
        y = b("Mul", y, b.const(norm.gamma, f"{name}.weight"))
    return y if norm.beta is None else b("Add", y, b.const(norm.beta, f"{name}.bias"))


# -- weights by name ----------------------------------------------------------------------------------------

FAMILY = {
    "layer": ("stablelm", "layer_norm_eps", "attention.layer_norm_epsilon"),
    "rms": ("llama", "rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    "gemma": ("gemma", "rms_norm_eps", "attention.layer_norm_rms_epsilon"),
}


def safetensors_folder(plan, folder):
    return _checkpoint(plan, folder, "safetensors")


def torch_folder(plan, folder):
    return _checkpoint(plan, folder, "torch")


def _checkpoint(plan, folder, kind):
    kind_of, key, _ = FAMILY[_family(plan)]
    offset = 1 if plan.family == "gemma" else 0
    tensors = {}
    for norm in plan.norms:
        name = f"model.{_hugging_face(norm.name)}"
        tensors[f"{name}.weight"] = norm.gamma - np.float32(offset)
        if norm.beta is not None:
            tensors[f"{name}.bias"] = norm.beta
    dtype = BFLOAT16 if plan.dtype == "bfloat16" else np.float32
    return checkpoint(folder, {"model_type": kind_of, key: plan.norms[0].eps}, tensors, kind, dtype)


def gguf_file(plan, folder):
    arch, _, key = FAMILY[_family(plan)]
    tensors = {}
    for norm in plan.norms:
        name = norm.name.replace("layers", "blk").replace("input", "attn_norm").replace("post_attention", "ffn_norm")
        name = name.replace("final", "output_norm")
        tensors[f"{name}.weight"] = norm.gamma
        if norm.beta is not None:
            tensors[f"{name}.bias"] = norm.beta
    folder.mkdir(parents=True, exist_ok=True)
    return llama_cpp(folder / "model.gguf", arch, {f"{arch}.{key}": plan.norms[0].eps}, tensors)


def _family(plan):
    """Name the family of which all norms are; formats of named tensors say kind and epsilon once for all of them."""
    first = plan.norms[0]
    for norm in plan.norms:
        if norm.gamma is None or norm.outside or norm.ddof or norm.moments or norm.half or norm.axes != (-1,):
            raise CannotSay
        if (norm.eps, norm.centered) != (first.eps, first.centered):
            raise CannotSay
        if not norm.centered and norm.beta is not None:
            raise CannotSay
    if first.centered:
        if plan.family == "gemma":
            raise CannotSay
        return "layer"
    return "gemma" if plan.family == "gemma" else "rms"


def _hugging_face(name):
    return "norm" if name == "final" else f"{name}_layernorm"


# -- Keras --------------------------------------------------------------------------------------------------


def keras_model(plan, folder):
    import keras

    layers, values = [], []
    for norm in plan.norms:
        if norm.outside or norm.ddof or norm.moments or norm.half or norm.axes != (-1,) or plan.family == "gemma":
            raise CannotSay
        name = norm.name.replace(".", "_")
        if norm.centered:
            scale, center = norm.gamma is not None, norm.beta is not None
            layers.append(keras.layers.LayerNormalization(epsilon=norm.eps, scale=scale, center=center, name=name))
        elif norm.gamma is None or norm.beta is not None:
            raise CannotSay
        else:
            layers.append(keras.layers.RMSNormalization(epsilon=norm.eps, name=name))
        values += [value for value in (norm.gamma, norm.beta) if value is not None]
    folder.mkdir(parents=True, exist_ok=True)
    return keras_file(folder / "model.keras", (5, WIDTH), *layers, values=values)


WRITERS = {
    "onnx": onnx_file, "safetensors": safetensors_folder, "torch": torch_folder, "gguf": gguf_file,
    "keras": keras_model,
}  # fmt: skip
