# SPDX-License-Identifier: MIT
"""This file checks the recognizer on norms in many spellings, on look-alikes, and on ONNX's own function bodies."""

import importlib
import re
import time
from dataclasses import replace
from unittest import mock

import numpy as np
import onnx
import onnx.inliner
import pytest
from drafts import Draft, graph_of
from onnx.backend.test.case import node as node_cases
from onnx.reference import ReferenceEvaluator

import layernorm as ln
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import Tensor
from layernorm.models.recognize import recognize
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

DRAW = np.random.default_rng(5)
D = 8
GAMMA, BETA = DRAW.uniform(0.5, 2, D), DRAW.standard_normal(D)
LAYER = NormSpec(axes=(-1,), eps=1e-5, scale_axes=(-1,), shift_axes=(-1,), stats_dtype="input")
RMS = replace(LAYER, centered=False, spread="rms", shift_axes=None)
BARE = replace(LAYER, scale_axes=None, shift_axes=None)
MOMENTS = replace(LAYER, variance_by="moments")


def affine(b, y, gamma=GAMMA, beta=BETA):
    y = b("Mul", y, b.const(gamma, "block.norm.weight")) if gamma is not None else y
    return b("Add", y, b.const(beta, "block.norm.bias")) if beta is not None else y


def centered(b, axes=(-1,)):
    return b("Sub", b.x, b.mean(b.x, axes))


def deviation(b, d, eps=1e-5, axes=(-1,)):
    return b("Sqrt", b("Add", b.mean(b("Pow", d, 2.0), axes), eps))


# -- layer norms ------------------------------------------------------------------------------------------

FORMS = {}


def form(spec, shape=("B", 4, D), opset=17, dtype=np.float32, runs=True):
    """Register a spelling with the spec that it is to be read as; `runs`: ONNX itself can run it."""

    def register(write):
        FORMS[write.__name__] = (write, spec, shape, opset, dtype, runs)
        return write

    return register


@form(LAYER)
def pow_sqrt_div(b):
    d = centered(b)
    return affine(b, b("Div", d, deviation(b, d)))


@form(LAYER)
def sub_twice(b):
    mean = b.mean(b.x)
    square = b("Pow", b("Sub", b.x, mean), 2.0)
    return affine(b, b("Div", b("Sub", b.x, mean), b("Sqrt", b("Add", b.mean(square), 1e-5))))


@form(LAYER)
def cast_exponent_and_eps_first(b):
    d = centered(b)
    two = b("Cast", np.array(2, np.int64), to=1)
    return affine(b, b("Div", d, b("Sqrt", b("Add", 1e-5, b.mean(b("Pow", d, two))))))


@form(replace(LAYER, cast_before_scale=True, stats_dtype="float32"), dtype=np.float16)
def half_with_casts(b):
    x = b("Cast", b.x, to=1)
    d = b("Sub", x, b.mean(x))
    eps, two = b.const(1e-5, dtype=np.float32), b.const(2.0, dtype=np.float32)
    y = b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, two)), eps)))
    return affine(b, b("Cast", y, to=10))


@form(replace(LAYER, round_each=True, eps=1e-3), dtype=np.float16)
def half_without_casts(b):
    d = centered(b)
    return affine(b, b("Div", d, deviation(b, d, 1e-3)))


@form(LAYER, opset=18)
def axes_as_input(b):
    d = centered(b)
    return affine(b, b("Div", d, deviation(b, d)))


@form(replace(LAYER, axes=(1,), scale_axes=(1,), shift_axes=(1,), eps=1e-6), shape=("B", D, 5, 6))
def channels_first(b):
    d = centered(b, (1,))
    y = b("Div", d, deviation(b, d, 1e-6, (1,)))
    return affine(b, y, GAMMA[:, None, None], BETA[:, None, None])


@form(replace(LAYER, axes=(-2, -1)))
def gamma_of_the_last_of_two_axes(b):
    d = centered(b, (1, 2))
    return affine(b, b("Div", d, deviation(b, d, axes=(1, 2))))


@form(replace(LAYER, eps=1e-3))
def folded_affine(b):  # x·(γ·r) + (β − mean·γ·r)
    mean = b.mean(b.x)
    d = b("Sub", b.x, mean)
    r = b("Reciprocal", b("Sqrt", b("Add", b.mean(b("Mul", d, d)), 1e-3)))
    gr = b("Mul", r, b.const(GAMMA, "block.norm.weight"))
    shift = b("Sub", b.const(BETA, "block.norm.bias"), b("Mul", mean, gr))
    return b("Add", b("Mul", b.x, gr), shift)


@form(LAYER)
def power_of_minus_half(b):
    d = centered(b)
    r = b("Pow", b("Add", b.mean(b("Mul", d, d)), 1e-5), -0.5)
    return affine(b, b("Mul", d, r))


@form(replace(LAYER, eps_at="deviation", eps=1e-6))
def eps_outside_the_root(b):
    d = centered(b)
    root = b("Pow", b.mean(b("Pow", d, 2.0)), 0.5)
    return affine(b, b("Mul", b("Pow", b("Add", root, 1e-6), -1.0), d))


@form(replace(LAYER, eps_at="variance_floor"))
def eps_as_a_floor(b):
    d = centered(b)
    return affine(b, b("Div", d, b("Sqrt", b("Max", b.mean(b("Mul", d, d)), 1e-5))))


