# SPDX-License-Identifier: MIT
"""This file names norms: by what their parameters' names have in common, each name once in a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os.path import commonprefix

from layernorm.models.norm_record import NormRecord

# What stands last in a parameter's name and says its part in the norm.
_ROLE = re.compile(
    r"(?P<norm>.+?)[./_](?:weight|bias|gamma|beta|scale|shift|offset|g|b|w|a_2|b_2|mean|var|variance|"
    r"(?:running|moving)_(?:mean|var|variance))(?:_quantized|_q|_int8|_fp16)?(?::\d+)?"
)
# Names that a program numbered; what two of them share says nothing.
_NUMBERED = re.compile(
    r"(?i)onnx::.*|(?:.*[/.])?_?(?:constant|initializer|const|val|tensor|input|p|w|b)?[_:]*[0-9]*(?:_output_0)?"
)
# A pattern may take the square of a name's length.
_MOST_READ = 300


def name_of(parameters: Iterable[str], node: str, otherwise: str) -> str:
    """Name a norm by its parameters, else by its node, else as the caller would.

    >>> name_of(["h.0.ln_1.weight", "h.0.ln_1.bias"], "/h.0/Add_1", "layer@node[7]")
    'h.0.ln_1'
    >>> name_of(["onnx::Mul_12"], "", "layer@node[7]")
    'layer@node[7]'
    """
    names = [name for name in parameters if 0 < len(name) <= _MOST_READ]
    norms = {found["norm"] if (found := _ROLE.fullmatch(name)) else None for name in names}
    if len(norms) == 1 and (only := norms.pop()):
        return only
    if len(names) > 1 and not any(_NUMBERED.fullmatch(name) for name in names):
        shared = re.match(r".*(?=[./_:])", commonprefix(names))  # noqa: RUF071 - names, cut where a part of one ends
        if shared and re.search(r"[A-Za-z]", shared[0]):
            return shared[0].rstrip("./_:")
    return node or otherwise


def unique_names(records: Sequence[NormRecord]) -> list[NormRecord]:
    """Give the same records; those of a name that was had before are called by their node, or numbered from 2."""
    taken: set[str] = {record.name for record in records}
    seen: dict[str, int] = {}
    named = []
    for record in records:
        name, count = record.name, seen.get(record.name, 0) + 1
        if count > 1:
            name = record.node
            while not name or name in taken:
                name = f"{record.name}#{count}"
                count += name in taken
            taken.add(name)
        seen[record.name] = count
        named.append(record if name == record.name else replace(record, name=name))
    return named
