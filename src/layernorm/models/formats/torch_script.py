# SPDX-License-Identifier: MIT
"""This file reads TorchScript's code: where the numbers of a norm stand that its modules do not keep."""

from __future__ import annotations

import ast
import re
from typing import Any

CALLED = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")
_CONSTANT = re.compile(r"^ +(\w+) : Final\[[^=\n]*\] = ([^\n]{1,200})$", re.MULTILINE)
_CALL = re.compile(rf"\btorch\.({'|'.join(CALLED)})\(([^\n]{{0,2000}})")
# Scripted code gives a function of torch.nn.functional a name of its own before it calls it.
_OTHER_NAME = re.compile(r"^ +(\w+) = __torch__\.torch\.nn\.functional\.(?:_\w+\.)?([a-z]+_norm)$", re.MULTILINE)
# Where the arguments that say something stand, in ATen's operators and in torch.nn.functional.
_ARGUMENTS = {
    "layer_norm": {1: "normalized_shape", 4: "eps"}, "rms_norm": {1: "normalized_shape", 3: "eps"},
    "group_norm": {1: "num_groups", 4: "eps"}, "batch_norm": {5: "training", 7: "eps"},
    "instance_norm": {5: "training", 7: "eps"},
}  # fmt: skip
# What ATen takes for an argument that a trace leaves out.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "layer_norm": {"eps": 1e-5}, "rms_norm": {"eps": None}, "group_norm": {"eps": 1e-5},
}  # fmt: skip
_VARIABLE = object()


def body_of(text: str, kind: str) -> str:
    """Find a class in a file of code."""
    begin = re.search(rf"^class {re.escape(kind)}\(Module\):$", text, re.MULTILINE)
    if begin is None:
        return ""
    body = text[begin.end() :]
    end = re.search(r"^class ", body, re.MULTILINE)
    return body[: end.start()] if end else body


def read_code(body: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Give what the code of a class says: its constants and the numbers in its first call of a norm; and all calls.

    >>> read_code("y = torch.layer_norm(x, [8], w, b, 0.25)")
    ({'eps': 0.25, 'normalized_shape': [8]}, ('layer_norm',))
    """
    names = dict(_OTHER_NAME.findall(body))
    if names:
        given_to = re.compile(rf"\b({'|'.join(names)})\(")
        body = given_to.sub(lambda found: f"torch.{names[found[1]]}(", body)
    calls = _CALL.findall(body)
    said: dict[str, Any] = {}
    for called, written in calls[:1]:
        given = _arguments(written)
        said = dict(_LEFT_OUT.get(called, {}))
        said |= {name: _literal(given[at]) for at, name in _ARGUMENTS[called].items() if at < len(given)}
    said |= {name: _literal(written) for name, written in _CONSTANT.findall(body)}
    known = {name: value for name, value in said.items() if value is not _VARIABLE}
    return known, tuple(called for called, _ in calls)


def _literal(written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return _VARIABLE


def _arguments(text: str) -> list[str]:
    """Cut the arguments of a call apart, up to the bracket that closes it.

    >>> _arguments("x, [4, 8], f(a, b), 1e-05), y)")
    ['x', '[4, 8]', 'f(a, b)', '1e-05']
    """
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            found.append(text[begin:at].strip())
            begin = at + 1
            if letter == ")":
                break
        depth += (letter in "([{") - (letter in ")]}")
    return found
