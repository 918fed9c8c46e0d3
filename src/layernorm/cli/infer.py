# SPDX-License-Identifier: MIT
"""This file is `layernorm infer X.npy Y.npy`: which norm turns one array into another."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from layernorm.cli.progress import progress

NONE_FITS = 1


def infer(
    x: Annotated[Path, typer.Argument(metavar="X.npy", help="What went into the norm.")],
    y: Annotated[Path, typer.Argument(metavar="Y.npy", help="What came out of it.")],
    gamma: Annotated[Path | None, typer.Option(metavar="G.npy", help="Its scale, if it is known.")] = None,
    beta: Annotated[Path | None, typer.Option(metavar="B.npy", help="Its shift, if it is known.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Find the norm that turns X into Y, those that these numbers cannot tell from it, and an input that would."""
    # loaded here: NumPy is nothing that `layernorm --help` should wait for
    from layernorm.comparing.dump import read_array
    from layernorm.report.inference import infer as ask

    arrays = [read_array(path) for path in (x, y)]
    known = [None if path is None else read_array(path) for path in (gamma, beta)]
    with progress(f"looking for a norm that turns {x.name} into {y.name}"):
        found = ask(*arrays, *known)
    if as_json:
        typer.echo(json.dumps(found.document(), allow_nan=False))
    else:
        typer.echo(found.text(shutil.get_terminal_size((80, 24)).columns))
    return NONE_FITS if found.spec is None else 0
