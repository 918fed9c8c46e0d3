# SPDX-License-Identifier: MIT
"""This file reads pickles without running them: what a pickle would import or call becomes an inert value.

The standard library decodes the stream (`pickletools.genops`, which makes plain values only); the stack machine is
here, so no class is looked up, no `__reduce__` or `__setstate__` is called, and nothing but lists, dicts, tuples and
scalars is made. Its C unpickler would not do: it sets aside whatever memory a memo index or a length in the stream
asks for.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from layernorm.spec.errors import FileError, LayerNormError

# The bytes that one operation of a hostile stream costs, at most about 200, times this many stay far below a gigabyte;
# a checkpoint of a thousand tensors has 60 000.
ALWAYS_ALLOWED = 2**18


class Stream(Protocol):
    """What a pickle is read from."""

    def read(self, size: int = ..., /) -> bytes:
        """Give the next bytes."""
        ...

    def readline(self) -> bytes:
        """Give the bytes up to the next newline."""
        ...


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Call:
    """A call that was not made: its function or class, the arguments, and what would have been put into the result."""

    what: Any
    args: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


def number_of(call: Call) -> Any:
    """Give the number that a pickle of NumPy's scalar, or of an array that holds one, stands for; else the call."""
    args, state = call.args, call.state
    if not isinstance(call.what, Global) or call.what.module.partition(".")[0] != "numpy":
        return call
    if call.what.name == "_reconstruct" and isinstance(state, tuple) and len(state) == 5:
        _, _, kind, _, data = state
    elif call.what.name == "scalar" and isinstance(args, tuple) and len(args) == 2:
        kind, data = args
    else:
        return call
    if isinstance(data, Call) and isinstance(data.args, tuple) and data.args and isinstance(data.args[0], str):
        data = data.args[0].encode("latin-1", "replace")  # how protocol 2 writes bytes
    name = kind.args[0] if isinstance(kind, Call) and isinstance(kind.args, tuple) and kind.args else None
    if not isinstance(data, bytes) or not isinstance(name, str) or not re.fullmatch("[fiu][1248]|b1", name):
        return call
    big = isinstance(kind.state, tuple) and kind.state[1:2] == (">",)
    dtype = np.dtype(f"{'>' if big else '<'}{name}")
    return np.frombuffer(data, dtype)[0] if len(data) == dtype.itemsize else call


Known = Mapping[str, Callable[..., Any]]
"""What to make of a call, by the full name of what is called; every one of these functions is ours."""


class _Wrong(Exception):
    """The stream asks for what no pickle may."""


_MARK = object()


class _Unhashable:
    """Stands for a key that no dict takes."""


class _Machine:
    """Pickle's stack machine: `do` carries out one operation."""

    def __init__(self, known: Known, persistent: Callable[[Any], Any]) -> None:
        self.known = known
        self.persistent = persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _Wrong("takes a value from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _Wrong("uses a value of an empty stack")
        return self.stack[-1]

    def pop_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                above = self.stack[at + 1 :]
                del self.stack[at:]
                return above
        raise _Wrong("goes back to a mark that was not set")

    def take(self, count: int) -> tuple[Any, ...]:
        return tuple(self.pop() for _ in range(count))[::-1]

    def call(self, what: Any, args: Any) -> Any:
        ours = self.known.get(str(what)) if isinstance(what, Global) else None
        return ours(*args) if ours is not None and isinstance(args, tuple) else Call(what, args)

    def get(self, index: int) -> Any:
        if index not in self.memo:
            raise _Wrong(f"recalls value {index}, which was not kept")
        return self.memo[index]

    def set_items(self, values: list[Any]) -> None:
        target = self.top()
        if isinstance(target, Call):
            target = target.items
        if not isinstance(target, dict) or len(values) % 2:
            raise _Wrong("sets an item of what has none")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[key if _hashable(key) else _Unhashable()] = value

    def extend(self, values: list[Any]) -> None:
        target = self.top()
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Call):
            target.items.update((len(target.items) + at, value) for at, value in enumerate(values))
        else:
            raise _Wrong("appends to what is no list")

    def build(self) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, Call):
            target.state = state
        # an OrderedDict has a state, _metadata, which says nothing of a norm

    def do(self, name: str, arg: Any) -> None:
        simple = _SIMPLE.get(name)
        if name in _LITERALS:
            self.stack.append(arg)
        elif simple is not None:
            simple(self)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[arg] = self.top()
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.get(arg))
        elif name in ("GLOBAL", "INST"):
            module, _, called = arg.partition(" ")
            what = Global(module, called)
            self.stack.append(what if name == "GLOBAL" else self.call(what, tuple(self.pop_mark())))
        elif name == "PERSID":
            self.stack.append(self.persistent(arg))
        elif name in ("EXT1", "EXT2", "EXT4"):
            self.stack.append(Global("copyreg", f"extension {arg}"))
        elif name not in ("PROTO", "FRAME", "READONLY_BUFFER"):
            raise _Wrong(f"has the operation {name}")


