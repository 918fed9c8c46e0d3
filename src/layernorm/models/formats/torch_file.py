# SPDX-License-Identifier: MIT
"""This file reads what torch.save and torch.jit.save wrote, and live modules; nothing in a file is executed.

A state dict gives tensors, a pickled module and a TorchScript archive give layers too. PyTorch is not imported.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.archive import Archive
from layernorm.models.formats.folder import config_beside, read_shards
from layernorm.models.formats.pickles import Call, Global, read_pickle
from layernorm.models.formats.strides import fits, laid_out, reach
from layernorm.models.formats.torch_live import of_live
from layernorm.models.formats.torch_module import MOST_NAMED, Tree, of_pickled
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.spec.errors import ArgumentError, FileError, UnsupportedError
from layernorm.spec.files import opened

# A pickle of torch.save's first form begins with this number, whatever the protocol.
_MAGIC = re.compile(rb"\x80[\x02-\x05](\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\.", re.DOTALL)
_SUFFIXES = (".pt", ".pth", ".ckpt", ".pt2", ".jit")
_IN_FOLDER = ("pytorch_model.bin.index.json", "pytorch_model.bin")

# What one string in a stream may take: a file of 20 GB may not ask for half of itself.
_MOST_AT_ONCE = 2**26

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}
_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
    "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip


@dataclass(slots=True, eq=False)
class _Storage:
    """A run of numbers in the file. `read` gives bytes from a place on."""

    key: str
    dtype: str
    size: int
    read: Callable[[int, int], bytes] | None = None


def recognizes(path: Path, head: bytes) -> bool:
    """Tell whether PyTorch wrote this, or whether the folder holds such a file under its usual name."""
    if path.is_dir():
        return any((path / name).is_file() for name in _IN_FOLDER)
    if path.name == _IN_FOLDER[0] or _MAGIC.match(head):
        return True
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                return _kind_of(archive.namelist()) is not None
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return b"/data.pkl" in head[:512] or path.suffix in _SUFFIXES
    return path.suffix in _SUFFIXES


def read(path: Path) -> ModelFile:
    """Read the pickles of a file and, of a folder, config.json.

    Raises:
        FileError: the file is cut off or lies.
        UnsupportedError: it is something else that PyTorch writes.
    """
    weights = path
    if path.is_dir():
        weights = next((path / name for name in _IN_FOLDER if (path / name).is_file()), path / _IN_FOLDER[1])
    config, notes = config_beside(weights.parent)
    if weights.name.endswith(".json"):
        tensors, more = read_shards(weights, lambda shard: _file(shard)[0])
        return ModelFile(str(path), "pytorch", tensors, config, notes=notes + more)
    tensors, tree, code = _file(weights)
    if tree is None:
        return ModelFile(str(path), "pytorch", tensors, config, notes=notes)
    layers, more = tree.layers(code)
    return ModelFile(str(path), "pytorch", tensors, config, layers=layers, notes=notes + more)


def read_module(module: Any) -> ModelFile:
    """Read a live torch.nn.Module, in the order in which its layers were defined.

    Its configuration, where it has one as Hugging Face's models do, comes along.
    """
    tree = Tree.of(module, of_live)
    if tree is None:
        shown = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise ArgumentError(f"{shown} is no torch.nn.Module with layers in it; pass an instance of a model.")
    layers, more = tree.layers()
    config, notes = _config_of(module)
    notes += more
    return ModelFile(
        type(module).__name__, "pytorch", tree.tensors(), config, layers=layers, notes=notes, module=module
    )


def _config_of(module: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        config: Any = getattr(module, "config", None)
        said = config.to_dict() if hasattr(config, "to_dict") else {}
    except Exception as fault:  # whatever the model's own code raises
        told = " ".join(f"{type(fault).__name__}: {fault}".split())[:120]
        return {}, (f"its config.to_dict() fails ({told}), so what the configuration says is not known.",)
    return (said, ()) if isinstance(said, dict) else ({}, ("its config.to_dict() gives no dict, which is not read.",))


def _file(path: Path) -> tuple[dict[str, Tensor], Tree | None, Callable[[str], str] | None]:
    """Give a file's tensors, its module if it is one, and how to read the code of a TorchScript class."""
    try:
        with opened(path) as file:
            head = file.read(64)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; fetch the file again.", str(path)) from None
    if head.startswith(b"PK"):
        return _zip(path)
    if _MAGIC.match(head):
        return (*_stream(path), None)
    shown = " ".join(f"{byte:02x}" for byte in head[:4]) or "none"
    raise UnsupportedError(
        f"{path}: not a file that torch.save or torch.jit.save wrote, or one cut off at once (it begins {shown}). "
        "Save the state dict with torch.save.", str(path)
    )  # fmt: skip


