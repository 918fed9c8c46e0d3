# SPDX-License-Identifier: MIT
"""This file is `layernorm inspect MODEL`: every norm that a model file holds, and what may go wrong with it."""

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from layernorm.cli.progress import progress
from layernorm.spec.errors import ArgumentError
from layernorm.spec.files import check_place, replacing

MET = 1


class Severity(StrEnum):
    """How much a finding changes."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder that holds one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    card: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the document with the parameters' values in it.")
    ] = None,
    fail_on: Annotated[
        Severity | None, typer.Option("--fail-on", help="Exit with 1 if a risk is at least this severe.")
    ] = None,
) -> int:
    """List the norms of a model: each one's whole specification, where it was read, and what may go wrong."""
    # loaded here: NumPy and the formats are nothing that `layernorm --help` should wait for
    from layernorm.report.inspection import inspect as look_into

    if card is not None:
        check_place(card)
        if card.exists() and model.exists() and card.samefile(model):
            raise ArgumentError(f"{card} is the model itself; give the card another name.", str(card))
    with progress(f"reading {model.name}"):
        seen = look_into(model)
    if card is not None:
        with replacing(card) as aside, aside.open("x", encoding="utf-8") as file:
            file.write(json.dumps(seen.document(values=True), allow_nan=False) + "\n")
    if as_json:
        typer.echo(json.dumps(seen.document(), allow_nan=False))
    else:
        typer.echo(seen.text(shutil.get_terminal_size((80, 24)).columns))
    severities = list(Severity)
    met = fail_on is not None and any(
        severities.index(Severity(risk.severity)) >= severities.index(fail_on) for risk in seen.risks
    )
    return MET if met else 0
