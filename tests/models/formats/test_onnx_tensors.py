# SPDX-License-Identifier: MIT
"""This file tests the tensors of ONNX files: of every type, behind casts, beside the model, and lying."""

import os

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_files import beside, constants, model, save

from layernorm.models.formats import onnx as format_onnx
from layernorm.models.formats import read_model
from layernorm.models.formats.onnx_tensors import TYPES
from layernorm.spec.errors import FileError

NUMBERS = np.arange(4, dtype=np.float32)


def read(folder, proto):
    return read_model(save(folder, proto))


# -- constants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "dtype", "expected"),
    [
        ({"value": numpy_helper.from_array(NUMBERS)}, "float32", NUMBERS),
        ({"value_float": 0.5}, "float32", np.float32(0.5)),
        ({"value_floats": [0.5, 2.0]}, "float32", np.float32([0.5, 2])),
        ({"value_int": 3}, "int64", np.int64(3)),
        ({"value_ints": [-1, 2]}, "int64", np.int64([-1, 2])),
        ({"value_string": "a"}, "string", np.array("a", object)),
        ({"value_strings": ["a", "b"]}, "string", np.array(["a", "b"], object)),
    ],
    ids=lambda p: next(iter(p)) if isinstance(p, dict) else "",
)
def test_constant_nodes(tmp_path, said, dtype, expected):
    graph = read(tmp_path, model([helper.make_node("Constant", [], ["y"], **said)])).graph
    assert graph.nodes == []
    tensor = graph.constants["y"]
    assert (tensor.name, tensor.dtype, tensor.shape) == ("y", dtype, expected.shape)
    np.testing.assert_array_equal(tensor.values(), expected)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 1]]])
def test_sparse_constants(tmp_path, indices):
    values, at = numpy_helper.from_array(np.float32([7, 8]), "s"), numpy_helper.from_array(np.int64(indices))
    thin = helper.make_sparse_tensor(values, at, [2, 4])
    node = helper.make_node("Constant", [], ["y"], sparse_value=thin)
    tensors = read(tmp_path, model([node], sparse_initializer=[thin])).tensors
    for name in ("y", "s"):
        np.testing.assert_array_equal(tensors[name].values(), np.float32([[0, 7, 0, 0], [0, 8, 0, 0]]))


@pytest.mark.parametrize(
    ("dims", "indices", "why"), [([2**40], [1, 5], "over"), ([2, 2], [1, 9], "indices"), ([-2], [1, 0], "over")]
)
def test_sparse_constants_that_lie(tmp_path, dims, indices, why):
    values, at = numpy_helper.from_array(np.float32([7, 8]), "s"), numpy_helper.from_array(np.int64(indices))
    proto = model([], sparse_initializer=[helper.make_sparse_tensor(values, at, dims)])
    with pytest.raises(FileError, match=why):
        read(tmp_path, proto).tensors["s"].values()


EVERY_TYPE = [t for t in TYPES if t not in ("unknown", "string")]


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
@pytest.mark.parametrize("dtype", EVERY_TYPE)
def test_every_type_is_read_as_onnx_reads_it(tmp_path, dtype, raw):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    numbers = np.array([0, 1, 1, 0, 1, 1, 0], np.float32).astype(kind)
    if dtype.startswith(("float", "bfloat", "int", "complex")) and not dtype.startswith("float8_e8"):
        numbers = np.array([0, 1, -1, 1, -2, 0, 1], np.float32).astype(kind)
    tensor = numpy_helper.from_array(numbers, "t")
    if not raw:
        flat = numbers.astype(complex if kind.kind == "c" else np.float32 if kind.kind not in "iub" else kind)
        tensor = helper.make_tensor("t", TYPES.index(dtype), [7], flat.tolist())
    found = read(tmp_path, model([], [tensor])).tensors["t"]
    assert (found.dtype, found.shape, found.values().dtype) == (dtype, (7,), kind)
    np.testing.assert_array_equal(found.values().view(np.uint8), numpy_helper.to_array(tensor).view(np.uint8))
    np.testing.assert_array_equal(found.values().astype(complex), numbers.astype(complex))


def test_strings_are_read(tmp_path):
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], ["a", "b"])
    assert read(tmp_path, model([], [tensor])).tensors["t"].values().tolist() == [b"a", b"b"]