def _kind_of(names: list[str]) -> str | None:
    """Say what PyTorch's archive holds: `script`, `saved` or `export`; None if it is another's."""
    inner = {name.partition("/")[2] for name in names}
    if "data.pkl" in inner:
        return "script" if "constants.pkl" in inner else "saved"
    exported = {"archive_format", "serialized_exported_program.json"} & (inner | set(names))
    return "export" if exported or any(re.fullmatch(r"models/[^/]+\.json", name) for name in inner) else None


def _zip(path: Path) -> tuple[dict[str, Tensor], Tree | None, Callable[[str], str] | None]:
    archive = Archive(path)
    kind = _kind_of(archive.names())
    if kind == "export":
        raise UnsupportedError(
            f"{path}: a torch.export archive in an old form, which is not read; save the program again.",
            str(path),
        )
    if kind is None:
        raise FileError(
            f"{path}: a zip archive without data.pkl, so not whole or not PyTorch's; fetch it again.", str(path)
        )
    root = next(name for name in archive.names() if name.partition("/")[2] == "data.pkl").partition("/")[0]
    pickled = f"{root}/data.pkl"
    size = path.stat().st_size
    if archive.size(pickled) > min(max(size, 2**20), _MOST_AT_ONCE * 8):
        raise FileError(
            f"{path}: its pickle says it has {archive.size(pickled)} bytes, beyond reason; do not use the file.",
            str(path),
        )
    members = set(archive.names())
    order = archive.read(f"{root}/byteorder").decode("ascii", "replace") if f"{root}/byteorder" in members else "little"

    def storage(said: Any) -> _Storage:
        made = _storage(said, path)
        member = f"{root}/data/{made.key}"
        if member not in members:
            raise FileError(f"{path}: its storage {made.key[:80]!r} is missing; fetch the file again.", str(path))
        needed = made.size * _width(made.dtype)
        if archive.size(member) < needed:
            raise FileError(
                f"{path}: storage {made.key[:80]!r} has {archive.size(member)} of {needed} bytes; "
                "fetch the file again.", str(path)
            )  # fmt: skip
        made.read = partial(archive.read, member)
        return made

    value = read_pickle(
        io.BytesIO(archive.read(pickled)), str(path), size // 8, _known(path, order.strip() == "big"), storage
    )
    tree = Tree.of(value, of_pickled)

    def code(file: str) -> str:
        name = f"{root}/code/{file}"
        return archive.read(name).decode("utf-8", "replace") if name in members else ""

    tensors = tree.tensors() if tree else _named(value, path)
    return tensors, tree, code if kind == "script" else None


