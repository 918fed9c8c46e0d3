# SPDX-License-Identifier: MIT
"""This file checks that layers of each framework, at their own defaults, agree with the variants of its name."""

import functools
from dataclasses import replace

import flax.linen
import flax.nnx
import framework_layers
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import well_behaved
from onnx.helper import make_node

import layernorm as ln
from layernorm.spec.variants import VARIANTS

pytestmark = [
    # Keras says so wherever rms_scaling is used, and is right
    pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`:UserWarning"),
    # the evaluator divides by a length of 0 before it puts 0 in the place of the result
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning:onnx.reference.ops.op_lp_normalization"),
]

SAMPLES, CHANNELS, HEIGHT, WIDTH = well_behaved.SHAPE
U = well_behaved.U
AFFINE = ["x", "scale", "bias"]
STORED = [*AFFINE, "mean", "var"]


def nnx(layer, given):
    for name, value in (("scale", given.gamma), ("bias", given.beta)):
        if value is not None:
            getattr(layer, name)[...] = jnp.asarray(value)
    return np.asarray(layer(jnp.asarray(given.x)))


def onnx_node(op, inputs, opset=23, outputs=("y",), **attributes):
    node = make_node(op, inputs, list(outputs), **attributes)
    return functools.partial(framework_layers.onnx_, node, opset=opset)


def ort_node(op, inputs, domain=""):
    def run(given):
        node = make_node(op, inputs, ["y"], domain=domain)
        model, feeds = framework_layers.one_node(node, given, 17)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)[0]

    return run


def pytorch(layer):
    return functools.partial(framework_layers.pytorch, layer)


def linen(layer):
    return functools.partial(framework_layers.flax_, layer)


def keras_layer(layer):
    return functools.partial(framework_layers.keras_, layer)


# Made when a test runs: layers hold state.
LAYERS = {
    "pytorch-layer": lambda: pytorch(torch.nn.LayerNorm(WIDTH)),
    "pytorch-rms": lambda: pytorch(torch.nn.RMSNorm(WIDTH)),
    "pytorch-group": lambda: pytorch(torch.nn.GroupNorm(32, CHANNELS)),
    "pytorch-instance": lambda: pytorch(torch.nn.InstanceNorm2d(CHANNELS)),
    "pytorch-batch": lambda: pytorch(torch.nn.BatchNorm2d(CHANNELS).eval()),
    "pytorch-batch-training": lambda: pytorch(torch.nn.BatchNorm2d(CHANNELS)),
    "pytorch-normalize": lambda: lambda given: torch.nn.functional.normalize(torch.from_numpy(given.x), dim=-1).numpy(),
    "flax-layer": lambda: linen(flax.linen.LayerNorm()),
    "flax-rms": lambda: linen(flax.linen.RMSNorm()),
    "flax-group": lambda: linen(flax.linen.GroupNorm()),
    "flax-instance": lambda: linen(flax.linen.InstanceNorm()),
    "flax-batch": lambda: linen(flax.linen.BatchNorm(use_running_average=True)),
    "flax-batch-training": lambda: linen(flax.linen.BatchNorm(use_running_average=False)),
    "flax-layer nnx": lambda: functools.partial(nnx, flax.nnx.LayerNorm(WIDTH, rngs=flax.nnx.Rngs(0))),
    "flax-rms nnx": lambda: functools.partial(nnx, flax.nnx.RMSNorm(WIDTH, rngs=flax.nnx.Rngs(0))),
    "flax-group nnx": lambda: functools.partial(nnx, flax.nnx.GroupNorm(WIDTH, rngs=flax.nnx.Rngs(0))),
    "keras-layer": lambda: keras_layer(keras.layers.LayerNormalization()),
    "keras-rms": lambda: keras_layer(keras.layers.RMSNormalization()),
    "keras-rms-scaling": lambda: keras_layer(keras.layers.LayerNormalization(rms_scaling=True)),
    "keras-group": lambda: keras_layer(keras.layers.GroupNormalization()),
    "keras-batch": lambda: keras_layer(keras.layers.BatchNormalization()),
    "keras-batch-training": lambda: keras_layer(functools.partial(keras.layers.BatchNormalization(), training=True)),
    "keras-unit": lambda: keras_layer(keras.layers.UnitNormalization()),
    "onnx-layer": lambda: onnx_node("LayerNormalization", AFFINE),
    "onnx-rms": lambda: onnx_node("RMSNormalization", ["x", "scale"]),
    "onnx-group": lambda: onnx_node("GroupNormalization", AFFINE, num_groups=32),
    "onnx-group-18": lambda: onnx_node("GroupNormalization", AFFINE, opset=18, num_groups=32),
    "onnx-instance": lambda: onnx_node("InstanceNormalization", AFFINE),
    "onnx-batch": lambda: onnx_node("BatchNormalization", STORED),
    "onnx-batch-training": lambda: onnx_node(
        "BatchNormalization", STORED, outputs=("y", "mean_out", "var_out"), training_mode=1
    ),
    "onnx-batch-updated": lambda: onnx_node("BatchNormalization", STORED, opset=9),
    "onnx-mvn": lambda: onnx_node("MeanVarianceNormalization", ["x"]),
    "onnx-lp": lambda: onnx_node("LpNormalization", ["x"]),
    "ort-skip-layer": lambda: ort_node("SkipLayerNormalization", ["x", "nothing", "scale", "bias"], "com.microsoft"),
    "ort-simplified-layer": lambda: ort_node("SimplifiedLayerNormalization", ["x", "scale"]),
}


def computed(name, spec=None):
    """Give the example, their output and ours."""
    spec = spec or VARIANTS[name.split()[0]]
    given = well_behaved.example(spec, (SAMPLES, CHANNELS, WIDTH) if name == "ort-skip-layer" else well_behaved.SHAPE)
    update = 0.1 if spec.statistics == "updated" else None  # ONNX's momentum of 0.9
    ours = ln.normalize(given.x, spec, given.gamma, given.beta, mean=given.mean, var=given.var, update=update)
    return given, LAYERS[name]()(given), ours


def test_every_variant_of_these_frameworks_is_compared():
    ours = {name for name in VARIANTS if name.split("-")[0] in ("pytorch", "flax", "keras", "onnx", "ort")}
    assert {name.split()[0] for name in LAYERS} == ours


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_at_its_defaults_is_its_variant(name):
    given, theirs, ours = computed(name)
    assert well_behaved.worst(theirs, ours, well_behaved.allowed(VARIANTS[name.split()[0]], given, ours)) <= 1


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "onnx-lp"])  # whose eps is no epsilon
def test_the_comparison_can_fail(name):
    spec = VARIANTS[name.split()[0]]
    given, theirs, _ = computed(name)
    doubled = replace(spec, eps=2 * spec.eps)
    update = 0.1 if spec.statistics == "updated" else None
    ours = ln.normalize(given.x, doubled, given.gamma, given.beta, mean=given.mean, var=given.var, update=update)
    assert well_behaved.worst(theirs, ours, well_behaved.allowed(spec, given, ours)) > 1


# -- where 16-bit results are rounded ---------------------------------------------------------------------------


def torch_half(function):
    def run(x, gamma):
        return function(*(torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) for a in (x, gamma)))

    return lambda x, gamma: run(x, gamma).view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def flax_half(layer):
    return lambda x, gamma: np.asarray(layer.apply({"params": {"scale": jnp.asarray(gamma)}}, jnp.asarray(x)))


def onnx_group_half(x, gamma):
    node = make_node("GroupNormalization", AFFINE, ["y"], num_groups=32)
    names = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, None) for name in names]
        for names in (node.input, node.output)
    ]
    graph = onnx.helper.make_graph([node], "one_node", *names)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    feeds = {"x": x, "scale": gamma, "bias": np.zeros_like(gamma)}
    return onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]


BFLOAT16 = jnp.bfloat16
F = torch.nn.functional
HALVES = {
    "pytorch-layer": torch_half(lambda x, gamma: F.layer_norm(x, (WIDTH,), gamma)),
    "pytorch-rms": torch_half(lambda x, gamma: F.rms_norm(x, (WIDTH,), gamma)),
    "pytorch-group": torch_half(lambda x, gamma: F.group_norm(x, 32, gamma)),
    "flax-layer": flax_half(flax.linen.LayerNorm(use_bias=False, dtype=BFLOAT16, param_dtype=BFLOAT16)),
    "flax-rms": flax_half(flax.linen.RMSNorm(dtype=BFLOAT16, param_dtype=BFLOAT16)),
    "onnx-group": onnx_group_half,
}


@pytest.mark.parametrize("name", HALVES)
def test_a_scale_is_applied_before_or_after_the_rounding_as_the_row_says(name):
    spec = replace(VARIANTS[name], shift_axes=None)
    given = well_behaved.example(replace(spec, eps=1e-5))
    dtype = np.float16 if name.startswith("onnx") else ml_dtypes.bfloat16
    x, gamma = given.x.astype(dtype), given.gamma.astype(dtype)
    theirs = HALVES[name](x, gamma)
    assert theirs.dtype == dtype
    said = ln.normalize(x, spec, gamma)
    other = ln.normalize(x, replace(spec, cast_before_scale=not spec.cast_before_scale), gamma)
    # float32 steps tip a value over to its neighbour where it is within 1 / 2**13 ulp of the middle between two
    assert np.mean(theirs != said) < 0.01
    assert np.mean(theirs != other) > 0.1


# -- gradients --------------------------------------------------------------------------------------------------


def torch_gradients(layer, given, dy):
    x = torch.from_numpy(given.x).requires_grad_()
    with torch.no_grad():
        for name, value in (("weight", given.gamma), ("bias", given.beta)):
            if value is not None:
                getattr(layer, name).copy_(torch.from_numpy(value))
    layer(x).backward(torch.from_numpy(dy))
    bias = None if given.beta is None else layer.bias.grad.numpy()
    return x.grad.numpy(), layer.weight.grad.numpy(), bias


GRADIENTS = {
    "pytorch-layer": lambda: torch.nn.LayerNorm(WIDTH),
    "pytorch-rms": lambda: torch.nn.RMSNorm(WIDTH),
    "pytorch-group": lambda: torch.nn.GroupNorm(32, CHANNELS),
}


@pytest.mark.parametrize("slip", [0.0, 0.1])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree_with_those_of_pytorch(name, slip):
    """Compare dx, dγ and dβ; with a slip in eps this must fail, or the comparison sees nothing.

    Ours: dx within 8 ulp of R = rstd·max|γ·dy| of its set, dγ and dβ within 2u·Σ|dy·x̂| and 2u·Σ|dy|. Theirs, with s
    and κ as in `allowed`: their x̂ is off by 1.5κ²s(1 + |x̂|), their rstd by 1.5κ²s of itself, and the two means in dx by
    s·R and (s + 3κ²s)·R·|x̂|: 8κ²s·R·(1 + |x̂|) together. Their sums over m rows are off by 4√m·u of Σ|dy·x̂| or Σ|dy|,
    and dγ by their x̂ besides.
    """
    spec = VARIANTS[name]
    given = well_behaved.example(spec)
    dy = np.random.default_rng(1).normal(size=given.x.shape).astype(np.float32)
    theirs = torch_gradients(GRADIENTS[name](), given, dy)
    used = replace(spec, eps=(1 + slip) * spec.eps)
    ours = ln.normalize_backward(dy, given.x, used, given.gamma)
    bare = replace(spec, scale_axes=None, shift_axes=None)
    xhat, stats = ln.normalize(given.x.astype(np.float64), bare, return_stats=True)
    sets = [a for a in range(4) if stats.rstd.shape[a] == 1]
    g = np.abs(given.wide_gamma * dy)
    if spec.groups is not None:
        deal = (SAMPLES, 32, CHANNELS // 32 * HEIGHT * WIDTH)
        largest = np.broadcast_to(g.reshape(deal).max(-1, keepdims=True), deal).reshape(g.shape)
        rstd = np.repeat(stats.rstd, CHANNELS // 32, axis=1)
    else:
        largest, rstd = g.max(tuple(sets), keepdims=True), stats.rstd
    s, kappa2, reach = 4 * np.sqrt(given.size) * U, given.kappa**2, rstd * largest
    bound = 16 * U * reach + 8 * kappa2 * s * reach * (1 + np.abs(xhat))
    away = [well_behaved.worst(theirs[0], ours[0], bound)]
    summed = tuple(a for a in range(4) if given.wide_gamma.shape[a] == 1)
    summing = (2 + 4 * np.sqrt(dy.size / given.gamma.size)) * U
    along = summing * np.abs(dy * xhat).sum(summed) + 1.5 * kappa2 * s * (np.abs(dy) * (1 + np.abs(xhat))).sum(summed)
    away.append(well_behaved.worst(theirs[1], ours[1], along))
    if theirs[2] is not None:
        away.append(well_behaved.worst(theirs[2], ours[2], summing * np.abs(dy).sum(summed)))
    assert all(a <= 1 for a in away) if not slip else min(away[:2]) > 1, away
