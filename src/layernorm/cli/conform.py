# SPDX-License-Identifier: MIT
"""This file is `layernorm conform TARGET`: an implementation graded, property by property."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from layernorm.spec.errors import ArgumentError

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
    from layernorm.conformance.worst import save_worst
    from layernorm.report.text import conform_text

    if save is not None and not save.absolute().parent.is_dir():
        raise ArgumentError(f"{save}: its folder does not exist; make it first.", str(save))
    wanted = known_properties(only or None)
    made = resolve(target, None if norm is None else norm.value, spec)
    if case is not None:
        found = report_of_case(made, case, wanted)
    else:
        with _progress() as progress:
            found = report(made, quick=quick, only=wanted, progress=progress)
    if as_json:
        typer.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        command = f"layernorm conform {target}"
        command += "" if norm is None else f" --norm {norm.value}"
        command += "" if spec is None else f" --spec {spec}"
        typer.echo(conform_text(found, command))
    if save is not None:
        typer.echo(f"saved {save}: {save_worst(found, save)}", err=True)
    return 0 if found.holds else FAILS


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """Show on a terminal which property is being graded."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("grading") as status:
        yield lambda name: status.update(f"grading {name}")
