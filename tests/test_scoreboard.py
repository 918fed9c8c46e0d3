# SPDX-License-Identifier: MIT
"""This file makes a scoreboard of one implementation, and holds the page against what the grades and replays say."""

import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from layernorm.conformance.conform import report
from layernorm.conformance.known import known
from layernorm.conformance.replays import REPLAYS

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks/scoreboard.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    SCRIPT["main"](["numpy", "--folder", str(folder)])
    return folder


def row(page, *starts):
    (found,) = [line for line in page.splitlines() if line.startswith("| " + " | ".join(starts) + " |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_page_says_what_the_grades_are(norm, folder):
    page = (folder / "scoreboard.md").read_text(encoding="utf-8")
    section = page.partition(f"## {'Layer' if norm == 'layer' else 'RMS'} norm\n")[2].partition("\n## ")[0]
    grades = report(known("numpy", norm), quick=True).grades
    asked = [g for g in grades if g.verdict != "not-applicable"]
    failed = [g for g in asked if g.verdict == "fails"]
    assert failed
    cells = row(section, "numpy", known("numpy").version)
    assert cells[2] == f"{len(asked) - len(failed)} of {len(asked)}"
    assert cells[3] == f"{failed[0].property}, at `{failed[0].at}`"
    assert cells[4] == f"`layernorm conform numpy{' --norm rms' if norm == 'rms' else ''} --quick`"
    for g in grades:
        said = row(section, g.property)[1]
        assert said.startswith("**") == (g.verdict == "fails"), g
        assert (said == "n/a") == (g.verdict == "not-applicable"), g
        if g.verdict == "holds":
            assert float(said) == pytest.approx(g.worst, abs=0.006)


def test_every_report_is_on_the_page_with_its_link(folder):
    page = (folder / "scoreboard.md").read_text(encoding="utf-8")
    said = {"n/a": None, "**still**": True, "·": False}
    for replay in REPLAYS:
        cells = row(page, f"[{replay.name}]({replay.link})")
        assert said[cells[2]] == replay.still(known("numpy", replay.norm, replay.eps)), replay.name


def test_the_plot_has_a_line_for_it(folder):
    assert "svg" in (folder / "scoreboard.svg").read_text(encoding="utf-8")
    errors = [SCRIPT["offset_error"](known("numpy").forward, 1e-5, offset) for offset in (0.0, 1e5)]
    assert errors[0] < 4
    assert errors[1] > 1000


def test_labels_keep_their_distance_and_their_order_and_stay_near():
    heights = {"a": 1.0, "b": 1.0, "c": 1.3, "d": 5.0, "e": 11.7, "f": 11.7}
    placed = SCRIPT["spaced"](heights)
    assert sorted(placed, key=lambda n: placed[n]) == list(heights)
    ordered = list(placed.values())
    assert min(b - a for a, b in pairwise(ordered)) >= 0.479
    assert placed["d"] == 5.0
    assert max(abs(placed[n] - heights[n]) for n in heights) < 0.6


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        SCRIPT["main"](["numppy"])
    assert "numppy: not known" in capsys.readouterr().err
