# SPDX-License-Identifier: MIT
"""This file reads the bytes of one tensor from the file that holds them."""

from pathlib import Path

from layernorm.spec.errors import FileError
from layernorm.spec.files import opened


def bytes_of(path: Path, name: str, begin: int, length: int) -> bytes:
    """Read a tensor's bytes.

    Raises:
        FileError: the file cannot be read, or ends before they do.
    """
    try:
        with opened(path) as file:
            file.seek(begin)
            data = file.read(length)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; fetch the file again.", str(path)) from None
    if len(data) != length:
        raise FileError(
            f"{path}: tensor {name[:80]!r} is cut off, {len(data)} of {length} bytes; fetch it again.", str(path)
        )
    return data
