# SPDX-License-Identifier: MIT
"""This file reads norm cards that `inspect --card` wrote, and ones that lie."""

import copy
import json

import numpy as np
import pytest

import layernorm as ln
from layernorm.report.inspection import inspect
from layernorm.spec.errors import FileError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def seen():
    net = torch.nn.Sequential(torch.nn.LayerNorm(8, eps=1e-12), torch.nn.BatchNorm1d(3), torch.nn.RMSNorm(8))
    net[0].weight.data = torch.linspace(0.5, 1.5, 8)
    net[2].weight.data = torch.linspace(-1, 1, 8).to(torch.bfloat16)
    return inspect(net.eval())


def card(folder, document, name="card.json"):
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def test_a_card_holds_what_was_found(tmp_path, seen):
    read = inspect(card(tmp_path, seen.document(values=True)))
    assert read.model.format == "card"
    for record, own in zip(read.norms, seen.norms, strict=True):
        assert (record.name, record.spec, record.size, record.form) == (own.name, own.spec, own.size, own.form)
        assert record.evidence == own.evidence
        for role in ("scale", "shift", "mean", "variance"):
            held, was = getattr(record, role), getattr(own, role)
            assert (held is None) == (was is None)
            if held is not None:
                assert held.dtype == was.dtype
                np.testing.assert_array_equal(held.values().astype(float), was.values().astype(float))
    again = read.document(values=True)
    assert again["norms"] == seen.document(values=True)["norms"]
    assert [risk.code for risk in read.risks] == [risk.code for risk in seen.risks]


def test_a_card_is_compared_as_its_model_is(tmp_path, seen):
    same = card(tmp_path, seen.document(values=True))
    assert ln.compare(same, same).verdict == "same"
    other = copy.deepcopy(seen.document(values=True))
    other["norms"][0]["spec"]["eps"] = 1e-5
    comparison = ln.compare(same, card(tmp_path, other, "other.json"))
    assert comparison.verdict == "differs"
    assert [(f.code, f.a) for f in comparison.findings] == [("eps-value", "0")]


def test_a_document_without_values_is_read_and_cannot_be_compared(tmp_path, seen):
    path = card(tmp_path, seen.document())
    assert len(inspect(path).norms) == 3
    with pytest.raises(FileError, match=r"document without the values of '0\.weight'; make a card with"):
        ln.compare(path, path)


def spoiled(document, **changed):
    document = copy.deepcopy(document)
    document["norms"][0]["scale"] |= changed
    return document


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"shape": [9]}, "has 32 bytes, and its shape \\[9\\] does not"),
        ({"shape": [-8]}, "has the shape \\[-8\\]"),
        ({"shape": [True] * 8}, "has the shape"),
        ({"shape": [2**40, 2**40]}, "has 32 bytes"),
        ({"dtype": "O"}, "has the type 'O'"),
        ({"dtype": "V8"}, "has the type 'V8'"),
        ({"dtype": "no such type"}, "no norm card"),
        ({"values": "not base64!"}, "are no base64"),
        ({"values": 3}, "no norm card"),
    ],
)
def test_a_parameter_that_lies_is_refused(tmp_path, seen, changed, said):
    with pytest.raises(FileError, match=said):
        inspect(card(tmp_path, spoiled(seen.document(values=True), **changed)))


def test_what_is_no_card_is_refused(tmp_path, seen):
    whole = json.dumps(seen.document(values=True))
    with pytest.raises(FileError, match="is no norm card"):
        inspect(card(tmp_path, whole[:-40]))
    for field, value, said in (
        ("norms", [{}], "it lacks 'size'"), ("norms", 3, "no norm card"), ("risks", [[]], "no norm card")
    ):  # fmt: skip
        with pytest.raises(FileError, match=said):
            inspect(card(tmp_path, json.dumps(seen.document() | {field: value})))
    deep = whole[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(FileError, match="nested deeper"):
        inspect(card(tmp_path, deep))
    form = seen.document()
    form["norms"][0]["form"] = "loose"
    with pytest.raises(FileError, match="'loose' is not one of fused"):
        inspect(card(tmp_path, form))


@pytest.mark.parametrize(
    ("evidence", "numbers", "said"),
    [(float("nan"), {}, "NaN is no number of JSON"), (["file"], {}, "is not one of"), ("hearsay", {}, "is not one of"),
     ("default", {"a": {"b": 1}}, "a number of a finding is")],
)  # fmt: skip
def test_evidence_and_numbers_of_another_kind_are_refused(tmp_path, seen, evidence, numbers, said):
    """A source that was NaN was read, and ended in a traceback where it was to be written."""
    document = copy.deepcopy(seen.document(values=True))
    document["norms"][0]["evidence"]["axes"]["source"] = evidence
    document["risks"] = [
        {
            "code": "eps-zero",
            "severity": "info",
            "a": "0",
            "b": None,
            "numbers": numbers,
            "sentence": "s",
            "remedy": None,
        }
    ]
    with pytest.raises(FileError, match=said):
        inspect(card(tmp_path, document))


def test_numbers_beyond_float64_are_written_as_words(tmp_path, seen):
    document = seen.document(values=True)
    document["risks"] = [
        {
            "code": "eps-zero",
            "severity": "info",
            "a": "0",
            "b": None,
            "numbers": {"a": [1, 0]},
            "sentence": "s",
            "remedy": None,
        }
    ]
    text = json.dumps(document).replace("[1, 0]", "[1e999, null]")
    assert json.loads(json.dumps(inspect(card(tmp_path, text)).document(), allow_nan=False))["risks"][0]["numbers"] == {
        "a": ["inf", None]
    }
