# SPDX-License-Identifier: MIT
"""This file guesses what a PyTorch module takes, from the names of forward's arguments and its first layers."""

from __future__ import annotations

import inspect
from typing import Any

from layernorm.models.model_file import ModelFile
from layernorm.runtimes.inputs import Input
from layernorm.spec.errors import UnsupportedError

# What a language model of Hugging Face takes, though it calls all of it optional.
_USUAL = ("input_ids", "attention_mask", "token_type_ids")


def inputs_of(model: ModelFile) -> list[Input]:
    """List what forward needs: arguments without a default, or the usual ones of a language model.

    Raises:
        UnsupportedError: no layer says what shape they have.
    """
    module = model.module
    parameters = [
        p for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    names = [p.name for p in parameters if p.default is p.empty]
    if not names:
        names = [p.name for p in parameters if p.name in _USUAL] or [p.name for p in parameters[:1]]
    if not names:
        names = ["input"]  # forward(*args)
    dtype, shape, rows = _first_layer(model)
    found = []
    for name in names:
        if "mask" in name or "ids" in name:
            found.append(Input(name, "int64", (None, None), rows))
        else:
            found.append(Input(name, dtype, shape, rows))
    return found


def _first_layer(model: ModelFile) -> tuple[str, tuple[int | None, ...], int | None]:
    """Say what the first layer takes that is particular about it: the type, the shape, and the rows of a table."""
    for layer in model.module.modules():
        if (rows := _whole(layer, "num_embeddings")) is not None:
            return "int64", (None, None), rows
        axes = getattr(layer, "kernel_size", None)
        if (channels := _whole(layer, "in_channels")) is not None and isinstance(axes, tuple):
            return "float32", (None, channels, *(None,) * len(axes)), None
        if (width := _whole(layer, "in_features", "embed_dim", "input_size")) is not None:
            return "float32", (None, None, width), None
        shape = getattr(layer, "normalized_shape", None)
        if isinstance(shape, (tuple, list)) and shape:
            return "float32", (None, None, *shape), None
        if (channels := _whole(layer, "num_channels", "num_features")) is not None:
            wide = {"BatchNorm2d": 2, "InstanceNorm2d": 2, "BatchNorm3d": 3, "InstanceNorm3d": 3, "GroupNorm": 2}
            return "float32", (None, channels, *(None,) * wide.get(type(layer).__name__, 1)), None
    raise UnsupportedError(
        f"{model.path}: no layer of the module says what shape its input has; give arrays with --inputs.", model.path
    )


def _whole(layer: Any, *names: str) -> int | None:
    return next((value for name in names if type(value := getattr(layer, name, None)) is int), None)
