# SPDX-License-Identifier: MIT
"""This package compares the norms of a pair: one file a check, whose docstring is its page.

A check is a function of everything compared that yields findings of its one code. The order below is that of causes: an
RMS norm in place of a layer norm also has another output in float16, and what is said first should be why.
"""

import importlib
from collections.abc import Iterator
from inspect import cleandoc

from layernorm.comparing.compared import Compared
from layernorm.models.norm_record import Finding

CODES = (
    "kind", "statistics", "groups", "group-order", "axes", "eps-lost", "eps-place", "eps-value", "ddof",
    "gamma-layout", "gamma-offset", "parameter-swapped", "gamma-missing", "beta-missing", "parameter-value",
    "overflow", "cancellation", "variance-form", "precision", "cast-order", "placement", "name-only", "folded",
    "unpaired",
)  # fmt: skip


def findings(compared: Compared) -> Iterator[Finding]:
    """Run every check."""
    for code in CODES:
        yield from _module(code).check(compared)


def page_of(code: str) -> str:
    """Give a check's page."""
    _, _, page = cleandoc(_module(code).__doc__ or "").partition("\n")
    return f"{code}: {page.strip()}"


def _module(code: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f"{__name__}.{code.replace('-', '_')}")
