# SPDX-License-Identifier: MIT
"""This file shows on a terminal what a command that takes a while is doing; a pipe or a file gets nothing of it."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None] | None]:
    """Show on stderr what is being done, and give a function that adds on what; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    # loaded here: rich is nothing that a command in a pipe should wait for
    from rich.console import Console

    with Console(stderr=True).status(doing) as status:
        yield lambda what: status.update(f"{doing} {what}")
