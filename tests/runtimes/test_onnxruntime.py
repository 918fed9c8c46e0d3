# SPDX-License-Identifier: MIT
"""This file taps norms in ONNX Runtime and works their inputs and outputs out by hand."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_files import constants, model, save

import layernorm as ln
from layernorm.runtimes import can_run, run, seeded_inputs, taps_of
from layernorm.spec.errors import UnsupportedError

GAMMA, BETA = np.linspace(0.5, 2, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
FUSED = helper.make_node("LayerNormalization", ["h", "first.weight", "first.bias"], ["a"], epsilon=1e-3)
LOOSE = [
    helper.make_node("ReduceMean", ["b"], ["m"], axes=[-1]),
    helper.make_node("Sub", ["b", "m"], ["d"]),
    helper.make_node("Mul", ["d", "d"], ["q"]),
    helper.make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
    helper.make_node("Add", ["v", "eps"], ["s"]),
    helper.make_node("Sqrt", ["s"], ["r"]),
    helper.make_node("Div", ["d", "r"], ["n"]),
    helper.make_node("Mul", ["n", "second.weight"], ["g"]),
    helper.make_node("Add", ["g", "second.bias"], ["y"]),
]


def two_norms():
    """x + 3 → a fused norm → a matrix product → a norm of loose operations; nothing is said of values between."""
    nodes = [
        helper.make_node("Add", ["x", "three"], ["h"]), FUSED, helper.make_node("MatMul", ["a", "w"], ["b"]), *LOOSE,
    ]  # fmt: skip
    numbers = {"three": np.float32(3), "w": WEIGHT, "eps": np.float32(1e-5)}
    affine = {f"{n}__{r}": v for n in ("first", "second") for r, v in (("weight", GAMMA), ("bias", BETA))}
    return model(nodes, constants(**numbers, **affine))


def layer(x, eps):
    x = x.astype(np.float64)
    deviation = x - x.mean(-1, keepdims=True)
    return deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + eps) * GAMMA + BETA


def looked_into(path):
    seen = ln.inspect(path)
    return seen.model, seen.norms


@pytest.mark.parametrize("optimized", [False, True])
def test_every_norm_is_tapped_in_one_run(tmp_path, optimized, monkeypatch):
    read, norms = looked_into(save(tmp_path, two_norms()))
    x = (10 + np.random.default_rng(0).standard_normal((2, 3, 4))).astype(np.float32)
    sessions = []
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *args, **more: sessions.append(1) or real(*args, **more)
    )
    taps = taps_of(read, norms, {"x": x}, optimized)
    assert list(taps) == ["first", "second"]
    assert len(sessions) == 1
    a = layer(x + 3, 1e-3)
    expected = {"first": (x + 3, a), "second": (a @ WEIGHT, layer(a @ WEIGHT, 1e-5))}
    for name, (before, after) in expected.items():
        np.testing.assert_allclose(taps[name].input, before, rtol=0, atol=1e-5)
        np.testing.assert_allclose(taps[name].output, after, rtol=0, atol=1e-4)
        assert taps[name].output.dtype == np.float32
        assert taps[name].activation == "" and taps[name].scale_step == 0


def test_the_file_is_not_changed_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "aside"))
    (tmp_path / "aside").mkdir()
    path = save(tmp_path, two_norms())
    before = path.read_bytes()
    read, norms = looked_into(path)
    taps_of(read, norms, seeded_inputs(read))

    class Stopped(onnxruntime.InferenceSession):
        def run(self, *args, **more):
            raise KeyboardInterrupt

    monkeypatch.setattr(onnxruntime, "InferenceSession", Stopped)
    with pytest.raises(KeyboardInterrupt):
        taps_of(read, norms, seeded_inputs(read))
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["aside", "model.onnx"]


FOREVER = """
import signal, sys
import layernorm as ln
# what a shell starts in the background ignores the signal, and so do its children
signal.signal(signal.SIGINT, signal.default_int_handler)
from layernorm.runtimes import seeded_inputs, taps_of
seen = ln.inspect(sys.argv[1])
inputs = seeded_inputs(seen.model)
print("running", flush=True)
while True:
    taps_of(seen.model, seen.norms, inputs)