class _Limited:
    """A file of which no single read is large."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise FileError(
                f"{self.path}: its pickle holds {size} bytes in one piece; do not use the file.", str(self.path)
            )
        return self.file.read(size)

    def readline(self) -> bytes:
        return self.file.readline(_MOST_AT_ONCE)


def _stream(path: Path) -> tuple[dict[str, Tensor], Tree | None]:
    """Read torch.save's first form: five pickles, then the storages one after another."""
    storages: dict[str, _Storage] = {}
    views: dict[str, _Storage] = {}
    size = path.stat().st_size

    def storage(said: Any) -> Any:
        if isinstance(said, tuple) and len(said) >= 2 and said[0] == "module":
            return said[1]
        made = storages.setdefault((fresh := _storage(said, path)).key, fresh)
        view = said[5] if len(said) > 5 else None
        if view is None:
            return made
        if not (isinstance(view, tuple) and len(view) == 3 and all(type(n) is int and n >= 0 for n in view[1:])):
            raise FileError(
                f"{path}: a view of storage {made.key[:80]!r} has no place; do not use the file.", str(path)
            )
        key, begin, length = view
        if begin + length > made.size:
            raise FileError(
                f"{path}: a view of storage {made.key[:80]!r} lies outside it; do not use the file.", str(path)
            )
        if str(key) not in views:
            start = begin * _width(made.dtype)
            views[str(key)] = _Storage(
                made.key, made.dtype, length, lambda at, count: _bytes_of(made, start + at, count)
            )
        return views[str(key)]

    with opened(path) as file:
        limited = _Limited(file, path)
        nothing = partial(_no_storage, path)
        most = size // 8
        read_pickle(limited, str(path), 0, {}, nothing)
        read_pickle(limited, str(path), 0, {}, nothing)
        about = read_pickle(limited, str(path), 0, {}, nothing)
        big = isinstance(about, dict) and about.get("little_endian") is False
        value = read_pickle(limited, str(path), most, _known(path, big), storage)
        keys = read_pickle(limited, str(path), most, {}, nothing)
        if not isinstance(keys, list):
            raise FileError(f"{path}: it has no list of its storages; fetch the file again.", str(path))
        for key in keys:
            made = storages.get(str(key)) if isinstance(key, (str, int)) else None
            if made is None:
                raise FileError(f"{path}: it holds a storage that nothing uses; fetch the file again.", str(path))
            said = int.from_bytes(file.read(8), "big" if big else "little")
            begin, length = file.tell(), made.size * _width(made.dtype)
            if said != made.size or begin + length > size:
                raise FileError(
                    f"{path}: storage {made.key[:80]!r} should have {length} bytes at byte {begin} of {size}; "
                    "fetch the file again.", str(path)
                )  # fmt: skip
            made.read = partial(_read_at, path, begin)
            file.seek(length, io.SEEK_CUR)
    if missing := [key for key, made in storages.items() if made.read is None]:
        raise FileError(f"{path}: its storage {missing[0][:80]!r} is missing; fetch the file again.", str(path))
    tree = Tree.of(value, of_pickled)
    return tree.tensors() if tree else _named(value, path), tree


def _no_storage(path: Path, said: Any) -> Any:
    raise FileError(f"{path}: a pickle before the tensors uses a storage; do not use the file.", str(path))


def _read_at(path: Path, begin: int, start: int, count: int) -> bytes:
    try:
        with opened(path) as file:
            file.seek(begin + start)
            return file.read(count)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; fetch the file again.", str(path)) from None


def _storage(said: Any, path: Path) -> _Storage:
    """Read a persistent id: ("storage", type, key, where it lay, how many numbers)."""
    if isinstance(said, tuple) and len(said) >= 5 and said[0] == "storage" and isinstance(said[1], Global):
        kind, key, size = said[1].name, said[2], said[4]
        if kind in _STORAGES and isinstance(key, (str, int)) and type(size) is int and 0 <= size < 2**62:
            return _Storage(str(key), _STORAGES[kind], size)
        if kind not in _STORAGES:
            raise UnsupportedError(f"{path}: storage {str(key)[:80]!r} is a {kind[:80]}, which is not read.", str(path))
    raise FileError(f"{path}: its pickle refers to what is no storage; do not use the file.", str(path))


def _width(dtype: str) -> int:
    return {"bfloat16": 2, "bool": 1}.get(dtype) or (1 if dtype.startswith("float8") else np.dtype(dtype).itemsize)


def _bytes_of(storage: _Storage, start: int, count: int) -> bytes:
    if storage.read is None:
        raise ValueError(f"storage {storage.key!r} holds nothing")
    return storage.read(start, count)


def _known(path: Path, big: bool) -> dict[str, Callable[..., Any]]:
    """The calls that a tensor is written with, and what each of them makes here."""

    def tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Any:
        return _tensor(
            path, big, storage, storage.dtype if isinstance(storage, _Storage) else "", offset, shape, stride
        )

    def tensor_of_type(
        storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, kind: Any, *rest: Any
    ) -> Any:
        dtype = kind.name if isinstance(kind, Global) else ""
        return _tensor(path, big, storage, _TYPES.get(dtype, dtype), offset, shape, stride)

    def first(value: Any, *rest: Any) -> Any:
        return value

    def of_subclass(what: Any, kind: Any, args: Any, *rest: Any) -> Any:
        made = known.get(str(what)) if isinstance(what, Global) else None
        return made(*args) if made is not None and isinstance(args, tuple) else Call(what, args)

    known: dict[str, Callable[..., Any]] = {
        "collections.OrderedDict": _ordered,
        "collections.defaultdict": lambda *rest: {},
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": tensor_of_type,
        "torch._utils._rebuild_parameter": first,
        "torch._utils._rebuild_parameter_with_state": first,
        "torch.nn.parameter.Parameter": first,
        "torch._tensor._rebuild_from_type_v2": of_subclass,
        "torch.Size": first,
    }
    return known


