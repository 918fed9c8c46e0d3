# SPDX-License-Identifier: MIT
"""This file tests the reading of ONNX files: against the onnx package's own evaluator, and with files that do harm."""

import random
import time

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_files import X, Y, beside, constants, model, save, written_again
from onnxruntime import InferenceSession

from layernorm.models.formats import onnx as format_onnx
from layernorm.models.formats import read_model
from layernorm.spec.errors import FileError, LayerNormError, UnsupportedError

NUMBERS = np.arange(4, dtype=np.float32)


def read(folder, proto):
    return read_model(save(folder, proto))


# -- the graph -----------------------------------------------------------------------------------------------


def test_a_graph_as_the_file_has_it(tmp_path):
    between = helper.make_tensor_value_info("h", TensorProto.FLOAT16, ["n", None, 4])
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], "first", to=TensorProto.FLOAT16),
        helper.make_node("LayerNormalization", ["h", "w", ""], ["y"], "second", axis=-1, epsilon=1e-6),
    ]
    held = read(tmp_path, model(nodes, constants(w=NUMBERS), value_info=[between]))
    graph = held.graph
    assert (held.format, held.path, list(held.tensors)) == ("onnx", str(tmp_path / "model.onnx"), ["w"])
    assert graph.inputs == {"x": ("float32", (None, 3, 4))}
    assert graph.outputs == ("y",)
    assert [(n.op, n.name, n.where, n.version) for n in graph.nodes] == [
        ("Cast", "first", "graph/node[0]", 17),
        ("LayerNormalization", "second", "graph/node[1]", 17),
    ]
    assert graph.nodes[1].inputs == ("h", "w", "")
    assert graph.nodes[1].attributes == {"axis": -1, "epsilon": float(np.float32(1e-6))}
    assert graph.about("h") == ("float16", (None, None, 4))
    assert graph.about("y") == ("float32", (None, 3, 4))
    assert graph.about("w") == ("float32", (4,))


def test_an_initializer_that_is_an_input_too_is_a_constant(tmp_path):
    weight = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])
    proto = model([helper.make_node("Mul", ["x", "w"], ["y"])], constants(w=NUMBERS), inputs=(X, weight))
    graph = read(tmp_path, proto).graph
    assert list(graph.inputs) == ["x"]
    assert graph.constant("w").shape == (4,)


def test_each_domain_has_its_own_version(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], domain="ai.onnx"),
        helper.make_node("F", ["h"], ["y"], domain="com.f"),
    ]
    proto = model(nodes, opset=21, domains=["com.f"])
    assert [(n.domain, n.version) for n in read(tmp_path, proto).graph.nodes] == [("", 21), ("com.f", 1)]


def test_attributes_are_plain_values(tmp_path):
    node = helper.make_node(
        "F",
        ["x"],
        ["y"],
        a=1.5,
        b=2,
        c="text",
        d=[1.0, 2.0],
        e=[3, 4],
        f=["s", "t"],
        domain="com.f",
        g=numpy_helper.from_array(NUMBERS, "t"),
    )
    node.attribute.append(AttributeProto(name="raw", type=AttributeProto.STRING, s=b"\xff"))
    node.attribute.append(AttributeProto(name="old", f=0.25))  # the first version of the format had no types
    node.attribute.append(AttributeProto(name="zero", type=AttributeProto.INT))
    said = dict(read(tmp_path, model([node])).graph.nodes[0].attributes)
    np.testing.assert_array_equal(said.pop("g").values(), NUMBERS)
    assert said == {"a": 1.5, "b": 2, "c": "text", "d": [1.0, 2.0], "e": [3, 4], "f": ["s", "t"], "raw": b"\xff",
                    "old": 0.25, "zero": 0}  # fmt: skip