@form(replace(LAYER, ddof=1, eps_at="deviation"))
def unbiased_deviation(b):
    d = centered(b)
    variance = b("Div", b.sum(b("Mul", d, d)), float(D - 1))
    return affine(b, b("Div", d, b("Add", b("Sqrt", variance), 1e-5)))


@form(LAYER)
def shift_inside_the_product(b):  # ((x − mean)·r + b)·γ, so that β is b·γ
    d = centered(b)
    y = b("Div", d, deviation(b, d))
    y = b("Add", y, b.const(BETA / GAMMA, "block.norm.bias"))
    return b("Mul", y, b.const(GAMMA, "block.norm.weight"))


@form(LAYER)
def shift_taken_off(b):
    d = centered(b)
    y = b("Mul", b("Div", d, deviation(b, d)), b.const(GAMMA, "block.norm.weight"))
    return b("Sub", y, b.const(-BETA, "block.norm.bias"))


@form(MOMENTS)
def moments(b):
    mean = b.mean(b.x)
    variance = b("Sub", b.mean(b("Mul", b.x, b.x)), b("Mul", mean, mean))
    return affine(b, b("Div", b("Sub", b.x, mean), b("Sqrt", b("Add", variance, 1e-5))))


@form(replace(MOMENTS, variance_by="moments_clamped", eps=1e-6))
def moments_clamped_by_sums(b):  # as Flax exports it
    mean, square = (b("Mul", b.sum(v), 1 / D) for v in (b.x, b("Mul", b.x, b.x)))
    variance = b("Max", b("Sub", square, b("Mul", mean, mean)), 0.0)
    r = b("Reciprocal", b("Sqrt", b("Add", variance, 1e-6)))
    gr = b("Mul", r, b("Reshape", b.const(GAMMA, "block.norm.weight"), np.array([1, 1, D])))
    return b(
        "Add", b("Mul", b("Sub", b.x, mean), gr), b("Reshape", b.const(BETA, "block.norm.bias"), np.array([1, 1, D]))
    )


@form(LAYER)
def transposed_between(b):
    mean = b("Transpose", b.mean(b("Transpose", b.x, perm=[0, 2, 1]), (1,)), perm=[0, 2, 1])
    d = b("Sub", b.x, mean)
    return affine(b, b("Div", d, deviation(b, d)))


@form(LAYER, shape=("B", "S", D))
def flattened(b):
    x = b("Reshape", b.x, np.array([-1, D]))
    d = b("Sub", x, b.mean(x))
    y = affine(b, b("Div", d, b("Sqrt", b("Add", b.mean(b("Mul", d, d)), 1e-5))))
    return b("Reshape", y, b("Shape", b.x))


@form(replace(LAYER, eps_at="none"))
def no_eps(b):
    d = centered(b)
    return affine(b, b("Div", d, b("Sqrt", b.mean(b("Pow", d, 2.0)))))


def quantized_around(b):
    d = centered(b)
    y = b("Div", d, deviation(b, d))
    zero = np.zeros((), np.int8)
    y = b("DequantizeLinear", b("QuantizeLinear", y, 0.03, zero), 0.03, zero)
    return affine(b, y)


@form(LAYER, runs=False)
def tflite(b):
    mean = b.mean(b.x)
    variance = b.mean(b("SquaredDifference", b.x, mean))
    gr = b("Mul", b("Rsqrt", b("Add", variance, 1e-5)), b.const(GAMMA, "block.norm.weight"))
    shift = b("Sub", b.const(BETA, "block.norm.bias"), b("Mul", mean, gr))
    return b("Add", b("Mul", b.x, gr), shift)


@form(replace(LAYER, centered=False, eps=1e-3, shift_axes=None))
def uncentered_over_deviation(b):  # Keras' rms_scaling
    return affine(b, b("Div", b.x, deviation(b, centered(b), 1e-3)), GAMMA, None)


# -- rms norms --------------------------------------------------------------------------------------------


@form(RMS)
def rms_div(b):
    return affine(b, b("Div", b.x, deviation(b, b.x)), GAMMA, None)


@form(replace(RMS, eps=1e-6))
def rms_one_over(b):
    r = b("Div", 1.0, b("Sqrt", b("Add", b.mean(b("Mul", b.x, b.x)), 1e-6)))
    return b("Mul", b.const(GAMMA, "block.norm.weight"), b("Mul", b.x, r))


@form(replace(RMS, eps=1e-6, stats_dtype="float32", cast_before_scale=True), dtype=np.float16)
def rms_llama(b):
    x = b("Cast", b.x, to=1)
    eps, two = b.const(1e-6, dtype=np.float32), b.const(2.0, dtype=np.float32)
    r = b("Reciprocal", b("Sqrt", b("Add", b.mean(b("Pow", x, two)), eps)))
    return b("Mul", b.const(GAMMA, "block.norm.weight"), b("Cast", b("Mul", x, r), to=10))


@form(replace(RMS, eps=1e-6, stats_dtype="float32", cast_before_scale=True), dtype=np.float16)
def rms_of_a_product_in_float32(b):
    x = b("Cast", b.x, to=1)
    r = b("Sqrt", b("Add", b.mean(b("Mul", x, x)), b.const(1e-6, dtype=np.float32)))
    return b("Mul", b.const(GAMMA, "block.norm.weight"), b("Cast", b("Div", x, r), to=10))


