# SPDX-License-Identifier: MIT
"""This package is the command line: one file a subcommand, and here what they share.

Exit status: 0 and 1 are the subcommand's answer, 2 says that it could not give one. With --json, stdout holds exactly
one document, the error document included.
"""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

import typer

from layernorm import __version__
from layernorm.cli.compare import compare
from layernorm.cli.conform import conform
from layernorm.cli.explain import explain
from layernorm.cli.explore import explore
from layernorm.cli.infer import infer
from layernorm.cli.inspect import inspect
from layernorm.spec.errors import ArgumentError, InterruptedByUserError, LayerNormError, UnsupportedError

COULD_NOT = 2
# What typer answers when it has caught a KeyboardInterrupt, which no subcommand does.
INTERRUPTED = 130
STDERR = 2
# pathlib takes an empty name for the folder that one is in
_EMPTY = re.compile(r"(?:--[\w-]+=)?")

app = typer.Typer(
    help="Layer normalization, done exactly, fast, and provably right everywhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(inspect)
app.command()(compare)
app.command()(infer)
app.command()(conform)
app.command()(explain)
app.command()(explore)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"layernorm {__version__}")
        raise typer.Exit


@app.callback()
def _all(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Layer normalization, done exactly, fast, and provably right everywhere."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit status; nothing but the answer goes to stdout."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a γ that a terminal cannot show must not end the command
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except OSError:  # the reader of a pipe has gone (head, for one), or the disk is full: nobody is left to tell
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        _discard(sys.stdout)
        return COULD_NOT


def _run(arguments: Sequence[str]) -> int:
    try:
        if arguments[:1] != ["explain"] and any(map(_EMPTY.fullmatch, arguments)):
            raise ArgumentError("an argument is empty, as of a variable that is not set; pass a name.")
        answer = app(list(arguments), standalone_mode=False)
        if answer == INTERRUPTED:
            raise KeyboardInterrupt
        return answer if isinstance(answer, int) else 0
    except LayerNormError as error:
        return _refuse(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse(InterruptedByUserError("stopped before the end; run it again for a whole answer."), arguments)
    except MemoryError as error:
        asked = f" ({error})" if str(error) else ""
        told = f"there is not memory enough{asked}; give it more, or a smaller model or array."
        return _refuse(UnsupportedError(told), arguments)
    except OSError:
        raise
    except Exception as error:
        # typer's own refusals: their class moved from click to typer, their shape did not
        if getattr(error, "exit_code", None) != COULD_NOT or not hasattr(error, "format_message"):
            raise
        message = error.format_message().rstrip(".?").replace(". Did you", "; did you") or "no command was given"
        return _refuse(ArgumentError(f"{message}; see layernorm --help."), arguments)


def _refuse(error: LayerNormError, arguments: Sequence[str]) -> int:
    # loaded here: NumPy, which they load, is nothing that `layernorm --help` should wait for
    from layernorm.conformance.targets import printable
    from layernorm.report.documents import error_document

    if "--json" in arguments:
        typer.echo(json.dumps(error_document(error)))
    typer.echo(f"layernorm: {printable(str(error))}", err=True)
    return COULD_NOT


def _fill_closed_places() -> None:
    """Open nothing as stdin, stdout and stderr where they are closed: the next file would be taken for one of them."""
    while (place := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(place)


def _discard(stream: TextIO) -> None:
    """Point a stream that cannot be written at nothing, so that Python does not stumble over it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main() -> None:
    """Run the command line of this process."""
    if sys.stderr is None or sys.stdout is None:
        _fill_closed_places()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lives as long as the process
    if sys.stdout is None:
        sys.stderr.write("layernorm: stdout is closed, so the answer has no place; send it to /dev/null or a file.\n")
        sys.exit(COULD_NOT)
    status = run(sys.argv[1:])
    # what a target's own code, or a buffer of C, still prints at exit is no part of the answer
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    sys.exit(status)