def test_what_was_compiled_away_is_noted(tmp_path):
    held = read(tmp_path, model([helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")]))
    assert held.notes == ("graph/node[0] is a part of the model compiled for one device; norms inside cannot be seen.",)


def test_nodes_out_of_order_are_put_in_order(tmp_path):
    nodes = [
        helper.make_node("Relu", ["b"], ["y"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Abs", ["x"], ["a"]),
    ]
    assert [n.op for n in read(tmp_path, model(nodes)).graph.nodes] == ["Abs", "Neg", "Relu"]


def branches(*nodes, **more):
    """Give an If whose two branches have these nodes and give `r`."""
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", 3, 4])
    body = helper.make_graph(list(nodes), "b", [], [result], **more)
    return helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)


def test_bodies_know_what_is_around_them(tmp_path):
    mul = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "v"], ["r"])]
    proto = model([branches(*mul, initializer=constants(v=NUMBERS))], constants(w=NUMBERS, flag=np.array(True)))
    graph = read(tmp_path, proto).graph
    (node,) = graph.nodes
    first, second = node.graphs
    assert first.parent is graph
    assert first.constant("w") is graph.constants["w"]
    assert first.about("x") == ("float32", (None, 3, 4))
    assert [n.where for n in first.nodes] == [f"graph/node[0]/else_branch/node[{i}]" for i in range(2)]
    names = [name for _, n in graph.walk() for name in n.outputs]
    assert len(set(names)) == len(names) == 5
    # what the second branch reads is its own, under whatever name
    assert second.nodes[1].inputs[0] == second.nodes[0].outputs[0] != "h"
    assert second.constant(second.nodes[1].inputs[1]).shape == (4,)


def test_a_body_that_reads_a_later_node_puts_its_node_after_that(tmp_path):
    proto = model([branches(helper.make_node("Neg", ["h"], ["r"])), helper.make_node("Abs", ["x"], ["h"])],
                  constants(flag=np.array(True)))  # fmt: skip
    assert [n.op for n in read(tmp_path, proto).graph.nodes] == ["Abs", "If"]


# -- functions -----------------------------------------------------------------------------------------------


def function(name, inputs, outputs, nodes, attributes=(), defaults=(), domains=("com.f",), opset=17):
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_function("com.f", name, inputs, outputs, nodes, imports, list(attributes), list(defaults))


def call(name, inputs, outputs, label="", **attributes):
    return helper.make_node(name, inputs, outputs, label, domain="com.f", **attributes)


def referring(node, attribute, to, kind=AttributeProto.FLOAT):
    node.attribute.append(AttributeProto(name=attribute, ref_attr_name=to, type=kind))
    return node


def test_functions_are_put_in_place(tmp_path):
    norm = function(
        "Norm", ["a", "w"], ["r"],
        [
            helper.make_node("Constant", [], ["two"], value_float=2.0),
            referring(helper.make_node("LayerNormalization", ["a", "w"], ["h"], "ln"), "epsilon", "eps"),
            helper.make_node("Mul", ["h", "two"], ["r"]),
        ],
        ["eps"],
    )  # fmt: skip
    outer = function(
        "Outer", ["a", "w"], ["r"],
        [call("Norm", ["a", "w"], ["h"], "inner", eps=0.5), referring(call("Norm", ["h", "w"], ["r"]), "eps", "last")],
        [], [helper.make_attribute("last", 0.25)],
    )  # fmt: skip
    nodes = [
        call("Outer", ["x", "w"], ["p"], "one"),
        call("Outer", ["p", "w"], ["q"], "two", last=0.125),
        helper.make_node("Add", ["q", "p"], ["y"]),
    ]
    proto = model(nodes, constants(w=NUMBERS), functions=[norm, outer], domains=["com.f"])
    graph = read(tmp_path, proto).graph
    norms = [n for n in graph.nodes if n.op == "LayerNormalization"]
    assert [n.attributes["epsilon"] for n in norms] == [0.5, 0.25, 0.5, 0.125]
    assert {n.function for n in norms} == {"Norm"}
    assert norms[0].name == "one/inner/ln"
    assert norms[0].where == "graph/node[0]/Outer/node[0]/Norm/node[1]"
    assert not [n for n in graph.nodes if n.domain]
    names = [name for n in graph.nodes for name in n.outputs] + list(graph.constants)
    assert len(set(names)) == len(names)
    x = np.linspace(-1, 2, 24, dtype=np.float32).reshape(2, 3, 4)
    first, again = (
        InferenceSession(m.SerializeToString()).run(["y"], {"x": x})[0] for m in (proto, written_again(graph))
    )
    np.testing.assert_allclose(again, first, rtol=1e-6)


def test_a_function_that_passes_a_value_on(tmp_path):
    both = function("Both", ["a"], ["a", "r", "r"], [helper.make_node("Neg", ["a"], ["r"])])
    nodes = [call("Both", ["x"], ["p", "q", "t"]), helper.make_node("Sum", ["p", "q", "t"], ["y"])]
    graph = read(tmp_path, model(nodes, functions=[both], domains=["com.f"])).graph
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(ReferenceEvaluator(written_again(graph)).run(["y"], {"x": x})[0], -x)


def test_a_function_follows_its_own_operators(tmp_path):
    old = function("Old", ["a"], ["r"], [helper.make_node("Relu", ["a"], ["r"])], opset=11)
    proto = model([call("Old", ["x"], ["y"])], functions=[old], domains=["com.f"], opset=20)
    (node,) = read(tmp_path, proto).graph.nodes
    assert (node.op, node.version, node.outputs) == ("Relu", 11, ("y",))


def test_a_function_with_a_body_inside(tmp_path):
    result = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Mul", ["h", "a"], ["t"])], "b", [], [result])
    nodes = [
        helper.make_node("Neg", ["a"], ["h"]),
        helper.make_node("Constant", [], ["flag"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["flag"], ["r"], then_branch=body, else_branch=body),
    ]
    proto = model([call("F", ["x"], ["p"], "one"), call("F", ["p"], ["y"], "two")],
                  functions=[function("F", ["a"], ["r"], nodes)], domains=["com.f"])  # fmt: skip
    graph = read(tmp_path, proto).graph
    inner = [n for g, n in graph.walk() if n.op == "Mul"]
    assert [n.inputs for n in inner] == [("one/h", "x")] * 2 + [("two/h", "p")] * 2
    assert len({n.outputs for n in inner}) == 4


@pytest.mark.parametrize(
    ("functions", "why"),
    [
        ([function("F", ["a"], ["r"], [call("F", ["a"], ["r"])])], "calls itself"),
        (
            [
                function("F", ["a"], ["r"], [call("G", ["a"], ["r"])]),
                function("G", ["a"], ["r"], [call("F", ["a"], ["r"])]),
            ],
            "calls itself",
        ),
        ([function("F", ["a"], ["r"], [])], "does not make its output"),
        (
            [function("F", ["a"], ["r"], [call("F1", ["a"], ["r"])])]
            + [function(f"F{i}", ["a"], ["r"], [call(f"F{i + 1}", ["a"], ["r"])]) for i in range(1, 300)],
            "deep",
        ),
        (
            [function("F", ["a"], ["r"], [call("F1", ["a"], ["h"]), call("F1", ["h"], ["r"])])]
            + [
                function(f"F{i}", ["a"], ["r"], [call(f"F{i + 1}", ["a"], ["h"]), call(f"F{i + 1}", ["h"], ["r"])])
                for i in range(1, 60)
            ],
            "stand for over",
        ),
    ],
    ids=["itself", "each other", "no output", "deep", "doubling"],
)
def test_functions_that_never_end_are_refused(tmp_path, functions, why):
    proto = model([call("F", ["x"], ["y"])], functions=functions, domains=["com.f"])
    with pytest.raises(FileError, match=why):
        read(tmp_path, proto)


def test_long_names_are_not_repeated_without_end(tmp_path):
    name = "n" * 1_000_000
    proto = model(
        [call("F", ["x"], ["y"], name)],
        domains=["com.f"],
        functions=[
            function("F", ["a"], ["r"], [helper.make_node("Neg", ["a"], ["h"]), helper.make_node("Neg", ["h"], ["r"])])
        ],
    )
    nodes = read(tmp_path, proto).graph.nodes
    assert all(len(text) < 1000 for node in nodes for text in (node.where, *node.outputs))


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([helper.make_node("Relu", ["y"], ["y"])], r"graph/node\[0\] \(Relu\) waits for its own output"),
        ([helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["b"], ["a"])], "waits for its own output"),
        ([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])], "two values"),
        ([helper.make_node("Relu", ["x"], ["x"])], "two values"),
        ([helper.make_node("Constant", [], ["y"])], "has no value"),
        ([helper.make_node("Constant", [], ["y"], value_floats="text")], "has a value_floats that is none"),
        ([helper.make_node("", ["x"], ["y"])], "has no operator"),
    ],
)
def test_graphs_that_contradict_themselves(tmp_path, nodes, why):
    with pytest.raises(FileError, match=why):
        read(tmp_path, model(nodes))


