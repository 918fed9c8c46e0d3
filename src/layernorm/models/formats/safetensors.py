# SPDX-License-Identifier: MIT
"""This file reads safetensors: one file, or a folder with an index; headers only, and each tensor when it is asked for.

The reader is our own, eight bytes of length and JSON, because it refuses more than it must: a tensor that lies outside
the file, overlaps another, leaves a hole, or is not as long as its shape says. No package is needed.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.folder import config_beside, parse_json, read_shards
from layernorm.models.formats.stored import bytes_of
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.spec.errors import FileError, UnsupportedError
from layernorm.spec.files import opened

# The largest models have 140 000 tensors, of some 150 bytes each in the headers of all their files; the format itself
# allows 100 MB, which would take 2 GB to parse.
MOST_HEADER = 2**25
MOST_TENSORS = 2**18

# The format's name of a type, ours, and the bits of one number.
TYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F4": ("float4_e2m1fn", 4),
}


def recognizes(path: Path, head: bytes) -> bool:
    """Tell whether this is a safetensors file, the index of several, or a folder that holds either."""
    if path.is_dir():
        return _weights_in(path) is not None
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return True
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length <= min(MOST_HEADER, path.stat().st_size - 8)


def read(path: Path) -> ModelFile:
    """Read the headers, and config.json beside them.

    Raises:
        FileError: a file is cut off or its header lies.
    """
    weights = path
    if path.is_dir():
        found = _weights_in(path)
        if found is None:
            raise FileError(f"{path}: the folder holds no .safetensors file; pass the one that does.", str(path))
        weights = found
    config, notes = config_beside(weights.parent)
    if weights.name.endswith(".json"):
        tensors, more = read_shards(weights, tensors_of)
        return ModelFile(str(path), "safetensors", tensors, config, notes=notes + more)
    return ModelFile(str(path), "safetensors", tensors_of(weights), config, notes=notes)


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Read the header of one file, checking all that it says."""
    try:
        with opened(path) as file:
            size = path.stat().st_size
            length = int.from_bytes(start := file.read(8), "little")
            if len(start) < 8 or length > min(MOST_HEADER, size - 8):
                raise FileError(
                    f"{path}: its header should have {length} bytes and the file has {size}; fetch it again.", str(path)
                )  # fmt: skip
            header = parse_json(file.read(length), path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; fetch the file again.", str(path)) from None
    header.pop("__metadata__", None)
    held = size - 8 - length
    if len(header) > MOST_TENSORS:
        raise FileError(
            f"{path}: its header names {len(header)} tensors, which no model has; do not use the file.", str(path)
        )
    tensors: dict[str, Tensor] = {}
    places: list[tuple[int, int, str]] = []
    for name, said in header.items():
        dtype, shape, begin, end = _checked(said, name, held, path)
        places.append((begin, end, name))
        load = partial(_load, path, name, 8 + length + begin, end - begin, dtype, shape)
        tensors[name] = Tensor(name, shape, dtype, load)
    reached = 0
    for begin, end, name in sorted(places):
        if begin != reached:
            raise FileError(
                f"{path}: tensor {name[:200]!r} begins at byte {begin} and the one before ends at {reached}; "
                "fetch the file again.", str(path)
            )  # fmt: skip
        reached = end
    if reached != held:
        raise FileError(
            f"{path}: its tensors end at byte {reached} of {held} bytes of data; fetch the file again.", str(path)
        )
    return tensors


def _checked(said: Any, name: str, held: int, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    """Give dtype, shape, first and last byte of one entry."""

    def lies(what: str) -> FileError:
        return FileError(f"{path}: tensor {name[:200]!r} {what}; fetch the file again.", str(path))

    if not isinstance(said, dict):
        raise lies("has no description")
    kind: Any = said.get("dtype")
    shape: Any = said.get("shape")
    place: Any = said.get("data_offsets")
    if not isinstance(kind, str) or kind not in TYPES:
        raise lies(f"has a type that is not known, {str(kind)[:40]!r}")
    if not _counts(shape) or len(shape) > 32:
        raise lies("has a shape that is not a list of lengths")
    if not _counts(place) or len(place) != 2 or not place[0] <= place[1]:
        raise lies("has no place in the file")
    begin, end = place
    if end > held:
        raise lies(f"ends at byte {_figure(end)} of {held} bytes of data")
    dtype, bits = TYPES[kind]
    if 0 not in shape and sum(map(math.log2, shape)) > 64:
        raise lies("has a shape beyond any file")
    if math.prod(shape) * bits != (end - begin) * 8:
        raise lies(f"of {kind} and shape {tuple(shape)} has {end - begin} bytes")
    return dtype, tuple(shape), begin, end


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _figure(number: int) -> str:
    return str(number) if number < 10**30 else "over 10^30"


def _load(path: Path, name: str, begin: int, length: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype.startswith(("float4_", "float6_")):
        raise UnsupportedError(
            f"{path}: tensor {name!r} is {dtype}, packed several to a byte, and is not read.", str(path)
        )
    import ml_dtypes  # noqa: F401 - it teaches NumPy bfloat16 and the small floats

    data = bytes_of(path, name, begin, length)
    array = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _weights_in(folder: Path) -> Path | None:
    """Choose the file of a folder: an index, model.safetensors, or the only one there is."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    for likely in (folder / "model.safetensors.index.json", folder / "model.safetensors", *indices):
        if likely.is_file():
            return likely
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        shown = ", ".join(file.name for file in files[:4])
        raise FileError(
            f"{folder}: it holds {len(files)} .safetensors files and no index ({shown}); pass one.", str(folder)
        )
    return files[0] if files else None
