# SPDX-License-Identifier: MIT
"""This file is `layernorm explain CODE`: the page of a norm, a field, a column, a property, or a finding."""

import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

import typer

from layernorm.spec.errors import NotFoundError
from layernorm.spec.norm_spec import NormSpec


class Shelf(NamedTuple):
    """Codes of one sort, and what writes the pages of one of them."""

    codes: tuple[str, ...]
    pages: Callable[[str], Iterable[str]]


def explain(
    code: str = typer.Argument("", metavar="[CODE]", help="A named norm, a field, a column, a property, a finding."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> int:
    """Print what a norm computes and whose it is, what a field means, what a check looks for; or list all."""
    page = page_of(code) if code else contents()
    typer.echo(json.dumps({"schema": "layernorm.explain/1", "code": code, "page": page}) if as_json else page)
    return 0


def contents() -> str:
    """List every code that has a page.

    >>> print(contents().splitlines()[0])
    Named norms:
    """
    wrap = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n\n".join(f"{title}:\n{wrap.fill(', '.join(shelf.codes))}" for title, shelf in _shelves().items())


def page_of(code: str) -> str:
    """Write the page of a code, in whatever case it is written, with - or _ or a space between its words.

    A word that is on several shelves, as `statistics` is, has a page from each.

    Raises:
        NotFoundError: there is none.

    >>> print(page_of("Shift-Axes"))
    shift_axes: the same for beta.
    """
    shelves = _shelves().values()
    meant = [(shelf, own) for shelf in shelves for own in shelf.codes if _plain(own) == _plain(code)]
    found = [page for shelf, own in meant for page in shelf.pages(own)]
    if found:
        return "\n\n".join(dict.fromkeys(found))  # each once, for a field may be a column, too
    every = {_plain(own): own for shelf in shelves for own in shelf.codes}
    near = [every[word] for word in difflib.get_close_matches(_plain(code), every, 3)]
    hint = f"did you mean {' or '.join(near)}?" if near else "layernorm explain lists them all."
    raise NotFoundError(f"{code}: no such page; {hint}", code)


def _plain(code: str) -> str:
    return re.sub(r"[\s_-]+", "-", code.strip().casefold())


def _shelves() -> dict[str, Shelf]:
    # loaded here: NumPy, which some of these load, is nothing that `layernorm --help` should wait for
    from layernorm.comparing.checks import CODES
    from layernorm.comparing.checks import page_of as difference
    from layernorm.conformance.grade import page_of as graded
    from layernorm.conformance.properties import PROPERTIES
    from layernorm.models.norm_record import NormRecord
    from layernorm.models.risks import CHECKS
    from layernorm.models.risks import page_of as finding
    from layernorm.report.norm_table import COLUMNS
    from layernorm.spec.variants import ROWS

    fields = _arguments(NormSpec)
    kind = (NormSpec.kind.__doc__ or "").removeprefix("Name ")
    said = _arguments(NormRecord) | fields | {"kind": kind}
    columns = COLUMNS | {sign: COLUMNS[name] for name, sign in (("gamma", "γ"), ("beta", "β"))}
    return {
        "Named norms": Shelf(tuple(row.name for row in ROWS), lambda code: [_variant(code)]),
        "Fields of NormSpec": Shelf(tuple(fields), lambda code: [f"{code}: {fields[code]}"]),
        "Columns of inspect": Shelf(tuple(columns), lambda code: (f"{name}: {said[name]}" for name in columns[code])),
        "Properties that conform grades": Shelf(tuple(PROPERTIES), lambda code: [graded(code)]),
        "Findings of inspect": Shelf(tuple(CHECKS), lambda code: [finding(code)]),
        # what compare checks is a second part of the page where inspect checks something, too
        "Findings of compare": Shelf(
            tuple(CODES), lambda code: [("In two models\n\n" if code in CHECKS else "") + difference(code)]
        ),
    }


def _variant(name: str) -> str:
    from layernorm.spec.variants import ROWS

    row = next(row for row in ROWS if row.name == name)
    spelled = "\n".join(f"  {framework:9}{text}" for framework, text in row.spec.spelling().items())
    note = f"\n{textwrap.fill(row.note, 110)}\n" if row.note else ""
    return f"{row.name} ({row.spec.kind} norm)\n\n  {row.spec}\n{note}\nSpelled\n{spelled}\n\nSource: {row.source}"


def _arguments(kind: type) -> dict[str, str]:
    """Take what each field of a class means from its own docstring, where it is written once."""
    _, _, described = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
    described = re.split(r"\n(?:\n|\S)", described)[0]
    entries = re.split(r"^ {4}(?=\w[\w, ]*: )", described, flags=re.MULTILINE)
    pairs = (entry.partition(": ") for entry in entries if ": " in entry)
    return {name.strip(): " ".join(text.split()) for names, _, text in pairs for name in names.split(",")}
