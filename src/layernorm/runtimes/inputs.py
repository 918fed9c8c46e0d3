# SPDX-License-Identifier: MIT
"""This file makes inputs for a model from its signature, the same ones each time, and fits given ones to it.

The numbers follow from an input's name alone, so that two models that call it the same are given the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.graph import Graph
from layernorm.models.model_file import ModelFile
from layernorm.spec.errors import ArgumentError, UnsupportedError

# Lengths of axes that the file leaves open; an image that is halved five times needs 64 pixels.
BATCH, LENGTH, SIDE = 2, 8, 64
# Integers without a table that says how many rows it has. Every vocabulary has more than that.
SMALL = 8
# An input of more values is no model's, and would take more than a gibibyte.
MOST_DRAWN = 2**27
# What is normalized must not have a mean of 0, which makes an RMS norm of every layer norm.
MEAN = 0.5
# From an input to the table that it looks up: a cast, a reshape or two.
MOST_STEPS = 6
_PASSING = ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Expand", "Clip", "Slice")
# Which inputs of an operator are looked up in which others.
_LOOKUPS = {
    "Gather": ((1, 0),), "EMBEDDING_LOOKUP": ((0, 1),), "EmbedLayerNormalization": ((0, 2), (1, 4), (7, 3)),
    "GatherBlockQuantized": ((1, 0),),
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """One input of a model: a length is None where nothing is said of it, and a word where it has a name."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    rows: int | None = None
    """Of what is looked up in a table: how many rows that has."""


def seeded_inputs(model: ModelFile) -> dict[str, NDArray[Any]]:
    """Make an array for each input of a model, by name.

    Floats are drawn from N(0.5, 1), integers among the rows of the table in which they are looked up, else below 8.
    Attention masks are ones, token types zeros, positions count. Open lengths are 2 for the first axis, 64 for an
    image's height and width, else 8, and equal where the file gives them one name.

    >>> graph = Graph([], {}, {"x": ("float32", (None, None, 4))}, ())
    >>> seeded_inputs(ModelFile("m.tflite", "tflite", {}, graph=graph))["x"].shape
    (2, 8, 4)

    Raises:
        UnsupportedError: the signature does not say enough.
    """
    lengths: dict[str, int] = {}
    return {said.name: _drawn(said, _shape(said, lengths), model) for said in signature(model)}