@form(replace(RMS, eps=1e-6, stats_dtype="float32", scale_offset=1), dtype=np.float16)
def rms_gemma(b):
    x = b("Cast", b.x, to=1)
    eps, two = b.const(1e-6, dtype=np.float32), b.const(2.0, dtype=np.float32)
    y = b("Mul", x, b("Reciprocal", b("Sqrt", b("Add", b.mean(b("Pow", x, two)), eps))))
    w = b("Add", b("Cast", b.const(GAMMA - 1, "block.norm.weight"), to=1), b.const(1.0, dtype=np.float32))
    return b("Cast", b("Mul", y, w), to=10)


@form(replace(RMS, eps_at="sum"))
def rms_of_sum(b):
    total = b("Add", b("ReduceSumSquare", b.x, axes=[-1], keepdims=1), 1e-5)
    return affine(b, b("Div", b.x, b("Sqrt", b("Div", total, float(D)))), GAMMA, None)


@form(replace(RMS, scale_axes=None))
def rms_bare(b):
    return b("Div", b.x, deviation(b, b.x))


@form(replace(RMS, spread="l2", eps=1e-12, eps_at="deviation_floor"))
def length_with_a_scale(b):
    length = b("Clip", b("ReduceL2", b.x, axes=[-1], keepdims=1), 1e-12)
    return affine(b, b("Div", b.x, b("Expand", length, b("Shape", b.x))), GAMMA, None)


@form(RMS)
def rms_rescaled(b):  # ε over max² keeps its meaning
    largest = b("ReduceMax", b("Abs", b.x), axes=[-1], keepdims=1)
    x = b("Div", b.x, largest)
    eps = b("Div", 1e-5, b("Mul", largest, largest))
    return affine(b, b("Div", x, b("Sqrt", b("Add", b.mean(b("Mul", x, x)), eps))), GAMMA, None)


# -- group, instance and batch norms ----------------------------------------------------------------------

GROUP = NormSpec(
    axes=("1:",), channel_axis=1, groups=4, group_order="blocked", scale_axes=(1,), shift_axes=(1,), stats_dtype="input"
)
WHOLE = {"stats_dtype": UNKNOWN, "cast_before_scale": UNKNOWN, "round_each": UNKNOWN, "variance_by": UNKNOWN}
IMAGE = ("B", D, "H", "W")


@form(replace(GROUP, **WHOLE), shape=IMAGE)
def group_by_instance(b):
    x = b("Reshape", b.x, np.array([0, 4, -1]))
    y = b("InstanceNormalization", x, np.ones(4, np.float32), np.zeros(4, np.float32), epsilon=1e-5)
    return affine(b, b("Reshape", y, b("Shape", b.x)), GAMMA[:, None, None], BETA[:, None, None])


@form(GROUP, shape=("B", D, 5, 6))
def group_by_hand(b):
    x = b("Reshape", b.x, np.array([0, 4, 2, 5, 6]))
    d = b("Sub", x, b.mean(x, (2, 3, 4)))
    y = b("Div", d, b("Sqrt", b("Add", b.mean(b("Mul", d, d), (2, 3, 4)), 1e-5)))
    return affine(b, b("Reshape", y, np.array([-1, D, 5, 6])), GAMMA[:, None, None], BETA[:, None, None])


@form(replace(GROUP, scale_axes="group", shift_axes="group"), shape=("B", D, 5, 6))
def group_with_a_scale_a_group(b):
    x = b("Reshape", b.x, np.array([0, 4, -1]))
    d = b("Sub", x, b.mean(x))
    y = b("Div", d, b("Sqrt", b("Add", b.mean(b("Mul", d, d)), 1e-5)))
    return b("Reshape", affine(b, y, GAMMA[:4, None], BETA[:4, None]), b("Shape", b.x))


@form(
    replace(GROUP, channel_axis=-1, group_order="interleaved", scale_axes=(-1,), shift_axes=(-1,)), shape=("B", 5, 6, D)
)
def group_interleaved_last(b):
    x = b("Reshape", b.x, np.array([0, 5, 6, 2, 4]))
    d = b("Sub", x, b.mean(x, (1, 2, 3)))
    y = b("Div", d, b("Sqrt", b("Add", b.mean(b("Mul", d, d), (1, 2, 3)), 1e-5)))
    return affine(b, b("Reshape", y, b("Shape", b.x)))


INSTANCE = replace(GROUP, axes=("2:",), channel_axis=None, groups=None, group_order=None)


@form(INSTANCE, shape=IMAGE)
def instance_by_hand(b):
    d = centered(b, (2, 3))
    return affine(b, b("Div", d, deviation(b, d, axes=(2, 3))), GAMMA[:, None, None], BETA[:, None, None])


@form(INSTANCE, shape=("B", D, "T"))
def instance_of_a_sequence(b):
    d = centered(b, (2,))
    return affine(b, b("Div", d, deviation(b, d, axes=(2,))), GAMMA[:, None], BETA[:, None])


@form(INSTANCE, shape=IMAGE)
def instance_by_pooling(b):
    d = b("Sub", b.x, b("GlobalAveragePool", b.x))
    r = b("Sqrt", b("Add", b("GlobalAveragePool", b("Mul", d, d)), 1e-5))
    return affine(b, b("Div", d, r), GAMMA[:, None, None], BETA[:, None, None])


