# SPDX-License-Identifier: MIT
"""This file shows each risk a norm that has it and one that does not, and checks the numbers that its page quotes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.models.risks import CHECKS, SEVERITIES, page_of, risks
from layernorm.spec.norm_spec import UNKNOWN, NormSpec
from layernorm.spec.variants import VARIANTS

SCHEMA = json.loads((Path(__file__).parents[1] / "schema/inspect.schema.json").read_text(encoding="utf-8"))
FILE = ModelFile("m.onnx", "onnx", {})
LAYER = replace(VARIANTS["bert"], eps=1e-5)
HALF = replace(LAYER, stats_dtype="float16")


def record(spec=LAYER, name="norm", gamma=None, **more):
    scale = None
    if gamma is not None:
        array = np.asarray(gamma)
        scale = Tensor(f"{name}.weight", array.shape, array.dtype.name, lambda: array)
    more = {"dtype": "float32", "form": "fused", "where": "node[0]"} | more
    return NormRecord(name, spec=spec, evidence={}, scale=scale, **more)


def found(*norms, model=FILE):
    return {(risk.code, risk.severity): risk for risk in risks(model, norms)}


ODD, EVEN = np.linspace(-1, 1, 8), np.linspace(0.5, 1.5, 8)

# What a norm is, and the risks that it has; the second of each pair is the nearest that has none.
NORMS = {
    "eps is 0": (replace(LAYER, eps=0.0), {("eps-lost", "minor")}),
    "no eps": (replace(LAYER, eps_at="none"), {("eps-lost", "minor")}),
    "eps 2^-25 in float16": (replace(HALF, eps=2.0**-25), {("eps-lost", "major"), ("overflow", "major")}),
    "eps 2^-24 in float16": (replace(HALF, eps=2.0**-24), {("eps-lost", "minor"), ("overflow", "major")}),
    "the largest subnormal": (replace(HALF, eps=1023 * 2.0**-24), {("eps-lost", "minor"), ("overflow", "major")}),
    "the smallest normal": (replace(HALF, eps=2.0**-14), {("overflow", "major")}),
    "eps 1e-12 in float32": (replace(LAYER, eps=1e-12), set()),
    "eps 1e-12 in bfloat16": (replace(LAYER, eps=1e-12, stats_dtype="bfloat16"), set()),
    "eps unknown": (replace(LAYER, eps=UNKNOWN), set()),
    "negative eps": (replace(LAYER, eps=-1e-5), {("eps-value", "major")}),
    "eps is NaN": (replace(LAYER, eps=float("nan")), {("eps-value", "major")}),
    "moments": (replace(LAYER, variance_by="moments"), {("cancellation", "minor")}),
    "moments in bfloat16": (replace(LAYER, variance_by="moments", stats_dtype="bfloat16"), {("cancellation", "major")}),
    "clamped moments": (replace(LAYER, variance_by="moments_clamped"), {("cancellation", "minor")}),
    "moments of which none is taken": (replace(VARIANTS["pytorch-batch"], variance_by="moments"), set()),
    "training": (VARIANTS["pytorch-batch-training"], {("statistics", "major")}),
    "updated": (VARIANTS["onnx-batch-updated"], {("statistics", "major")}),
    "stored": (VARIANTS["pytorch-batch"], set()),
    "stored in float16": (replace(VARIANTS["pytorch-batch"], stats_dtype="float16"), {("eps-lost", "minor")}),
    "over the first axis": (
        replace(LAYER, axes=("0:",), scale_axes=("0:",), shift_axes=("0:",)),
        {("statistics", "minor")},
    ),
    "over the second": (replace(LAYER, axes=("1:",), scale_axes=("1:",), shift_axes=("1:",)), set()),
}


@pytest.mark.parametrize("name", NORMS)
def test_what_a_spec_risks(name):
    spec, expected = NORMS[name]
    assert set(found(record(spec))) == expected


def test_float16_without_a_word_about_the_statistics():
    open_ = replace(LAYER, stats_dtype=UNKNOWN)
    assert set(found(record(open_, dtype="float16"))) == {("overflow", "info")}
    assert set(found(record(open_))) == set()
    assert set(found(record(replace(LAYER, stats_dtype="input"), dtype="float16"))) == {
        ("overflow", "major"), ("eps-lost", "minor"),
    }  # fmt: skip


GAMMAS = {
    "w of 1 + w": (0, ODD, True),
    "all zeros": (0, np.zeros(4), True),
    "small and positive": (0, np.full(8, 0.05), False),
    "like a gamma": (0, EVEN, False),
    "the 1 added twice": (1, 1 + 0.1 * ODD, True),
    "w as it should be": (1, 0.3 * ODD, False),
    "nothing in it": (0, np.zeros(0), False),
}


@pytest.mark.parametrize("name", GAMMAS)
def test_a_gamma_that_looks_like_another(name):
    offset, gamma, risky = GAMMAS[name]
    assert set(found(record(replace(LAYER, scale_offset=offset), gamma=gamma))) == (
        {("gamma-offset", "minor")} if risky else set()
    )  # fmt: skip


def test_a_batch_norms_gamma_may_begin_at_zero_and_an_unknown_offset_is_not_judged():
    assert found(record(VARIANTS["pytorch-batch"], gamma=np.zeros(4))) == {}
    assert found(record(replace(LAYER, scale_offset=UNKNOWN), gamma=ODD)) == {}


def test_one_epsilon_of_a_format_is_said_once():
    gguf = replace(FILE, format="gguf")
    risk = found(record(name="a"), record(name="b"), model=gguf)["eps-value", "info"]
    assert (risk.a, risk.numbers) == (None, {"eps": 1e-5, "norms": 2})
    assert found(record(name="a"), model=gguf) == {}


def test_names_that_promise_a_layer_norm():
    rms = VARIANTS["llama"]
    risk = found(record(rms, "h.0.input_layernorm"), record(rms, "h.1.input_layernorm"))["name-only", "info"]
    assert risk.a == "h.0.input_layernorm"
    assert risk.sentence == "it is called a layer norm, but it and 1 more are RMS norms: no mean is subtracted."
    assert found(record(rms, "h.0.norm")) == {}
    assert found(record(LAYER, "h.0.input_layernorm")) == {}
    assert set(found(record(VARIANTS["keras-rms-scaling"], "layer_normalization"))) == {("name-only", "minor")}


def graph_of(*names):
    nodes = [Node("Conv", ("x", "w"), (name,)) for name in names]
    return replace(FILE, graph=Graph(nodes, {}, {}, ()))


def test_batch_norms_that_are_gone():
    name = (
        "model/conv2d/BiasAdd;model/batch_normalization/FusedBatchNormV3;model/batch_normalization_2/FusedBatchNormV3"
    )
    risk = found(model=graph_of(name, "model/batch_normalization/FusedBatchNormV3"))["folded", "info"]
    assert risk.numbers == {"norms": 2}
    assert "names in the graph speak of model/batch_normalization, model/batch_normalization_2, merged" in risk.sentence
    kept = record(VARIANTS["pytorch-batch"], "model/batch_normalization")
    assert found(kept, model=graph_of("model/batch_normalization/out")) == {}
    called_otherwise = record(VARIANTS["pytorch-batch"], "node.0", output="batch_norm_0.tmp_2")
    assert found(called_otherwise, model=graph_of("batch_norm_0.tmp_2", "batch_norm_0.tmp_1")) == {}
    assert found(called_otherwise, model=graph_of("batch_norm_0.tmp_2", "batch_norm_1.tmp_2"))[
        "folded", "info"
    ].numbers == {"norms": 1}
    assert found(model=graph_of("relu_3")) == {}
    assert set(found(record(VARIANTS["pytorch-batch"], form="folded"))) == {("folded", "info")}


def test_the_worst_comes_first():
    both = risks(FILE, [record(replace(LAYER, eps=0.0)), record(replace(LAYER, eps=-1.0))])
    assert [risk.severity for risk in both] == ["major", "minor"]


def test_every_code_is_one_of_the_document_and_has_a_page():
    codes = SCHEMA["$defs"]["finding"]["properties"]["code"]["enum"]
    for code in CHECKS:
        assert code in codes
        page = page_of(code)
        headings = [page.index(f"\n{heading}\n    ") for heading in
                    ("What it checks", "Why it matters", "Example", "What to do")]  # fmt: skip
        assert headings == sorted(headings)
    assert tuple(SCHEMA["$defs"]["finding"]["properties"]["severity"]["enum"]) == SEVERITIES


# -- the numbers in the pages, computed by NumPy ----------------------------------------------------------------


def test_numbers_of_eps_lost():
    assert np.float16(1e-12) == 0
    assert float(np.float16(1e-7)) == pytest.approx(1.19e-7, rel=2e-3)
    assert float(np.finfo(np.float16).smallest_subnormal) == 2**-24 == pytest.approx(6e-8, rel=1e-2)
    assert float(np.finfo(np.float16).tiny) == pytest.approx(6.1e-5, rel=1e-2)


def test_numbers_of_overflow_and_cancellation():
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(256) * np.float16(256))
    assert float(np.finfo(np.float16).max) == 65504
    assert 795**2 == 632025
    x = np.arange(40000, 40004, dtype=np.float32)
    assert float(np.float32((x * x).mean()) - np.float32(x.mean()) ** 2) <= 0
    assert float(x.astype(np.float64).var()) == 1.25


def test_numbers_of_eps_value_and_name_only():
    assert np.sqrt(1e-4 + 1e-5) / np.sqrt(1e-4 + 1e-6) - 1 == pytest.approx(0.04, abs=0.005)
    x = np.arange(1.0, 5)
    np.testing.assert_allclose((x - x.mean()) / x.std(), [-1.34, -0.45, 0.45, 1.34], atol=0.005)
    np.testing.assert_allclose(x / np.sqrt((x * x).mean()), [0.37, 0.73, 1.10, 1.46], atol=0.005)


def test_a_spec_of_unknowns_risks_nothing():
    fields = ("axes", "centered", "spread", "eps", "eps_at", "statistics", "stats_dtype", "variance_by", "scale_offset")
    assert found(record(replace(NormSpec(), **dict.fromkeys(fields, UNKNOWN)), dtype="unknown")) == {}


RMS_HALF = replace(VARIANTS["llama"], stats_dtype="float16")
SENTENCES = {
    "a layer norm": (replace(HALF, eps=0.0), "eps-lost", "a row of equal values divides by 0"),
    "an RMS norm": (replace(RMS_HALF, eps=0.0), "eps-lost", "a row of zeros divides by 0"),
    "an RMS norm in float16": (replace(RMS_HALF, eps=1e-12), "eps-lost", "statistics: a row of zeros divides by 0"),
    "a norm of either kind": (
        replace(HALF, eps=0.0, centered=UNKNOWN), "eps-lost", "a row of zeros, or of equal values, divides by 0"
    ),
    "a batch norm": (
        replace(VARIANTS["pytorch-batch"], eps=0.0), "eps-lost", "a channel whose stored variance is 0 divides by 0"
    ),
    "the squares of a layer norm": (HALF, "overflow", "256 from the mean makes their sum infinite and the output β."),
    "those of an RMS norm": (RMS_HALF, "overflow", "a value of 256 makes their sum infinite and the output 0."),
    "a layer norm without beta": (replace(HALF, shift_axes=None), "overflow", "infinite and the output 0."),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_is_true_of_the_kind_that_it_is_about(name):
    spec, code, said = SENTENCES[name]
    (risk,) = (risk for risk in risks(FILE, [record(spec)]) if risk.code == code)
    assert said in risk.sentence
