# SPDX-License-Identifier: MIT
"""This file runs the README and the pages of docs/: snippets print what they say, commands and links exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {page: least for least, pages in {
    3: ["README.md"], 1: ["docs/index.md", "docs/family.md", "docs/call.md"], 2: ["docs/formula.md"],
}.items() for page in pages}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_print_what_the_page_says(page):
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= PAGES[page]
    shared: dict = {}  # one reader runs them one after the other
    for snippet in snippets:
        code = "\n".join(line for line in snippet.splitlines() if not line.startswith("#"))
        promised = "\n".join(line.removeprefix("# ") for line in snippet.splitlines() if line.startswith("# "))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), shared)
        assert printed.getvalue().rstrip("\n") == promised


@pytest.mark.parametrize("target", re.findall(r"^\$ make (\w+)", README, re.MULTILINE))
def test_the_commands_are_targets_of_the_makefile(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_both_commands_stand_in_the_first_screen():
    screen = "\n".join(README.splitlines()[:24])
    assert "$ make demo" in screen
    assert "$ make test" in screen


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", "docs/numerics.md", *PAGES])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|examples|docs)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