@form(replace(INSTANCE, axes=(0, "2:")), shape=IMAGE)
def batch_by_hand(b):
    d = centered(b, (0, 2, 3))
    return affine(b, b("Div", d, deviation(b, d, axes=(0, 2, 3))), GAMMA[:, None, None], BETA[:, None, None])


@form(replace(LAYER, **WHOLE), shape=(3, 4, D), runs=False)
def layer_by_batch(b):  # rows become channels
    x = b("Reshape", b.x, np.array([1, 12, D, 1]))
    ones, zeros = np.ones(12, np.float32), np.zeros(12, np.float32)
    y = b("BatchNormalization", x, ones, zeros, zeros, ones, training_mode=1, epsilon=1e-5)
    return affine(b, b("Reshape", y, b("Shape", b.x)))


def written(name):
    write, spec, shape, opset, dtype, runs = FORMS[name]
    b = Draft(shape, dtype, opset)
    return b, b.model(write(b)), spec, runs


@pytest.mark.parametrize("name", FORMS)
def test_a_spelling(name):
    b, model, spec, runs = written(name)
    found = recognize(graph_of(model), set())
    assert found.unidentified == []
    (record,) = found.norms
    assert record.spec == spec
    assert record.form == "decomposed"
    assert record.dtype == b.dtype.name
    if spec.scale_axes or spec.shift_axes:
        assert record.name == "block.norm"
    if not runs:
        return
    # what the model computes is what the record says
    shape = [
        {"B": 2, "S": 3, "H": 5, "W": 3, "T": 9}.get(d.dim_param, d.dim_value)
        for d in model.graph.input[0].type.tensor_type.shape.dim
    ]
    x = DRAW.standard_normal(shape).astype(b.dtype)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    sure = record.spec.assume(replace(LAYER, stats_dtype="float32"))
    laid = [
        None if t is None else laid_out(t.values(), axes, x, sure)
        for t, axes in ((record.scale, sure.scale_axes), (record.shift, sure.shift_axes))
    ]
    expected = ln.normalize(x.astype(np.float64), replace(sure, stats_dtype="float64", round_each=False), *laid)
    np.testing.assert_allclose(y, expected, atol=2e-2 if b.dtype == np.float16 else 1e-5)