def _hashable(key: Any) -> bool:
    """Tell whether a key may go into a dict; tuples may not, for hashing nested ones recurses."""
    return key is None or isinstance(key, (str, bytes, int, float, Global, Call))


def _stack_global(machine: _Machine) -> None:
    module, name = machine.take(2)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _Wrong("imports what is no name")
    machine.stack.append(Global(module, name))


def _dict(machine: _Machine) -> None:
    values = machine.pop_mark()
    machine.stack.append({})
    machine.set_items(values)


def _obj(machine: _Machine) -> None:
    values = machine.pop_mark()
    if not values:
        raise _Wrong("makes an object of no class")
    machine.stack.append(machine.call(values[0], tuple(values[1:])))


def _call(machine: _Machine) -> None:
    machine.stack.append(machine.call(*machine.take(2)))


def _call_with_names(machine: _Machine) -> None:
    what, args, _ = machine.take(3)
    machine.stack.append(machine.call(what, args))


_LITERALS = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "FLOAT",
        "BINFLOAT",
    ]
)

_SIMPLE: dict[str, Callable[[_Machine], Any]] = {
    "NONE": lambda m: m.stack.append(None),
    "NEWTRUE": lambda m: m.stack.append(True),
    "NEWFALSE": lambda m: m.stack.append(False),
    "EMPTY_LIST": lambda m: m.stack.append([]),
    "EMPTY_DICT": lambda m: m.stack.append({}),
    "EMPTY_TUPLE": lambda m: m.stack.append(()),
    # a set is read as a list: an empty set takes 216 bytes for one in the stream
    "EMPTY_SET": lambda m: m.stack.append([]),
    "MARK": lambda m: m.stack.append(_MARK),
    "POP": lambda m: m.stack.pop() if m.stack else m.pop(),
    "POP_MARK": lambda m: m.pop_mark(),
    "DUP": lambda m: m.stack.append(m.top()),
    "TUPLE": lambda m: m.stack.append(tuple(m.pop_mark())),
    "TUPLE1": lambda m: m.stack.append(m.take(1)),
    "TUPLE2": lambda m: m.stack.append(m.take(2)),
    "TUPLE3": lambda m: m.stack.append(m.take(3)),
    "LIST": lambda m: m.stack.append(m.pop_mark()),
    "FROZENSET": lambda m: m.stack.append(m.pop_mark()),
    "DICT": _dict,
    "APPEND": lambda m: m.extend([m.pop()]),
    "APPENDS": lambda m: m.extend(m.pop_mark()),
    "ADDITEMS": lambda m: m.extend(m.pop_mark()),
    "SETITEM": lambda m: m.set_items(list(m.take(2))),
    "SETITEMS": lambda m: m.set_items(m.pop_mark()),
    "MEMOIZE": lambda m: m.memo.__setitem__(len(m.memo), m.top()),
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _call,
    "NEWOBJ": _call,
    "NEWOBJ_EX": _call_with_names,
    "OBJ": _obj,
    "BUILD": lambda m: m.build(),
    "BINPERSID": lambda m: m.stack.append(m.persistent(m.pop())),
    "NEXT_BUFFER": lambda m: m.stack.append(None),
}


def read_pickle(stream: Stream, where: str, most: int, known: Known, persistent: Callable[[Any], Any]) -> Any:
    """Read one pickle from a stream, which then stands behind it.

    Args:
        stream: where the pickle begins.
        where: the file, for errors.
        most: how many operations it may have beyond those that every pickle may.
        known: what to make of some calls; all others become a `Call`.
        persistent: what to make of a persistent id.

    Raises:
        FileError: the stream is cut off, is no pickle, or asks for what no pickle may.
    """
    machine = _Machine(known, persistent)
    allowed = ALWAYS_ALLOWED + most
    try:
        for count, (op, arg, _) in enumerate(pickletools.genops(stream)):  # type: ignore[arg-type]
            if op.name == "STOP":
                return machine.pop()
            if count >= allowed:
                raise _Wrong(f"has over {allowed} operations, more than its size makes plausible")
            machine.do(op.name, arg)
    except LayerNormError:
        raise
    except _Wrong as error:
        raise FileError(f"{where}: its pickle {error}; do not use the file.", where) from None
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        # genops says what ended early and where; functions in `known` say what their arguments lack
        text = str(error).partition("\n")[0][:200]
        raise FileError(f"{where}: its pickle cannot be read ({text}); fetch the file again.", where) from None
    raise FileError(f"{where}: its pickle has no end; fetch the file again.", where)
