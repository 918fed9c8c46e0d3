# SPDX-License-Identifier: MIT
"""This file defines what every format returns: tensors read late, what the file says, a graph if it has one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from layernorm.models.graph import Graph
    from layernorm.models.norm_record import Found


# As many as NumPy broadcasts; a file that says more of one array is not read.
MOST_AXES = 32


@dataclass(frozen=True)
class Tensor:
    """A named array in a file; its values are read when they are asked for, and not kept.

    `dtype` is the stored type's name, NumPy's or ml_dtypes' (`float32`, `bfloat16`, `int8`); `load` gives an array of
    that type and of `shape`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], NDArray[Any]] = field(repr=False)
    unread: str = ""
    """Why it has no values, where that is known without asking for them; the shape is () if it is not known either."""

    @property
    def size(self) -> int:
        """Count the numbers in it."""
        return math.prod(self.shape)

    def values(self) -> NDArray[Any]:
        """Read the array.

        Raises:
            FileError: the file is cut off, or lies about it.
        """
        return self.load()


@dataclass(frozen=True)
class Layer:
    """A norm that the file itself describes as a layer: a Keras configuration, a PyTorch module."""

    framework: str
    """`keras` or `torch`."""
    kind: str
    """The class, by the framework's name: `LayerNormalization`, `BatchNorm2d`."""
    name: str
    where: str
    settings: Mapping[str, Any]
    """The arguments, by the framework's names: `axis`, `epsilon`, `eps`, `normalized_shape`."""
    tensors: Mapping[str, Tensor]
    """By role: `scale`, `shift`, `mean`, `variance`; one that the layer lacks is absent."""
    dtype: str = "float32"
    training: bool = False


@dataclass(frozen=True)
class ModelFile:
    """A model as its file holds it. One of `graph` and `layers` may say more than the names of the tensors."""

    path: str
    format: str
    """`onnx`, `safetensors`, `pytorch`, `pt2`, `gguf`, `keras`, `tflite`, or `card` for what was found in one."""
    tensors: Mapping[str, Tensor] = field(repr=False)
    config: Mapping[str, Any] = field(default_factory=dict)
    """What stands beside the tensors: config.json, GGUF's key-value pairs."""
    graph: Graph | None = field(default=None, repr=False)
    layers: tuple[Layer, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about what could not be read; they end among the unidentified."""
    module: Any = None
    """The live torch.nn.Module that this was read from, if it was."""
    card: Found | None = None
    """What a norm card says was found, and nothing else is known."""