def inputs_for(model: ModelFile, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Give a model its inputs out of arrays that bear other names, as those of the model it is compared with do.

    Arrays go by name; if names differ, by order among those of as many axes and of the same kind of number. A type of
    number that is wider or narrower is converted.

    Raises:
        ArgumentError: an input has no array, or an array has the wrong shape.
    """
    wanted = signature(model)
    pairs = {said.name: given[said.name] for said in wanted if said.name in given}
    left = [said for said in wanted if said.name not in pairs]
    free = [name for name in given if name not in pairs]
    alike = len(left) == len(free) or len(wanted) == 1
    for said in left:
        fits = [name for name in free if _may_be(said, given[name])] if alike else []
        if not fits:
            raise ArgumentError(
                f"{model.path} has an input {said.name!r} of {said.dtype} {_written(said.shape)}, and the arrays given "
                f"are {', '.join(f'{name} {list(a.shape)}' for name, a in given.items()) or 'none'}; give one of that "
                "name.", model.path,
            )  # fmt: skip
        free.remove(fits[0])
        pairs[said.name] = given[fits[0]]
    for said in wanted:
        if not _may_be(said, pairs[said.name]):
            array = pairs[said.name]
            raise ArgumentError(
                f"the array for {said.name!r} is {array.dtype} of shape {array.shape}, and {model.path} takes "
                f"{said.dtype} {_written(said.shape)}; give one of that type and shape.", model.path,
            )  # fmt: skip
    return {said.name: _as_type(pairs[said.name], said, model) for said in wanted}


def signature(model: ModelFile) -> list[Input]:
    """List what a model takes, in its own order.

    Raises:
        UnsupportedError: nothing says it.
    """
    if model.module is not None:
        from layernorm.runtimes.torch_signature import inputs_of

        return inputs_of(model)
    if model.format == "pt2":
        from layernorm.runtimes.torch_export import inputs_of as inputs_of_program

        return inputs_of_program(model)
    if model.graph is None:
        raise UnsupportedError(f"{model.path} has no graph, so nothing says what it takes.", model.path)
    words = _symbols(model) if model.format == "onnx" else {}
    found = []
    for name, (dtype, shape) in model.graph.inputs.items():
        named = words.get(name, ())
        found.append(Input(name, dtype, _with_words(shape, named), _rows(model.graph, name)))
    return found


def _with_words(
    shape: tuple[int | None, ...] | None, words: tuple[str | None, ...]
) -> tuple[int | str | None, ...] | None:
    if shape is None:
        return None
    return tuple(words[a] if n is None and a < len(words) else n for a, n in enumerate(shape))


def _symbols(model: ModelFile) -> dict[str, tuple[str | None, ...]]:
    """Read the names that an ONNX file gives to lengths of its inputs."""
    import onnx

    proto = onnx.load(model.path, load_external_data=False)
    return {
        value.name: tuple(d.dim_param or None for d in value.type.tensor_type.shape.dim) for value in proto.graph.input
    }


def _rows(graph: Graph, name: str) -> int | None:
    """Say how many rows the smallest table has in which an input is looked up."""
    reached, steps = {name}, 0
    found: list[int] = []
    while reached and steps < MOST_STEPS:
        onward: set[str] = set()
        for _, node in graph.walk():
            for index, table in _LOOKUPS.get(node.op, ()):
                if len(node.inputs) > max(index, table) and node.inputs[index] in reached:
                    shape = graph.about(node.inputs[table])[1]
                    axis = int(node.attributes.get("axis", 0)) if node.op == "Gather" else 0
                    if shape and -len(shape) <= axis < len(shape) and isinstance(shape[axis], int):
                        found.append(shape[axis])  # type: ignore[arg-type]
            if node.op in _PASSING and node.inputs and node.inputs[0] in reached:
                onward |= {*node.outputs}
        reached, steps = onward, steps + 1
    return min(found, default=None)


# -- shapes -----------------------------------------------------------------------------------------------


def _shape(said: Input, lengths: dict[str, int]) -> tuple[int, ...]:
    axes = (None, None) if said.shape is None else said.shape
    return tuple(_length(n, place, len(axes), lengths) for place, n in enumerate(axes))


def _length(said: int | str | None, place: int, rank: int, lengths: dict[str, int]) -> int:
    usual = BATCH if place == 0 else SIDE if rank >= 4 and place >= 2 else LENGTH
    if isinstance(said, str):
        if said not in lengths:
            lengths[said] = _of_word(said, usual, lengths)
        return lengths[said]
    return said if said else usual


def _of_word(word: str, usual: int, lengths: dict[str, int]) -> int:
    """Choose the length of an axis by its name, which may be a sum: `past_sequence_length + 1`."""
    parts = [part.strip() for part in word.split("+")]
    if len(parts) > 1:
        return sum(int(p) if p.isdigit() else lengths.setdefault(p, _of_word(p, usual, lengths)) for p in parts)
    low = word.lower()
    if re.search(r"batch", low):
        return BATCH
    if low.startswith("total") and (past := [n for w, n in lengths.items() if w.lower().startswith("past")]):
        return past[0] + LENGTH
    return LENGTH if re.search(r"seq|len|token|time", low) else usual


def _written(shape: Sequence[int | str | None] | None) -> str:
    return "of any shape" if shape is None else f"[{', '.join('?' if n is None else str(n) for n in shape)}]"


# -- values -----------------------------------------------------------------------------------------------


def _drawn(said: Input, shape: tuple[int, ...], model: ModelFile) -> NDArray[Any]:
    name, dtype = said.name.lower(), said.dtype
    if math.prod(shape) > MOST_DRAWN:
        raise UnsupportedError(
            f"{model.path}: its input {said.name!r} of shape {shape} has {math.prod(shape)} values, and at most "
            f"{MOST_DRAWN} are drawn; give arrays with --inputs.", model.path,
        )  # fmt: skip
    draw = np.random.default_rng(list(said.name.encode()))
    wanted = _numpy_type(said, model)
    if "mask" in name or dtype == "bool":
        return np.ones(shape, wanted)
    if wanted.kind not in "iu":  # ml_dtypes' floats are of no kind of NumPy's
        return np.asarray(draw.standard_normal(shape) + MEAN).astype(wanted)
    if re.search(r"token_?type|segment", name):
        return np.zeros(shape, wanted)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(wanted)
    if "length" in name:
        return np.full(shape, LENGTH, wanted)
    most = said.rows or (256 if dtype == "uint8" and len(shape) > 2 else SMALL)
    return draw.integers(0, most, shape).astype(wanted)


def _numpy_type(said: Input, model: ModelFile) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    if said.dtype not in ("string", "unknown", "object"):
        try:
            return np.dtype(said.dtype)
        except TypeError:
            pass
    raise UnsupportedError(
        f"{model.path}: its input {said.name!r} is of type {said.dtype}, of which nothing can be drawn; give arrays "
        "with --inputs.", model.path,
    )  # fmt: skip


def _may_be(said: Input, array: NDArray[Any]) -> bool:
    if said.dtype != "unknown" and _kind(said.dtype) != _kind(array.dtype.name):
        return False
    if said.shape is None:
        return True
    return len(said.shape) == array.ndim and all(
        not isinstance(n, int) or n in (0, m) for n, m in zip(said.shape, array.shape, strict=True)
    )


def _kind(dtype: str) -> str:
    """Tell whole numbers, real ones and all else by the name of a type; `longdouble` is named float128."""
    if re.fullmatch(r"u?int\d+|bool", dtype):
        return "whole"
    return "real" if re.fullmatch(r"b?float\d+(_\w+)?", dtype) else re.sub(r"\d+", "", dtype).replace("string", "str")


def _as_type(array: NDArray[Any], said: Input, model: ModelFile) -> NDArray[Any]:
    """Convert numbers to the type that an input has; refuse those that it cannot hold."""
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    kind = _kind(said.dtype)
    if kind not in ("whole", "real"):
        return array
    with np.errstate(all="ignore"):
        given = array.astype(np.dtype(said.dtype), copy=False)
        held = given == array if kind == "whole" else np.isfinite(given) | ~np.isfinite(array)
    if not np.all(held):
        first = array[~np.asarray(held)].reshape(-1)[0]
        raise ArgumentError(
            f"the array for {said.name!r} holds {first}, which is no {said.dtype}, the type that {model.path} takes; "
            "give numbers that it can hold.", model.path,
        )  # fmt: skip
    return given
