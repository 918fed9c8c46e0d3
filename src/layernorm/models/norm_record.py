# SPDX-License-Identifier: MIT
"""This file defines NormRecord: one norm of a model, its whole spec, its parameters, and where each fact came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from layernorm.models.model_file import Tensor
from layernorm.spec.norm_spec import UNKNOWN, NormSpec, Unknown

Source = Literal[
    "attribute", "constant", "config", "key", "structure", "name", "shape", "default", "convention", "module",
    "assumed", "unknown",
]  # fmt: skip
Form = Literal["fused", "contrib", "function", "decomposed", "layer", "named", "folded"]
Placement = Literal["pre", "post", "final", "qk", "embedding", "other", "unknown"]
Severity = Literal["info", "minor", "major"]


class Evidence(NamedTuple):
    """Where one field of a spec was read: what kind of place, and which."""

    source: Source
    detail: str


@dataclass(frozen=True)
class NormRecord:
    """One norm.

    Args:
        name: the file's own name for it: the common prefix of its parameters, else its node's name, else
            kind@position; unique in the file.
        where: an address in the file: a node's path, tensor names, a key of the configuration.
        form: `fused` (one standard operator), `contrib` (a runtime's own), `function` (in a function's body),
            `decomposed` (loose operations), `layer` (a layer's configuration or module), `named` (tensor names),
            `folded` (merged away).
        placement: before (`pre`) or after (`post`) a block's work, at the end (`final`), on queries and keys (`qk`), on
            the `embedding`, or elsewhere (`other`).
        dtype: the type of what is normalized; `unknown` where the file does not say.
        size: how many values share one set of statistics.
        spec: the whole specification.
        evidence: for each field of the spec that a source was found for, that source.
        scale: gamma, as the file holds it; None if there is none.
        shift: beta, as the file holds it; None if there is none.
        mean: the stored mean, where there is one.
        variance: the stored variance, where there is one.
    """

    name: str
    where: str
    form: Form
    spec: NormSpec
    evidence: Mapping[str, Evidence]
    dtype: str = "unknown"
    size: int | Unknown = UNKNOWN
    placement: Placement = "unknown"
    scale: Tensor | None = None
    shift: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    output: str = ""
    """The name of the value that holds the result, where there is a graph."""
    input: str = ""
    node: str = ""
    """What its node, or the module of its nodes, is called: the name of one that shares another's parameters."""


@dataclass(frozen=True)
class Unidentified:
    """Something that may be a norm and could not be identified, with the reason."""

    where: str
    why: str


@dataclass(frozen=True)
class Finding:
    """Something that may go wrong in one model, or that differs between two.

    Args:
        code: what it is; `layernorm explain CODE` gives its page.
        severity: by the largest change of the output; info below 1 ulp of its type, minor below 1e-3 of its
            root mean square, major above.
        a: the norm's name, in the one model or in A; None where it is about no one norm.
        sentence: what is so, with the values.
        remedy: what to do.
        numbers: the figures that the sentence rests on.
        b: the norm's name in B.
    """

    code: str
    severity: Severity
    a: str | None
    sentence: str
    remedy: str | None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    b: str | None = None


class Found(NamedTuple):
    """What `identify` says of a model file."""

    norms: list[NormRecord]
    unidentified: list[Unidentified]
    risks: list[Finding]
