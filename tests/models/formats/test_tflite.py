# SPDX-License-Identifier: MIT
"""This file makes TFLite models and asks OpenVINO, which reads them too, whether the graph computes the same."""

import random
from math import prod

import numpy as np
import onnx
import onnx.reference
import openvino
import pytest
from flatbuffers import flexbuffers
from tflite_maker import Subgraph, made

from layernorm.models.formats.flatbuffer import Broken, flexbuffer
from layernorm.models.formats.tflite import read
from layernorm.spec.errors import FileError

KEEP = {0: ("u8", 1)}
GAMMA, BETA = np.linspace(0.5, 2, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)


def layer_norm(fused=0):
    """The form that TensorFlow's converter writes, with an activation in its last addition or none."""
    graph = Subgraph()
    graph.input("x", (2, 3, 4))
    graph.constant("axes", np.array([2], np.int32))
    graph.constant("eps", np.array(1e-3, np.float32))
    graph.constant("gamma", GAMMA)
    graph.constant("beta", BETA)
    graph.operator("MEAN", ["x", "axes"], ["mean"], KEEP, (2, 3, 1))
    graph.operator("SQUARED_DIFFERENCE", ["x", "mean"], ["squares"])
    graph.operator("MEAN", ["squares", "axes"], ["variance"], KEEP, (2, 3, 1))
    graph.operator("ADD", ["variance", "eps"], ["safe"], {0: ("i8", 0)})
    graph.operator("RSQRT", ["safe"], ["r"])
    graph.operator("MUL", ["r", "gamma"], ["scaled"], {0: ("i8", 0)}, (2, 3, 4))
    graph.operator("MUL", ["x", "scaled"], ["first"], {0: ("i8", 0)})
    graph.operator("MUL", ["mean", "scaled"], ["second"], {0: ("i8", 0)}, (2, 3, 4))
    graph.operator("SUB", ["beta", "second"], ["third"], {0: ("i8", 0)}, (2, 3, 4))
    graph.operator("ADD", ["first", "third"], ["y"], {0: ("i8", fused)})
    graph.outputs.append("y")
    return graph


def written(tmp_path, *subgraphs, **more):
    path = tmp_path / "model.tflite"
    path.write_bytes(made(subgraphs, **more))
    return path


def evaluated(model, feeds, extra=()):
    """Run the graph that was read, by ONNX's own reference."""
    graph = model.graph
    nodes = [
        onnx.helper.make_node(
            n.op, n.inputs, n.outputs, **{k: v for k, v in n.attributes.items() if "fused" not in k}
        )
        for n in graph.nodes
    ]  # fmt: skip
    wider = {n: t.values().astype(np.int64) if t.dtype == "int32" else t.values() for n, t in graph.constants.items()}
    names = [*graph.outputs, *extra]
    made_model = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes, "g",
            [onnx.helper.make_tensor_value_info(n, 1, shape) for n, (_, shape) in graph.inputs.items()],
            [onnx.helper.make_tensor_value_info(n, 1, None) for n in names],
            [onnx.numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in wider.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
    )  # fmt: skip
    found = onnx.reference.ReferenceEvaluator(made_model).run(names, feeds)
    return dict(zip(names, found, strict=True))


def by_openvino(path, feeds):
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [np.asarray(compiled(list(feeds.values()))[i]) for i in range(len(compiled.outputs))]


