# SPDX-License-Identifier: MIT
"""This file runs ONNX models in OpenVINO, and checks that it computes in the precision of the file."""

import numpy as np
import pytest
from onnx import helper
from onnx_files import constants, model, save

import layernorm as ln
from layernorm.runtimes import run, seeded_inputs
from layernorm.spec.errors import UnsupportedError

openvino = pytest.importorskip("openvino")
GAMMA = np.linspace(0.5, 2, 4, dtype=np.float32)


def two_norms():
    nodes = [
        helper.make_node("Add", ["x", "three"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "first.weight"], ["a"], epsilon=1e-3),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["m"], axes=[-1]),
        helper.make_node("Sub", ["b", "m"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
        helper.make_node("Add", ["v", "eps"], ["s"]),
        helper.make_node("Sqrt", ["s"], ["r"]),
        helper.make_node("Div", ["d", "r"], ["n"]),
        helper.make_node("Mul", ["n", "second.weight"], ["y"]),
    ]
    w = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    numbers = {"three": np.float32(3), "w": w, "eps": np.float32(1e-5)}
    return model(nodes, constants(**numbers, first__weight=GAMMA, second__weight=GAMMA))


def layer(x, eps):
    x = x.astype(np.float64)
    deviation = x - x.mean(-1, keepdims=True)
    return deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + eps) * GAMMA


def test_norms_are_tapped_in_float32(tmp_path, monkeypatch):
    asked = []

    class Core(openvino.Core):
        def compile_model(self, read, device, config):
            asked.append(config)
            return super().compile_model(read, device, config)

    monkeypatch.setattr(openvino, "Core", Core)
    seen = ln.inspect(save(tmp_path, two_norms()))
    inputs = seeded_inputs(seen.model)
    done = run(seen.model, seen.norms, inputs, runtime="openvino")
    assert done.runtime.startswith("openvino ") and done.missing == {}
    first, second = done.taps["first"], done.taps["second"]
    np.testing.assert_allclose(first.input, inputs["x"] + 3, rtol=1e-6)
    # in bfloat16, which it takes by itself where the processor has it, they would be 1e-2 off
    assert asked == [{"INFERENCE_PRECISION_HINT": "f32"}]
    np.testing.assert_allclose(first.output, layer(first.input, 1e-3), atol=1e-5)
    np.testing.assert_allclose(second.output, layer(second.input, 1e-5), atol=1e-5)


def test_what_it_refuses_is_told_in_its_own_words(tmp_path):
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")]
    seen = ln.inspect(save(tmp_path, model(nodes, domains=["com.example"])))
    with pytest.raises(UnsupportedError, match=r"OpenVINO refuses it: .*Frobnicate"):
        run(seen.model, seen.norms, seeded_inputs(seen.model), runtime="openvino")
