# SPDX-License-Identifier: MIT
"""This file is `layernorm.conform`: a function graded against the exact answer, property by property."""

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layernorm.conformance.grade import Grade, cases_of, grade, grade_case, refusal_of
from layernorm.conformance.inputs import Case
from layernorm.conformance.known import of_function
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.targets import Array, Backward, Gradients, Target
from layernorm.spec.errors import ArgumentError, NotFoundError
from layernorm.spec.norm_spec import NormSpec

UNIT = "allowed error"
# The values of a case by name: exact arithmetic takes some twenty arrays of doubles beside them.
LARGEST = 2**26


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
        ArgumentError: fn or backward is no function, a type is unheard of, or `only` is empty.

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
        ArgumentError: `only` is empty.
    """
    return Report(target, grade(target, quick=quick, only=known_properties(only), progress=progress))


def report_of_case(target: Target, name: str, only: Iterable[str] | None = None) -> Report:
    """Grade a target on the one case that bears this name: on the properties that have it, or on those told.

    Raises:
        ArgumentError: it is no name of a case, no property has it, or the target or a property cannot run it.
        NotFoundError: `only` names no property.
    """
    case, wanted = _case_of(name, target), known_properties(only)
    shown = [p for p in wanted or PROPERTIES if refusal_of(p, target) is None]
    cases = {p: {*cases_of(p, target, True), *cases_of(p, target, False)} for p in shown}
    if wanted is None:
        wanted = tuple(p for p in shown if case in cases[p])
        if not wanted:
            raise ArgumentError(f"{name!r} is no case of any property for {target.name}; name one with --only.", name)
    for p in set(shown) & set(wanted):
        forms = sorted({c.form for c in cases[p]})
        if case.form not in forms:
            has = f"one of form={', form='.join(forms)}" if any(forms) else "no form"
            raise ArgumentError(f"{name!r} is no case of {p}, whose cases have {has}; name one of those.", name)
    return Report(target, tuple(refusal_of(p, target) or _grade_alone(p, target, case) for p in wanted))


def _case_of(name: str, target: Target) -> Case:
    """Make the case of a name that anybody may have written."""
    short = repr(name if len(name) <= 200 else f"{name[:200]}…")
    try:
        case = Case.parse(name)
    except ValueError as fault:  # of a word that is no number, or of one too long to read
        raise ArgumentError(f"{short} is no case's name; a name looks like {str(Case(768))!r}.", name) from fault
    if not case.width:
        raise ArgumentError(f"{short} has rows of no columns, which have no norm; give d=1 or more.", name)
    if case.width * case.rows > LARGEST:
        raise ArgumentError(f"{short} is of more than {LARGEST} values; give fewer rows or columns.", name)
    if case.dtype not in target.dtypes:
        raise ArgumentError(
            f"{target.name} is not graded in {case.dtype}; name a case of {', '.join(target.dtypes)}.", name
        )  # fmt: skip
    if not (math.isfinite(case.offset) and math.isfinite(case.scale) and case.is_finite):
        raise ArgumentError(f"{short} has values beyond what {case.dtype} holds; give less offset or scale.", name)
    return case


def _grade_alone(name: str, target: Target, case: Case) -> Grade:
    found = grade_case(name, target, case)
    if found.verdict == "error" and grade_case(name, _mirror(target), case).verdict == "error":
        # not even an answer of the right shape and type can be measured on this case
        raise ArgumentError(f"{str(case)!r} does not fit {name} ({found.why}); name one of its cases.", str(case))
    return found


def _mirror(target: Target) -> Target:
    """Give a target that gives x and dy back."""

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        return x.copy()

    def gradients(dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        return dy.copy(), None if gamma is None else np.zeros_like(gamma), None

    return replace(
        target, forward=forward, backward=None if target.backward is None else gradients,
        in_place=None if target.in_place is None else lambda x: None,
        set_threads=None if target.set_threads is None else lambda count: None,
    )  # fmt: skip


def known_properties(only: Iterable[str] | None) -> tuple[str, ...] | None:
    """Pass the names of properties.

    Raises:
        NotFoundError: one is none.
        ArgumentError: there are none, or they are no names.
    """
    if only is None:
        return None
    if not isinstance(only, Iterable):
        raise ArgumentError(f"only={only!r} is a {type(only).__name__}; give names of properties.", "only")
    wanted = (only,) if isinstance(only, str) else tuple(only)
    if not wanted:
        raise ArgumentError("only names no property, so nothing would be graded; leave it out for all.", "only")
    for name in wanted:
        if name not in PROPERTIES:
            near = difflib.get_close_matches(str(name), PROPERTIES, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PROPERTIES)}."
            raise NotFoundError(f"{name}: no such property; {hint}", str(name))
    return tuple(dict.fromkeys(wanted))


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
