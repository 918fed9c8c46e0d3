# SPDX-License-Identifier: MIT
"""This file is `layernorm explain CODE`: the page of a named norm, a field of NormSpec, a property, or a finding."""

import difflib
import json
import re
import textwrap

import typer

from layernorm.comparing.checks import CODES
from layernorm.comparing.checks import page_of as difference_page
from layernorm.conformance.properties import PROPERTIES
from layernorm.models.risks import CHECKS
from layernorm.models.risks import page_of as finding_page
from layernorm.spec.errors import NotFoundError
from layernorm.spec.norm_spec import NormSpec
from layernorm.spec.variants import ROWS, Variant


def explain(
    code: str = typer.Argument("", metavar="[CODE]", help="A named norm, a field of NormSpec, a property, a finding."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> int:
    """Print what a norm computes and who says so, what a field means, what a property or finding checks; or all."""
    page = page_of(code) if code else contents()
    typer.echo(json.dumps({"schema": "layernorm.explain/1", "code": code, "page": page}) if as_json else page)
    return 0


def contents() -> str:
    """List every code that has a page.

    >>> print(contents().splitlines()[0])
    Named norms:
    """
    listed = {"Named norms": [row.name for row in ROWS], "Fields of NormSpec": list(_fields()),
              "Properties that conform grades": list(PROPERTIES),
              "Findings of inspect": list(CHECKS), "Findings of compare": list(CODES)}  # fmt: skip
    wrap = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n\n".join(f"{title}:\n{wrap.fill(', '.join(names))}" for title, names in listed.items())


def page_of(code: str) -> str:
    """Write the page of a code.

    Raises:
        NotFoundError: there is none.

    >>> print(page_of("shift_axes"))
    shift_axes: the same for beta.
    """
    variants, fields = {row.name: row for row in ROWS}, _fields()
    if code in variants:
        return _variant_page(variants[code])
    # axes and statistics are two things: what the field means comes first, then what is checked of it
    pages = [f"{code}: {fields[code]}"] if code in fields else []
    if code in PROPERTIES:
        from layernorm.conformance.grade import page_of as property_page

        pages.append(property_page(code))
    if code in CHECKS:
        pages.append(finding_page(code))
    if code in CODES:
        # what compare checks is a second part of the page where inspect checks something, too
        pages.append(("In two models\n\n" if code in CHECKS else "") + difference_page(code))
    if pages:
        return "\n\n".join(pages)
    near = difflib.get_close_matches(code, [*variants, *fields, *PROPERTIES, *CHECKS, *CODES], 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "layernorm explain lists them all."
    raise NotFoundError(f"{code}: no such page; {hint}", code)


def _variant_page(row: Variant) -> str:
    spelled = "\n".join(f"  {framework:9}{text}" for framework, text in row.spec.spelling().items())
    note = f"\n{textwrap.fill(row.note, 110)}\n" if row.note else ""
    return f"{row.name} ({row.spec.kind} norm)\n\n  {row.spec}\n{note}\nSpelled\n{spelled}\n\nSource: {row.source}"


def _fields() -> dict[str, str]:
    """Take what each field means from NormSpec's own docstring, where it is written once."""
    _, _, described = (NormSpec.__doc__ or "").partition("Args:\n")
    described, _, _ = described.partition("Raises:")
    entries = re.split(r"\n {8}(?=\w+: )", "\n" + textwrap.dedent(described).replace("\n", "\n        "))
    pairs = (entry.partition(": ") for entry in entries if ": " in entry)
    return {name.strip(): " ".join(text.split()) for name, _, text in pairs}
