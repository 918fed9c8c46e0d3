# SPDX-License-Identifier: MIT
"""This file holds the arrays that someone brought to look at, and computes what is shown of them with the library."""

import io
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import layernorm as ln
from layernorm.models.formats import safetensors
from layernorm.spec.errors import ArgumentError, FileError, LayerNormError, UnsupportedError
from layernorm.spec.files import opened

MAGIC = b"\x93NUMPY"
MOST_TENSORS = 2000
MOST_NAME = 200
MOST_FEATURES = 4096
"""Of one token, how many are sent."""
ROWS, COLUMNS, LISTED, PLOTTED = 16, 24, 8, 200
BLOCK = 2**20

HALF = 65504.0
CANCELS = math.sqrt(0.01 * 2**24)
"""Beyond this |μ|/σ, E[x²] − E[x]² in float32 may miss the variance by 1 % and more."""


@dataclass
class Held:
    """One array: its name and kind, and how its values are read when they are asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], NDArray[Any]] = field(repr=False)
    file: str | None = None
    """The file's own name, without its folders, where it was named on the command line."""
    known: dict[float, dict[str, Any]] = field(default_factory=dict, repr=False)

    def summary(self) -> dict[str, Any]:
        """Say what can be said without reading the values."""
        rows, columns = _sides(self.shape)
        name, kind = self.name[:MOST_NAME], self.dtype
        return {"name": name, "file": self.file, "shape": list(self.shape), "dtype": kind, "size": rows * columns}

    def rows(self) -> NDArray[Any]:
        """Give the values as (rows, features), in a type that the library normalizes."""
        values = self.load().reshape(_sides(self.shape))
        kind = values.dtype.name
        if kind not in ("float64", "float32", "float16", "bfloat16"):
            return values.astype("float32" if kind.startswith("float8") else "float64")
        return values if values.dtype.isnative else values.astype(kind)

    def look(self, eps: float = 1e-5, token: int = 0, feature: int = 0, whole: bool = True) -> dict[str, Any]:
        """Compute what is shown: statistics, the worst tokens, a map of few cells, and one token with its outputs.

        Raises:
            ArgumentError: epsilon is none.
        """
        if not (math.isfinite(eps) and eps >= 0):
            raise ArgumentError(f"eps is {eps}; pass 0 or more.")
        rows = self.rows()
        count, width = rows.shape
        said: dict[str, Any] = {**self.summary(), "rows": count, "columns": width, "eps": eps}
        if rows.size == 0:
            return said
        if eps not in self.known:
            self.known = {eps: _statistics(rows, eps)}
        token, feature = min(max(token, 0), count - 1), min(max(feature, 0), width - 1)
        if whole:
            down, across = _spread(count, ROWS), _spread(width, COLUMNS)
        else:
            down = list(range(token, min(token + ROWS, count)))
            across = list(range(feature, min(feature + COLUMNS, width)))
        x, one = rows[down], rows[token]
        y, out = _norm(x, eps), _norm(one, eps)
        return {
            **said,
            **self.known[eps],
            "map": {"rows": down, "columns": across, "x": _listed(x[:, across]), "y": _listed(y[:, across])},
            "token": {"at": token, "x": _listed(one[:MOST_FEATURES]), "y": _listed(out[:MOST_FEATURES])},
        }


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]


def _norm(x: NDArray[Any], eps: float) -> NDArray[Any]:
    return np.asarray(ln.layer_norm(x, eps=eps))


def _listed(values: NDArray[Any]) -> Any:
    return values.astype(np.float64).tolist()


