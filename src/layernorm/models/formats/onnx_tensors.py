# SPDX-License-Identifier: MIT
"""This file reads the tensors of ONNX files, from the file or one beside it, and what casts make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import MOST_AXES, Tensor
from layernorm.spec.errors import FileError, UnsupportedError

if TYPE_CHECKING:
    from onnx import SparseTensorProto, TensorProto

# TensorProto.DataType counts them; the names are NumPy's and ml_dtypes'.
TYPES = (
    "unknown", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64",
    "uint32", "uint64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2", "float6_e2m3fn",
    "float6_e3m2fn",
)  # fmt: skip
# Types of which several share a byte, lowest bits first; NumPy gives each a byte of its own.
PACKED = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
# Where numbers stand that are not raw bytes; every type that is not named here is in int32_data.
FIELDS = {"float32": "float_data", "complex64": "float_data", "float64": "double_data", "complex128": "double_data",
          "int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data"}  # fmt: skip
# A sparse tensor says its own size; no norm's parameters are longer than this.
MOST_SPARSE = 2**20


def type_name(number: int) -> str:
    """Give the type that ONNX has by this number.

    >>> type_name(16)
    'bfloat16'
    """
    return TYPES[number] if 0 <= number < len(TYPES) else "unknown"


def stored(proto: TensorProto, name: str, path: Path) -> Tensor:
    """Give a tensor that the file holds, without reading its numbers."""
    if len(proto.dims) > MOST_AXES:
        sentence = f"{path}: tensor {name!r} has {len(proto.dims)} axes, and {MOST_AXES} are read; do not use the file."
        raise FileError(sentence, str(path))
    shape = tuple(proto.dims)
    if any(n < 0 for n in shape):
        raise FileError(f"{path}: tensor {name!r} has shape {shape}; the file is damaged, fetch it again.", str(path))
    if proto.data_location == 1:
        _location(proto, name, path)
    return Tensor(name, shape, type_name(proto.data_type), partial(_load, proto, name, shape, path))


def sparse(proto: SparseTensorProto, name: str, path: Path) -> Tensor:
    """Give a tensor that is 0 but for some values."""
    shape = tuple(proto.dims)
    values, indices = stored(proto.values, name, path), stored(proto.indices, f"indices of {name}", path)

    def load() -> NDArray[Any]:
        if any(n < 0 for n in shape) or math.prod(shape) > MOST_SPARSE:
            raise FileError(f"{path}: sparse tensor {name!r} has shape {shape}, over {MOST_SPARSE} numbers.", str(path))
        at, some = indices.values(), values.values().ravel()
        dense = np.zeros(shape, some.dtype)
        try:
            flat = at if at.ndim == 1 else np.ravel_multi_index(tuple(at.T), shape)
            dense.reshape(-1)[flat] = some
        except (ValueError, IndexError, TypeError) as error:
            raise FileError(f"{path}: the indices of sparse tensor {name!r} are wrong ({error}).", str(path)) from None
        return dense

    return Tensor(name, shape, values.dtype, load)


def literal(value: Any, dtype: str, name: str) -> Tensor:
    """Give a tensor of numbers or texts that stand in an attribute."""
    array = np.array(value, object if dtype == "string" else dtype)
    return Tensor(name, array.shape, dtype, lambda: array)


def cast(x: Tensor, dtype: str) -> Tensor | None:
    """Give the tensor that a Cast makes; None where NumPy has no such conversion."""
    if "string" in (x.dtype, dtype) or "unknown" in (x.dtype, dtype):
        return None

    def load() -> NDArray[Any]:
        with np.errstate(all="ignore"):
            return x.values().astype(_numpy_type(dtype))

    return Tensor(x.name, x.shape, dtype, load)


def combined(operation: Callable[..., NDArray[Any]], a: Tensor, b: Tensor, quantized: Tensor) -> Tensor | None:
    """Give the product or difference of two tensors, if it has the shape of the quantized one among them."""
    try:
        if np.broadcast_shapes(a.shape, b.shape) != quantized.shape:
            return None
    except ValueError:
        return None

    def load() -> NDArray[Any]:
        with np.errstate(all="ignore"):
            made: NDArray[Any] = operation(a.values(), b.values()).astype(_numpy_type(quantized.dtype))
            return made

    return Tensor(quantized.name, quantized.shape, quantized.dtype, load)


def dequantized(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block: int) -> Tensor | None:
    """Give what DequantizeLinear makes, (x − zero)·scale, with one scale, one an index of an axis, or blocks."""
    rank = len(x.shape)
    spread: Callable[[NDArray[Any]], NDArray[Any]]
    if zero is not None and zero.size != scale.size:
        return None
    if scale.shape in ((), (1,)):
        spread = _as_it_is
    elif not -rank <= axis < rank:
        return None
    elif len(scale.shape) == 1 and scale.shape[0] == x.shape[axis]:
        spread = partial(_along, axis % rank, rank)
    elif len(scale.shape) == rank and block > 0 and scale.shape[axis] == -(-x.shape[axis] // block):
        if any(scale.shape[i] != x.shape[i] for i in range(rank) if i != axis % rank):
            return None
        spread = partial(_in_blocks, axis % rank, block, x.shape[axis])
    else:
        return None

    def load() -> NDArray[Any]:
        with np.errstate(all="ignore"):
            numbers = x.values().astype(np.float32)
            if zero is not None:
                numbers = numbers - spread(zero.values().astype(np.float32))
            made: NDArray[Any] = numbers * spread(scale.values().astype(np.float32))
            return made.astype(_numpy_type(scale.dtype))

    return Tensor(x.name, x.shape, scale.dtype, load)


def _as_it_is(scale: NDArray[Any]) -> NDArray[Any]:
    return scale.reshape(())


def _along(axis: int, rank: int, scale: NDArray[Any]) -> NDArray[Any]:
    return scale.reshape([-1 if i == axis else 1 for i in range(rank)])


def _in_blocks(axis: int, block: int, length: int, scale: NDArray[Any]) -> NDArray[Any]:
    return np.take(scale, np.arange(length) // block, axis)


def _numpy_type(dtype: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the names

    try:
        return np.dtype(dtype)
    except TypeError:
        raise UnsupportedError(f"this ml_dtypes has no {dtype}; pip install --upgrade ml_dtypes.", dtype) from None


def _load(proto: TensorProto, name: str, shape: tuple[int, ...], path: Path) -> NDArray[Any]:
    dtype, size = type_name(proto.data_type), math.prod(shape)
    if dtype == "unknown" or proto.HasField("segment"):
        sentence = f"{path}: tensor {name!r} is of type {proto.data_type} or in segments; neither is read here."
        raise FileError(sentence, str(path))
    try:
        if dtype == "string":
            return np.array(list(proto.string_data), object).reshape(shape)
        bits = PACKED.get(dtype) or 8 * _numpy_type(dtype).itemsize
        needed = -(-size * bits // 8)
        if proto.data_location == 1:
            raw = _beside(proto, name, needed, path)
        else:
            raw = proto.raw_data if proto.HasField("raw_data") else _typed(proto, dtype)
        if len(raw) != needed:
            raise FileError(
                f"{path}: tensor {name!r}, {dtype} of shape {shape}, takes {needed} bytes, but {len(raw)} are there; "
                "the file is cut off or damaged, fetch it again.", str(path)
            )  # fmt: skip
        if dtype in PACKED:
            codes = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[: size * bits].reshape(size, bits)
            raw = np.packbits(codes, axis=1, bitorder="little").tobytes()
        return np.frombuffer(raw, _numpy_type(dtype)).reshape(shape)
    except ValueError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: tensor {name!r} cannot have shape {shape} ({error}).", str(path)) from None


def _typed(proto: TensorProto, dtype: str) -> bytes:
    """Give the bytes that a raw tensor would have."""
    field = FIELDS.get(dtype, "int32_data")
    numbers = getattr(proto, field)
    wide = {"float_data": "float32", "double_data": "float64", "int64_data": "int64", "uint64_data": "uint64"}
    array = np.fromiter(numbers, wide.get(field, "int32"), len(numbers))
    if dtype == "uint32":
        return array.astype(np.uint32).tobytes()
    if field != "int32_data":
        return array.tobytes()
    if PACKED.get(dtype) == 6:  # one number an entry, unlike the smaller ones
        bits = np.unpackbits(array.astype(np.uint8)[:, None], axis=1, bitorder="little")[:, :6]
        return np.packbits(bits, bitorder="little").tobytes()
    width = 1 if dtype in PACKED else _numpy_type(dtype).itemsize
    return array.astype(f"uint{8 * width}").tobytes()


def _location(proto: TensorProto, name: str, path: Path) -> Path:
    """Give the file beside the model that holds a tensor, as the model says it."""
    said = next((str(entry.value) for entry in proto.external_data if entry.key == "location"), "")
    place = PurePosixPath(said.replace("\\", "/"))
    if not said or "\0" in said or ":" in said or place.is_absolute() or ".." in place.parts:
        raise FileError(
            f"{path}: tensor {name!r} is said to be in {said!r}, outside the model's folder; do not trust this file.",
            str(path),
        )
    return path.parent / place


def _beside(proto: TensorProto, name: str, needed: int, path: Path) -> bytes:
    place = _location(proto, name, path)
    said = {entry.key: entry.value for entry in proto.external_data}
    try:
        offset, length = int(said.get("offset") or 0), int(said.get("length") or needed)
        target = place.resolve()
        if not target.is_relative_to(path.parent.resolve()):
            sentence = f"{path}: {place.name} leads out of the model's folder, to {target}; copy that file into it."
            raise FileError(sentence, str(path))
        if not target.is_file():
            sentence = f"{path}: tensor {name!r} is in {place.name}, which is not beside the model; put it there."
            raise FileError(sentence, str(path))
        held = target.stat().st_size
        if offset < 0 or length != needed or offset + length > held:
            raise FileError(
                f"{path}: tensor {name!r} takes {needed} bytes, and is said to be {length} at {offset} of "
                f"{place.name}, which has {held}; the files do not belong together or are cut off.", str(path)
            )  # fmt: skip
        with target.open("rb") as file:
            file.seek(offset)
            return file.read(needed)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: tensor {name!r} in {place.name} cannot be read ({error}).", str(path)) from None
