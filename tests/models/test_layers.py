# SPDX-License-Identifier: MIT
"""This file runs layers of PyTorch and Keras and, on the same input, the spec read from them, which must agree."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
import numpy as np
import pytest
import torch

import layernorm
from layernorm.models.formats.torch_file import read_module
from layernorm.models.layers import KERAS, TORCH, record_of
from layernorm.models.model_file import Layer, Tensor
from layernorm.spec.norm_spec import UNKNOWN

RNG = np.random.default_rng(7)


def filled(module):
    """Give parameters and statistics values that show: none is left at 0 or 1."""
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if value.is_floating_point():
                noise = torch.from_numpy(RNG.uniform(0.5, 1.5, value.shape)).to(value.dtype)
                value.copy_(noise if "var" in name or "weight" in name else noise - 1)
    return module


def run(record, x):
    """Run the spec of a record with its parameters."""
    held = {name: getattr(record, name) for name in ("scale", "shift", "mean", "variance")}
    spec = record.spec.resolve(x.ndim)

    def laid(tensor, axes):
        shape = [x.shape[a] if a in axes else 1 for a in range(x.ndim)]
        return tensor.values().reshape(shape)

    given = {}
    if held["scale"] is not None:
        given["gamma"] = laid(held["scale"], spec.scale_axes)
    if held["shift"] is not None:
        given["beta"] = laid(held["shift"], spec.shift_axes)
    if spec.statistics == "stored":
        given |= {"mean": held["mean"].values(), "var": held["variance"].values()}
    return layernorm.normalize(x, record.spec, **given)


def only(module):
    (layer,) = read_module(module).layers
    record = record_of(layer)
    assert record is not None
    return record


PYTORCH = [
    (lambda: torch.nn.LayerNorm(6), (4, 5, 6)),
    (lambda: torch.nn.LayerNorm(6, eps=0.1, bias=False), (4, 5, 6)),
    (lambda: torch.nn.LayerNorm((5, 6), eps=1e-12), (4, 5, 6)),
    (lambda: torch.nn.LayerNorm(6, elementwise_affine=False), (4, 6)),
    (lambda: torch.nn.LayerNorm(6, dtype=torch.float64), (4, 6)),
    (lambda: torch.nn.RMSNorm(6), (4, 6)),
    (lambda: torch.nn.RMSNorm(6, eps=0.3), (4, 6)),
    (lambda: torch.nn.RMSNorm((5, 6), elementwise_affine=False), (4, 5, 6)),
    (lambda: torch.nn.RMSNorm(6, dtype=torch.float64), (4, 6)),
    (lambda: torch.nn.GroupNorm(3, 6, eps=0.2), (2, 6, 5, 4)),
    (lambda: torch.nn.GroupNorm(6, 6, affine=False), (2, 6, 5)),
    (lambda: torch.nn.BatchNorm1d(6), (4, 6)),
    (lambda: torch.nn.BatchNorm1d(6), (4, 6, 5)),
    (lambda: torch.nn.BatchNorm2d(6, eps=0.1), (4, 6, 3, 2)),
    (lambda: torch.nn.BatchNorm3d(6, affine=False), (4, 6, 3, 2, 2)),
    (lambda: torch.nn.BatchNorm2d(6, track_running_stats=False), (4, 6, 3, 2)),
    (lambda: torch.nn.InstanceNorm1d(6), (4, 6, 5)),
    (lambda: torch.nn.InstanceNorm2d(6, affine=True, eps=0.1), (4, 6, 3, 2)),
    (lambda: torch.nn.InstanceNorm2d(6, track_running_stats=True), (4, 6, 3, 2)),
    (lambda: torch.nn.InstanceNorm3d(6), (4, 6, 3, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make, shape", PYTORCH)
def test_pytorch_computes_what_its_record_says(make, shape, training):
    module = filled(make()).train(training)
    record = only(module)
    assert record.form == "layer"
    assert record.spec.unknown() == ()
    double = any(value.dtype == torch.float64 for value in module.parameters())
    x = RNG.normal(0.3, 0.5, shape).astype(np.float64 if double else np.float32)
    ours = run(record, x)  # first, for training changes the running statistics
    with torch.no_grad():
        theirs = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-12 if double else 2e-5, atol=1e-13 if double else 2e-6)


def test_an_rms_norm_without_eps_has_that_of_its_type():
    for dtype, eps in ((torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-23), (torch.float64, 2.0**-52)):
        record = only(torch.nn.RMSNorm(4, dtype=dtype))
        assert record.spec.eps == eps
        assert record.evidence["eps"].source == "default"
    x = np.array([[1e-4, -2e-4, 3e-4, 1e-4]], np.float32)
    with torch.no_grad():
        theirs = torch.nn.RMSNorm(4)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(only(torch.nn.RMSNorm(4)), x), theirs, rtol=1e-6)


def test_sizes_and_evidence():
    record = only(torch.nn.LayerNorm((5, 6)))
    assert record.size == 30
    assert record.evidence["eps"] == ("module", "eps")
    assert only(torch.nn.BatchNorm2d(4).train()).spec.statistics == "input"
    assert only(torch.nn.BatchNorm2d(4).eval()).spec.statistics == "stored"


# transformers' classes, written from what each of them computes
class Root(torch.nn.Module):
    def __init__(self, width, eps=1e-3):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def root(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class LlamaRMSNorm(Root):
    def forward(self, x):
        return self.weight * self.root(x).to(x.dtype)


class Olmo2RMSNorm(Root):
    def forward(self, x):
        return (self.weight * self.root(x)).to(x.dtype)


class T5LayerNorm(LlamaRMSNorm):
    pass


class GemmaRMSNorm(torch.nn.Module):
    def __init__(self, width, eps=1e-3):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class NemotronLayerNorm1P(torch.nn.LayerNorm):
    def forward(self, x):
        return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class CohereLayerNorm(torch.nn.Module):
    def __init__(self, width, eps=1e-3):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, x):
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * wide).to(x.dtype)


HUGGING_FACE = [LlamaRMSNorm, Olmo2RMSNorm, T5LayerNorm, GemmaRMSNorm, NemotronLayerNorm1P, CohereLayerNorm]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_hugging_faces_classes_compute_what_their_records_say(kind, dtype, monkeypatch):
    monkeypatch.setattr(kind, "__module__", "transformers.models.some")
    module = filled(kind(64)).to(getattr(torch, dtype))
    record = only(module)
    assert record.spec.unknown() == ()
    x = RNG.normal(0.3, 0.5, (50, 64)).astype(dtype)
    with torch.no_grad():
        theirs = module(torch.from_numpy(x)).numpy()
    ours = run(record, x)
    if dtype == "float32" or kind is NemotronLayerNorm1P:
        np.testing.assert_allclose(
            ours, theirs, rtol=2e-3 if dtype == "float16" else 2e-5, atol=1e-3 if dtype == "float16" else 2e-6
        )
    else:
        # where it is rounded shows in the last digit: all but a few values, which lie at a tie, are the same
        assert np.mean(ours == theirs) > 0.99


def test_the_same_name_from_a_strange_package_is_not_believed():
    record = only(LlamaRMSNorm(8))
    assert (record.spec.centered, record.spec.spread, record.spec.eps) == (False, "rms", 1e-3)
    assert record.spec.scale_offset is UNKNOWN
    assert record.spec.cast_before_scale is UNKNOWN
    assert record.evidence["scale_offset"].source == "unknown"


class GlobalResponseNorm(torch.nn.Module):
    def forward(self, x):
        return x


def test_a_strange_class_that_says_nothing_has_no_record():
    (layer,) = read_module(GlobalResponseNorm()).layers
    assert record_of(layer) is None


def test_a_layer_norm_with_its_channels_first():
    class LayerNorm2d(torch.nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    LayerNorm2d.__module__ = "torchvision.models.convnext"
    module = filled(LayerNorm2d(6, eps=0.1))
    x = RNG.normal(size=(2, 6, 4, 3)).astype(np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(run(only(module), x), module(torch.from_numpy(x)).numpy(), rtol=2e-5, atol=2e-6)


ROLES = {"gamma": "scale", "scale": "scale", "beta": "shift", "moving_mean": "mean", "moving_variance": "variance"}


def keras_layer(layer, x):
    """Say a Keras layer as its file does: get_config, and its weights by name."""
    settings = {**layer.get_config(), "input_shape": x.shape}  # before groups=-1 becomes a number
    layer.build(x.shape)
    tensors = {}
    for variable in layer.weights:
        values = RNG.uniform(0.5, 1.5, variable.shape).astype(np.float32)
        variable.assign(values)
        tensors[ROLES[variable.name]] = Tensor(variable.name, values.shape, "float32", lambda values=values: values)
    return Layer("keras", type(layer).__name__, layer.name, "", settings, tensors)


L = keras.layers
KERAS_LAYERS = [
    (lambda: L.LayerNormalization(), (4, 5, 6)),
    (lambda: L.LayerNormalization(epsilon=0.1, center=False), (4, 6)),
    (lambda: L.LayerNormalization(scale=False), (4, 6)),
    (lambda: L.LayerNormalization(axis=[1, 2]), (4, 5, 6)),
    (lambda: L.LayerNormalization(axis=1), (4, 5, 6)),
    pytest.param(lambda: L.LayerNormalization(rms_scaling=True), (4, 6), marks=pytest.mark.filterwarnings("ignore")),
    (lambda: L.RMSNormalization(), (4, 6)),
    (lambda: L.RMSNormalization(epsilon=0.1), (4, 6)),
    (lambda: L.GroupNormalization(groups=3, epsilon=0.1), (4, 5, 6)),
    (lambda: L.GroupNormalization(groups=-1), (4, 5, 4, 6)),
    (lambda: L.GroupNormalization(groups=2, axis=1), (4, 6, 5)),
    (lambda: L.BatchNormalization(), (4, 6)),
    (lambda: L.BatchNormalization(epsilon=0.1), (4, 3, 2, 6)),
    (lambda: L.BatchNormalization(axis=1), (4, 6, 3, 2)),
    (lambda: L.BatchNormalization(scale=False), (4, 3, 6)),
    (lambda: L.BatchNormalization(axis=3), (4, 3, 2, 6)),
    (lambda: L.UnitNormalization(), (4, 6)),
    (lambda: L.UnitNormalization(axis=1), (4, 6, 5)),
]  # fmt: skip


@pytest.mark.parametrize("make, shape", KERAS_LAYERS)
def test_keras_computes_what_its_record_says(make, shape):
    x = RNG.normal(0.3, 0.5, shape).astype(np.float32)
    layer = make()
    record = record_of(keras_layer(layer, x))
    assert record is not None
    assert record.spec.unknown() == ()
    np.testing.assert_allclose(run(record, x), np.asarray(layer(x)), rtol=3e-5, atol=3e-6)


def test_keras_without_weights_is_read_from_its_configuration():
    def layer(kind, **settings):
        return record_of(Layer("keras", kind, "n", "", settings, {})).spec

    assert layer("LayerNormalization", axis=[-1], epsilon=1e-3, center=False, scale=True).shift_axes is None
    assert layer("LayerNormalization").eps == 1e-3
    assert layer("GroupNormalization", groups=-1).groups is UNKNOWN
    assert layer("BatchNormalization", axis=-1).axes is UNKNOWN
    assert layer("BatchNormalization", axis=[3]).axes == (0, 1, 2)
    assert layer("BatchNormalization", axis=-1, input_shape=[None, 4, 6]).axes == (0, 1)


@pytest.mark.parametrize("kind", KERAS)
@pytest.mark.parametrize("bad", [{"axis": "x"}, {"axis": []}, {"axis": [1, 1]}, {"axis": None}, {"epsilon": "x"},
                                 {"epsilon": None}, {"groups": 0}, {"groups": "x"}])  # fmt: skip
def test_settings_that_no_layer_can_have_end_in_unknown_or_no_record(kind, bad):
    record = record_of(Layer("keras", kind, "n", "", bad, {}))
    assert record is None or record.spec is not None


@pytest.mark.parametrize("kind", [*TORCH, "mine.MyRMSNorm", "mine.LayerNorm"])
@pytest.mark.parametrize(
    "bad",
    [{}, {"eps": "x"}, {"normalized_shape": "x"}, {"normalized_shape": ()}, {"num_groups": -1}, {"num_groups": None}],
)
def test_attributes_that_no_module_can_have_end_in_unknown_or_no_record(kind, bad):
    record = record_of(Layer("torch", kind, "n", "", bad, {}))
    assert record is None or record.spec is not None


def test_what_is_no_known_layer_has_no_record():
    assert record_of(Layer("keras", "Dense", "d", "", {}, {})) is None
    assert record_of(Layer("torch", "Linear", "d", "", {}, {})) is None
