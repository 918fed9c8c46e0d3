# SPDX-License-Identifier: MIT
"""This file runs a layer of PyTorch, Keras, Flax or ONNX on an Example, with its parameters, to a NumPy array."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import functools

import flax.linen
import jax
import jax.numpy as jnp
import keras
import numpy as np
import onnx
import onnx.reference
import torch

NAMESPACE = {"torch": torch, "keras": keras, "flax": flax, "onnx": onnx, "functools": functools}


def pytorch(layer, given):
    if isinstance(layer, torch.Tensor):
        return layer.numpy()
    values = {"weight": given.gamma, "bias": given.beta, "running_mean": given.mean, "running_var": given.var}
    had = {name for name in values if getattr(layer, name, None) is not None}
    had -= {"running_mean", "running_var"} if layer.training else set()  # written to, not used
    assert had == {name for name, value in values.items() if value is not None}
    with torch.no_grad():
        for name in had:
            getattr(layer, name).copy_(torch.from_numpy(values[name]))
        return layer(torch.from_numpy(given.x)).numpy()


def keras_(layer, given):
    if not callable(layer):
        return np.asarray(layer)
    inner = layer.func if isinstance(layer, functools.partial) else layer
    inner.build(given.x.shape)
    values = {"gamma": given.gamma, "beta": given.beta, "moving_mean": given.mean, "moving_variance": given.var}
    if isinstance(inner, keras.layers.RMSNormalization):
        values["scale"] = values.pop("gamma")
    names = {variable.name for variable in inner.weights}
    if layer is not inner:  # a batch norm that does not use what it stores
        names -= {"moving_mean", "moving_variance"}
    assert names == {name for name, value in values.items() if value is not None}
    for variable in inner.weights:
        if variable.name in names:
            variable.assign(values[variable.name])
    return np.asarray(layer(given.x))


def flax_(layer, given):
    x = jnp.asarray(given.x)
    made = layer.init(jax.random.key(0), x)
    values = {
        "params": {"scale": given.gamma, "bias": given.beta},
        "batch_stats": {"mean": given.mean, "var": given.var},
    }
    kept = {k: {name: v for name, v in group.items() if v is not None} for k, group in values.items()}
    kept = {k: group for k, group in kept.items() if group}
    unused = {"batch_stats": made["batch_stats"]} if "batch_stats" in made.keys() - kept.keys() else {}
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, kept | unused)
    return np.asarray(layer.apply(kept | unused, x, mutable=["batch_stats"])[0])


def onnx_(node, given, opset=23):
    model, feeds = one_node(node, given, opset)
    return onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]


def one_node(node, given, opset):
    """Make a model of one node, and feed it the example."""
    # a parameter along the last axes broadcasts as it is; any other is fed with x's axes
    tail = {"scale": (given.gamma, given.wide_gamma), "bias": (given.beta, given.wide_beta)}
    broadcasts = node.op_type in ("LayerNormalization", "RMSNormalization")
    feeds = {"x": given.x, "mean": given.mean, "var": given.var, "nothing": np.zeros_like(given.x)}
    for name, (plain, wide) in tail.items():
        lies_last = plain is not None and given.x.shape[given.x.ndim - plain.ndim :] == plain.shape
        feeds[name] = wide if broadcasts and not lies_last else plain
    if node.op_type == "BatchNormalization" and given.mean is None:
        feeds["mean"], feeds["var"] = np.zeros_like(given.gamma), np.ones_like(given.gamma)
    feeds = {name: feeds[name] for name in node.input}
    assert ("scale" in feeds) == (given.gamma is not None)
    assert ("bias" in feeds) == (given.beta is not None)
    infos = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]
        for names in (node.input, node.output)
    ]
    graph = onnx.helper.make_graph([node], "one_node", *infos)
    domains = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=domains, ir_version=10), feeds


RUN = {"pytorch": pytorch, "keras": keras_, "flax": flax_, "onnx": onnx_}
