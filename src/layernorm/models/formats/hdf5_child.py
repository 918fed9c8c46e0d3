# SPDX-License-Identifier: MIT
"""This file is a process of its own that reads HDF5, for a crafted file can crash that library: it says what is in one.

`hdf5.py` runs it as a script, so it imports nothing of this package. The request is JSON on stdin; the answer is one
line of JSON on stdout, and after it the bytes of the arrays that were asked for, little-endian.
"""

import io
import json
import math
import re
import sys
import zipfile
from typing import Any, BinaryIO

# Keras numbers the pieces of a list that does not fit into one attribute.
ATTRIBUTES = re.compile(r"model_config|keras_version|name|dtype|(layer|weight)_names[0-9]{0,9}")


class Window(io.RawIOBase):
    """A part of a file, as if it were the whole: a member of a zip archive that is stored as it is."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the window."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def tell(self) -> int:
        """Give the place in the window."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read no further than the window's end."""
        self._file.seek(self._start + self._at)
        length = max(0, min(len(buffer), self._size - self._at))
        found = self._file.read(length)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def opened(path: str, member: str, most: int) -> Any:
    """Open the file, or its member; one that is compressed is expanded into memory, for HDF5 reads here and there."""
    if not member:
        return path
    archive = zipfile.ZipFile(path)
    info = archive.getinfo(member)
    if info.compress_type != zipfile.ZIP_STORED:
        if info.file_size > most:
            raise ValueError(f"{member} would expand to {info.file_size} bytes, over {most}")
        return io.BytesIO(archive.read(info))
    file = open(path, "rb")  # noqa: PTH123, SIM115 - it lives as long as this process
    file.seek(info.header_offset)
    header = file.read(30)
    start = info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return io.BufferedReader(Window(file, start, info.file_size))


def attributes(item: Any, most: int) -> dict[str, Any]:
    """Read those attributes of a group or an array that say something about a model."""
    import h5py

    found = {}
    for name in item.attrs:
        if ATTRIBUTES.fullmatch(name):
            said = h5py.h5a.open(item.id, name.encode())
            size = math.prod(said.shape or ()) * said.dtype.itemsize
            if size > most:
                raise ValueError(f"attribute {name} says that it has {size} bytes, over {most}")
            found[name] = plain(item.attrs[name])
    return found


def plain(value: Any) -> Any:
    """Make a text or a list of texts of an attribute, whichever way it was written."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):  # h5py escapes bytes that are no UTF-8, and nobody can write what comes of it
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, float)) else str(value)


def described(file: Any, most: int) -> dict[str, Any]:
    """List attributes by group, and every array's shape and type; no link out of the file is followed."""
    import h5py

    found: dict[str, Any] = {"attributes": {}, "arrays": {}}
    waiting, seen, size = [("", file)], {h5py.h5o.get_info(file.id).addr}, 0
    while waiting:
        prefix, group = waiting.pop()
        if said := attributes(group, most):
            found["attributes"][prefix] = said
            size += sum(len(str(value)) for value in said.values())
        for name in group:
            path = f"{prefix}/{name}" if prefix else name
            size += len(path) + 50
            if size > most:
                raise ValueError(f"the list of what is in it is longer than {most} bytes")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Dataset):
                whole = not item.is_virtual and not item.external
                found["arrays"][path] = [list(item.shape or ()), typename(item), whole]
            elif isinstance(item, h5py.Group) and address not in seen:
                seen.add(address)
                waiting.append((path, item))
    return found


def typename(item: Any) -> str:
    """Name the type of an array's numbers; Keras writes bfloat16 as two bytes and says so beside them."""
    said = plain(item.attrs["dtype"]) if "dtype" in item.attrs else ""
    return "bfloat16" if said == "bfloat16" and item.dtype.itemsize == 2 else str(item.dtype.name)


def values(file: Any, names: list[str], most: int) -> list[bytes]:
    """Read arrays whole, as little-endian bytes."""
    import numpy as np

    read = []
    for name in names:
        item = file[name]
        size = item.dtype.itemsize * math.prod(item.shape)
        if size > most:
            raise ValueError(f"{name} says that it has {size} bytes, over {most}")
        array = np.asarray(item[()])
        little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.kind in "fiu" else array
        read.append(little.tobytes())
    return read


def limit(memory: int, seconds: int) -> None:
    """Bound what this process may take, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    most = request["most"]
    limit(request["memory"], request["seconds"])
    parts: list[bytes] = []
    try:
        import h5py

        with h5py.File(opened(request["path"], request["member"], most), "r") as file:
            if request["values"] is None:
                answer = described(file, most)
            else:
                parts = values(file, request["values"], most)
                answer = {"sizes": [len(part) for part in parts]}
    except ModuleNotFoundError as error:
        answer = {"missing": error.name}
    except MemoryError:
        answer = {"error": f"it asks for more than {request['memory']} bytes of memory"}
    except Exception as error:
        answer = {"error": " ".join(str(error).split()) or type(error).__name__}
    out = sys.stdout.buffer
    out.write(json.dumps(answer).encode() + b"\n")
    for part in parts:
        out.write(part)
    out.flush()


if __name__ == "__main__":
    main()
