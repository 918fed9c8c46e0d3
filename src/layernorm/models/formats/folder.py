# SPDX-License-Identifier: MIT
"""This file reads what stands beside weights in a folder: config.json, and the index of weights in several files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layernorm.models.model_file import Tensor
from layernorm.spec.errors import FileError
from layernorm.spec.files import opened

# config.json is some kilobytes; the index of a thousand experts' weights is some 20 MB.
MOST_JSON = 2**25
# An empty list takes 64 bytes for the 3 that it is written with; in a safetensors header at most every 17th byte
# opens a list or an object.
MOST_NESTED = 1 / 12
ALWAYS_NESTED = 10_000

Read = Callable[[Path], Mapping[str, Tensor]]


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        FileError: it cannot be read, is larger than such files are, or holds something else.
    """
    try:
        with opened(path) as file:
            text = file.read(MOST_JSON + 1)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; fetch the file again.", str(path)) from None
    if len(text) > MOST_JSON:
        raise FileError(f"{path}: over {MOST_JSON} bytes, which no such file has; fetch it again.", str(path))
    return parse_json(text, path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """Parse one JSON object; a name that stands twice in it is refused, because readers differ in which they take."""
    if text.count(b"[") + text.count(b"{") > ALWAYS_NESTED + MOST_NESTED * len(text):
        raise FileError(f"{path}: its JSON is little but brackets; do not use the file.", str(path))
    try:
        found = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise FileError(f"{path}: its JSON is nested too deeply to be a model's; fetch it again.", str(path)) from None
    except ValueError as error:  # not UTF-8, not JSON, a number of thousands of digits
        raise FileError(f"{path}: its JSON cannot be read ({_short(error)}); fetch it again.", str(path)) from None
    if not isinstance(found, dict):
        raise FileError(f"{path}: its JSON is a {type(found).__name__}, not an object; fetch it again.", str(path))
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of what json.loads has read, unless a name stands twice in it: the last would win in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice[:200]!r} stands in it twice")
    return found


def config_beside(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Give config.json of a folder, empty where there is none, and a note where it cannot be read."""
    path = folder / "config.json"
    if not path.is_file():
        return {}, ()
    try:
        return read_json(path), ()
    except FileError as error:
        return {}, (f"{error} What it says of the norms stays unknown.",)


def read_shards(index: Path, read: Read) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read the tensors that an index spreads over several files of its folder, in the index' order.

    Raises:
        FileError: the index names a file outside the folder or one that is missing, or a tensor that its file lacks.
    """
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise FileError(f"{index}: it has no weight_map from tensors to files; fetch it again.", str(index))
    shards: dict[str, Mapping[str, Tensor]] = {}
    for file in sorted(set(places.values())):
        # a name alone, so it cannot lead away; links are followed, for a hub's cache is made of them
        if file in ("", ".", "..") or Path(file).name != file or "\\" in file:
            raise FileError(
                f"{index}: it names the file {file[:200]!r}, which is not in its folder; do not use it.", str(index)
            )
        if not (index.parent / file).is_file():
            raise FileError(f"{index}: the file {file[:200]!r} that it names is missing; fetch it too.", str(index))
        shards[file] = read(index.parent / file)
    for name, file in places.items():
        if name not in shards[file]:
            raise FileError(f"{index}: tensor {name[:200]!r} is not in {file!r}; fetch both again.", str(index))
    unlisted = sum(name not in places for shard in shards.values() for name in shard)
    notes = (f"{index.name} leaves out {unlisted} tensors that its files hold.",) if unlisted else ()
    return {name: shards[file][name] for name, file in places.items()}, notes


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
