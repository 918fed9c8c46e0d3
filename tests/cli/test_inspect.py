# SPDX-License-Identifier: MIT
"""This file runs `layernorm inspect` as a user does: a table, a document, a card, a refusal, an exit status."""

import base64
import importlib
import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest

import layernorm as ln
from layernorm.cli import run
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import Evidence, Finding, Found, NormRecord, Unidentified
from layernorm.report.documents import inspect_document
from layernorm.report.inspection import Inspection
from layernorm.report.norm_table import inspect_text
from layernorm.spec.norm_spec import UNKNOWN
from layernorm.spec.variants import VARIANTS

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

SCHEMAS = {
    name: json.loads((Path(__file__).parents[1] / f"schema/{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("inspect", "error")
}


def tensor(name, array):
    array = np.asarray(array)
    return Tensor(name, array.shape, array.dtype.name, lambda: array)


GAMMA = np.array([1.5, np.nan, -np.inf], np.float32)
HALF = np.array([1, 2, 3], ml_dtypes.bfloat16)
BERT = NormRecord(
    name="encoder.layer.0.attention.output.LayerNorm", where="graph/node[17] LayerNormalization", form="fused",
    spec=replace(VARIANTS["bert"], variance_by=UNKNOWN), evidence={"eps": Evidence("attribute", "epsilon")},
    dtype="float32", size=384, placement="post", scale=tensor("w", GAMMA), shift=tensor("b", HALF),
)  # fmt: skip
OTHER = NormRecord(
    name="x", where="tensors", form="named", evidence={},
    spec=replace(
        VARIANTS["bert"], eps=UNKNOWN, centered=UNKNOWN, spread=UNKNOWN, scale_offset=UNKNOWN, shift_axes=UNKNOWN
    ),
)  # fmt: skip
RISK = Finding("eps-lost", "minor", BERT.name, "it is lost.", "find it.", {"eps": 1e-12, "worst": float("inf")})
FOUND = Found(
    [BERT, OTHER], [Unidentified("node[3]", "the axes are not constant.")], [RISK, replace(RISK, a="x")],
)  # fmt: skip
MODEL = ModelFile("model.onnx", "onnx", {})


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """A file whose norms are those above, whatever is in it."""
    monkeypatch.setattr("layernorm.models.formats.read_model", lambda path: replace(MODEL, path=str(path)))
    monkeypatch.setattr("layernorm.models.identify.identify", lambda model: FOUND)
    monkeypatch.chdir(tmp_path)


def test_the_document_is_one_and_valid(seen, capsys):
    assert run(["inspect", "model.onnx", "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    jsonschema.validate(document, SCHEMAS["inspect"])
    first, second = document["norms"]
    assert (document["file"], document["format"], said.err) == ("model.onnx", "onnx", "")
    assert (first["size"], second["size"], second["spec"]["eps"]) == (384, "unknown", "unknown")
    assert first["evidence"] == {"eps": {"source": "attribute", "detail": "epsilon"}}
    assert first["scale"] == {
        "name": "w", "shape": [3], "dtype": "float32", "min": "nan", "max": "nan", "mean": "nan", "values": None,
    }  # fmt: skip
    assert (first["shift"]["min"], first["shift"]["max"], first["shift"]["mean"]) == (1, 3, 2)
    assert (second["scale"], second["mean"], second["variance"]) == (None, None, None)
    assert document["unidentified"] == [{"where": "node[3]", "why": "the axes are not constant."}]
    assert document["risks"][0] == {
        "code": "eps-lost", "severity": "minor", "a": BERT.name, "b": None, "numbers": {"eps": 1e-12, "worst": "inf"},
        "sentence": "it is lost.", "remedy": "find it.",
    }  # fmt: skip


def test_the_schema_can_refuse():
    document = inspect_document(FOUND, MODEL)
    document["norms"][0]["scale"]["min"] = "NaN"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMAS["inspect"])


def test_a_mean_of_many_is_taken_in_float64():
    ones = np.ones(10_000, np.float16)
    found = Found([replace(BERT, scale=tensor("w", ones), shift=tensor("b", np.zeros(0, np.float32)))], [], [])
    norm = inspect_document(found, MODEL)["norms"][0]
    assert norm["scale"]["mean"] == 1.0
    assert norm["shift"]["mean"] == "nan"


def test_a_card_holds_the_values_and_replaces_what_was_there(seen, capsys):
    Path("card.json").write_text("old")
    assert run(["inspect", "model.onnx", "--card", "card.json"]) == 0
    assert capsys.readouterr().out.startswith("model.onnx (onnx): 2 norms\n")
    card = json.loads(Path("card.json").read_text(encoding="utf-8"))
    jsonschema.validate(card, SCHEMAS["inspect"])
    norm = card["norms"][0]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(norm["scale"]["values"]), "<f4"), GAMMA)
    assert base64.b64decode(norm["shift"]["values"]) == bytes([0x80, 0x3F, 0x00, 0x40, 0x40, 0x40])
    assert [path.name for path in Path().iterdir()] == ["card.json"]


def test_a_big_endian_parameter_is_written_the_other_way():
    found = Found([replace(BERT, scale=tensor("w", np.array([1], ">f4")), shift=None)], [], [])
    norm = inspect_document(found, MODEL, values=True)["norms"][0]
    assert base64.b64decode(norm["scale"]["values"]) == bytes([0, 0, 0x80, 0x3F])


def test_a_card_that_cannot_be_written_leaves_the_old_one_and_one_error_document(seen, capsys, monkeypatch):
    Path("card.json").write_text("old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert run(["inspect", "model.onnx", "--card", "card.json", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["error"])
    assert document["error"]["sentence"] == "card.json cannot be written (Permission denied); choose another place."
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [("card.json", "old")]


@pytest.mark.parametrize(("severity", "status"), [("info", 1), ("minor", 1), ("major", 0)])
def test_fail_on(severity, status, seen, capsys):
    assert run(["inspect", "model.onnx", "--fail-on", severity]) == status
    assert run(["inspect", "model.onnx", "--fail-on", severity, "--json"]) == status
    capsys.readouterr()


TABLE = """\
model.onnx (onnx): 2 norms

norm                        kind   axes  size  eps    γ β      form   place
encoder.layer.0.attention.  layer  (-1)   384  1e-12  γ β      fused  post
output.LayerNorm
x                           ?      (-1)     ?  ?      1?+γ β?  named  ?
"""


@pytest.mark.parametrize("width", [10, 60, 61, 80, 200])
def test_a_name_is_cut_after_its_dots_and_is_whole(width):
    name = "model/encoder.layers.0.a_word_that_is_longer_than_any_column_can_be." + "x" * 90
    wide = replace(OTHER, name=name, form="decomposed", placement="embedding")
    wide = replace(wide, spec=replace(wide.spec, axes=(-4, -3, -2, -1)))
    table = inspect_text(Found([wide], [], []), MODEL, width).split("\n\n")[1].splitlines()
    assert all(len(line) <= max(width, 60) for line in table)
    assert "".join(line[: table[0].index("kind")].strip() for line in table[1:]) == name


def test_what_is_unknown_is_said_once_and_how_to_know_more():
    bare = replace(BERT, spec=replace(BERT.spec, eps=UNKNOWN, stats_dtype=UNKNOWN))
    names = ModelFile("m.pt", "pytorch", {})
    text = inspect_text(Found([bare, replace(bare, name="y")], [], []), names)
    assert text.count("unknown") == 0
    assert text.endswith(
        "What the file does not say\n  2 × eps, stats_dtype, variance_by\n  To do: pass the folder with the model's "
        "config.json, an ONNX export, or in\n    Python the torch.nn.Module: ln.inspect(module)."
    )
    assert "config.json" not in inspect_text(Found([bare], [], []), replace(names, config={"model_type": "x"}))
    assert "To do" not in inspect_text(Found([bare], [], []), replace(names, graph=Graph([], {}, {}, ())))


@pytest.mark.parametrize(("files", "said"), [
    ([], ("f: no .onnx, .safetensors, .pt, .pth, .bin, .ckpt, .pt2, .gguf, .keras, .h5, .tflite file is in it, nor in "
         "a folder in it; pass a model file.")),
    (["a.txt", "sub/b.gguf", "c.PT", "d.pth", "e.h5"],
     "f: no file in it has the usual name of a model; pass one of them: c.PT, d.pth, e.h5 and 1 more."),
])  # fmt: skip
def test_a_folder_that_is_no_model_says_what_could_be_passed(files, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ["", *files]:
        path = Path("f") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name:
            path.write_text("x")
        else:
            path.mkdir()
    assert run(["inspect", "f"]) == 2
    assert capsys.readouterr().err == f"layernorm: {said}\n"


def test_the_table_of_80_columns():
    text = inspect_text(FOUND, MODEL)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.startswith(TABLE)
    assert "1 × y = γ·(x − mean) / √(var + 1e-12) + β over axes (-1)" in text
    assert "1 × stats_dtype, variance_by" in text or "1 × variance_by" in text
    assert f"minor eps-lost: {BERT.name} and 1 more: it is lost. To do: find it." in " ".join(text.split())
    assert "layernorm explain eps-lost" in text
    assert "node[3]: the axes are not constant." in text


def test_a_wider_terminal_has_whole_names(seen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert run(["inspect", "model.onnx"]) == 0
    assert f"\n{BERT.name}  layer" in capsys.readouterr().out


def test_names_are_text_and_nothing_else():
    evil = replace(OTHER, name="[red]a[/red]\x1b[31m\n:smile:")
    text = inspect_text(Found([evil], [], []), replace(MODEL, path="a\x1b.onnx"), 200)
    assert "[red]a[/red]\\x1b[31m :smile:" in text
    assert text.startswith("a\\x1b.onnx (onnx): 1 norm\n")


def test_no_norms_is_an_answer(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("layernorm.models.formats.read_model", lambda path: MODEL)
    monkeypatch.setattr("layernorm.models.identify.identify", lambda model: Found([], [], []))
    assert run(["inspect", "model.onnx"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("model.onnx (onnx): no norms Read the names of 0 tensors, and none speaks of a norm (norm,")
    assert said.endswith("an ONNX export, or in Python the torch.nn.Module: ln.inspect(module).")
    graph = replace(MODEL, graph=Graph([Node("Relu", ("x",), ("y",))], {}, {}, ("y",)))
    assert "Read 1 operators, and none is a norm, nor do any" in inspect_text(Found([], [], []), graph)


WRONG = {
    "no such file": (["missing.onnx"], "unreadable", "missing.onnx: No such file or directory"),
    "an empty file": (["empty.onnx"], "unreadable", "empty.onnx: the file is empty"),
    "no format": (["junk.xyz"], "unsupported", "junk.xyz: none of the formats that are read here"),
    "a card in no folder": (["junk.xyz", "--card", "no/a.json"], "bad-input", "no/a.json: its folder does not exist"),
    "a folder as the card": (["junk.xyz", "--card", "."], "bad-input", ". is a folder; give the name of a file."),
    "a severity that is none": (["junk.xyz", "--fail-on", "huge"], "bad-input", "Invalid value for '--fail-on'"),
    "no model": ([], "bad-input", "Missing argument 'MODEL'"),
    "too deep": (["deep.h5"], "unreadable", "deep.h5: its configuration is no JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_exits_with_2_and_an_error_document(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.onnx").touch()
    Path("junk.xyz").write_bytes(b"junk" * 10)
    if name == "too deep":
        import h5py

        with h5py.File("deep.h5", "w") as file:
            file.attrs.create("model_config", "[" * 100_000, dtype=h5py.string_dtype())
    arguments, code, sentence = WRONG[name]
    assert run(["inspect", *arguments, "--json"]) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    jsonschema.validate(document, SCHEMAS["error"])
    assert document["error"]["code"] == code
    assert document["error"]["sentence"].startswith(sentence)
    assert said.err.count("\n") == 1


def test_from_python():
    seen = Inspection(MODEL, FOUND)
    assert (seen.norms, seen.unidentified, seen.risks) == (FOUND.norms, FOUND.unidentified, FOUND.risks)
    assert str(seen) == inspect_text(FOUND, MODEL)
    jsonschema.validate(seen.document(values=True), SCHEMAS["inspect"])
    with pytest.raises(ln.LayerNormError, match=r"^a int is no model that is looked into here"):
        ln.inspect(3)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("name", ["a.keras", "a.h5"])
def test_a_keras_model_from_end_to_end(name, tmp_path, capsys):
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((6, 8)), layers.LayerNormalization(epsilon=1e-5, name="ln"), layers.RMSNormalization(name="rms"),
         layers.GroupNormalization(4, name="gn"), layers.BatchNormalization(name="bn")]
    )  # fmt: skip
    model.save(tmp_path / name)
    assert run(["inspect", str(tmp_path / name), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["inspect"])
    assert [(n["name"], n["spec"]["kind"], n["spec"]["eps"], n["form"]) for n in document["norms"]] == [
        ("ln", "layer", 1e-5, "layer"), ("rms", "rms", 1e-6, "layer"), ("gn", "group", 1e-3, "layer"),
        ("bn", "batch", 1e-3, "layer"),
    ]  # fmt: skip
    assert document["norms"][3]["variance"]["mean"] == 1.0
    assert (document["unidentified"], document["risks"]) == ([], [])


def test_findings_are_explained(capsys):
    assert run(["explain", "eps-lost"]) == 0
    assert capsys.readouterr().out.startswith("eps-lost: Epsilon is 0, or so small")
    assert run(["explain", "statistics"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("statistics: of the current")
    assert "statistics: A batch norm uses" in page
    assert run(["explain"]) == 0
    assert "Findings of inspect:" in capsys.readouterr().out


def test_a_card_does_not_take_the_place_of_its_model(tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    before = path.read_bytes()
    assert run(["inspect", str(path), "--card", str(path)]) == 2
    assert "give the card another name" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "m.onnx")
    assert run(["inspect", str(tmp_path / "m.onnx")]) == 2
    assert "it is a device or a pipe" in capsys.readouterr().err


def test_a_name_too_long_for_the_system_is_said(tmp_path, capsys):
    index = {"weight_map": {"a": "x" * 5000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert run(["inspect", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unreadable"


@pytest.mark.parametrize(
    ("name", "why"), [("a\0b", "embedded null byte"), ("\ud800", "surrogates not allowed"), ("", "it is empty")]
)
def test_a_name_that_no_file_can_have_is_said(name, why):
    with pytest.raises(ln.LayerNormError) as refused:
        ln.inspect(name)
    assert str(refused.value).startswith(f"{name!r}: no file can have this name (")
    assert why in str(refused.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.parametrize("reader", ["torch_file", "keras", "card"])
def test_no_reader_waits_for_a_pipe(reader, tmp_path):
    os.mkfifo(tmp_path / "m")
    read = importlib.import_module(f"layernorm.models.formats.{reader}").read
    with pytest.raises(ln.LayerNormError, match=r"m: it is a device, a pipe or a folder; pass a plain file\.$"):
        read(tmp_path / "m")