def test_a_body_that_waits_for_its_own_node(tmp_path):
    with pytest.raises(FileError, match="waits for its own output"):
        read(tmp_path, model([branches(helper.make_node("Neg", ["y"], ["r"]))], constants(flag=np.array(True))))


def in_field(number, data):
    """Wrap bytes as a field of a protobuf message."""
    length, size = b"", len(data)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


@pytest.mark.parametrize("depth", [20, 60, 5000])
def test_bodies_in_bodies(tmp_path, depth):
    graph = b""
    for _ in range(depth):
        attribute = in_field(1, b"then_branch") + in_field(6, graph) + bytes([20 << 3 | 128, 1, AttributeProto.GRAPH])
        graph = in_field(1, in_field(4, b"If") + in_field(5, attribute))
    data = bytes([8, 10]) + in_field(7, graph)
    if depth > 30:
        with pytest.raises(FileError):
            read(tmp_path, data)
        return
    assert sum(1 for _ in read(tmp_path, data).graph.walk()) == depth


def everything(folder):
    """Give a model that has one of each thing that is read."""
    (folder / "weights.bin").write_bytes(NUMBERS.tobytes())
    proto = beside("weights.bin", length=16)
    norm = function("Norm", ["a"], ["r"], [helper.make_node("Relu", ["a"], ["r"])])
    half = constants(half=NUMBERS.astype(np.float16), q=np.int8([[-7, 3], [0, -128]]), flag=np.array(True))
    nodes = [
        *proto.graph.node, helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0]),
        helper.make_node("DequantizeLinear", ["q", "c"], ["d"]), call("Norm", ["x"], ["e"]),
        helper.make_node("LayerNormalization", ["y", "w", "w"], ["z"], epsilon=1e-5),
    ]  # fmt: skip
    nodes.append(branches(helper.make_node("Neg", ["x"], ["r"])))
    nodes[-1].output[0] = "last"
    return model(nodes, [*proto.graph.initializer, *half], functions=[norm], domains=["com.f"], value_info=[Y])


