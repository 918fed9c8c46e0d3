# SPDX-License-Identifier: MIT
"""This file is `layernorm.conform`: a function graded against the exact answer, property by property."""

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layernorm.conformance import grade as grading
from layernorm.conformance.grade import Grade, grade
from layernorm.conformance.inputs import Case
from layernorm.conformance.known import of_function
from layernorm.conformance.measure import exact_of, parameters_of
from layernorm.conformance.oracle import error, ulp
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
        modules = {p: grading.property_module(p) for p in PROPERTIES}
        wanted = tuple(
            p for p, m in modules.items() if m.refuses(target) is None and case in set(m.cases(target, False))
        )  # fmt: skip
        if not wanted:
            raise ArgumentError(f"{name!r} is no case of any property for {target.name}; name one with --only.", name)
    return Report(target, tuple(_grade_on(target, p, case) for p in wanted))


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


def save_worst(found: Report, path: Path) -> str:
    """Write the arrays of the worst case, its worst row alone, as .npz; and say which row of which case that is.

    The file holds x, gamma, beta, y and exact (float64); bfloat16 is written as float32, which holds it.

    Raises:
        ArgumentError: nothing was measured, or the worst case cannot be made into rows.
    """
    worst = found.worst
    if worst is None or worst.at is None:
        raise ArgumentError(f"no case of {found.target.name} was measured, so there is none to save.", str(path))
    case = Case.parse(worst.at)
    gamma, beta = parameters_of(found.target, case)
    x = case.x
    with np.errstate(all="ignore"):
        y = np.asarray(found.target.forward(case.x, gamma, beta))
        exact = exact_of(found.target, x, gamma, beta).y
        off = error(y, exact) / ulp(exact.hi, case.dtype) if y.shape == x.shape else np.full(x.shape, np.nan)
    row = int(np.argmax(np.where(np.isnan(off), np.inf, off).max(axis=1)))
    arrays = {"x": x[row : row + 1], "y": y[row : row + 1], "exact": exact.hi[row : row + 1]}
    arrays |= {name: value for name, value in (("gamma", gamma), ("beta", beta)) if value is not None}
    kept = {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in arrays.items()}
    np.savez(path, allow_pickle=False, **kept, case=np.array(worst.at), row=np.array(row))
    return f"row {row} of {worst.at} ({worst.property})"


def _grade_on(target: Target, name: str, case: Case) -> Grade:
    module = grading.property_module(name)
    refusal = module.refuses(target)
    if refusal is not None:
        return Grade(name, "not-applicable", None, None, None, 0, refusal)
    try:
        with np.errstate(all="ignore"):
            found = module.measure(target, case)
    except Exception as fault:  # whatever a stranger's code raises is its grade
        return Grade(name, "error", None, None, str(case), 1, f"{type(fault).__name__}: {fault}")
    share = math.inf if math.isnan(found.share) else found.share
    return Grade(name, "holds" if share <= 1 else "fails", share, found.ulp, str(case), 1, found.why)


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
