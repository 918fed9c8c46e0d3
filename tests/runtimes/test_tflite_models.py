# SPDX-License-Identifier: MIT
"""This file runs TFLite models in each runtime that reads them, with and without an activation fused into the norm."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import layernorm as ln
from layernorm.runtimes import can_run, run, seeded_inputs
from layernorm.spec.errors import UnsupportedError

sys.path.insert(0, str(Path(__file__).parents[1] / "models" / "formats"))
from tflite_maker import Subgraph, made

KEEP = {0: ("u8", 1)}
GAMMA, BETA = np.linspace(0.5, 2, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)
RUNTIMES = [
    pytest.param("litert", marks=pytest.mark.skipif(
        importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
    )),
    pytest.param("openvino", marks=pytest.mark.skipif(
        importlib.util.find_spec("openvino") is None, reason="openvino is not installed"
    )),
]  # fmt: skip


def written(tmp_path, fused=0):
    """x + 2 → a norm as TensorFlow's converter writes it → a product, so that no end is an end of the model."""
    graph = Subgraph()
    graph.input("x", (2, 3, 4))
    constants = {
        "two": np.float32(2), "axes": np.array([2], np.int32), "eps": np.float32(1e-3), "gamma": GAMMA, "beta": BETA,
    }  # fmt: skip
    for name, value in constants.items():
        graph.constant(name, np.array(value))
    plain, small = {0: ("i8", 0)}, (2, 3, 1)
    graph.operator("ADD", ["x", "two"], ["h"], plain)
    graph.operator("MEAN", ["h", "axes"], ["mean"], KEEP, small)
    graph.operator("SQUARED_DIFFERENCE", ["h", "mean"], ["squares"])
    graph.operator("MEAN", ["squares", "axes"], ["variance"], KEEP, small)
    graph.operator("ADD", ["variance", "eps"], ["safe"], plain)
    graph.operator("RSQRT", ["safe"], ["r"])
    graph.operator("MUL", ["r", "gamma"], ["scaled"], plain, (2, 3, 4))
    graph.operator("MUL", ["h", "scaled"], ["first"], plain)
    graph.operator("MUL", ["mean", "scaled"], ["second"], plain, (2, 3, 4))
    graph.operator("SUB", ["beta", "second"], ["third"], plain, (2, 3, 4))
    graph.operator("ADD", ["first", "third"], ["n"], {0: ("i8", fused)})
    graph.operator("MUL", ["n", "n"], ["y"], plain)
    graph.outputs.append("y")
    path = tmp_path / "model.tflite"
    path.write_bytes(made([graph]))
    return path


def layer(x):
    x = x.astype(np.float64)
    deviation = x - x.mean(-1, keepdims=True)
    return deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-3) * GAMMA + BETA


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("optimized", [False, True])
def test_ends_between_are_read(tmp_path, runtime, optimized):
    seen = ln.inspect(written(tmp_path))
    inputs = seeded_inputs(seen.model)
    done = run(seen.model, seen.norms, inputs, optimized, runtime)
    assert done.missing == {}
    (tap,) = done.taps.values()
    np.testing.assert_allclose(tap.input, inputs["x"] + 2, rtol=1e-6)
    np.testing.assert_allclose(tap.output, layer(inputs["x"] + 2), atol=1e-5)
    assert tap.activation == "" and tap.output_step == 0


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("fused", "name", "applied"),
    [
        (1, "RELU", lambda y: np.maximum(y, 0)),
        (2, "RELU_N1_TO_1", lambda y: np.clip(y, -1, 1)),
        (3, "RELU6", lambda y: np.clip(y, 0, 6)),
    ],
)
def test_a_fused_activation_is_told(tmp_path, runtime, fused, name, applied):
    seen = ln.inspect(written(tmp_path, fused))
    inputs = seeded_inputs(seen.model)
    (tap,) = run(seen.model, seen.norms, inputs, True, runtime).taps.values()
    assert tap.activation == name
    np.testing.assert_allclose(tap.output, applied(layer(inputs["x"] + 2)), atol=1e-5)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_the_runtime_refuses_is_told_in_its_own_words(tmp_path, runtime):
    graph = Subgraph()
    graph.input("x", (2, 4))
    graph.operator("Frobnicate", ["x"], ["y"])
    graph.outputs.append("y")
    path = tmp_path / "custom.tflite"
    path.write_bytes(made([graph]))
    seen = ln.inspect(path)
    said = {"litert": "LiteRT", "openvino": "OpenVINO"}[runtime]
    with pytest.raises(UnsupportedError, match=f"{said} refuses it: .*Frobnicate"):
        run(seen.model, seen.norms, seeded_inputs(seen.model), True, runtime)


def test_without_any_runtime_the_extra_is_named(tmp_path, monkeypatch):
    read = ln.inspect(written(tmp_path)).model
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert can_run(read) == "ai-edge-litert is not installed; pip install ai-edge-litert"
    with pytest.raises(UnsupportedError, match=r"cannot be run: ai-edge-litert is not installed; pip install "):
        run(read, [], {})