def survives(folder, data):
    """Read a file and all in it; damage may end in a refusal alone."""
    try:
        held = read(folder, data)
        for tensor in held.tensors.values():
            tensor.values()
    except LayerNormError as error:
        assert str(error)
        return False
    return True


def test_every_file_cut_off_is_refused_or_read(tmp_path):
    data = everything(tmp_path).SerializeToString()
    assert survives(tmp_path, data)
    assert sum(survives(tmp_path, data[:n]) for n in range(1, len(data))) < 5


def test_damaged_files_are_refused_or_read(tmp_path):
    data, draw, read_anyway = everything(tmp_path).SerializeToString(), random.Random(0), 0
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 5])):
            damaged[draw.randrange(len(data))] = draw.randrange(256)
        read_anyway += survives(tmp_path, bytes(damaged))
    assert 100 < read_anyway < 2900


@pytest.mark.parametrize("data", [b"not a model", bytes(100), b"\x08\x0a", b"\x80\x02}q\x00."])
def test_what_is_no_model_is_refused(tmp_path, data):
    with pytest.raises(FileError, match="ONNX model"):
        read(tmp_path, data)


def test_a_name_that_is_no_text(tmp_path):
    data = model([helper.make_node("Relu", ["x"], ["y"], "a_name_here")]).SerializeToString()
    with pytest.raises(FileError, match=r"no text|no whole"):
        read(tmp_path, data.replace(b"a_name_here", b"a_n\xff\xfe_here"))


def test_a_hundred_thousand_nodes_in_linear_time(tmp_path):
    def seconds(count):
        nodes = [helper.make_node("Add", [f"h{i}", "w"], [f"h{i + 1}"], f"add{i}", a=1, b=2.0) for i in range(count)]
        path = save(tmp_path, model(nodes, constants(w=NUMBERS)))
        start = time.process_time()
        assert len(read_model(path).graph.nodes) == count
        return time.process_time() - start

    seconds(100)
    few, many = seconds(25_000), seconds(100_000)
    assert many < 10
    assert many < 10 * few


# -- which files are ours ------------------------------------------------------------------------------------


def test_files_are_told_by_what_is_in_them(tmp_path):
    data = model([helper.make_node("Relu", ["x"], ["y"])]).SerializeToString()
    assert format_onnx.recognizes(save(tmp_path, data, "model.bin"), data)
    assert format_onnx.recognizes(save(tmp_path, data, "MODEL.ONNX"), b"anything")
    others = [
        b"PK\x03\x04",
        b"GGUF\x03\0\0\0",
        b"\x08\x05\x12\0\0\0\0\0{",
        b"\x08\x05\x38\x01",
        b"\x80\x02",
        b"",
        b"\x08",
        b"\x89HDF\r\n",
        b"\x1c\0\0\0TFL3",
    ]
    assert not any(format_onnx.recognizes(tmp_path / "file", head) for head in others)


def test_a_folder_with_one_model(tmp_path):
    save(tmp_path, model([helper.make_node("Relu", ["x"], ["y"])]))
    (tmp_path / "config.json").write_text("{}")
    assert read_model(tmp_path).path == str(tmp_path / "model.onnx")
    save(tmp_path, b"", "other.onnx")
    with pytest.raises(UnsupportedError, match=r"holds 2 ONNX models \(model.onnx, other.onnx\); pass one"):
        format_onnx.read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert not format_onnx.recognizes(tmp_path, b"")


def test_the_checker_of_onnx_accepts_what_these_tests_call_good(tmp_path):
    onnx.checker.check_model(str(save(tmp_path, everything(tmp_path))))
