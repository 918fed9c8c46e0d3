# SPDX-License-Identifier: MIT
"""This file runs the benchmark's parts on small things: what is checked, timed, merged and written."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))
    try:
        return runpy.run_path(str(FOLDER / "bench.py"))
    finally:
        sys.path.remove(str(FOLDER))


def test_contenders_are_checked_and_timed_in_their_processes(bench):
    cell = bench["Cell"]("layer_norm", "float32", (4, 64))
    with bench["workers"](["ours", "numpy", "copy by numpy"]) as among:
        found = bench["measured"](cell, among, 1)
        assert found["not"] == {}
        assert found["ours_us"] > 0
        assert found["peers"].keys() == {"numpy"}
        assert found["copy_by"] == "numpy"
        backward = bench["measured"](bench["Cell"]("layer_norm_backward", "float32", (4, 64), False), among, 1)
        assert backward["not"] == {"numpy": "it has no such operation"}


def test_a_wrong_result_is_not_timed(bench, monkeypatch):
    sys.path.insert(0, str(FOLDER))
    import contenders

    sys.path.remove(str(FOLDER))
    cell = contenders.Cell("layer_norm", "float32", (4, 64))
    monkeypatch.setitem(contenders.CONTENDERS, "broken", lambda cell, a, threads: (lambda: None, lambda: a["x"]))
    assert contenders._prepare("broken", 1, cell)[1]["off"] > 1
    assert contenders._prepare("numpy", 1, cell)[1]["off"] < 1
    x = cell.arrays()["x"].astype(np.float64)
    exact, _ = contenders.right(cell, cell.arrays() | {"gamma": np.ones(64), "beta": np.zeros(64)}, slice(0, 4))
    np.testing.assert_allclose(exact, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5))


def some_run(ours, torch):
    cell = {"op": "layer_norm", "dtype": "float32", "shape": [1, 768], "threads": 2, "out": True, "after": "",
            "ours_us": ours, "copy_us": 1.0, "copy_by": "numpy", "peers": {"torch": torch, "jax.jit": 10.0},
            "spread": {}, "not": {}}  # fmt: skip
    return {"machine": "a machine", "versions": {"python": "3"}, "threads": 2, "cells": [cell], "line": [cell],
            "starts_s": {"ours, cold": ours}, "allocated_bytes": {"without": 64 * 2**20}}  # fmt: skip


def test_runs_are_merged_by_their_medians_and_every_cell_is_on_the_page(bench, tmp_path):
    runs = [some_run(2.0, 3.0), some_run(1.0, 4.0), some_run(4.0, 2.0)]
    whole = bench["merged"](runs)
    (cell,) = whole["cells"]
    assert (cell["ours_us"], cell["peers"]["torch"], whole["runs"]) == (2.0, 3.0, 3)
    assert cell["ratios"] == [1.5, 4.0, 0.5]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/performance.md").write_text(
        "before <!-- tables --><!-- end of tables --> <!-- around -->what was<!-- end of around --> after",
        encoding="utf-8",
    )
    (tmp_path / "README.md").write_text("<!-- speed -->\n<!-- end of speed -->", encoding="utf-8")
    bench["report"](whole, tmp_path)
    page = (tmp_path / "docs/performance.md").read_text(encoding="utf-8")
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "what was" not in page
    assert "| layer_norm float32 1×768 | 2 | 3 torch | **1.50** (0.50 to 4.00) | 1 numpy | 2.00 | jax.jit 10 |" in page
    assert "Geometric mean of peer / ours: **1.50**. Below 1.1: none." in page
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| forward 1×768 | 2 | 3 torch | 1.50 (0.50 to 4.00) | 1 |" in readme
    assert "Of all 1 cells a peer is faster in: none; ours is less than 1.1 times as fast in: none." in readme
    assert (tmp_path / "docs/performance.svg").exists()
    with pytest.raises(SystemExit, match="there are no marks"):
        bench["between"]("nothing", "speed", "text")


def test_a_slower_cell_is_shown_as_one(bench):
    text = bench["tables"](bench["merged"]([some_run(4.0, 2.0)]))
    assert "**0.50**" in text
    assert "Below 1.1: layer_norm float32 1×768 (0.50)." in text


def test_the_committed_runs_are_what_the_pages_say(bench):
    runs = sorted((FOLDER / "results").glob("*.json"))
    assert runs
    whole = bench["merged"]([json.loads(path.read_text(encoding="utf-8")) for path in runs])
    root = FOLDER.parent
    assert bench["tables"](whole) in (root / "docs/performance.md").read_text(encoding="utf-8")
    assert bench["first_table"](whole) in (root / "README.md").read_text(encoding="utf-8")
