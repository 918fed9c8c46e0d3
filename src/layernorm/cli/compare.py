# SPDX-License-Identifier: MIT
"""This file is `layernorm compare A B`: the first norm that differs, the cause in words, the number that proves it."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from layernorm.cli.progress import progress
from layernorm.spec.errors import ArgumentError, FileError
from layernorm.spec.files import opened

STATUS = {"same": 0, "differs": 1, "inconclusive": 2}


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A model file, the folder that holds one, or a norm card.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The one that is compared with it, of any format.")],
    inputs: Annotated[
        Path | None, typer.Option(metavar="F.npz", help="Run both on these arrays, by the names of A's inputs.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option("--map", metavar="F.json", help="Pairs of norms: {name in A: name in B}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Compare the norms of two models, and say which differs first and why."""
    # loaded here: NumPy and the formats are nothing that `layernorm --help` should wait for
    from layernorm.report.comparison import compare as side_by_side

    arrays, given = None if inputs is None else _arrays(inputs), None if names is None else _names(names)
    with progress(f"comparing {a.name} and {b.name}"):
        comparison = side_by_side(a, b, arrays, given)
    if as_json:
        typer.echo(json.dumps(comparison.document(), allow_nan=False))
    else:
        typer.echo(comparison.text(shutil.get_terminal_size((80, 24)).columns))
    return STATUS[comparison.verdict]


def _names(path: Path) -> dict[str, str]:
    from layernorm.models.formats.folder import unique

    try:
        with opened(path) as file:
            read = json.loads(file.read().decode("utf-8-sig"), object_pairs_hook=unique)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; pass a JSON file.", str(path)) from None
    except (ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise FileError(f"{path}: it is no JSON ({why}); write {{name in A: name in B}}.", str(path)) from None
    if not isinstance(read, dict) or not all(isinstance(name, str) for name in read.values()):
        raise ArgumentError(f"{path}: it holds no map of names; write {{name in A: name in B}}.", str(path))
    return read


def _arrays(path: Path) -> dict[str, Any]:
    import zipfile
    import zlib

    import numpy as np

    try:
        # opened here, for np.load leaves an archive that is cut off open
        with opened(path) as file, np.load(file, allow_pickle=False) as read:
            if not isinstance(read, np.lib.npyio.NpzFile):
                raise ValueError
            arrays = {name: read[name] for name in read.files}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError  # a member that is no .npy is given as its bytes
            return arrays
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; pass an .npz file.", str(path)) from None
    except (ValueError, AttributeError, TypeError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise FileError(
            f"{path}: it is no .npz file of plain arrays; write it with numpy.savez, an array for each input.",
            str(path),
        ) from None
