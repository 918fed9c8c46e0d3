# SPDX-License-Identifier: MIT
"""This file runs `layernorm compare` as a user does: a verdict, a document, an exit status."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from onnx import helper
from onnx_files import constants, model, save

import layernorm as ln
from layernorm.cli import run

SCHEMAS = {
    name: json.loads((Path(__file__).parents[1] / f"schema/{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("compare", "error")
}
W, B = np.linspace(0.5, 1.5, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)


def two_norms(folder, name, beta=True, **second):
    """Write a model of two layer norms, of which the second may be told another way."""
    attributes = {"axis": -1, "epsilon": 1e-12} | second
    names = ["y1", "w2", *(["b2"] if beta else [])]
    nodes = [
        helper.make_node("LayerNormalization", ["x", "w1", "b1"], ["y1"], "first", axis=-1, epsilon=1e-12),
        helper.make_node("LayerNormalization", names, ["y"], "second", **attributes),
    ]
    held = constants(w1=W, b1=B, w2=W + 1, b2=B - 1)
    return save(folder, model(nodes, held), f"{name}.onnx")


def said(capsys, *words):
    status = run(["compare", *map(str, words)])
    return status, capsys.readouterr().out


def test_a_model_is_the_same_as_itself(tmp_path, capsys):
    a, b = two_norms(tmp_path, "a"), two_norms(tmp_path, "b")
    status, text = said(capsys, a, b)
    assert status == 0
    assert "Verdict: same; the norms are the same." in text
    assert "2 pairs: 2 by name." in text


FAULTS = {"eps-value": {"epsilon": 1e-5}, "axes": {"axis": -2}, "beta-missing": {"beta": False}}


@pytest.mark.parametrize("code", FAULTS)
def test_the_first_culprit_is_named_with_its_cause(tmp_path, capsys, code):
    a, b = two_norms(tmp_path, "a"), two_norms(tmp_path, "b", **FAULTS[code])
    status, text = said(capsys, a, b, "--json")
    document = json.loads(text)
    jsonschema.validate(document, SCHEMAS["compare"])
    assert (status, document["verdict"]) == (1, "differs")
    assert document["headline"].startswith(f"{document['pairs'][1]['a']}: ")
    assert [(f["code"], f["severity"]) for f in document["findings"]] == [(code, "major")]
    # the norm that is at fault is the second, whose input agrees
    assert [pair["status"] for pair in document["pairs"]] == ["equal", "introduces"]
    assert document["ran"] == {"a": True, "b": True}
    status, text = said(capsys, a, b)
    assert status == 1
    assert f"layernorm explain {code}" in text


def test_arrays_of_ones_own_and_a_map(tmp_path, capsys):
    a, b = two_norms(tmp_path, "a"), two_norms(tmp_path, "b", epsilon=1e-5)
    np.savez(tmp_path / "x.npz", x=np.float32(100 * np.arange(24)).reshape(2, 3, 4))
    status, text = said(capsys, a, b, "--inputs", tmp_path / "x.npz", "--json")
    # on rows of large values the epsilon does not show, but the specs differ all the same
    assert (status, json.loads(text)["verdict"]) == (1, "differs")
    first = ln.inspect(a).norms[0].name
    (tmp_path / "map.json").write_text(json.dumps({first: first}))
    status, text = said(capsys, a, b, "--map", tmp_path / "map.json", "--json")
    assert [pair["rule"] for pair in json.loads(text)["pairs"]] == ["map", "name"]


@pytest.mark.parametrize("option", ["--inputs", "--map"])
def test_what_cannot_be_read_is_refused_in_one_document(tmp_path, capsys, option):
    a = two_norms(tmp_path, "a")
    (tmp_path / "bad").write_bytes(b"{[")
    for path in (tmp_path / "bad", tmp_path / "absent", tmp_path):
        status, text = said(capsys, a, a, option, path, "--json")
        assert status == 2
        jsonschema.validate(json.loads(text), SCHEMAS["error"])


def test_two_models_without_norms_are_not_called_the_same(tmp_path, capsys):
    none = save(tmp_path, model([helper.make_node("Relu", ["x"], ["y"])]))
    status, text = said(capsys, none, none)
    assert status == 2
    assert "Verdict: inconclusive" in text
    assert "No pairs." in text


def test_weights_without_a_graph_are_replayed_on_one_that_runs(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    state = {"norm1.weight": W, "norm1.bias": B, "norm2.weight": W + 1, "norm2.bias": B - 1}
    path = tmp_path / "weights.pt"
    torch.save({name: torch.tensor(value) for name, value in state.items()}, path)
    graph = two_norms(tmp_path, "a")
    status, text = said(capsys, graph, path, "--json")
    document = json.loads(text)
    # a state dict says neither epsilon nor kind, so nothing could be shown to agree
    assert (status, document["verdict"]) == (2, "inconclusive")
    assert [pair["rule"] for pair in document["pairs"]] == ["values", "values"]
    assert document["ran"] == {"a": True, "b": False}


def test_live_modules(capsys):
    torch = pytest.importorskip("torch")
    a, b = (torch.nn.Sequential(torch.nn.LayerNorm(4, eps=eps)) for eps in (1e-5, 1e-3))
    assert ln.compare(a, a).verdict == "same"
    comparison = ln.compare(a, b)
    assert comparison.verdict == "differs"
    assert [finding.code for finding in comparison.findings] == ["eps-value"]
    assert repr(comparison).endswith("differs>")
