# SPDX-License-Identifier: MIT
"""This file runs `layernorm infer` as a user does: an answer, a document, a refusal, an exit status."""

import json
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest

from layernorm.cli import run

SCHEMAS = {
    name: json.loads((Path(__file__).parents[1] / f"schema/{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("infer", "error")
}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 24)).astype(np.float32)
GAMMA, BETA = RNG.normal(1, 0.3, (2, 24)).astype(np.float32)


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    """Save what a layer norm with gamma and beta took and gave."""
    wide = X.astype(np.float64)
    y = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3) * GAMMA + BETA
    monkeypatch.chdir(tmp_path)
    for name, array in {"x": X, "y": y.astype(np.float32), "g": GAMMA, "b": BETA}.items():
        np.save(f"{name}.npy", array)
    return tmp_path


def test_an_answer_in_words(dumps, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["infer", "x.npy", "y.npy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "y = γ·(x − mean) / √(var + 0.001) + β over axes (-1)"
    assert lines[1].startswith("  fits: its largest error is 0.")
    assert lines[2].startswith("  γ of shape (24,) runs from ")
    assert "What would tell:" in lines
    assert max(map(len, lines)) <= 100


def test_a_document(dumps, capsys):
    assert run(["infer", "x.npy", "y.npy", "--gamma", "g.npy", "--beta", "b.npy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["infer"])
    assert (document["spec"]["kind"], document["spec"]["eps"]) == ("layer", 1e-3)
    assert document["residual"] <= 1
    assert document["others"][0]["residual"] > 1


def test_none_fits(dumps, capsys):
    np.save("z.npy", RNG.standard_normal(X.shape).astype(np.float32))
    assert run(["infer", "x.npy", "z.npy", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["infer"])
    assert document["spec"] is document["residual"] is None
    assert run(["infer", "x.npy", "z.npy"]) == 1
    assert capsys.readouterr().out.startswith("No norm of the kinds that are known here turns x into y.\n")


@pytest.mark.parametrize("options", [[], ["--gamma", "g.npy"]])
def test_no_norm_is_needed_where_nothing_changes(options, dumps, capsys):
    np.save("same.npy", X)
    assert run(["infer", "x.npy", "same.npy", *options, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["infer"])
    assert document["spec"] is document["residual"] is None
    assert document["would_tell"].startswith("an input a hundred times as large would tell: ")
    assert run(["infer", "x.npy", "same.npy", *options]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "y equals x in every value: no norm is needed to turn one into the other."


def test_bfloat16_as_ml_dtypes_saves_it(dumps, capsys):
    for name in ("x", "y"):
        np.save(f"{name}16.npy", np.load(f"{name}.npy").astype(ml_dtypes.bfloat16))
    assert np.load("x16.npy").dtype.kind == "V"
    x = np.load("x16.npy").view(ml_dtypes.bfloat16).astype(np.float64)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    np.save("y16.npy", y.astype(ml_dtypes.bfloat16))
    assert run(["infer", "x16.npy", "y16.npy"]) == 0
    assert capsys.readouterr().out.startswith("y = (x − mean) / ")


def damaged():
    np.save("pickled.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.savez("several.npz", a=X)
    Path("empty.npy").touch()
    Path("junk.npy").write_bytes(b"junk" * 9)
    whole = Path("x.npy").read_bytes()
    Path("short.npy").write_bytes(whole[:-5])
    Path("head.npy").write_bytes(whole[:20])
    Path("lies.npy").write_bytes(whole.replace(b"(8, 24), }  ", b"(80000000000, 24), }", 1))
    np.save("words.npy", np.array(["a", "b"]))
    np.save("other.npy", X[:4])


WRONG = {
    "missing.npy": ("unreadable", "missing.npy: No such file or directory; pass a .npy file."),
    ".": ("unreadable", ".: it is a device, a pipe or a folder; pass a plain file."),
    "pickled.npy": ("unsupported", "pickled.npy: it holds Python objects, which are pickled, and no pickle is read"),
    "several.npz": ("unsupported", "several.npz: not a .npy file; its first bytes are 50 4b 03 04 "),
    "empty.npy": ("unsupported", "empty.npy: not a .npy file; its first bytes are none."),
    "junk.npy": ("unsupported", "junk.npy: not a .npy file; its first bytes are 6a 75 6e 6b 6a 75."),
    "short.npy": ("unreadable", "short.npy: its header claims an array of shape (8, 24) and type float32, 768 b"),
    "head.npy": ("unreadable", "head.npy: a damaged .npy file: "),
    "lies.npy": ("unreadable", "lies.npy: "),
    "words.npy": ("bad-input", "x has type <U1, which is not normalized here"),
    "other.npy": ("bad-input", "x has shape (4, 24) but y has (8, 24); pass a norm's input and its output."),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_looked_at_exits_with_2_and_an_error_document(name, dumps, capsys):
    damaged()
    assert run(["infer", name, "y.npy", "--json"]) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    jsonschema.validate(document, SCHEMAS["error"])
    code, sentence = WRONG[name]
    assert document["error"]["code"] == code
    assert document["error"]["sentence"].startswith(sentence)
    assert said.err.count("\n") == 1
