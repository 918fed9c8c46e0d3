# SPDX-License-Identifier: MIT
"""This file opens files to be read, and puts written ones in their place: plain files, never a device or a pipe."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from layernorm.spec.errors import ArgumentError, FileError


def opened(path: Path) -> BinaryIO:
    """Open a file to be read.

    Raises:
        FileError: it is a device or a pipe, which would be read without end, or a folder.
        OSError: the system does not open it.
    """
    if path.exists() and not path.is_file():
        raise FileError(f"{path}: it is a device, a pipe or a folder; pass a plain file.", str(path))
    return path.open("rb")


def check_place(path: Path) -> None:
    """Refuse a path at which no file can be put.

    Raises:
        ArgumentError: something stands there that is no plain file, or its folder does not exist or takes none.
    """
    # A rename would put the file in the place of a device or a pipe, which whoever named it meant to write into.
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder; give the name of a file.", str(path))
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{path} is a device or a pipe; give the name of a file.", str(path))
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"{path}: its folder does not exist; make it first.", str(path))
    if not os.access(path.absolute().parent, os.W_OK):
        raise ArgumentError(f"{path}: its folder cannot be written to; choose another place.", str(path))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place beside the path to write to, and move it there, so that what fails leaves an older file as it was.

    Raises:
        ArgumentError: nothing can be written there.
    """
    check_place(path)
    aside = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    try:
        yield aside
        aside.replace(path)
    except OSError as fault:
        raise ArgumentError(
            f"{path} cannot be written ({fault.strerror or fault}); choose another place.", str(path)
        ) from fault
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