def laid_out(values, axes, x, spec):
    """Broadcast a parameter to x by its axes."""
    values = values.reshape(-1).astype(np.float64)
    if axes == "group":
        values, axes = np.repeat(values, x.shape[1] // spec.groups), (1,)
    kept = {a % x.ndim for a in axes}
    return values.reshape([n if a in kept else 1 for a, n in enumerate(x.shape)])


@pytest.mark.parametrize(("write", "at", "eps"), [
    (lambda b, length, e: b("Max", length, e), "deviation_floor", 1e-6 / D**0.5),
    (lambda b, length, e: b("Add", length, e), "deviation", 1e-6 / D**0.5),
    (lambda b, length, e: b("Sqrt", b("Max", b("Mul", length, length), e)), "variance_floor", 1e-6 / D),
])  # fmt: skip
def test_an_rms_norm_by_length_has_its_epsilon_in_units_of_the_mean(write, at, eps):
    b = Draft()
    length = write(b, b("ReduceL2", b.x, axes=[-1], keepdims=1), 1e-6)
    (record,) = recognize(b.graph(affine(b, b("Div", b("Mul", b.x, D**0.5), length), GAMMA, None)), set()).norms
    assert record.spec == replace(RMS, eps_at=at, eps=record.spec.eps)
    assert record.spec.eps == pytest.approx(eps, rel=1e-6)


# -- what stands around -----------------------------------------------------------------------------------


def test_two_branches_of_one_norm_are_two_records():
    b = Draft()
    d = centered(b)
    y = b("Div", d, deviation(b, d))
    outputs = [b("Add", b("Mul", y, b.const(GAMMA * k, f"{k}.weight")), b.const(BETA, f"{k}.bias")) for k in (1, 2)]
    assert [r.name for r in recognize(b.graph(*outputs), set()).norms] == ["1", "2"]


def test_two_norms_of_one_value():
    b = Draft()
    outputs = []
    for k, eps in enumerate((1e-5, 1e-6)):
        d = centered(b)
        outputs.append(b("Mul", b("Div", d, deviation(b, d, eps)), b.const(GAMMA, f"n{k}.weight")))
    assert [(r.name, r.spec.eps) for r in recognize(b.graph(*outputs), set()).norms] == [("n0", 1e-5), ("n1", 1e-6)]


def test_a_modulation_is_no_part_of_the_norm():
    b = Draft()
    scale = b("Add", 1.0, b.input("scale", ("B", 1, D)))
    d = centered(b)
    y = b("Mul", b("Div", d, deviation(b, d)), scale)
    (record,) = recognize(b.graph(y), set()).norms
    assert record.spec == BARE
    assert record.scale is None


@pytest.mark.parametrize(
    "factor", [0.125, 0.0, DRAW.standard_normal((4, D))], ids=["a number", "nothing", "a table of positions"]
)
def test_what_follows_a_norm_is_no_part_of_it(factor):
    b = Draft()
    d = centered(b)
    y = b("Mul", affine(b, b("Div", d, deviation(b, d))), factor)
    (record,) = recognize(b.graph(y), set()).norms
    assert record.spec == LAYER
    b = Draft()
    d = centered(b)
    (record,) = recognize(b.graph(b("Mul", b("Div", d, deviation(b, d)), factor)), set()).norms
    assert record.spec == BARE


def test_a_head_is_normalized_not_the_projection_before_it():
    b = Draft(("B", 4, 32))
    x = b("Reshape", b.x, np.array([0, 0, 4, D]))
    y = affine(b, b("Div", x, deviation(b, x)), GAMMA, None)
    (record,) = recognize(b.graph(b("Transpose", y, perm=[0, 2, 1, 3])), set()).norms
    assert record.spec == RMS
    assert record.size == D


def test_a_residual_goes_past_the_norm():
    b = Draft()
    x = b("Add", b.x, b.input("residual", ("B", 4, D)))
    d = b("Sub", x, b.mean(x))
    y = affine(b, b("Div", d, deviation(b, d)))
    (record,) = recognize(b.graph(b("Add", x, b("MatMul", y, np.eye(D)))), set()).norms
    assert record.spec == LAYER
    assert record.input == x
    assert record.output == y


def test_a_wide_norm_is_tried_whole():
    gamma = np.ones(4096)
    b = Draft((1, 4096, 4096))
    d = centered(b)
    (record,) = recognize(b.graph(affine(b, b("Div", d, deviation(b, d)), gamma, None)), set()).norms
    assert record.spec == replace(LAYER, shift_axes=None)
    assert record.size == 4096


@pytest.mark.parametrize("shape", [(1, 320, 64, 64), (2, 1280, 64, 64)])
def test_a_large_group_norm_of_fixed_shape_is_tried_small(shape):
    b = Draft(shape)
    c = shape[1]
    x = b("Reshape", b.x, np.array([0, 32, -1]))
    y = b("InstanceNormalization", x, np.ones(32, np.float32), np.zeros(32, np.float32), epsilon=1e-5)
    y = affine(b, b("Reshape", y, np.array(shape)), np.ones((c, 1, 1)), np.zeros((c, 1, 1)))
    (record,) = recognize(b.graph(y), set()).norms
    assert record.spec == replace(GROUP, groups=32, **WHOLE)
    assert record.size == c // 32 * 64 * 64


def test_parameters_are_read_late():
    b = Draft()
    d = centered(b)
    graph = b.graph(affine(b, b("Div", d, deviation(b, d))))

    def refuse():
        raise AssertionError("read")

    for name in ("block.norm.weight", "block.norm.bias"):
        graph.constants[name] = replace(graph.constants[name], load=refuse)
    (record,) = recognize(graph, set()).norms
    assert record.scale is graph.constants["block.norm.weight"]


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (np.full(D, "1"), "block.norm.weight is object of shape (8,), which is not tried: numbers are, 262144 at most"),
        (np.ones((2**15 + 1, D)), "block.norm.weight is float32 of shape (32769, 8), which is not tried: "),
    ],
    ids=["texts", "too many"],
)
def test_a_scale_that_is_not_tried_is_unknown_and_not_none(scale, said):
    """As is a shift after it, whose product with the scale cannot be run."""
    b = Draft(("B", 4, D))
    d = centered(b)
    y = b("Div", d, deviation(b, d))
    y = b("Mul", y, b.const(scale if scale.dtype.kind == "f" else scale.astype(object), "block.norm.weight"))
    found = recognize(graph_of(b.model(b("Add", y, b.const(BETA, "block.norm.bias")))), set())
    (norm,) = found.norms
    assert (norm.spec.scale_axes, norm.spec.scale_offset, norm.spec.shift_axes) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert norm.evidence["scale_axes"].detail.startswith(said)
    assert norm.evidence["shift_axes"] == ("unknown", "block.norm.bias comes after a scale that is not tried")


def test_a_shift_that_is_not_tried_is_unknown_and_not_none():
    b = Draft(("B", 4, D))
    d = centered(b)
    y = affine(b, b("Div", d, deviation(b, d)), beta=None)
    y = b("Add", y, b.const(np.full(D, "1", object), "block.norm.bias"))
    (norm,) = recognize(graph_of(b.model(y)), set()).norms
    assert (norm.spec.scale_axes, norm.spec.shift_axes) == ((-1,), UNKNOWN)
    assert norm.evidence["shift_axes"].source == "unknown"


def test_an_unknown_rank():
    b = Draft()
    d = centered(b)
    graph = b.graph(affine(b, b("Div", d, deviation(b, d))))
    graph.inputs["x"] = ("float32", None)
    (record,) = recognize(graph, set()).norms
    assert record.spec == LAYER
    assert record.size == D


def test_a_shape_that_is_not_true():
    b = Draft()
    d = centered(b)
    graph = b.graph(affine(b, b("Div", d, deviation(b, d))))
    graph.inputs["x"] = ("float32", (2, 4, 9))
    assert [r.spec for r in recognize(graph, set()).norms] == [LAYER]