W8 = np.array([[-7, 3, 100, 5], [1, 2, 3, 4], [0, -128, 127, 9]], np.int8)
CHAINS = {
    "cast": ([("Cast", ["q"], {"to": TensorProto.FLOAT})], {}),
    "cast scale": ([("Cast", ["q"], {"to": TensorProto.FLOAT}), ("Mul", ["#0", "s"], {})], {}),
    "cast zero scale": (
        [("Cast", ["q"], {"to": TensorProto.FLOAT}), ("Sub", ["#0", "z"], {}), ("Mul", ["s", "#1"], {})],
        {"z": np.float32(3)},
    ),
    "identity cast cast": (
        [
            ("Identity", ["q"], {}),
            ("Cast", ["#0"], {"to": TensorProto.FLOAT16}),
            ("Cast", ["#1"], {"to": TensorProto.FLOAT}),
        ],
        {},
    ),
    "for all": ([("DequantizeLinear", ["q", "s", "z"], {})], {"s": np.float32(0.5), "z": np.int8(3)}),
    "no zero": ([("DequantizeLinear", ["q", "s"], {})], {"s": np.float32(0.5)}),
    "by row": (
        [("DequantizeLinear", ["q", "s", "z"], {"axis": 0})],
        {"s": np.float32([1, 2, 4]), "z": np.int8([0, 1, -1])},
    ),
    "by column": ([("DequantizeLinear", ["q", "s"], {"axis": -1})], {"s": np.float32([1, 2, 4, 8])}),
    "in blocks": (
        [("DequantizeLinear", ["q", "s", "z"], {"axis": 1, "block_size": 2})],
        {"s": np.float32([[1, 2], [4, 8], [16, 32]]), "z": np.int8([[0, 1], [2, 3], [4, 5]])},
    ),
    "by a half": (
        [("DequantizeLinear", ["q", "s"], {}), ("Cast", ["#0"], {"to": TensorProto.FLOAT})],
        {"s": np.float16(0.5)},
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_weights_behind_casts_and_scales_are_constants(tmp_path, chain):
    steps, given = CHAINS[chain]
    nodes = []
    for i, (op, inputs, said) in enumerate(steps):
        inputs = [f"h{name[1:]}" if name.startswith("#") else name for name in inputs]
        nodes.append(helper.make_node(op, inputs, [f"h{i}"], **said))
    nodes.append(helper.make_node("Mul", ["x", nodes[-1].output[0]], ["y"]))
    proto = model(nodes, constants(q=W8, **{"s": np.float32([1, 0.5, 2, 4]), **given}), opset=21)
    graph = read(tmp_path, proto).graph
    assert [n.op for n in graph.nodes] == ["Mul"]
    weight = graph.constant(graph.nodes[0].inputs[1])
    assert (weight.name, weight.shape, weight.dtype, weight.values().dtype) == ("q", (3, 4), "float32", np.float32)
    (expected,) = ReferenceEvaluator(proto).run(["y"], {"x": np.ones((1, 3, 4), np.float32)})
    np.testing.assert_array_equal(weight.values()[None], expected)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Add", ["one", "w"], ["h"]),
        helper.make_node("Mul", ["w", "one"], ["h"]),
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("DequantizeLinear", ["w", "three"], ["h"], axis=0),
        helper.make_node("Cast", ["w"], ["h"], to=TensorProto.STRING),
    ],
    ids=["1 + w", "product of floats", "of an input", "wrong scale", "to text"],
)
def test_other_nodes_are_left(tmp_path, node):
    proto = model([node, helper.make_node("Mul", ["x", "h"], ["y"])],
                  constants(w=NUMBERS, one=np.float32(1), three=np.float32([1, 2, 3])))  # fmt: skip
    assert len(read(tmp_path, proto).graph.nodes) == 2


def test_a_long_chain_of_casts_is_folded_only_in_part(tmp_path):
    nodes = [helper.make_node("Cast", [f"h{i}"], [f"h{i + 1}"], to=TensorProto.FLOAT) for i in range(5000)]
    graph = read(tmp_path, model(nodes, constants(h0=NUMBERS))).graph
    assert len(graph.nodes) == 5000 - format_onnx.MOST_FOLDS
    for tensor in graph.constants.values():
        np.testing.assert_array_equal(tensor.values(), NUMBERS)


# -- files beside the model ----------------------------------------------------------------------------------


def test_a_tensor_beside_the_model_is_read_alone(tmp_path):
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "weights.bin"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: reading it all would end the test
        file.seek(4096)
        file.write(NUMBERS.tobytes())
    tensor = read(tmp_path, beside("sub/weights.bin", offset=4096, length=16)).tensors["w"]
    np.testing.assert_array_equal(tensor.values(), NUMBERS)


def test_a_missing_weight_hinders_no_other(tmp_path):
    proto = beside("weights.bin")
    proto.graph.initializer.extend(constants(v=NUMBERS))
    tensors = read(tmp_path, proto).tensors
    np.testing.assert_array_equal(tensors["v"].values(), NUMBERS)
    with pytest.raises(FileError, match="not beside the model"):
        tensors["w"].values()


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../secret", "..\\secret", "C:\\secret", "", "a\0b", "c:secret"]
)
def test_a_path_out_of_the_folder_is_refused(tmp_path, location):
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FileError, match="outside the model's folder"):
        read(folder, beside(location))


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(FileError, match="leads out of the model's folder"):
        read(folder, beside("weights.bin")).tensors["w"].values()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(FileError, match="not beside"):
        read(tmp_path, beside("weights.bin")).tensors["w"].values()


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ({"length": 12}, (4,)),
        ({"length": 2**62}, (2**60,)),
        ({}, (2**60,)),
        ({"offset": 8}, (4,)),
        ({"offset": -8, "length": 16}, (4,)),
        ({"offset": "a lot"}, (4,)),
        ({"offset": 2**70}, (4,)),
    ],
)
def test_sizes_that_lie_are_refused(tmp_path, said, shape):
    (tmp_path / "weights.bin").write_bytes(bytes(16))
    with pytest.raises(FileError, match="tensor 'w'"):
        read(tmp_path, beside("weights.bin", shape, **said)).tensors["w"].values()


@pytest.mark.parametrize(
    ("dims", "why"),
    [
        ([2**60], "takes 4611686018427387904 bytes, but 16 are there"),
        ([2**31, 2**31], "takes 18446744073709551616 bytes, but 16 are there"),
        ([5], "takes 20 bytes, but 16 are there"),
        ([3], "takes 12 bytes, but 16 are there"),
        ([0, 2**62, 2**62], "takes 0 bytes, but 16 are there"),
    ],
)
def test_a_tensor_that_lies_about_its_shape_is_refused(tmp_path, dims, why):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=NUMBERS.tobytes())
    with pytest.raises(FileError, match=why):
        read(tmp_path, model([], [tensor])).tensors["w"].values()
    with pytest.raises(FileError, match="damaged"):
        read(tmp_path, model([], [TensorProto(name="w", data_type=1, dims=[-1])]))
