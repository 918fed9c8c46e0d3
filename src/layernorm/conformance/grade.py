# SPDX-License-Identifier: MIT
"""This file grades a target: every property over its cases, the worst one kept with its name."""

import ast
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Literal

import numpy as np

from layernorm.conformance.inputs import Case
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.targets import Target, printable, told

Verdict = Literal["holds", "fails", "not-applicable", "error"]


@dataclass(frozen=True)
class Grade:
    """What one property came to: its verdict, and the worst case with its error.

    `worst` is in units of the allowed error, so that at most 1 holds; `ulp` is the same error in ulp of the output.
    """

    property: str
    verdict: Verdict
    worst: float | None
    ulp: float | None
    at: str | None
    cases: int
    why: str | None = None


class _Quiet:
    """Ignores warnings while any thread is inside.

    One catch_warnings a thread would not do: when two overlap, the second puts back what the first had set.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *fault: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.__exit__(None, None, None)


QUIET = _Quiet()


def grade(
    target: Target, *, quick: bool = False, only: Iterable[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Grade, ...]:  # fmt: skip
    """Grade a target on every property, in the order in which a first failure names the fault."""
    wanted = PROPERTIES if only is None else tuple(p for p in PROPERTIES if p in set(only))
    grades = []
    for name in wanted:
        if progress is not None:
            progress(name)
        grades.append(_grade(name, target, quick))
    return tuple(grades)


def cases_of(name: str, target: Target, quick: bool) -> Iterator[Case]:
    """Give a property's cases that the types can hold."""
    module = property_module(name)
    yield from (case for case in module.cases(target, quick) if case.is_finite)


def property_module(name: str) -> ModuleType:
    """Load the file of a property."""
    return import_module(f"layernorm.conformance.properties.{name.replace('-', '_')}")


def page_of(name: str) -> str:
    """Give a property's page, its file's docstring."""
    source = property_source(name)
    return ast.get_docstring(ast.parse(source)) or ""


def property_source(name: str) -> str:
    """Read the file of a property."""
    from importlib.resources import files

    return (files("layernorm.conformance.properties") / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")


def grade_case(name: str, target: Target, case: Case) -> Grade:
    """Grade a target on one case of a property that it does not refuse."""
    try:
        # a stranger's code may warn of an overflow; whether it is one, its answer says
        with QUIET, np.errstate(all="ignore"):
            found = property_module(name).measure(target, case)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # whatever a stranger's code raises is its grade, sys.exit() too
        return Grade(name, "error", None, None, str(case), 1, told(fault))
    share = math.inf if math.isnan(found.share) else found.share
    why = None if found.why is None else printable(found.why)
    return Grade(name, "holds" if share <= 1 else "fails", share, found.ulp, str(case), 1, why)


def refusal_of(name: str, target: Target) -> Grade | None:
    """Give the grade `not-applicable` if a target has no way to show a property, else None."""
    why = property_module(name).refuses(target)
    return None if why is None else Grade(name, "not-applicable", None, None, None, 0, why)


def _grade(name: str, target: Target, quick: bool) -> Grade:
    if (refusal := refusal_of(name, target)) is not None:
        return refusal
    worst, count = None, 0
    for case in cases_of(name, target, quick):
        found = grade_case(name, target, case)
        count += 1
        if worst is None or found.worst is None or found.worst > (worst.worst or 0):
            worst = found
        if found.verdict == "error":
            break
    if worst is None:
        return Grade(name, "not-applicable", None, None, None, 0, "no case fits its types")
    return replace(worst, cases=count)
