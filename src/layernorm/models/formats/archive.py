# SPDX-License-Identifier: MIT
"""This file reads zip archives that may be made to do harm: nothing in them expands beyond reason."""

import zipfile
from pathlib import Path

from layernorm.spec.errors import FileError

# An honest model's archive is stored, or text that compresses some tenfold.
MOST_EXPANSION = 20
ALWAYS_ALLOWED = 2**20


class Archive:
    """The members of a zip file, read one by one and never beyond what the archive's own size makes plausible.

    Raises:
        FileError: it is no zip file, is cut off, or would expand too far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
            raise FileError(f"{path}: the archive cannot be read ({error}); fetch the file again.", str(path)) from None
        self._members = {info.filename: info for info in self._zip.infolist()}
        self.most = max(ALWAYS_ALLOWED, MOST_EXPANSION * path.stat().st_size)
        said = sum(info.file_size for info in self._members.values())
        if said > self.most:
            raise FileError(
                f"{path}: its members say that they expand to {said} bytes, over {self.most}; a model's archive does "
                "not, so it is not opened.", str(path)
            )  # fmt: skip

    def names(self) -> list[str]:
        """List the members."""
        return list(self._members)

    def size(self, name: str) -> int:
        """Give what a member says it expands to, in bytes."""
        return self._members[name].file_size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a member, or `length` bytes of it from `start`; no more is expanded than it says, whatever it holds."""
        if name not in self._members:
            raise FileError(f"{self.path}: it has no member {name!r}; the file is not whole.", str(self.path))
        wanted = self.size(name) - start if length is None else length
        try:
            with self._zip.open(self._members[name]) as member:
                if start:
                    member.seek(start)
                return member.read(max(0, min(wanted, self.size(name) - start)))
        except Exception as error:  # zlib, zipfile and struct each have their own
            raise FileError(
                f"{self.path}: member {name!r} cannot be read ({error}); fetch the file again.", str(self.path)
            ) from None
