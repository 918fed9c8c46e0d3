# SPDX-License-Identifier: MIT
"""This file sees that one fault does not cost the scoreboard its minutes of grading."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layernorm.conformance.known import known
from layernorm.conformance.replays import REPLAYS

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks/scoreboard.py"))


def test_the_folder_is_made_before_anything_is_graded(tmp_path, monkeypatch):
    def graded(*_):
        raise LookupError("graded")

    monkeypatch.setitem(SCRIPT["main"].__globals__, "grades", graded)
    with pytest.raises(LookupError, match="graded"):
        SCRIPT["main"](["numpy", "--folder", str(tmp_path / "a/b/c")])
    assert (tmp_path / "a/b/c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        SCRIPT["main"](["numpy", "--folder", str(tmp_path / "file")])


def test_a_replay_that_raises_costs_its_own_cell(monkeypatch, capsys):
    first = REPLAYS[0]

    def raises(x, gamma=None, beta=None):
        if np.array_equal(x, first.x()):
            raise RuntimeError("no such kernel")
        return known("numpy").forward(x, gamma, beta)

    def made(name, norm, eps):
        return replace(known(name, norm, eps), forward=raises)

    monkeypatch.setitem(SCRIPT["replays"].__globals__, "known", made)
    page = SCRIPT["replays"](["numpy"]).splitlines()
    (row,) = [line for line in page if first.name in line]
    assert row.endswith("| **error** |")
    assert f"numpy raised on {first.name}: RuntimeError: no such kernel" in capsys.readouterr().err
    assert len([line for line in page if "**still**" in line]) > 3
