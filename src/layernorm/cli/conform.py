# SPDX-License-Identifier: MIT
"""This file is `layernorm conform TARGET`: an implementation graded, property by property."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layernorm.cli.progress import progress

if TYPE_CHECKING:
    from layernorm.conformance.conform import Report

FAILS = 1


class Which(StrEnum):
    """The norms that a known target may have."""

    LAYER = "layer"
    RMS = "rms"


def conform(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An implementation (torch, jax, …), module:function, an ONNX file.")
    ],
    norm: Annotated[Which | None, typer.Option("--norm", help="Which norm of a known implementation.")] = None,
    spec: Annotated[str | None, typer.Option("--spec", help="The named norm that module:function computes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="PROPERTY", help="Grade this one; may be repeated.")] = None,
    case: Annotated[str | None, typer.Option(metavar="NAME", help="Run the one case of this name.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Write the worst row's arrays.")] = None,
) -> int:
    """Grade an implementation of a norm: every property, its verdict, and the worst case by name."""
    # loaded here: NumPy, ml_dtypes and the properties are nothing that `layernorm --help` should wait for
    from layernorm.conformance.conform import known_properties, report, report_of_case
    from layernorm.conformance.known import resolve
    from layernorm.conformance.worst import checked_path
    from layernorm.report.text import conform_text

    if save is not None:
        checked_path(save)
    wanted = known_properties(only or None)
    with _stdout_to_stderr():
        made = resolve(target, None if norm is None else norm.value, spec)
        if case is not None:
            found = report_of_case(made, case, wanted)
        else:
            with progress("grading") as tell:
                found = report(made, quick=quick, only=wanted, progress=tell)
    if as_json:
        saved = _save(found, save)  # first, for of a report and an error only one may be printed
        typer.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        command = f"layernorm conform {target}"
        command += "" if norm is None else f" --norm {norm.value}"
        command += "" if spec is None else f" --spec {spec}"
        typer.echo(conform_text(found, command))
        saved = _save(found, save)
    if saved is not None:
        typer.echo(f"saved {save}: {saved}", err=True)
    return 0 if found.holds else FAILS


def _save(found: "Report", path: Path | None) -> str | None:
    from layernorm.conformance.worst import save_worst

    if path is None:
        return None
    with _stdout_to_stderr():
        return save_worst(found, path)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Keep what a target prints out of the answer, whether it does so from Python or from C."""
    with contextlib.ExitStack() as stack:
        try:
            kept, other = os.dup(1), os.dup(2)
        except OSError:  # one of them was closed before the command began, and nothing is to be kept apart
            yield
            return
        stack.callback(os.close, kept)
        sys.stdout.flush()
        stack.callback(os.dup2, kept, 1)
        os.dup2(other, 1)
        # an object of its own, so that a target which closes or replaces sys.stdout does so to this one
        aside = stack.enter_context(open(other, "w", encoding="utf-8", errors="replace", buffering=1))  # noqa: PTH123
        stack.enter_context(contextlib.redirect_stdout(aside))
        yield