def test_a_shape_from_outside():
    b = Draft(IMAGE)
    x = b("Relu", b.x)
    y = b("InstanceNormalization", b("Reshape", x, np.array([0, 4, -1])), np.ones(4), np.zeros(4))
    y = affine(b, b("Reshape", y, b("Shape", b.x)), GAMMA[:, None, None], BETA[:, None, None])
    graph = b.graph(y)
    fused = {id(n) for n in graph.nodes if n.op == "InstanceNormalization"}
    found = recognize(graph, fused)
    assert [r.spec for r in found.norms] == [replace(GROUP, **WHOLE)]
    assert fused <= found.explained


def test_a_fused_norm_is_left_alone():
    b = Draft(("B", D, 9))
    y = b("InstanceNormalization", b("Reshape", b.x, np.array([0, 0, 9])), GAMMA, BETA)
    graph = b.graph(b("Relu", y))
    found = recognize(graph, {id(n) for n in graph.nodes if n.op == "InstanceNormalization"})
    assert found == ([], [], set())


def test_a_fused_norm_takes_an_affine_that_follows():
    b = Draft(("B", D, 9))
    y = b("InstanceNormalization", b("Relu", b.x), np.ones(D), np.zeros(D))
    graph = b.graph(affine(b, y, GAMMA[:, None], BETA[:, None]))
    found = recognize(graph, {id(graph.nodes[1])})
    assert [r.spec for r in found.norms] == [replace(INSTANCE, **WHOLE)]
    assert id(graph.nodes[1]) in found.explained


def test_inside_a_body():
    b = Draft()
    write, *_ = FORMS["pow_sqrt_div"]
    inner = b.graph(write(b))
    outer = Graph(
        [Node("If", ("c",), ("y",), where="graph/node[0]", graphs=(Graph(inner.nodes, {}, {}, inner.outputs),))],
        inner.constants, inner.inputs | {"c": ("bool", ())}, ("y",),
    )  # fmt: skip
    outer.nodes[0].graphs[0].parent = outer
    (record,) = recognize(outer, set()).norms
    assert record.spec == LAYER
    assert record.dtype == "float32"


@pytest.mark.parametrize(("dtype", "eps"), [(np.float32, 1e-12), (np.float16, 1e-5), (np.float64, 1e-12)])
def test_an_epsilon_is_said_as_people_wrote_it(dtype, eps):
    b = Draft(dtype=dtype)
    d = centered(b)
    (record,) = recognize(b.graph(b("Div", d, deviation(b, d, eps))), set()).norms
    assert record.spec.eps == eps
    assert record.evidence["eps"].source == "constant"


def test_an_epsilon_of_zero_is_said():
    b = Draft(dtype=np.float16)
    d = centered(b)
    (record,) = recognize(b.graph(b("Div", d, deviation(b, d, 1e-12))), set()).norms
    assert (record.spec.eps, record.spec.eps_at) == (0.0, "variance")


def test_quantization_is_seen_through():
    b = Draft()
    assert [r.spec for r in recognize(b.graph(quantized_around(b)), set()).norms] == [LAYER]


# -- what is no norm --------------------------------------------------------------------------------------

NOTHING, UNSURE = {}, {}


def nothing(write):
    NOTHING[write.__name__] = write
    return write


def unsure(write):
    UNSURE[write.__name__] = write
    return write


@nothing
def softmax(b):
    e = b("Exp", b("Sub", b.x, b("ReduceMax", b.x, axes=[-1])))
    return b("Div", e, b.sum(e))


@nothing
def centering(b):
    return centered(b)


@nothing
def attention_scale(b):
    width = b("Cast", b("Gather", b("Shape", b.x), np.array(2)), to=1)
    return b("Div", b("MatMul", b.x, b("Transpose", b.x, perm=[0, 2, 1])), b("Sqrt", width))


@nothing
def magnitude(b):
    return b("Sqrt", b("Add", b.sum(b("Pow", b.x, 2.0)), 1e-8))


@nothing
def log_magnitude_from_zero_to_one(b):
    power = b("Log", b("Add", b("Sqrt", b.sum(b("Mul", b.x, b.x))), 1e-8))
    low, high = b("ReduceMin", power, keepdims=1), b("ReduceMax", power, keepdims=1)
    return b("Div", b("Sub", power, low), b("Sub", high, low))


@nothing
def from_zero_to_one(b):
    low, high = b("ReduceMin", b.x, axes=[-1]), b("ReduceMax", b.x, axes=[-1])
    return b("Div", b("Sub", b.x, low), b("Add", b("Sub", high, low), 1e-5))


@nothing
def an_embedding_of_length_one(b):
    return b("Div", b.x, b("Clip", b("ReduceL2", b.x, axes=[-1], keepdims=1), 1e-12))


@nothing
def an_embedding_by_sums(b):
    return b("Mul", b.x, b("Pow", b("Max", b.sum(b("Mul", b.x, b.x)), 1e-12), -0.5))


@nothing
def mean_and_deviation_pooled(b):
    mean = b.mean(b.x, (1,))
    d = b("Sub", b.x, mean)
    return b("Concat", mean, b("Sqrt", b("Add", b.mean(b("Mul", d, d), (1,)), 1e-5)), axis=-1)


@nothing
def squeeze_and_excite(b):
    return b("Mul", b.x, b("Sigmoid", b("MatMul", b.mean(b.x, (1,)), np.eye(D))))


@nothing
def over_its_sum(b):
    return b("Div", b.x, b("Add", b.sum(b("Abs", b.x)), 1e-5))


