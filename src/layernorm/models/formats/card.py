# SPDX-License-Identifier: MIT
"""This file reads norm cards: the document of `layernorm inspect --card`, with the parameters' values in it.

A card takes the place of a model that cannot be passed on. It is read as any other file is, as if someone meant harm.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from pathlib import Path
from typing import Any, get_args

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16
import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import (
    Evidence,
    Finding,
    Form,
    Found,
    NormRecord,
    Placement,
    Severity,
    Source,
    Unidentified,
)
from layernorm.spec.errors import FileError, SpecError
from layernorm.spec.files import opened
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

SCHEMA = "layernorm.inspect/1"


def recognizes(path: Path, head: bytes) -> bool:
    """Tell a card by its first words."""
    return head.lstrip()[:1] == b"{" and SCHEMA.encode() in head


def read(path: Path) -> ModelFile:
    """Read a card.

    Raises:
        FileError: it is cut off, or is no such document.
    """
    try:
        with opened(path) as file:
            said = json.loads(file.read().decode(), parse_constant=_no_number)
        if said["schema"] != SCHEMA:
            raise ValueError(f"its schema is {said['schema']!r}")
        norms = [_record(norm, path) for norm in said["norms"]]
        unidentified = [Unidentified(str(item["where"]), str(item["why"])) for item in said["unidentified"]]
        risks = [_finding(item) for item in said["risks"]]
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; pass a norm card.", str(path)) from None
    except (ValueError, TypeError, KeyError, AttributeError, SpecError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise FileError(
            f"{path}: it is no norm card ({why[:200]}); make one with layernorm inspect MODEL --card FILE.", str(path)
        ) from None
    return ModelFile(str(path), "card", {}, card=Found(norms, unidentified, risks))


def _record(said: dict[str, Any], path: Path) -> NormRecord:
    size = said["size"]
    if size != "unknown" and (type(size) is not int or size < 0):
        raise ValueError(f"a size is {size!r}")
    evidence = {
        str(name): Evidence(_one_of(found["source"], Source), str(found["detail"]))
        for name, found in said["evidence"].items()
    }
    scale, shift, mean, variance = (_tensor(said[role], path) for role in ("scale", "shift", "mean", "variance"))
    form, placement = _one_of(said["form"], Form), _one_of(said["placement"], Placement)
    return NormRecord(
        str(said["name"]), str(said["where"]), form, NormSpec.from_json(said["spec"]), evidence, str(said["dtype"]),
        UNKNOWN if size == "unknown" else size, placement, scale, shift, mean, variance,
    )  # fmt: skip


def _tensor(said: dict[str, Any] | None, path: Path) -> Tensor | None:
    if said is None:
        return None
    name, shape = str(said["name"]), tuple(said["shape"])
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"{name[:80]!r} has the shape {list(shape)!r}")
    dtype = np.dtype(str(said["dtype"]))
    # numbers alone: NumPy's, and ml_dtypes', which say kind V as void does
    if dtype.kind not in "fiuV" or dtype.type is np.void:
        raise ValueError(f"{name[:80]!r} has the type {said['dtype']!r}")
    if said["values"] is None:
        return Tensor(name, shape, dtype.name, lambda: _absent(name, path))
    try:
        data = base64.b64decode(said["values"], validate=True)
    except binascii.Error:
        raise ValueError(f"the values of {name[:80]!r} are no base64") from None
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name[:80]!r} has {len(data)} bytes, and its shape {list(shape)} does not")
    values = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    return Tensor(name, shape, dtype.name, lambda: values)


def _absent(name: str, path: Path) -> NDArray[Any]:
    raise FileError(
        f"{path}: it is a document without the values of {name[:80]!r}; make a card with layernorm inspect --card.",
        str(path),
    )


def _finding(said: dict[str, Any]) -> Finding:
    remedy = None if said["remedy"] is None else str(said["remedy"])
    severity = _one_of(said["severity"], Severity)
    a = None if said["a"] is None else str(said["a"])
    numbers = {str(name): _number(value) for name, value in said["numbers"].items()}
    return Finding(str(said["code"]), severity, a, str(said["sentence"]), remedy, numbers)


def _number(said: Any) -> Any:
    """Take what a finding's number may be: a number, a text, nothing, or a list of these."""
    if isinstance(said, list):
        return [_number(value) for value in said]
    if said is not None and not isinstance(said, (str, int, float)):
        raise ValueError(f"a number of a finding is {said!r}")
    return said


def _no_number(said: str) -> None:
    raise ValueError(f"{said} is no number of JSON")


def _one_of(said: Any, words: Any) -> Any:
    if said not in get_args(words):
        raise ValueError(f"{said!r} is not one of {', '.join(get_args(words))}")
    return said
