# SPDX-License-Identifier: MIT
"""This file reads FlatBuffers and FlexBuffers, and holds each offset in them against the file's length."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | mmap.mmap
# Attributes of an operator are a handful; more may be lists that hold themselves.
MOST_VALUES = 200


class Broken(ValueError):
    """The bytes do not hold what they say."""


class Table:
    """One table of a FlatBuffer: fields by their number in the schema, the schema's default where one is absent."""

    __slots__ = ("_data", "_position", "_vtable", "_vtable_size")

    def __init__(self, data: Buffer, position: int) -> None:
        self._data, self._position = data, position
        self._vtable = position - _number(data, "<i", position)
        self._vtable_size = _number(data, "<H", self._vtable)

    @classmethod
    def root(cls, data: Buffer) -> Table:
        """Take the table that the file begins with."""
        return cls(data, _number(data, "<I", 0))

    def _field(self, number: int) -> int:
        """Find where a field lies; 0 if it is absent."""
        at = 4 + 2 * number
        if at + 2 > self._vtable_size:
            return 0
        offset = _number(self._data, "<H", self._vtable + at)
        return self._position + offset if offset else 0

    def _target(self, number: int) -> int:
        at = self._field(number)
        return at + _number(self._data, "<I", at) if at else 0

    def integer(self, number: int, form: str = "<i", default: int = 0) -> int:
        """Read a number, of the form that `struct` calls so."""
        at = self._field(number)
        return int(_number(self._data, form, at)) if at else default

    def table(self, number: int) -> Table | None:
        """Follow a field to another table."""
        at = self._target(number)
        return Table(self._data, at) if at else None

    def span(self, number: int, width: int = 1) -> tuple[int, int]:
        """Give where a vector's items begin and how many there are; (0, 0) if it is absent."""
        at = self._target(number)
        if not at:
            return 0, 0
        count = _number(self._data, "<I", at)
        if at + 4 + count * width > len(self._data):
            raise Broken(f"a list at byte {at} says that it has {count} items, and the file ends before")
        return at + 4, count

    def text(self, number: int) -> str:
        """Read a string."""
        start, count = self.span(number)
        return self._data[start : start + count].decode("utf-8", "replace")

    def numbers(self, number: int, dtype: str = "<i4") -> NDArray[Any]:
        """Read a vector of numbers."""
        kind = np.dtype(dtype)
        start, count = self.span(number, kind.itemsize)
        return np.frombuffer(self._data, kind, count, start) if count else np.empty(0, kind)

    def tables(self, number: int) -> Iterator[Table]:
        """Go through a vector of tables."""
        start, count = self.span(number, 4)
        # a file of nothing but offsets to one table would cost a hundred times its length
        if count > 10_000 + len(self._data) // 32:
            raise Broken(f"a list at byte {start} says that it has {count} tables, more than the file has room for")
        for at in range(start, start + 4 * count, 4):
            yield Table(self._data, at + _number(self._data, "<I", at))


def flexbuffer(data: bytes) -> Any:
    """Read a FlexBuffer: numbers, texts, lists, and maps of these.

    >>> flexbuffer(bytes([5, 4, 1]))
    5
    """
    if len(data) < 3 or data[-1] not in (1, 2, 4, 8):
        raise Broken("attributes that are no FlexBuffer")
    width = data[-1]
    return _value(data, len(data) - 2 - width, width, data[-2], [MOST_VALUES])


_INTEGERS, _UNSIGNED = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}, {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def _value(data: bytes, at: int, width: int, packed: int, room: list[int]) -> Any:
    """Read one value that takes `width` bytes where it stands; most are the distance back to where they begin."""
    kind, own = packed >> 2, 1 << (packed & 3)
    room[0] -= 1
    if room[0] < 0:
        raise Broken(f"attributes with over {MOST_VALUES} values, or some that hold themselves")
    if kind in (0, 1, 2, 3, 26):
        return None if kind == 0 else _scalar(data, at, width, kind)
    start = at - _number(data, _UNSIGNED[width], at)
    if kind in (6, 7, 8):
        return _scalar(data, start, own, kind - 5)
    if kind == 4:
        return _key(data, start)
    count = _number(data, _UNSIGNED[own], start - own)
    if count * (1 if kind in (5, 25) else own) > len(data):
        raise Broken("attributes that say they are longer than they are")
    if kind in (5, 25):
        found = data[start : start + count]
        return found.decode("utf-8", "replace") if kind == 5 else found
    if kind in (9, 10):
        kinds = start + count * own
        items = [_value(data, start + i * own, own, _number(data, "<B", kinds + i), room) for i in range(count)]
        return dict(zip(_keys(data, start, own, count), items, strict=True)) if kind == 9 else items
    if kind in (11, 12, 13, 36):
        return [_scalar(data, start + i * own, own, kind - 10) for i in range(count)]
    raise Broken(f"attributes with a value of kind {kind}, which is not read here")


def _scalar(data: bytes, at: int, width: int, kind: int) -> int | float | bool:
    if kind == 26:
        return bool(_number(data, _UNSIGNED[width], at))
    forms = {1: _INTEGERS, 2: _UNSIGNED, 3: _FLOATS}[kind]
    if width not in forms:
        raise Broken(f"attributes with a number of {width} bytes")
    found: int | float = _number(data, forms[width], at)
    return found


def _keys(data: bytes, start: int, width: int, count: int) -> list[str]:
    """Read a map's keys: before its values stand the distance back to them, and their width."""
    keys = start - 3 * width - _number(data, _UNSIGNED[width], start - 3 * width)
    own = _number(data, _UNSIGNED[width], start - 2 * width)
    if own not in _UNSIGNED:
        raise Broken("attributes whose keys cannot be found")
    places = range(keys, keys + count * own, own)
    return [_key(data, at - _number(data, _UNSIGNED[own], at)) for at in places]


def _key(data: bytes, start: int) -> str:
    end = data.find(b"\0", start) if start >= 0 else -1
    if end < 0:
        raise Broken("attributes with a name that does not end")
    return data[start:end].decode("utf-8", "replace")


_FORMS = {form: struct.Struct(form) for form in (*_INTEGERS.values(), *_UNSIGNED.values(), *_FLOATS.values())}


def _number(data: Buffer, form: str, at: int) -> Any:
    known = _FORMS[form]
    if at < 0 or at + known.size > len(data):
        raise Broken(f"it points to byte {at}, and has {len(data)}")
    return known.unpack_from(data, at)[0]
