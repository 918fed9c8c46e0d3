# SPDX-License-Identifier: MIT
"""This file checks the recognizer on what PyTorch's exporter makes of modules, which nobody here wrote down."""

import io
import warnings
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from drafts import graph_of
from torch import nn

import layernorm as ln
from layernorm.models.recognize import recognize
from layernorm.spec.norm_spec import NormSpec

X = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32))
IMAGE = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 6, 5, 4)).astype(np.float32))


class Rms(nn.Module):
    def __init__(self, offset=0):
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.rand(8)), offset

    def forward(self, x):
        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (self.offset + self.weight) * (x * r) if self.offset else self.weight * (x * r)


class ChannelsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class FastVariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x):
        mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
        scale = torch.rsqrt((square - mean * mean).clamp_min(0) + 1e-6) * self.weight
        return (x - mean) * scale + self.bias


class Unbiased(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x):
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b_2


class Cosine(nn.Module):
    def forward(self, x):
        x = nn.functional.normalize(x, dim=-1)
        return x @ x.transpose(1, 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x)[0]


LAYER = NormSpec(axes=(-1,), scale_axes=(-1,), shift_axes=(-1,))
RMS = NormSpec(axes=(-1,), centered=False, spread="rms", eps=1e-6, scale_axes=(-1,))


def along(axes):
    return {"scale_axes": axes, "shift_axes": axes}


CASES = {
    "layer": (nn.LayerNorm(8, eps=1e-12), X, LAYER, {"eps": 1e-12}),
    "layer over two": (nn.LayerNorm((6, 8)), X, LAYER, along((-2, -1)) | {"axes": (-2, -1)}),
    "layer without affine": (nn.LayerNorm(8, elementwise_affine=False), X, LAYER, along(None)),
    "group": (
        nn.GroupNorm(3, 6), IMAGE, LAYER,
        along((1,)) | {"axes": ("1:",), "channel_axis": 1, "groups": 3, "group_order": "blocked"},
    ),
    "rms": (Rms(), X, RMS, {}),
    "rms with 1 + w": (Rms(1), X, RMS, {"scale_offset": 1}),
    "channels first": (ChannelsFirst(), IMAGE, LAYER, along((1,)) | {"axes": (1,), "eps": 1e-6}),
    "fast variance": (FastVariance(), X, LAYER, {"eps": 1e-6, "variance_by": "moments_clamped"}),
    "unbiased": (Unbiased(), X, LAYER, {"eps": 1e-6, "eps_at": "deviation", "ddof": 1}),
}  # fmt: skip


def exported(module, x, opset, dynamic):
    """Export a module; weights stay weights, and no fold merges them."""
    module = module.eval()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    file = io.BytesIO()
    axes = {"x": {0: "batch", 1: "steps"} if x.ndim == 3 else {0: "batch", 2: "h", 3: "w"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x,), file, opset_version=opset, dynamo=False, input_names=["x"], output_names=["y"],
            dynamic_axes=axes, do_constant_folding=opset != 13,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("opset", [11, 13, 16])
@pytest.mark.parametrize("name", CASES)
def test_an_exported_module(name, opset, dynamic):
    module, x, spec, changes = CASES[name]
    if name == "layer over two" and dynamic:
        pytest.skip("its lengths are the module's own")
    expected = replace(spec, **changes)
    folded = name == "rms with 1 + w" and opset != 13  # the exporter adds the 1, and the file holds the sum alone
    expected = replace(expected, scale_offset=0) if folded else expected
    found = recognize(graph_of(exported(module, x, opset, dynamic)), set())
    assert found.unidentified == []
    (record,) = found.norms
    sure = record.spec.assume(expected)
    assert replace(sure, stats_dtype="float64", round_each=False) == expected
    parameters = [p.detach().numpy() + np.float32(folded) for p in module.parameters()]
    held = [t for t in (record.scale, record.shift) if t is not None]
    for tensor, parameter in zip(held, parameters, strict=True):
        np.testing.assert_array_equal(np.ravel(tensor.values()), np.ravel(parameter))
    channels = [-1 if a == 1 else 1 for a in range(x.ndim)]
    laid = [p.reshape(channels) if expected.scale_axes == (1,) else p for p in parameters]
    y = ln.normalize(x.numpy(), expected, *laid)
    np.testing.assert_allclose(y, module(x).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("module", [Cosine(), Attention(), nn.Softmax(-1)], ids=["cosine", "attention", "softmax"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_exported_module_that_is_no_norm(module, dynamic):
    assert recognize(graph_of(exported(module, X, 16, dynamic)), set())[:2] == ([], [])


def test_every_norm_of_a_transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(8, eps=1e-6), enable_nested_tensor=False)
    found = recognize(graph_of(exported(module, X, 16, True)), set())
    assert found.unidentified == []
    assert [r.name for r in found.norms] == [f"layers.{i}.norm{k}" for i in range(3) for k in (1, 2)] + ["norm"]
    assert [r.spec.eps for r in found.norms] == [1e-5] * 6 + [1e-6]