def _ordered(pairs: Any = (), *rest: Any) -> dict[Any, Any]:
    if isinstance(pairs, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        return {pair[0]: pair[1] for pair in pairs if isinstance(pair[0], (str, int))}
    return {}


def _tensor(path: Path, big: bool, storage: Any, dtype: str, offset: Any, shape: Any, stride: Any) -> Tensor | Call:
    if not isinstance(storage, _Storage):
        return Call(Global("torch", "Tensor"), ())
    numbers = (
        (offset, *shape, *stride) if isinstance(shape, (tuple, list)) and isinstance(stride, (tuple, list)) else (None,)
    )
    if any(type(n) is not int or not 0 <= n < 2**62 for n in numbers) or len(shape) != len(stride) or len(shape) > 64:
        raise FileError(
            f"{path}: a tensor of storage {storage.key[:80]!r} has no shape; do not use the file.", str(path)
        )
    try:
        held = storage.size * _width(storage.dtype) // _width(dtype)
    except TypeError:
        raise UnsupportedError(f"{path}: a tensor is of type {dtype[:80]}, which is not read.", str(path)) from None
    if not fits(shape, stride, offset, held):
        raise FileError(
            f"{path}: a tensor of shape {tuple(shape)} reaches beyond the {held} numbers of storage "
            f"{storage.key[:80]!r}; do not use the file.", str(path)
        )  # fmt: skip
    load = partial(_load, path, big, storage, dtype, offset, tuple(shape), tuple(stride))
    return Tensor("", tuple(shape), dtype, load)


def _load(path: Path, big: bool, storage: _Storage, dtype: str, offset: int, shape: tuple[int, ...],
          stride: tuple[int, ...]) -> NDArray[Any]:  # fmt: skip
    import ml_dtypes  # noqa: F401 - it teaches NumPy bfloat16 and the small floats

    width = _width(dtype)
    count = reach(shape, stride)
    data = _bytes_of(storage, offset * width, count * width)
    if len(data) != count * width:
        raise FileError(f"{path}: storage {storage.key[:80]!r} is cut off; fetch the file again.", str(path))
    if big:
        data = np.frombuffer(data, f"V{width}").view("u1").reshape(-1, width)[:, ::-1].tobytes()
    return laid_out(np.frombuffer(data, np.dtype(dtype)), shape, stride)


def _named(value: Any, path: Path) -> dict[str, Tensor]:
    """Name the tensors of a state dict, or of a checkpoint that holds one, by the keys that lead to them."""
    if isinstance(value, Tensor):
        return {"": value}
    found = dict(_walk(value, path))
    wrapped = (
        [str(key) for key in value if any(name.startswith(f"{key}.") for name in found)]
        if isinstance(value, dict)
        else []
    )
    if len(wrapped) == 1 and wrapped[0] in _WRAPPERS and all(name.startswith(f"{wrapped[0]}.") for name in found):
        found = {name[len(wrapped[0]) + 1 :]: tensor for name, tensor in found.items()}
    return {name: Tensor(name, tensor.shape, tensor.dtype, tensor.load) for name, tensor in found.items()}


_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights")


def _walk(value: Any, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Give tensors in order with their names; what holds itself is entered once."""
    seen: set[int] = set()
    # each with its key and that of what holds it, for a name at every step of a long chain would fill the memory
    waiting: list[tuple[tuple[Any, str] | None, Any]] = [(None, value)]
    letters = 0
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, Tensor):
            words: list[str] = []
            while key is not None:
                key, word = key
                words.append(word)
                letters += 1 + len(word)
                if letters > MOST_NAMED:
                    raise FileError(f"{path}: its names take over {MOST_NAMED} letters; do not use it.", str(path))
            yield ".".join(reversed(words)), value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        tree = Tree.of(value, of_pickled)
        inside: dict[Any, Any] = dict(tree.tensors()) if tree else value if isinstance(value, dict) else {}
        for word, held in reversed(inside.items()):
            # an optimizer's tensors bear numbers, or its own words, for names
            if isinstance(word, str) and not word.startswith("optim"):
                waiting.append(((key, word), held))