"""


def test_a_process_that_is_stopped_from_the_keyboard_leaves_nothing_behind(tmp_path):
    aside = tmp_path / "aside"
    aside.mkdir()
    onnx.save(two_norms(), tmp_path / "model.onnx", save_as_external_data=True, location="all.bin", size_threshold=0)
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", FOREVER, tmp_path / "model.onnx"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(aside)}, text=True,
        ) as process:  # fmt: skip
            assert process.stdout.readline() == "running\n"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            try:
                assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
            finally:
                process.kill()  # or leaving the block would wait for ever
        assert sorted(p.name for p in tmp_path.rglob("*")) == ["all.bin", "aside", "model.onnx"]


def test_weights_beside_the_model_are_found_and_not_copied(tmp_path, monkeypatch):
    (tmp_path / "weights").mkdir()
    proto = two_norms()
    onnx.save(
        proto, tmp_path / "model.onnx", save_as_external_data=True, location="all.bin", size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    monkeypatch.chdir(tmp_path.parent)
    read, norms = looked_into(tmp_path.relative_to(tmp_path.parent) / "model.onnx")
    inputs = {"x": np.ones((1, 3, 4), np.float32)}
    beside = taps_of(read, norms, inputs)
    inside = taps_of(*looked_into(save(tmp_path, two_norms(), "whole.onnx")), inputs)
    assert all(np.array_equal(beside[name].output, inside[name].output) for name in inside)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.bin", "model.onnx", "weights", "whole.onnx"]


def test_more_than_two_gigabytes_beside_the_model_are_not_copied(tmp_path):
    rows, columns = 2**20, 640
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(rows * columns * 4)  # zeros that take no place
    table = TensorProto(
        name="table", data_type=TensorProto.FLOAT, dims=(rows, columns), data_location=TensorProto.EXTERNAL
    )
    table.external_data.add(key="location", value="table.bin")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["row"]),
        helper.make_node("Add", ["row", "x"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "n.weight"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "s"]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", columns]),
    ]
    weight = constants(n__weight=np.ones(columns, np.float32))
    proto = model(nodes, [table, *weight], inputs=ends, outputs=[onnx.ValueInfoProto(name="y")])
    read, norms = looked_into(save(tmp_path, proto))
    inputs = seeded_inputs(read)
    assert inputs["ids"].max() > 2**19
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tap,) = taps_of(read, norms, inputs).values()
    assert np.array_equal(tap.input, inputs["x"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB: 1 GiB
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "table.bin"]


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_a_sum_inside_a_node_is_the_input(tmp_path, operator):
    skip = np.full((1, 3, 4), 2, np.float32)
    names = ["h", "skip", "n.weight", "n.bias", "more"] if operator[4] == "L" else ["h", "skip", "n.weight", "more"]
    nodes = [
        helper.make_node("Identity", ["x"], ["h"]),
        helper.make_node(operator, names, ["y"], domain="com.microsoft", epsilon=1e-5),
    ]  # fmt: skip
    numbers = constants(skip=skip, n__weight=GAMMA, n__bias=BETA, more=np.arange(4, dtype=np.float32))
    read, norms = looked_into(save(tmp_path, model(nodes, numbers, domains=["com.microsoft"])))
    assert norms[0].input == ""
    x = np.random.default_rng(0).standard_normal((1, 3, 4)).astype(np.float32)
    (tap,) = taps_of(read, norms, {"x": x}).values()
    np.testing.assert_allclose(tap.input, x + 2 + np.arange(4), atol=1e-6)
    assert np.array_equal(tap.output, onnxruntime.InferenceSession(read.path).run(["y"], {"x": x})[0])


def function_of(nodes, outputs=("r",)):
    imports = [helper.make_opsetid("", 17)]
    return helper.make_function("own", "Block", ["v", "g", "b"], list(outputs), nodes, imports)


def test_a_function_that_is_a_norm_is_tapped_by_its_ends(tmp_path):
    body = [helper.make_node("LayerNormalization", ["v", "g", "b"], ["r"], epsilon=1e-3)]
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Block", ["h", "g", "b"], ["y"], domain="own")]
    proto = model(nodes, constants(g=GAMMA, b=BETA), functions=[function_of(body)], domains=["own"])
    read, norms = looked_into(save(tmp_path, proto))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (tap,) = taps_of(read, norms, {"x": x}).values()
    np.testing.assert_allclose(tap.input, np.maximum(x, 0))
    np.testing.assert_allclose(tap.output, layer(np.maximum(x, 0), 1e-3), atol=1e-5)


def test_a_norm_inside_a_function_is_said_to_be_out_of_reach(tmp_path):
    body = [
        helper.make_node("Neg", ["v"], ["inner"]),
        helper.make_node("LayerNormalization", ["inner", "g", "b"], ["r"], epsilon=1e-3),
    ]
    nodes = [helper.make_node("Block", ["x", "g", "b"], ["y"], domain="own")]
    proto = model(nodes, constants(g=GAMMA, b=BETA), functions=[function_of(body)], domains=["own"])
    read, norms = looked_into(save(tmp_path, proto))
    done = run(read, norms, {"x": np.ones((2, 3, 4), np.float32)})
    assert done.taps == {}
    reason = "its input is a value inside a function or a body of If, Loop or Scan, which no run gives"
    assert done.missing == {norms[0].name: reason}


def test_a_norm_inside_a_branch_is_said_to_be_out_of_reach_and_others_are_tapped(tmp_path):
    def branch(name, nodes):
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", 1, None)])

    yes = branch("yes", [helper.make_node("LayerNormalization", ["a", "g", "b"], ["yes_out"], name="inner")])
    no = branch("no", [helper.make_node("Identity", ["a"], ["no_out"])])
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["a"], name="outer"),
        helper.make_node("If", ["flag"], ["y"], then_branch=yes, else_branch=no),
    ]
    proto = model(nodes, constants(g=GAMMA, b=BETA, flag=np.array(True)))
    read, norms = looked_into(save(tmp_path, proto))
    done = run(read, norms, {"x": np.ones((2, 3, 4), np.float32)})
    assert list(done.taps) == ["outer"]
    assert list(done.missing) == ["inner"]


def test_bfloat16_values_are_read_as_such(tmp_path):
    nodes = [
        helper.make_node("Cast", ["x"], ["cast"], to=TensorProto.BFLOAT16),
        helper.make_node("Concat", ["cast", "cast"], ["low"], axis=0),
        helper.make_node("Cast", ["low"], ["b"], to=TensorProto.FLOAT),
        *LOOSE[:-2],
        helper.make_node("Mul", ["n", "second.weight"], ["y"]),
    ]
    between = [helper.make_tensor_value_info("low", TensorProto.BFLOAT16, ["n", 3, 4])]
    numbers = constants(eps=np.float32(1e-5), second__weight=GAMMA)
    read, norms = looked_into(save(tmp_path, model(nodes, numbers, value_info=between)))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (tap,) = taps_of(read, norms, {"x": x}).values()
    assert norms[0].input == "low"
    assert tap.input.dtype == ml_dtypes.bfloat16
    assert np.array_equal(tap.input, np.concatenate([x, x]).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("opset", [7, 13, 18])
def test_old_and_new_operator_sets(tmp_path, opset):
    loose = LOOSE
    if opset == 18:
        loose = [
            helper.make_node("ReduceMean", [n.input[0], "last"], list(n.output)) if n.op_type == "ReduceMean" else n
            for n in LOOSE
        ]
    nodes = [helper.make_node("Identity", ["x"], ["b"]), *loose]
    numbers = {"eps": np.float32(1e-5), "second__weight": GAMMA, "second__bias": BETA, "last": np.array([-1])}
    read, norms = looked_into(save(tmp_path, model(nodes, constants(**numbers), opset=opset)))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (tap,) = taps_of(read, norms, {"x": x}, optimized=False).values()
    np.testing.assert_allclose(tap.output, layer(x, 1e-5), atol=1e-5)


def test_what_the_runtime_refuses_is_told_in_its_own_words(tmp_path):
    nodes = [FUSED, helper.make_node("Frobnicate", ["a"], ["y"], domain="com.example")]
    proto = model(nodes, constants(first__weight=GAMMA, first__bias=BETA), domains=["com.example"])
    proto.graph.input[0].name = "h"
    read, norms = looked_into(save(tmp_path, proto))
    with pytest.raises(Exception) as told:
        onnxruntime.InferenceSession(read.path)
    with pytest.raises(UnsupportedError, match="ONNX Runtime refuses it: ") as refused:
        taps_of(read, norms, {"h": np.ones((1, 3, 4), np.float32)})
    # it names the path of a file, and the copy that it was given has none
    words = str(told.value).split("failed:")[-1]
    assert "com.example:Frobnicate" in words and str(refused.value).endswith(words)


def test_a_wrong_input_is_told_in_the_runtimes_words(tmp_path):
    read, norms = looked_into(save(tmp_path, two_norms()))
    with pytest.raises(UnsupportedError, match="Got invalid dimensions for input: x"):
        taps_of(read, norms, {"x": np.ones((2, 3, 5), np.float32)})


@pytest.mark.parametrize("packages", [("onnx",), ("onnxruntime",)])
def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch, packages):
    read, _ = looked_into(save(tmp_path, two_norms()))
    real = __import__("importlib.util").util.find_spec
    gone = {*packages, "openvino"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name in gone else real(name, *rest))
    assert can_run(read) == f"{packages[0]} is not installed; pip install {packages[0]}"


def test_steps_of_parameters_kept_as_integers(tmp_path):
    """γ = 0.02·(q − 3), β = 0.5·q: what stands between neighbouring values is 0.02 and 0.5."""
    nodes = [
        helper.make_node("DequantizeLinear", ["n.weight_q", "s", "z"], ["n.weight"]),
        helper.make_node("DequantizeLinear", ["n.bias_q", "t"], ["n.bias"]),
        helper.make_node("LayerNormalization", ["x", "n.weight", "n.bias"], ["y"]),
    ]
    numbers = constants(
        n__weight_q=np.array([53, 60, 43, 100], np.int8), s=np.float32(0.02), z=np.int8(3),
        n__bias_q=np.array([1, -2, 3, 0], np.int8), t=np.float32(0.5),
    )  # fmt: skip
    read, norms = looked_into(save(tmp_path, model(nodes, numbers)))
    (tap,) = taps_of(read, norms, seeded_inputs(read)).values()
    assert (tap.scale_step, tap.shift_step) == (pytest.approx(0.02), pytest.approx(0.5))


def endless():
    """Write a model whose loop turns until the end of all numbers."""
    said, flag, real = helper.make_tensor_value_info, TensorProto.BOOL, TensorProto.FLOAT
    inside = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])]
    body = helper.make_graph(
        inside, "body",
        [said("i", TensorProto.INT64, []), said("go", flag, []), said("v", real, None)],
        [said("on", flag, []), said("w", real, None)],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["times", "true", "x"], ["h"], body=body), FUSED]
    nodes += [helper.make_node("Identity", ["a"], ["y"])]
    held = constants(times=np.int64(2**62), true=np.array(True), first__weight=GAMMA, first__bias=BETA)
    return model(nodes, held)


def test_a_model_that_never_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("layernorm.runtimes.onnxruntime.LONGEST", 1.0)
    report = ln.inspect(save(tmp_path, endless()))
    with pytest.raises(UnsupportedError, match="ONNX Runtime refuses it: it did not end within 1 seconds"):
        taps_of(report.model, report.norms, seeded_inputs(report.model))
    same = ln.compare(report.model.path, report.model.path)
    assert "did not end within 1 seconds" in same.ran.why_not["a"]


def test_a_model_that_never_ends_is_stopped_by_a_key(tmp_path):
    path = save(tmp_path, endless())
    program = (
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nimport onnxruntime\n"
        "from layernorm.cli import run\nprint('begun', flush=True)\n"
        "sys.exit(run(['compare', *sys.argv[1:], '--json']))"
    )
    command = [sys.executable, "-c", program, path, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            time.sleep(5)  # to be inside the loop
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 2, err
    assert '"interrupted"' in out
