# SPDX-License-Identifier: MIT
"""This file reads GGUF: key-value pairs and where tensors lie, from the header alone.

The reader is our own, because a header may lie: each count and length is held against what is left of the file before
anything is made for it. Versions 2 and 3, little- and big-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.stored import bytes_of
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.spec.errors import FileError, UnsupportedError
from layernorm.spec.files import opened

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml's number of a type: its name, how many numbers a block of it holds, and the block's bytes.
TYPES = {
    0: ("float32", 1, 4),
    1: ("float16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("int8", 1, 1),
    25: ("int16", 1, 2),
    26: ("int32", 1, 4),
    27: ("int64", 1, 8),
    28: ("float64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bfloat16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
}

# What a header may hold; the largest models have some thousand tensors and fifty keys.
MOST_TENSORS = 2**18
MOST_KEYS = 2**16
MOST_NAME = 2**16
# Longer values, a vocabulary or its scores, say nothing of a norm and are passed over.
LONGEST_TEXT = 2**20
MOST_KEPT = 2**25
LONGEST_ARRAY = 2**12
MOST_VALUES = 2**17
DEEPEST_ARRAY = 4
PASSED_OVER = object()


def recognizes(path: Path, head: bytes) -> bool:
    """Tell whether the file begins as a GGUF does."""
    return head.startswith(b"GGUF")


def read(path: Path) -> ModelFile:
    """Read the header.

    Raises:
        FileError: the file is cut off or its header lies.
        UnsupportedError: it is of a version that is not read.
    """
    try:
        with opened(path) as file:
            return _Header(path, file, path.stat().st_size).read()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; fetch the file again.", str(path)) from None


class _Header:
    """A walk from the first byte to the last of the header."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.order = "<"
        self.kept = 0
        self.values = 0

    def read(self) -> ModelFile:
        if self.bytes(4, "the first four bytes") != b"GGUF":
            raise FileError(f"{self.path}: it does not begin with GGUF; pass a GGUF file.", str(self.path))
        version = self.number("I", "the version")
        if version & 0xFFFF == 0:  # a version never exceeds 16 bits, so the bytes stand the other way round
            self.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            raise UnsupportedError(
                f"{self.path}: GGUF version {version}, and 2 and 3 are read; convert the model again.", str(self.path)
            )
        tensors, keys = self.number("Q", "the number of tensors"), self.number("Q", "the number of keys")
        self.check_count(tensors, MOST_TENSORS, 24, "tensors")
        self.check_count(keys, MOST_KEYS, 13, "keys")
        config: dict[str, Any] = {}
        seen: set[str] = set()
        for _ in range(keys):
            key = self.name("a key")
            if key in seen:
                raise self.wrong(f"the key {key[:80]!r} stands twice")
            seen.add(key)
            value = self.value(self.number("I", f"the type of {key[:80]!r}"), key, 0)
            if value is not PASSED_OVER:
                config[key] = value
        return self.tensors(tensors, config)

    def tensors(self, count: int, config: dict[str, Any]) -> ModelFile:
        described: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self.name("a tensor's name")
            axes = self.number("I", f"the number of axes of {name[:80]!r}")
            if axes > 8:
                raise self.wrong(f"tensor {name[:80]!r} has {axes} axes")
            # the innermost axis stands first
            shape = tuple(self.number("Q", f"the shape of {name[:80]!r}") for _ in range(axes))[::-1]
            kind = self.number("I", f"the type of {name[:80]!r}")
            if name in described:
                raise self.wrong(f"tensor {name[:80]!r} stands twice")
            described[name] = shape, kind, self.number("Q", f"the place of {name[:80]!r}")
        alignment = config.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 2**20:
            raise self.wrong(f"its alignment is {alignment!r}")
        begin = -(-self.file.tell() // alignment) * alignment
        tensors = {name: self.tensor(name, begin, *said) for name, said in described.items()}
        parts = config.get("split.count")
        notes = (
            (f"The file is one of {parts} that hold the model; only its own tensors are listed.",)
            if parts not in (None, 0, 1)
            else ()
        )
        return ModelFile(str(self.path), "gguf", tensors, config, notes=notes)

    def tensor(self, name: str, begin: int, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        dtype, block, width = TYPES.get(kind, (f"ggml type {kind}", 0, 0))
        length = math.prod(shape) // block * width if block else 0
        if begin + offset + length > self.size:
            raise self.wrong(
                f"tensor {name[:80]!r} should end at byte {begin + offset + length} but the file ends at {self.size}"
            )
        load = partial(_load, self.path, name, begin + offset, length, dtype, shape, self.order)
        return Tensor(name, shape, dtype, load)

    def value(self, kind: int, key: str, depth: int) -> Any:
        """Read a value; a long one is walked over and not kept."""
        if kind in _SCALARS:
            number = self.number(_SCALARS[kind], f"the value of {key[:80]!r}")
            # the shortest decimal that reads back as the same float32: an eps says 1e-05
            return float(str(np.float32(number))) if kind == 6 else number
        if kind == _STRING:
            return self.text(key)
        if kind != _ARRAY:
            raise self.wrong(f"the key {key[:80]!r} has a type that is not known, {kind}")
        if depth == DEEPEST_ARRAY:
            raise self.wrong(f"the key {key[:80]!r} holds arrays within arrays within arrays")
        of, count = self.number("I", f"the type of {key[:80]!r}"), self.number("Q", f"the length of {key[:80]!r}")
        width = struct.calcsize(_SCALARS[of]) if of in _SCALARS else 12 if of == _ARRAY else 8
        self.check_count(count, self.size, width, f"values of {key[:80]!r}")
        keeps = count <= LONGEST_ARRAY and self.values + count <= MOST_VALUES
        self.values += count if keeps or of == _ARRAY else 0
        if of in _SCALARS and keeps:
            return self.numbers(of, count, key)
        if of in _SCALARS:
            self.file.seek(count * width, 1)
            return PASSED_OVER
        if of == _STRING and not keeps:
            return self.pass_texts(count, key)
        if self.values > MOST_VALUES:
            raise self.wrong(f"the key {key[:80]!r} holds {count} arrays, more than can be")
        items = [self.value(of, key, depth + 1) for _ in range(count)]
        return items if keeps else PASSED_OVER

    def numbers(self, kind: int, count: int, key: str) -> list[Any]:
        code = self.order + _SCALARS[kind]
        data = self.bytes(count * struct.calcsize(code), f"the value of {key[:80]!r}")
        found = np.frombuffer(data, code).tolist()
        return [float(str(np.float32(number))) for number in found] if kind == 6 else found

    def text(self, key: str) -> Any:
        length = self.number("Q", f"the length of {key[:80]!r}")
        self.check_count(length, self.size, 1, f"bytes of {key[:80]!r}")
        self.kept += length
        if length > LONGEST_TEXT or self.kept > MOST_KEPT:
            self.file.seek(length, 1)
            return PASSED_OVER
        # a vocabulary may hold halves of characters
        return self.bytes(length, f"the value of {key[:80]!r}").decode("utf-8", "replace")

    def pass_texts(self, count: int, key: str) -> object:
        """Walk over a vocabulary, which may have half a million words: 0.1 µs each."""
        at, length = self.file.tell(), struct.Struct(self.order + "Q").unpack_from
        with mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                for _ in range(count):
                    at += 8 + length(data, at)[0]
            except (struct.error, IndexError, OverflowError):  # a word that ends past the file, or past all files
                at = self.size + 1
        if at > self.size:
            raise self.wrong(f"it ends within the value of {key[:80]!r}")
        self.file.seek(at)
        return PASSED_OVER

    def name(self, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        if length > MOST_NAME:
            raise self.wrong(f"{what} is said to have {length} bytes")
        try:
            return self.bytes(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.wrong(f"{what} is no UTF-8") from None

    def number(self, code: str, what: str) -> Any:
        code = self.order + code
        return struct.unpack(code, self.bytes(struct.calcsize(code), what))[0]

    def bytes(self, count: int, what: str) -> bytes:
        data = self.file.read(count)
        if len(data) != count:
            raise self.wrong(f"it ends within {what}")
        return data

    def check_count(self, count: int, most: int, least_bytes: int, what: str) -> None:
        if count > most or count * least_bytes > self.size - self.file.tell():
            raise self.wrong(f"it says that it has {count} {what}, more than can be")

    def wrong(self, what: str) -> FileError:
        return FileError(f"{self.path}: {what}; fetch the file again.", str(self.path))


def _load(
    path: Path, name: str, begin: int, length: int, dtype: str, shape: tuple[int, ...], order: str
) -> NDArray[Any]:
    if not dtype.startswith(("float", "int", "bfloat")):
        raise UnsupportedError(
            f"{path}: tensor {name[:80]!r} is quantized as {dtype}, which is not read; norms are not.", str(path)
        )
    import ml_dtypes  # noqa: F401 - it teaches NumPy the name bfloat16

    data = bytes_of(path, name, begin, length)
    if order == ">" and length:
        width = length // math.prod(shape)
        data = np.frombuffer(data, "u1").reshape(-1, width)[:, ::-1].tobytes()
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)
