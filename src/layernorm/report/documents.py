# SPDX-License-Identifier: MIT
"""This file makes the JSON documents that the command line prints."""

import base64
import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import Finding, Found, NormRecord
from layernorm.spec.errors import LayerNormError
from layernorm.spec.norm_spec import UNKNOWN


def error_document(error: LayerNormError) -> dict[str, Any]:
    """Make the document for a command that could not do its work (layernorm.error/1).

    >>> error_document(LayerNormError("x.onnx: there is no such file."))["error"]["code"]
    'bad-input'
    """
    return {
        "schema": "layernorm.error/1",
        "error": {"code": error.code, "sentence": str(error), "where": error.where},
    }


def inspect_document(found: Found, model: ModelFile, values: bool = False) -> dict[str, Any]:
    """Make the document of a model's norms (layernorm.inspect/1); a card is one with the parameters' `values` in it.

    Raises:
        FileError: a parameter cannot be read.
    """
    return {
        "schema": "layernorm.inspect/1",
        "file": model.path,
        "format": model.format,
        "norms": [_record(norm, values) for norm in found.norms],
        "unidentified": [{"where": item.where, "why": item.why} for item in found.unidentified],
        "risks": [_finding(risk) for risk in found.risks],
    }


def _record(norm: NormRecord, values: bool) -> dict[str, Any]:
    return {
        "name": norm.name,
        "where": norm.where,
        "form": norm.form,
        "placement": norm.placement,
        "dtype": norm.dtype,
        "size": "unknown" if norm.size is UNKNOWN else norm.size,
        "spec": norm.spec.to_json(),
        "evidence": {
            name: {"source": evidence.source, "detail": evidence.detail} for name, evidence in norm.evidence.items()
        },
        "scale": _parameter(norm.scale, values),
        "shift": _parameter(norm.shift, values),
        "mean": _parameter(norm.mean, values),
        "variance": _parameter(norm.variance, values),
    }


def _parameter(tensor: Tensor | None, values: bool) -> dict[str, Any] | None:
    if tensor is None:
        return None
    array = tensor.values()
    wide = array.astype(np.float64)
    # a NaN or an infinity is said, not warned of
    with np.errstate(all="ignore"):
        low, high, mean = (wide.min(), wide.max(), wide.mean()) if wide.size else (math.nan,) * 3
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "min": _number(low),
        "max": _number(high),
        "mean": _number(mean),
        "values": base64.b64encode(_little(array)).decode() if values else None,
    }


def _little(array: NDArray[Any]) -> bytes:
    """Give an array's bytes in little-endian order."""
    big = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
    return (array.byteswap() if big else array).tobytes()


def _finding(risk: Finding) -> dict[str, Any]:
    """Write a risk as a finding that has no second side."""
    numbers = {name: _number(value) if isinstance(value, float) else value for name, value in risk.numbers.items()}
    return {
        "code": risk.code,
        "severity": risk.severity,
        "a": risk.a,
        "b": None,
        "numbers": numbers,
        "sentence": risk.sentence,
        "remedy": risk.remedy,
    }


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))
