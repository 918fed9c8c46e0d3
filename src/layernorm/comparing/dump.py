# SPDX-License-Identifier: MIT
"""This file reads a dump, the array of a .npy file, and never an object out of one: pickles run what they hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layernorm.spec.errors import FileError, UnsupportedError
from layernorm.spec.files import opened

MAGIC = b"\x93NUMPY"


def read_array(path: Path) -> npt.NDArray[Any]:
    """Read the array of a .npy file. Two-byte values without a type, as ml_dtypes saves bfloat16, are read as that.

    Raises:
        FileError: the file is missing, cut off, or does not hold what it says.
        UnsupportedError: it is no .npy file, or one of objects.
    """
    where = str(path)
    try:
        with opened(path) as file:
            head = file.read(len(MAGIC))
            if head != MAGIC:
                hint = "; an .npz holds several arrays: save the one as .npy" if head[:2] == b"PK" else ""
                first = " ".join(f"{byte:02x}" for byte in head)
                raise UnsupportedError(f"{where}: not a .npy file; its first bytes are {first or 'none'}{hint}.", where)
            file.seek(0)
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            left = path.stat().st_size - file.tell()
        if dtype.hasobject:
            raise UnsupportedError(
                f"{where}: it holds Python objects, which are pickled, and no pickle is read here; save the numbers "
                "as an array of floats.", where,
            )  # fmt: skip
        claimed = math.prod(shape) * dtype.itemsize
        if claimed > left:
            raise FileError(
                f"{where}: its header claims an array of shape {shape} and type {dtype}, {claimed} bytes, but "
                f"{left} follow; it looks truncated.", where,
            )  # fmt: skip
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileError(f"{where}: {error.strerror or error}; pass a .npy file.", where) from None
    except (ValueError, TypeError, EOFError, MemoryError, OverflowError) as error:
        if isinstance(error, FileError | UnsupportedError):
            raise
        raise FileError(f"{where}: a damaged .npy file: {error}.", where) from None
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        import ml_dtypes

        return np.asarray(array.view(ml_dtypes.bfloat16))
    return np.asarray(array)