@nothing
def by_anothers_statistics(b):
    other = b.input("other", ("B", 4, D))
    d = b("Sub", other, b.mean(other))
    return b("Div", b("Sub", b.x, b.mean(other)), deviation(b, d))


@nothing
def stored_statistics(b):
    return affine(b, b("Div", b("Sub", b.x, BETA), b("Sqrt", b("Add", b.const(GAMMA, "running_var"), 1e-5))))


@unsure
def fourth_power(b):
    d = centered(b)
    return affine(b, b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, 4.0)), 1e-5))))


@unsure
def mean_and_variance_over_other_axes(b):
    d = centered(b, (-1,))
    return affine(b, b("Div", d, deviation(b, d, axes=(1, 2))))


@unsure
def eps_times_the_largest(b):
    largest = b("ReduceMax", b("Abs", b.x), axes=[-1], keepdims=1)
    x = b("Div", b.x, largest)
    y = b("Div", b("Mul", x, largest), b("Mul", b("Sqrt", b("Add", b.mean(b("Mul", x, x)), 1e-5)), largest))
    return affine(b, y, GAMMA, None)


@unsure
def axes_not_kept(b):
    mean = b.mean(b.x, (2,), keepdims=0)
    d = b("Sub", b.x, mean)
    return affine(b, b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, 2.0), (2,), keepdims=0), 1e-5))))


@unsure
def an_epsilon_a_row(b):
    d = centered(b)
    return affine(b, b("Div", d, b("Sqrt", b("Add", b.mean(b("Mul", d, d)), np.full((4, 1), 1e-5)))))


@unsure
def twice_the_deviation(b):
    d = centered(b)
    return b("Div", d, b("Mul", deviation(b, d), 2.0))


@unsure
def a_response_over_the_mean_response(b):  # ConvNeXt V2's
    length = b("Sqrt", b.sum(b("Mul", b.x, b.x), (1,)))
    return affine(b, b("Mul", b.x, b("Div", length, b("Add", b.mean(length), 1e-6))))


@pytest.mark.parametrize("name", NOTHING)
def test_no_norm(name):
    b = Draft()
    assert recognize(b.graph(NOTHING[name](b)), set())[:2] == ([], [])


@pytest.mark.parametrize("name", UNSURE)
def test_a_claim_that_is_not_confirmed(name):
    b = Draft((8, 8, 8) if name == "axes_not_kept" else ("B", 4, D))
    found = recognize(b.graph(UNSURE[name](b)), set())
    assert found.norms == []
    (unidentified,) = found.unidentified
    assert "looks like a norm, but" in unidentified.why
    assert unidentified.where.startswith("graph/node[")


def test_the_input_that_disagrees_is_named():
    b = Draft()
    (unidentified,) = recognize(b.graph(UNSURE["an_epsilon_a_row"](b)), set()).unidentified
    assert re.fullmatch(
        r"looks like a norm, but \(x − mean\) / std over axes 2 disagrees on the standard normal input by \d\.\de-0\d",
        unidentified.why,
    )


# -- ONNX's function bodies -------------------------------------------------------------------------------

FILES = ("layernormalization", "rmsnormalization", "groupnormalization", "meanvariancenormalization")


def twins():
    """Pair each fused case of ONNX's suite with its function's body as nodes, parameters as constants."""
    for name in FILES:
        importlib.import_module(f"onnx.backend.test.case.node.{name}")
    with mock.patch.object(node_cases, "import_recursive"):
        cases = {case.name: case for case in node_cases.collect_testcases()}
    pairs = []
    for name, case in cases.items():
        fused = cases[name.split("_expanded")[0]]
        if "_expanded" not in name or fused.model.graph.node[0].op_type.casefold() not in FILES:
            continue
        graph = case.model.graph
        ((values, _),) = case.data_sets
        graph.initializer.extend(
            onnx.numpy_helper.from_array(v, i.name) for v, i in zip(values[1:], graph.input[1:], strict=True)
        )
        del graph.input[1:]
        pairs.append((name, fused.model, case.model))
    return pairs


TWINS = twins()


def test_there_are_61_twins():
    assert len(TWINS) == 61


@pytest.mark.parametrize(("fused", "expanded"), [t[1:] for t in TWINS], ids=[t[0] for t in TWINS])
def test_a_twin_has_the_spec_that_the_attributes_say(fused, expanded):
    (node,) = fused.graph.node
    expected = said_by(node)
    ndim = len(fused.graph.input[0].type.tensor_type.shape.dim)
    found = recognize(graph_of(onnx.inliner.inline_local_functions(expanded)), set())
    assert found.unidentified == []
    (record,) = found.norms
    got = record.spec.resolve(ndim)
    assert replace(got, variance_by="centered") == expected.resolve(ndim)
    assert record.spec.variance_by == ("centered" if node.op_type == "RMSNormalization" else "moments")


def said_by(node):
    """Read a fused node by hand; an attribute that is absent has the operator's default."""
    said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    eps = float(f"{said.get('epsilon', 1e-5):.7g}")  # stored as a float32
    stash = {"stats_dtype": "float32", "cast_before_scale": True, "eps": eps}
    match node.op_type:
        case "LayerNormalization":
            axes = (f"{said.get('axis', -1)}:",)
            return NormSpec(axes=axes, scale_axes=axes, shift_axes=axes if len(node.input) == 3 else None, **stash)
        case "RMSNormalization":
            axes = (f"{said.get('axis', -1)}:",)
            return NormSpec(axes=axes, centered=False, spread="rms", scale_axes=axes, **stash)
        case "GroupNormalization":
            return replace(GROUP, groups=said["num_groups"], **stash)
    return NormSpec(axes=(0, 2, 3), eps=1e-9, eps_at="deviation", stats_dtype="input")


