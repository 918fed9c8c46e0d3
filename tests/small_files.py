# SPDX-License-Identifier: MIT
"""This file writes small model files, each with a norm or a few, in the formats that are read."""

import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import gguf
import numpy as np
import onnx
from models.drafts import Draft
from onnx import helper
from safetensors.numpy import save_file


def drawn(path, b, *outputs):
    """Write a draft to a file."""
    model = b.model(*outputs)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    return path


def fused(path, op, *inputs, shape=(2, 4, 8), dtype=np.float32, opset=17, domain="", name="norm", **attributes):
    """Write a graph of one operator, its parameters being arrays."""
    b = Draft(shape, dtype, opset)
    leaves = ("weight", "bias", "mean", "variance")
    names = [i if isinstance(i, str) else b.const(i, f"{name}.{n}") for i, n in zip(inputs, leaves, strict=False)]
    return drawn(path, b, b(op, b.x, *names, domain=domain, name=name, **attributes))


def chain(b, x, *, axes=(-1,), eps=1e-5, centered=True, outside=False, ddof=0, keepdims=1, gamma=None, name="norm"):
    """Write a norm in single operations."""
    d = b("Sub", x, b.mean(x, axes, keepdims)) if centered else x
    square = b("Mul", d, d)
    variance = b.mean(square, axes, keepdims)
    if ddof:
        n = int(np.prod([b.inputs[0].type.tensor_type.shape.dim[a].dim_value for a in axes]))
        variance = b("Mul", variance, n / (n - 1))
    root = b("Add", b("Sqrt", variance), eps) if outside else b("Sqrt", b("Add", variance, eps))
    y = b("Div", d, root, name=name if gamma is None else None)
    return y if gamma is None else b("Mul", y, b.const(gamma, f"{name}.weight"))


def checkpoint(folder, config, tensors, kind="safetensors", dtype=np.float32):
    """Write a folder with a configuration and named tensors."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arrays = {name: np.ascontiguousarray(value, dtype) for name, value in tensors.items()}
    if kind == "safetensors":
        save_file(arrays, folder / "model.safetensors")
    else:
        import torch

        wide = {name: torch.from_numpy(np.asarray(value, np.float32)) for name, value in arrays.items()}
        narrow = torch.bfloat16 if np.dtype(dtype).name == "bfloat16" else None
        torch.save({n: t if narrow is None else t.to(narrow) for n, t in wide.items()}, folder / "pytorch_model.bin")
    return folder


def llama_cpp(path, arch, keys, tensors):
    """Write a GGUF."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        writer.add_float32(key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def keras_file(path, shape, *layers, values=()):
    """Write a Keras model of layers one after the other; `values` are those of its variables, in order."""
    import keras

    model = keras.Sequential([keras.Input(shape), *layers])
    for variable, value in zip(model.variables, values, strict=False):
        variable.assign(np.reshape(value, variable.shape))
    model.save(path)
    return path
