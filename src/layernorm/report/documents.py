# SPDX-License-Identifier: MIT
"""This file makes the JSON documents that the command line prints."""

from __future__ import annotations

import base64
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import Finding, Found, NormRecord
from layernorm.spec.errors import LayerNormError
from layernorm.spec.norm_spec import UNKNOWN

if TYPE_CHECKING:
    from layernorm.report.comparison import Comparison


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


def compare_document(comparison: Comparison) -> dict[str, Any]:
    """Make the document of two models side by side (layernorm.compare/1)."""
    compared, ran = comparison.compared, comparison.ran
    pairs = [
        {
            "a": pair.a.name,
            "b": pair.b.name,
            "rule": pair.rule,
            "status": comparison.status(at),
            "gain": outcome.gain,
            "error": outcome.error,
        }
        for at, (pair, outcome) in enumerate(zip(comparison.pairs, ran.outcomes, strict=True))
    ]
    return {
        "schema": "layernorm.compare/1",
        "a": compared.a.model.path,
        "b": compared.b.model.path,
        "verdict": comparison.verdict,
        "headline": comparison.headline,
        "ran": {which: why is None for which, why in ran.why_not.items()},
        "pairs": pairs,
        "unpaired_a": [record.name for record in compared.pairing.left_a],
        "unpaired_b": [record.name for record in compared.pairing.left_b],
        "findings": [_finding(finding) for finding in comparison.findings],
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


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "a": finding.a,
        "b": finding.b,
        "numbers": {name: _plain(value) for name, value in finding.numbers.items()},
        "sentence": finding.sentence,
        "remedy": finding.remedy,
    }


def _plain(value: Any) -> Any:
    """Write what JSON has no word for in a string."""
    if isinstance(value, float):
        return _number(value)
    return [_plain(v) for v in value] if isinstance(value, list) else str(value) if value is UNKNOWN else value


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))
