# SPDX-License-Identifier: MIT
"""This file is `layernorm.conform`: a function graded against the exact answer, property by property."""

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from layernorm.conformance.grade import Grade, cases_of, grade, grade_case, refusal_of
from layernorm.conformance.inputs import Case
from layernorm.conformance.known import of_function
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.targets import Array, Backward, Target
from layernorm.spec.errors import ArgumentError, NotFoundError
from layernorm.spec.norm_spec import NormSpec

UNIT = "allowed error"


@dataclass(frozen=True)
class Report:
    """What a target was graded as: every property with its verdict and its worst case, printable and as a document."""

    target: Target
    grades: tuple[Grade, ...]

    @property
    def holds(self) -> bool:
        """Whether no property failed or ended in an error; those that are not applicable do not count."""
        return all(g.verdict in ("holds", "not-applicable") for g in self.grades)

    @property
    def worst(self) -> Grade | None:
        """The grade of the largest error, None if nothing was measured."""
        measured = [g for g in self.grades if g.worst is not None]
        return max(measured, key=lambda g: g.worst or 0.0, default=None)

    def to_json(self) -> dict[str, Any]:
        """Give the document `layernorm.conform/1`; numbers that are not finite are strings in it."""
        spec = self.target.spec.to_json()
        if isinstance(spec["eps"], float) and float(np.float32(spec["eps"])) == spec["eps"]:
            spec["eps"] = float(str(np.float32(spec["eps"])))  # a float32 is said by its own shortest decimal
        return {
            "schema": "layernorm.conform/1",
            "target": self.target.name,
            "version": self.target.version,
            "spec": spec,
            "properties": [
                {
                    "name": g.property,
                    "verdict": g.verdict,
                    "worst": _number(g.worst),
                    "unit": None if g.worst is None else UNIT,
                    "ulp": _number(g.ulp),
                    "at": g.at,
                    "cases": g.cases,
                    "why": g.why,
                }
                for g in self.grades
            ],
        }

    def __str__(self) -> str:
        applicable = [g for g in self.grades if g.verdict != "not-applicable"]
        held = sum(g.verdict == "holds" for g in applicable)
        lines = [f"{self.target.name}: {held} of {len(applicable)} properties hold"]
        for g in applicable:
            if g.verdict == "fails":
                lines.append(f"  {g.property} fails: {g.worst:.3g} times the allowed error at {g.at}")
            if g.verdict == "error":
                lines.append(f"  {g.property}: {g.why} at {g.at}")
        return "\n".join(lines)


def conform(
    fn: Callable[..., Array],
    spec: NormSpec | str,
    *,
    backward: Backward | None = None,
    dtypes: tuple[str, ...] = ("float32",),
    quick: bool = False,
    only: Iterable[str] | None = None,
    name: str | None = None,
) -> Report:
    """Grade a function that computes a norm, against exact answers and hard inputs.

    Args:
        fn: `fn(x, gamma, beta)` gives y, of x's shape and type: NumPy arrays, normalized over the last axis, gamma and
            beta of shape (width,) or None.
        spec: what it should compute; a NormSpec, or the name of a row of VARIANTS.
        backward: `backward(dy, x, gamma)` gives dx, dgamma and dbeta; without it no gradient is graded.
        dtypes: the types of x that it takes, of float16, bfloat16, float32 and float64.
        quick: fewer cases, for seconds instead of minutes.
        only: the properties to grade; all of them unless told. `layernorm explain` lists them.
        name: what to call it.

    Returns:
        A Report: `.holds`, `.grades` (a property, its verdict, its worst case by name), `.to_json()`; it prints.

    Raises:
        UnsupportedError: the spec is of a norm that is not graded, such as one over other axes.
        NotFoundError: `spec` or `only` names nothing.
        ArgumentError: fn or backward is no function, or a type is unheard of.

    >>> import numpy as np, layernorm as ln
    >>> def shaky(x, gamma=None, beta=None):
    ...     mean = x.mean(-1, keepdims=True)
    ...     return (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.float32(1e-5))
    >>> ln.conform(shaky, ln.NormSpec(), quick=True, only=["offset"]).holds
    False
    """
    target = of_function(fn, spec, name=name, backward=backward, dtypes=dtypes)
    return report(target, quick=quick, only=only)


def report(
    target: Target,
    *,
    quick: bool = False,
    only: Iterable[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Grade a target.

    Raises:
        NotFoundError: `only` names no property.
    """
    return Report(target, grade(target, quick=quick, only=known_properties(only), progress=progress))


def report_of_case(target: Target, name: str, only: Iterable[str] | None = None) -> Report:
    """Grade a target on the one case that bears this name: on the properties that have it, or on those told.

    Raises:
        ArgumentError: it is no name of a case, or no property has it.
        NotFoundError: `only` names no property.
    """
    case, wanted = Case.parse(name), known_properties(only)
    if wanted is None:
        shown = [p for p in PROPERTIES if refusal_of(p, target) is None]
        wanted = tuple(p for p in shown if case in set(cases_of(p, target, False)))
        if not wanted:
            raise ArgumentError(f"{name!r} is no case of any property for {target.name}; name one with --only.", name)
    return Report(target, tuple(refusal_of(p, target) or grade_case(p, target, case) for p in wanted))


def known_properties(only: Iterable[str] | None) -> tuple[str, ...] | None:
    """Pass the names of properties.

    Raises:
        NotFoundError: one is none.
    """
    if only is None:
        return None
    wanted = (only,) if isinstance(only, str) else tuple(only)
    for name in wanted:
        if name not in PROPERTIES:
            near = difflib.get_close_matches(name, PROPERTIES, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PROPERTIES)}."
            raise NotFoundError(f"{name}: no such property; {hint}", name)
    return wanted


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
