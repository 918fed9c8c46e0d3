# SPDX-License-Identifier: MIT
"""This file runs pairs of ONNX models and checks which norm is said to introduce a difference: also in eight bits."""

import numpy as np
import onnx
import onnxruntime
import pytest
from norm_taps import Pair
from onnx import helper
from onnx_files import constants, model, save

import layernorm as ln
from layernorm.comparing.divergence import outcomes, replayed
from layernorm.runtimes import inputs_for, run, seeded_inputs


def chain(eps=1e-5, fused=True, dtype=np.float32, opset=17):
    """Three norms with a matrix product between; the second has the epsilon that is asked for."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    numbers = {"w": np.random.default_rng(1).standard_normal((4, 4)).astype(dtype), "two": np.array(2, dtype)}
    nodes, value = [], "x"
    for i, e in enumerate((1e-5, eps, 1e-5)):
        numbers |= {
            f"n{i}__weight": np.linspace(0.5, 2, 4).astype(dtype),
            f"n{i}__bias": np.linspace(-1, 1, 4).astype(dtype),
        }
        affine, out = [f"n{i}.weight", f"n{i}.bias"], f"n{i}_out"
        if fused:
            nodes.append(helper.make_node("LayerNormalization", [value, *affine], [out], epsilon=e))
        else:
            numbers[f"e{i}"] = np.array(e, dtype)
            m, d, q, v, s, r, z, g = (f"{name}{i}" for name in "mdqvsrzg")
            nodes += [
                helper.make_node("ReduceMean", [value], [m], axes=[-1]), helper.make_node("Sub", [value, m], [d]),
                helper.make_node("Pow", [d, "two"], [q]), helper.make_node("ReduceMean", [q], [v], axes=[-1]),
                helper.make_node("Add", [v, f"e{i}"], [s]), helper.make_node("Sqrt", [s], [r]),
                helper.make_node("Div", [d, r], [z]), helper.make_node("Mul", [z, affine[0]], [g]),
                helper.make_node("Add", [g, affine[1]], [out]),
            ]  # fmt: skip
        value = f"h{i}" if i < 2 else "y"
        nodes.append(helper.make_node("MatMul", [out, "w"], [value]))
    ends = [helper.make_tensor_value_info(n, kind, ["n", 3, 4]) for n in "xy"]
    if opset >= 18:
        numbers["last"] = np.array([-1])
        for node in nodes:
            if node.op_type == "ReduceMean":
                del node.attribute[:]
                node.input.append("last")
    return model(nodes, constants(**numbers), inputs=ends[:1], outputs=ends[1:], opset=opset)


def compared(tmp_path, a, b, optimized=(True, True)):
    seen = [ln.inspect(save(tmp_path, proto, f"{i}.onnx")) for i, proto in enumerate((a, b))]
    inputs = seeded_inputs(seen[0].model)
    taps = [run(s.model, s.norms, inputs, o).taps for s, o in zip(seen, optimized, strict=True)]
    return outcomes([Pair(x, y) for x, y in zip(seen[0].norms, seen[1].norms, strict=True)], *taps)


@pytest.mark.parametrize("optimized", [(False, False), (True, True), (False, True)])
def test_fused_and_loose_are_no_difference(tmp_path, optimized):
    found = compared(tmp_path, chain(), chain(fused=False), optimized)
    assert {o.status for o in found} <= {"equal", "propagates"}
    assert max(o.error for o in found) < 1e-5


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_the_norm_with_another_epsilon_introduces_and_the_next_propagates(tmp_path, optimized, fused, dtype):
    found = compared(tmp_path, chain(dtype=dtype), chain(eps=0.3, fused=fused, dtype=dtype), (optimized, optimized))
    assert [o.status for o in found][1:] == ["introduces", "propagates"]
    assert found[0].status in ("equal", "propagates")


def test_float16_in_either_form_is_no_difference(tmp_path):
    found = compared(tmp_path, chain(dtype=np.float16), chain(fused=False, dtype=np.float16), (False, False))
    assert "introduces" not in {o.status for o in found}


@pytest.mark.parametrize("fused", [False, True])
def test_a_conversion_to_float16_introduces_nothing(tmp_path, fused):
    seen = [
        ln.inspect(save(tmp_path, chain(fused=fused, dtype=dtype), f"{dtype.__name__}.onnx"))
        for dtype in (np.float32, np.float16)
    ]
    inputs = seeded_inputs(seen[0].model)
    taps = [run(s.model, s.norms, inputs_for(s.model, inputs), optimized=False).taps for s in seen]
    pairs = [Pair(x, y) for x, y in zip(seen[0].norms, seen[1].norms, strict=True)]
    found = outcomes(pairs, *taps)
    assert "introduces" not in {o.status for o in found}
    assert 1e-5 < max(o.error for o in found) < 1e-2
    assert {o.status for o in replayed(pairs, taps[1], "b")} == {"agrees-on-replay"}


def quantized(wrong=False):
    """The fused chain with values and parameters in eight bits: Q and DQ before and after each norm."""
    proto = chain()
    numbers, nodes = {}, []

    def pair(name, out, step):
        numbers[f"{out}_step"], numbers[f"{out}_zero"] = np.float32(step), np.int8(0)
        more = [f"{out}_step", f"{out}_zero"]
        nodes.extend(
            [
                helper.make_node("QuantizeLinear", [name, *more], [f"{out}_q"]),
                helper.make_node("DequantizeLinear", [f"{out}_q", *more], [out]),
            ]
        )

    for node in proto.graph.node:
        if node.op_type == "LayerNormalization":
            pair(node.input[0], f"{node.output[0]}_in", 0.08)
            weight = next(t for t in proto.graph.initializer if t.name == node.input[1])
            values = np.frombuffer(weight.raw_data, np.float32)
            step = 2 / 127
            numbers[f"{weight.name}_int8".replace(".", "__")] = np.rint(values / step).astype(np.int8)
            if wrong and "n1" in weight.name:
                numbers[f"{weight.name}_int8".replace(".", "__")] = np.rint(values[::-1] / step).astype(np.int8)
            numbers[f"{weight.name}_step".replace(".", "__")] = np.float32(step)
            nodes.append(
                helper.make_node(
                    "DequantizeLinear", [f"{weight.name}_int8", f"{weight.name}_step"], [f"{weight.name}_f"]
                )
            )
            out = node.output[0]
            nodes.append(
                helper.make_node(
                    "LayerNormalization",
                    [f"{out}_in", f"{weight.name}_f", node.input[2]],
                    [f"{out}_norm"],
                    epsilon=1e-5,
                )
            )
            pair(f"{out}_norm", out, 0.03)
        else:
            nodes.append(node)
    kept = [t for t in proto.graph.initializer if not t.name.endswith("weight")]
    return model(nodes, [*kept, *constants(**numbers)])


@pytest.mark.parametrize("optimized", [False, True])
def test_eight_bits_with_their_scale_introduce_nothing(tmp_path, optimized):
    found = compared(tmp_path, chain(), quantized(), (optimized, optimized))
    assert [o.status for o in found] == ["propagates"] * 3
    assert 1e-3 < max(o.error for o in found) < 0.3


def rounded_each(proto, inputs, bits=8):
    """The chain of loose operations with every result rounded to integers, of a scale that its values have."""
    names = [node.output[0] for node in proto.graph.node]
    wide = onnx.ModelProto.FromString(proto.SerializeToString())
    wide.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n != "y")
    seen = dict(zip(names, onnxruntime.InferenceSession(wide.SerializeToString()).run(names, inputs), strict=True))
    nodes, numbers, kind = [], {}, np.int8 if bits == 8 else np.int16
    for node in proto.graph.node:
        out = node.output[0]
        step = np.abs(seen[out]).max() / np.iinfo(kind).max
        numbers |= {f"{out}_step": np.float32(step), f"{out}_zero": kind(0)}
        more = [f"{out}_step", f"{out}_zero"]
        nodes += [
            helper.make_node(
                node.op_type, node.input, [f"{out}_f"],
                **{a.name: helper.get_attribute_value(a) for a in node.attribute},
            ),
            helper.make_node("QuantizeLinear", [f"{out}_f", *more], [f"{out}_q"]),
            helper.make_node("DequantizeLinear", [f"{out}_q", *more], [out]),
        ]  # fmt: skip
    return model(nodes, [*proto.graph.initializer, *constants(**numbers)], opset=21)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("optimized", [False, True])
def test_integers_inside_a_norm_introduce_nothing(tmp_path, bits, optimized):
    a = chain(fused=False, opset=21)
    inputs = seeded_inputs(ln.inspect(save(tmp_path, a)).model)
    found = compared(tmp_path, a, rounded_each(a, inputs, bits), (optimized, optimized))
    assert "introduces" not in {o.status for o in found}, found
    assert max(o.error for o in found) > 1e-5


def gamma_reversed():
    wrong = chain(fused=False, opset=21)
    weight = next(t for t in wrong.graph.initializer if t.name == "n1.weight")
    weight.raw_data = np.frombuffer(weight.raw_data, np.float32)[::-1].tobytes()
    return wrong


@pytest.mark.parametrize(
    ("bits", "wrong"),
    [(8, gamma_reversed), (16, gamma_reversed), (16, lambda: chain(eps=0.01, fused=False, opset=21))],
    ids=["8 gamma", "16 gamma", "16 epsilon"],
)
def test_a_fault_among_integers_inside_a_norm_is_found(tmp_path, bits, wrong):
    a = chain(fused=False, opset=21)
    inputs = seeded_inputs(ln.inspect(save(tmp_path, a)).model)
    found = compared(tmp_path, a, rounded_each(wrong(), inputs, bits))
    assert [o.status == "introduces" for o in found] == [False, True, False]


def test_a_fault_among_eight_bits_is_found(tmp_path):
    found = compared(tmp_path, chain(), quantized(wrong=True))
    assert [o.status for o in found] == ["propagates", "introduces", "propagates"]