def example(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def chain(*steps, shape=(2, 3, 4)):
    """A graph of one operator after another: (op, further inputs, options, shape of the result)."""
    graph = Subgraph()
    last = graph.input("x", shape)
    for number, (op, constants, fields, result) in enumerate(steps):
        names = [graph.constant(f"c{number}_{i}", c) for i, c in enumerate(constants)]
        last = graph.operator(op, [last, *names], [f"v{number}"], fields, result)
    graph.outputs.append(last)
    return graph


AXES = np.array([1, 2], np.int32)
CHAINS = {
    "layer norm": layer_norm(),
    "fused relu": layer_norm(fused=1),
    "mean without its axes": chain(("MEAN", [AXES], {0: ("u8", 0)}, (2,))),
    "sum over one number": chain(("SUM", [np.array(2, np.int32)], KEEP, (2, 3, 1))),
    "square": chain(("SQUARE", [], {}, None)),
    "square and root": chain(("SQUARE", [], {}, None), ("SQRT", [], {}, None)),
    "transpose": chain(("TRANSPOSE", [np.array([2, 0, 1], np.int32)], {}, (4, 2, 3))),
    "reshape": chain(("RESHAPE", [np.array([6, 4], np.int32)], {0: ("offset", [6, 4])}, (6, 4))),
    "expand and squeeze": chain(
        ("EXPAND_DIMS", [np.array(1, np.int32)], {}, (2, 1, 3, 4)), ("SQUEEZE", [], {0: ("offset", [1])}, (2, 3, 4)),
    ),
    "l2": chain(("L2_NORMALIZATION", [], {0: ("i8", 0)}, None)),
    "division and maximum": chain(("DIV", [GAMMA], {0: ("i8", 0)}, None), ("MAXIMUM", [BETA], {}, None)),
    "matrices": chain(("BATCH_MATMUL", [example((2, 4, 5), 1)], {0: ("u8", 0)}, (2, 3, 5))),
    "fully connected": chain(
        ("FULLY_CONNECTED", [example((5, 4), 1), example((5,), 2)], {0: ("i8", 1)}, (6, 5)), shape=(6, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_the_graph_computes_what_another_reader_of_the_file_computes(name, tmp_path):
    graph = CHAINS[name]
    path = written(tmp_path, graph)
    x = example(graph.tensors["x"][0])
    ours = evaluated(read(path), {"x": x})
    (theirs,) = by_openvino(path, {"x": x})
    (output,) = ours.values()
    assert output.shape == theirs.shape
    np.testing.assert_allclose(output, theirs, rtol=2e-5, atol=2e-6)


def test_the_comparison_can_fail(tmp_path):
    graph = CHAINS["square"]
    (theirs,) = by_openvino(written(tmp_path, graph), {"x": example((2, 3, 4))})
    ours = evaluated(read(written(tmp_path, CHAINS["square and root"])), {"x": example((2, 3, 4))})
    assert not np.allclose(next(iter(ours.values())), theirs)


def test_squared_difference_is_written_in_onnx_words(tmp_path):
    graph = read(written(tmp_path, layer_norm())).graph
    assert [node.op for node in graph.nodes] == [
        "ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul", "Mul", "Sub", "Add",
    ]  # fmt: skip
    assert [node.attributes.get("keepdims") for node in graph.nodes if node.op == "ReduceMean"] == [1, 1]
    assert len({node.where for node in graph.nodes}) == len(graph.nodes)
    assert graph.inputs == {"x": ("float32", (2, 3, 4))}
    assert graph.about("mean") == ("float32", (2, 3, 1))
    assert graph.outputs == ("y",)
    eps = graph.constants["eps"]
    assert (eps.shape, eps.dtype, float(eps.values())) == ((), "float32", np.float32(1e-3))
    np.testing.assert_array_equal(graph.constants["gamma"].values(), GAMMA)


def test_the_value_before_a_fused_activation_is_named_as_one_that_the_file_lacks(tmp_path):
    model = read(written(tmp_path, layer_norm(fused=1)))
    last, relu = model.graph.nodes[-2:]
    assert (last.op, last.outputs, last.attributes["fused_activation"]) == ("Add", ("y before RELU",), "RELU")
    assert (relu.op, relu.inputs, relu.outputs, relu.attributes) == (
        "Relu",
        last.outputs,
        ("y",),
        {"fused_into": "ADD"},
    )
    x = example((2, 3, 4))
    both = evaluated(model, {"x": x}, extra=last.outputs)
    x = x.astype(np.float64)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * GAMMA + BETA
    np.testing.assert_allclose(both["y before RELU"], expected, rtol=1e-5, atol=1e-6)
    assert (expected < 0).any()
    np.testing.assert_array_equal(both["y"], np.maximum(both["y before RELU"], 0))


def test_a_length_that_is_not_fixed(tmp_path):
    graph = Subgraph()
    graph.input("x", (1, 4), signature=(-1, 4))
    graph.outputs.append(graph.operator("SQRT", ["x"], ["y"]))
    assert read(written(tmp_path, graph)).graph.inputs == {"x": ("float32", (None, 4))}


@pytest.mark.parametrize("name", ["one scale", "a scale a row"])
def test_quantized_constants_are_what_they_mean(name, tmp_path):
    stored = np.array([[-128, 0, 127], [1, 2, 3]], np.int8)
    scale, zero, axis = {"one scale": ([0.5], [-3], 0), "a scale a row": ([0.5, 0.25], [0, 0], 0)}[name]
    graph = Subgraph()
    graph.input("x", (2, 3))
    graph.constant("w", stored, (scale, zero, axis))
    graph.outputs.append(graph.operator("ADD", ["x", "w"], ["y"], {0: ("i8", 0)}))
    weight = read(written(tmp_path, graph)).graph.constants["w"]
    along = np.array(scale).reshape(-1, 1)
    assert weight.dtype == "float32"
    np.testing.assert_array_equal(weight.values(), (stored.astype(float) - np.array(zero).reshape(-1, 1)) * along)


def test_unknown_and_custom_operators_keep_their_names(tmp_path):
    graph = Subgraph()
    graph.input("x", (2, 3))
    graph.operator("FILL", ["x"], ["a"])
    graph.operator("Somebodys", ["a"], ["y"])
    graph.outputs.append("y")
    nodes = read(written(tmp_path, graph)).graph.nodes
    assert [(node.op, node.domain) for node in nodes] == [("FILL", "tflite"), ("Somebodys", "tflite")]


def rms_composite(subgraph=1, name="odml.rms_norm"):
    """A composite and the graph that says what it is."""
    main, body = Subgraph(), Subgraph()
    main.input("x", (2, 3, 4))
    main.constant("gamma", GAMMA)
    attributes = bytes(flexbuffers.Dumps({"epsilon": 1e-6}))
    main.operator(
        "STABLEHLO_COMPOSITE", ["x", "gamma"], ["y"], {"name": name, "subgraph": subgraph, "attributes": attributes}
    )
    main.outputs.append("y")
    body.input("a", (2, 3, 4))
    body.input("w", (4,))
    body.constant("axes", np.array([2], np.int32))
    body.constant("eps", np.array(1e-6, np.float32))
    body.operator("MUL", ["a", "a"], ["s"], {0: ("i8", 0)})
    body.operator("MEAN", ["s", "axes"], ["m"], KEEP, (2, 3, 1))
    body.operator("ADD", ["m", "eps"], ["e"], {0: ("i8", 0)})
    body.operator("RSQRT", ["e"], ["r"])
    body.operator("MUL", ["a", "r"], ["n"], {0: ("i8", 0)})
    body.operator("MUL", ["n", "w"], ["o"], {0: ("i8", 0)})
    body.outputs.append("o")
    return main, body


def test_a_composite_is_written_out_and_keeps_its_name_and_attributes(tmp_path):
    model = read(written(tmp_path, *rms_composite()))
    assert {node.function for node in model.graph.nodes} == {"odml.rms_norm"}
    (said,) = model.config["composites"].values()
    assert said == {"name": "odml.rms_norm", "attributes": {"epsilon": 1e-6}}
    x = example((2, 3, 4))
    (y,) = evaluated(model, {"x": x}).values()
    np.testing.assert_allclose(y, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * GAMMA, rtol=1e-5)


def test_a_composite_without_what_it_is_made_of_stays_one_node(tmp_path):
    main, _ = rms_composite(subgraph=-1)
    (node,) = read(written(tmp_path, main)).graph.nodes
    assert (node.op, node.inputs, node.outputs) == ("odml.rms_norm", ("x", "gamma"), ("y",))
    assert node.attributes == {"epsilon": 1e-6}


def test_a_composite_that_gives_back_its_input(tmp_path):
    main, body = rms_composite()
    body.operators, body.outputs = [], ["a"]
    (node,) = read(written(tmp_path, main, body)).graph.nodes
    assert (node.op, node.inputs, node.outputs) == ("Identity", ("x",), ("y",))


def test_branches_are_graphs_that_see_what_they_are_given(tmp_path):
    main, then = Subgraph(), layer_norm()
    main.input("c", (), "bool")
    main.input("v", (2, 3, 4))
    main.operator("IF", ["c", "v"], ["y"], {0: ("i32", 1), 1: ("i32", 2)}, (2, 3, 4))
    main.outputs.append("y")
    other = chain(("SQUARE", [], {}, None))
    graph = read(written(tmp_path, main, then, other)).graph
    (node,) = graph.nodes
    assert (node.op, node.inputs, len(node.graphs)) == ("If", ("c",), 2)
    assert node.graphs[0].nodes[0].inputs[0] == "v"
    assert node.graphs[0].parent is graph
    assert node.graphs[1].nodes[0].inputs == ("v", "v")
    names = [name for _, inner in graph.walk() for name in inner.outputs]
    assert len(set(names)) == len(names)


def test_what_other_signatures_run_is_a_note(tmp_path):
    path = written(tmp_path, layer_norm(), layer_norm(), signatures=[("prefill", 0), ("decode", 1)])
    (note,) = read(path).notes
    assert note.startswith("signature 'decode' runs graph 1 of the file, and only graph 0 is read; it may hold more")


def test_equal_and_missing_names_are_made_unique(tmp_path):
    graph = Subgraph()
    graph.input("x", (2, 3))
    graph.operator("SQRT", ["x"], [""])
    graph.operator("SQRT", [""], ["z"])
    graph.outputs.append("z")
    data = made([graph]).replace(b"\x01\x00\x00\x00z\x00", b"\x01\x00\x00\x00x\x00")
    (tmp_path / "a.tflite").write_bytes(data)
    assert read(tmp_path / "a.tflite").graph.outputs == ("x#2",)


# -- files made to do harm -----------------------------------------------------------------------------------


def outcome(path):
    try:
        model = read(path)
        for tensor in model.tensors.values():
            tensor.values()
    except FileError as error:
        assert error.where == str(path)
        return str(error)
    return "read"


def test_cut_off_anywhere_is_a_sentence(tmp_path):
    whole = made([layer_norm()])
    path = tmp_path / "a.tflite"
    said = set()
    for length in range(8, len(whole), 7):
        path.write_bytes(whole[:length])
        said.add(outcome(path))
    assert len(said) > 20
    assert "read" not in said
    path.write_bytes(whole)
    assert outcome(path) == "read"


@pytest.mark.parametrize("what", ["norm", "composite"])
def test_changed_bytes_are_a_sentence_or_harmless(what, tmp_path):
    whole, rng = made([layer_norm()] if what == "norm" else rms_composite()), random.Random(0)
    path = tmp_path / "a.tflite"
    for _ in range(1500):
        changed = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4, 16))):
            changed[rng.randrange(8, len(whole))] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        path.write_bytes(changed)
        outcome(path)


def test_no_tflite_file_is_a_sentence(tmp_path):
    (tmp_path / "a.tflite").write_bytes(b"nonsense" * 100)
    assert outcome(tmp_path / "a.tflite").endswith("it does not begin as a TFLite file does; fetch the file again.")


def test_a_graph_that_calls_itself(tmp_path):
    main, body = rms_composite()
    body.operators = [(op, ins, outs, fields) for op, ins, outs, fields in main.operators]
    body.operators = [("STABLEHLO_COMPOSITE", ["a", "w"], ["o"], main.operators[0][3])]
    assert "calls itself" in outcome(written(tmp_path, main, body))
    main.operators[0][3]["subgraph"] = 7
    assert outcome(written(tmp_path, main, body)) == "read"


def test_graphs_that_double_at_each_call_are_not_written_out(tmp_path):
    graphs = []
    for level in range(15):
        graph = Subgraph()
        graph.input("a", (4,))
        fields = {"name": "twice", "subgraph": level + 1, "attributes": b""}
        graph.operator("STABLEHLO_COMPOSITE", ["a"], ["b"], fields)
        graph.operator("STABLEHLO_COMPOSITE", ["b"], ["c"], fields)
        graph.outputs.append("c")
        graphs.append(graph)
    graphs.append(chain(*[("SQUARE", [], {}, None)] * 4, shape=(4,)))
    assert "call each other more often" in outcome(written(tmp_path, *graphs))


def test_a_shape_that_lies(tmp_path):
    graph = Subgraph()
    graph.input("x", (4,))
    graph.constant("w", GAMMA, shape=(2**30, 2**30))
    graph.outputs.append(graph.operator("ADD", ["x", "w"], ["y"], {0: ("i8", 0)}))
    path = written(tmp_path, graph)
    assert read(path).graph.constants["w"].size == prod((2**30, 2**30))
    assert "which its 16 bytes are not" in outcome(path)


FLEX = [{"epsilon": 1e-5, "num_groups": 32, "channel_axis": 3}, {"a": {"TENSOR_DATA": [1, 2, 3]}}, [1, -2, 2.5], "text",
        {"flag": True, "s": "é", "n": None, "v": [1.5, 2.5], "big": 2**40}]  # fmt: skip


@pytest.mark.parametrize("value", FLEX, ids=repr)
def test_attributes(value):
    assert flexbuffer(bytes(flexbuffers.Dumps(value))) == value


def test_attributes_that_are_damaged():
    rng = random.Random(0)
    for value in FLEX * 300:
        data = bytearray(flexbuffers.Dumps(value))
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            flexbuffer(bytes(data))
        except Broken:
            continue
    # a list whose only item is the list
    with pytest.raises(Broken, match="hold themselves"):
        flexbuffer(bytes([1, 0, 40, 2, 40, 1]))
