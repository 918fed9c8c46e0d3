# SPDX-License-Identifier: MIT
"""This file says which two values of a graph are a norm's input and output, or why no run gives them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from layernorm.models.norm_record import NormRecord


class Ends(NamedTuple):
    """The names of a norm's input and output."""

    input: str
    output: str


def ends_of(norm: NormRecord, known: Container[str]) -> Ends | str:
    """Name the values to read for a norm if both are `known`; else say why they are not there to be read.

    >>> from layernorm.spec.norm_spec import NormSpec
    >>> ends_of(NormRecord("n", "", "function", NormSpec(), {}, input="f/x", output="y"), {"y"})
    'its input is a value inside a function or a body of If, Loop or Scan, which no run gives'
    """
    for name, what in ((norm.input, "input"), (norm.output, "output")):
        if not name:
            return f"its {what} is computed inside the same operator and is no value of the graph"
        if name not in known:
            return f"its {what} is a value inside a function or a body of If, Loop or Scan, which no run gives"
    return Ends(norm.input, norm.output)


def behind_activation(norm: NormRecord) -> tuple[NormRecord, str]:
    """Give a norm of a TFLite file with an output that the runtime has, and the activation that was applied to it.

    Where an activation is fused into the norm's last operator, the value before it is in no file and in no memory; the
    reader calls it `y before RELU`.
    """
    name, found, activation = norm.output.rpartition(" before ")
    return (replace(norm, output=name), activation) if found else (norm, "")