def _spread(count: int, most: int) -> list[int]:
    """Choose at most some of what is counted, as far apart as may be."""
    return list(range(count)) if count <= most else [k * count // most for k in range(most)]


# -- statistics ---------------------------------------------------------------------------------------------


def _statistics(rows: NDArray[Any], eps: float) -> dict[str, Any]:
    count = len(rows)
    mean, spread, largest, reach = (np.empty(count) for _ in range(4))
    total, center, squares = 0, 0.0, 0.0
    least, most, odd = math.inf, -math.inf, np.zeros(3, np.int64)
    step = max(1, BLOCK // rows.shape[1])
    for begin in range(0, count, step):
        x = rows[begin : begin + step].astype(np.float64)
        part = slice(begin, begin + len(x))
        # with ε = 0 the library's 1/√(σ² + ε) is 1/σ, and infinite where all numbers are equal
        _, stats = ln.layer_norm(x, eps=0.0, return_stats=True)
        with np.errstate(all="ignore"):
            mean[part], spread[part] = stats.mean[:, 0], 1 / stats.rstd[:, 0]
            largest[part], reach[part] = np.abs(x).max(axis=1), np.abs(x - mean[part, None]).max(axis=1)
            finite = x[np.isfinite(x)]
            odd += np.array([np.isnan(x).sum(), (x == np.inf).sum(), (x == -np.inf).sum()])
            if finite.size:
                least, most = min(least, float(finite.min())), max(most, float(finite.max()))
                here = float(finite.mean())
                apart, both = here - center, total + finite.size
                squares += float(((finite - here) ** 2).sum()) + apart**2 * total * finite.size / both
                center, total = center + apart * finite.size / both, both
    with np.errstate(all="ignore"):
        whole = np.isfinite(mean) & np.isfinite(spread) & np.isfinite(largest)
        worst = {
            "tiny": (whole & (spread < 10 * math.sqrt(eps)), spread),
            "overflow": (whole & ((largest > HALF) | (reach**2 > HALF)), -reach),
            "cancels": (whole & (spread > 0) & (np.abs(mean) > CANCELS * spread), -np.abs(mean) / spread),
            "odd": (~whole, np.zeros(count)),
        }
    tokens = [[int(k), float(mean[k]), float(spread[k])] for k in _spread(count, PLOTTED)]
    return {
        "least": least, "most": most, "mean": center if total else math.nan,
        "sd": math.sqrt(squares / total) if total else math.nan,
        "nan": int(odd[0]), "plus": int(odd[1]), "minus": int(odd[2]),
        "tokens": tokens,
        "worst": {
            kind: {
                "count": int(met.sum()),
                "first": [[int(k), float(mean[k]), float(spread[k])] for k in _first(met, order)],
            }
            for kind, (met, order) in worst.items()
        },
    }  # fmt: skip


def _first(met: NDArray[np.bool_], order: NDArray[np.float64]) -> list[int]:
    at = np.flatnonzero(met)
    return [int(k) for k in at[np.argsort(order[at], kind="stable")[:LISTED]]]


# -- reading ------------------------------------------------------------------------------------------------


def read_tensors(path: Path) -> list[Held]:
    """Read the arrays of a .npy file, a .safetensors file, or a folder of these; their values when they are asked for.

    Raises:
        FileError: the file is missing, cut off, or neither.
    """
    try:
        head = b"" if path.is_dir() else _head(path)
        if head.startswith(MAGIC):
            with opened(path) as file:
                _compare_claim(file, path.stat().st_size)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            return [replace(_held(path.name, array), file=path.name)]
        if not safetensors.recognizes(path, head):
            first = head[:4].hex(" ")
            raise FileError(f"{path}: neither .npy nor .safetensors; its first bytes are {first}.", str(path))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; check the name.", str(path)) from None
    except LayerNormError:
        raise
    except Exception as error:  # what NumPy says of a header that lies has many classes
        raise FileError(f"{path}: not read as .npy ({_first_line(error)}); save it again.", str(path)) from None
    tensors = safetensors.read(path).tensors.values()
    found = [Held(t.name, t.shape, t.dtype, t.load, path.name) for t in tensors if _shown(t.shape, t.dtype)]
    if not found:
        raise UnsupportedError(f"{path}: it holds no array of numbers with at least one axis; pass another.", str(path))
    return found


def uploaded(data: bytes) -> list[Held]:
    """Read the arrays of a file that came as bytes, all of them at once.

    Raises:
        FileError: the bytes are neither .npy nor .safetensors, or lie.
    """
    if data.startswith(MAGIC):
        return [_held("array", _npy(data))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.safetensors"
        path.write_bytes(data)
        try:
            if data[8:9] != b"{":
                raise FileError(f"{path}: neither .npy nor .safetensors; its first bytes are {data[:4].hex(' ')}.")
            tensors = [t for t in safetensors.tensors_of(path).values() if _shown(t.shape, t.dtype)]
            found = [_held(t.name, t.values()) for t in tensors]
        except LayerNormError as error:
            raise type(error)(str(error).replace(str(path), "the file")) from None
    if not found:
        raise UnsupportedError("the file holds no array of numbers with at least one axis; choose another.")
    return found


def _head(path: Path) -> bytes:
    with opened(path) as file:
        return file.read(16)


def _npy(data: bytes) -> NDArray[Any]:
    try:
        _compare_claim(io.BytesIO(data), len(data))
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # likewise
        raise FileError(f"the file is not read as .npy ({_first_line(error)}); save it again.") from None
    return array


def _compare_claim(file: BinaryIO, size: int) -> None:
    """Compare what a header claims with the bytes there are; NumPy reserves first and reads then."""
    version = np.lib.format.read_magic(file)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = headers[version](file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"shape {shape} of {dtype} does not take {size - file.tell()} bytes")


def _held(name: str, array: NDArray[Any]) -> Held:
    kind = array.dtype.name
    if not _shown(array.shape, kind):
        what = "no axis" if array.ndim == 0 else f"numbers of type {array.dtype}"
        raise UnsupportedError(f"{name[:MOST_NAME]}: the array has {what}; save real numbers, one token a row.")
    return Held(name, array.shape, kind, lambda: array)


def _shown(shape: tuple[int, ...], dtype: str) -> bool:
    kinds = ("float16", "float32", "float64", "bfloat16", "float8", "int", "uint", "bool")
    return len(shape) > 0 and dtype.startswith(kinds)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0][:MOST_NAME]


def names(tensors: dict[str, Held]) -> dict[str, Any]:
    """List what is held by the ids that stand for it, as many as a page can list, and count the others."""
    listed = [{"id": key, **tensor.summary()} for key, tensor in islice(tensors.items(), MOST_TENSORS)]
    return {"tensors": listed, "more": len(tensors) - len(listed)}
