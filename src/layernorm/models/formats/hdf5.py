# SPDX-License-Identifier: MIT
"""This file reads HDF5 files that may have been made to do harm, by asking a child process with limits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import Tensor
from layernorm.spec.errors import FileError, MissingExtraError

SECONDS = 60
# NumPy and h5py take 110 MiB of addresses before they read anything.
MEMORY = 2**29
ALWAYS_ALLOWED = 2**22
# Weights compress little, and are mostly stored as they are.
MOST_EXPANSION = 4
# No plug-in is loaded because a file names one, and NumPy starts no threads.
_ENVIRONMENT = {"HDF5_PLUGIN_PRELOAD": "::", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Hdf5:
    """What an HDF5 file, or a member of a zip archive that is one, says: attributes by group, arrays by path.

    Raises:
        FileError: it is no such file, is damaged, or crashes or exhausts the library that reads it.
        MissingExtraError: h5py is not installed.
    """

    def __init__(self, path: Path, member: str = "") -> None:
        self.path, self._member = path, member
        size = path.stat().st_size
        self._most = max(ALWAYS_ALLOWED, MOST_EXPANSION * size)
        self._together: dict[str, NDArray[Any] | None] = {}
        found, _ = self._ask(None)
        self.attributes: dict[str, dict[str, Any]] = found["attributes"]
        self.arrays: dict[str, list[Any]] = found["arrays"]

    def tensor(self, name: str, together: bool = False) -> Tensor:
        """Give an array, read late: by a child of its own, or `together` with all that are asked for so."""
        shape, dtype, _ = self.arrays[name]
        if together:
            self._together.setdefault(name, None)
        return Tensor(name, tuple(shape), dtype, lambda: self._load(name))

    def _load(self, name: str) -> NDArray[Any]:
        if name not in self._together:
            return self._read([name])[name]
        if self._together[name] is None:
            # kept, against the habit of tensors: starting a child costs 0.2 s, and a norm's parameters are small
            self._together.update(self._read(list(self._together)))
        array = self._together[name]
        assert array is not None
        return array.copy()

    def _read(self, names: list[str]) -> dict[str, NDArray[Any]]:
        for name in names:
            if not self.arrays[name][2]:
                raise FileError(
                    f"{self.path}: array {name!r} lies in another file, which is not opened; save the model whole.",
                    str(self.path),
                )
        found, data = self._ask(names)
        arrays, at = {}, 0
        for name, size in zip(names, found["sizes"], strict=True):
            shape, dtype, _ = self.arrays[name]
            kind = _dtype(dtype)
            if kind is None or size != kind.itemsize * int(np.prod(shape, dtype=object)):
                raise FileError(
                    f"{self.path}: array {name!r} is of {dtype}, which holds no parameters.", str(self.path)
                )
            arrays[name] = np.frombuffer(data, kind, size // kind.itemsize, at).reshape(shape)
            at += size
        return arrays

    def _ask(self, values: list[str] | None) -> tuple[dict[str, Any], bytes]:
        request = {"path": str(self.path.resolve()), "member": self._member, "values": values, "most": self._most,
                   "memory": MEMORY + 3 * self._most, "seconds": SECONDS}  # fmt: skip
        try:
            # -P: the child's own folder holds an onnx.py and a keras.py, which nobody is to import
            done = subprocess.run(
                [sys.executable, "-P", str(Path(__file__).with_name("hdf5_child.py"))],
                input=json.dumps(request).encode(), capture_output=True, timeout=SECONDS, check=False,
                env=os.environ | _ENVIRONMENT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise self._broken(f"reading it took more than {SECONDS} s") from None
        line, _, data = done.stdout.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._broken(f"reading it crashed the HDF5 library (status {done.returncode})") from None
        if "missing" in answer:
            raise MissingExtraError(
                f"{answer['missing']} is not installed, and reads HDF5 files; pip install {answer['missing']}.",
                answer["missing"],
            )
        if "error" in answer:
            raise self._broken(answer["error"])
        return answer, data

    def _broken(self, why: str) -> FileError:
        inside = f" ({self._member})" if self._member else ""
        return FileError(
            f"{self.path}{inside}: it cannot be read as HDF5: {why}; fetch the file again.", str(self.path)
        )


def _dtype(name: str) -> np.dtype[Any] | None:
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    try:
        found = np.dtype(name)
    except TypeError:
        return None
    return found.newbyteorder("<") if found.kind in "fiub" else None