# -- how long it takes ------------------------------------------------------------------------------------


def test_a_large_graph_takes_seconds():
    nodes, x = [], "x"
    for i in range(25_000):  # a mean, a root and two products: none of them a norm
        nodes += [
            Node("ReduceMean", (x,), (f"m{i}",), {"axes": [-1]}), Node("Sqrt", (f"m{i}",), (f"r{i}",)),
            Node("Mul", (x, f"r{i}"), (f"y{i}",)), Node("Tanh", (f"y{i}",), (f"t{i}",)),
        ]  # fmt: skip
        x = f"t{i}"
    graph = Graph(nodes, {}, {"x": ("float32", (2, D))}, (x,))
    start = time.perf_counter()
    assert recognize(graph, set())[:2] == ([], [])
    assert time.perf_counter() - start < 20


def test_layers_that_differ_in_names_alone_are_tried_once():
    b = Draft(("B", 4, 4096))
    for k in range(60):
        d = centered(b)
        y = b("Div", d, deviation(b, d, 1e-5 if k % 3 else 1e-6))
        names = [b.const(np.ones(4096), f"{k}.{n}") for n in ("weight", "bias")]
        y = b("Mul", y, names[0])
        b.x = b("Tanh", b("Add", y, names[1]) if k % 5 else y)
    start = time.perf_counter()
    norms = recognize(b.graph(b.x), set()).norms
    assert time.perf_counter() - start < 10  # 20 s if each is tried
    assert [(r.name, r.scale.name, r.shift and r.shift.name, r.spec.eps) for r in norms] == [
        (str(k), f"{k}.weight", f"{k}.bias" if k % 5 else None, 1e-5 if k % 3 else 1e-6) for k in range(60)
    ]


def test_layers_that_differ_in_a_number_are_told_apart():
    b = Draft()
    for exponent in (2.0, 4.0):
        d = centered(b)
        b.x = b("Tanh", b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, exponent)), 1e-5))))
    found = recognize(b.graph(b.x), set())
    assert [r.spec for r in found.norms] == [BARE]
    assert len(found.unidentified) == 1


def test_a_fused_norm_is_never_unidentified():
    b = Draft(None)
    y = b("InstanceNormalization", b("Reshape", b.x, np.array([-1, 7, 2, 2])), GAMMA, BETA)
    assert recognize(b.graph(y), set()) == ([], [], set())


def test_a_value_with_many_readers_is_followed_once():
    nodes = [Node("Shape", ("x",), (f"s{i}",)) for i in range(50_000)]
    nodes += [Node("ReduceMean", ("x",), (f"m{i}",), {"axes": [-1]}) for i in range(50_000)]
    start = time.perf_counter()
    assert recognize(Graph(nodes, {}, {"x": ("float32", (2, D))}, ()), set())[:2] == ([], [])
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    "node",
    [
        Node("Expand", ("v", "huge"), ("w",)),
        Node("ConstantOfShape", ("huge",), ("w",)),
        Node("Tile", ("v", "huge"), ("w",)),
        Node("Range", ("one", "many", "one"), ("w",)),
        Node("Reshape", ("v", "huge"), ("w",)),
        Node("Add", ("v",), ("w",)),
        Node("ReduceMean", ("v",), ("w",), {"axes": [77]}),
        Node("Transpose", ("v",), ("w",), {"perm": [0, 0, 0]}),
        Node("Cast", ("v",), ("w",), {"to": 99}),
        Node("Split", ("v",), ("w", "w2"), {"split": [1, -7]}),
        Node("Gather", ("v", "huge"), ("w",), {"axis": 9}),
        Node("ReduceMean", (), ("w",)),
        Node("Reshape", ("v", "one"), ("w",)),
    ],
    ids=lambda node: node.op,
)
def test_a_hostile_operation_is_passed_over(node):
    b = Draft()
    d = centered(b)
    graph = b.graph(affine(b, b("Div", d, deviation(b, d))))
    huge = np.array([2**31, 2**31, 2**31])
    for name, value in {"huge": huge, "many": np.float32(1e30), "one": np.float32(1)}.items():
        graph.constants[name] = Tensor(name, value.shape, value.dtype.name, lambda value=value: value)
    graph.nodes.insert(0, replace(node, inputs=tuple("x" if n == "v" else n for n in node.inputs)))
    graph.nodes.append(Node("Mul", (graph.outputs[0], "w"), ("z",)))
    assert [r.spec for r in recognize(graph, set()).norms] == [LAYER]


def test_a_cast_of_the_result_that_makes_nothing_is_passed_over():
    b = Draft()
    d = centered(b)
    graph = b.graph(affine(b, b("Div", d, deviation(b, d))))
    graph.nodes.append(Node("Cast", graph.outputs, (), {"to": 1}))
    graph.outputs = ()
    assert [r.spec for r in recognize(graph, set()).norms] == [LAYER]
