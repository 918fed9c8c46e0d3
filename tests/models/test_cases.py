# SPDX-License-Identifier: MIT
"""This file holds public reports of norms that went wrong against what one model file shows of each.

A test is named by its report's number in this list and rebuilds the file with the report's values. The norm is to be
recorded as it is, not as it was meant; where the file itself shows that something may go wrong, a risk says so. What
the reports quote as right or wrong results is held against the recorded spec too. Reports of which no single file
shows the cause are listed in `ELSEWHERE`, each with the reason.
"""

import os
import re
import zipfile
from dataclasses import replace

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest
import small_files
import torch
from drafts import Draft
from onnx import helper
from small_files import chain

import layernorm as ln
from layernorm.models.formats import read_model
from layernorm.models.identify import identify
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

# Keras on JAX asks NumPy for a copy in the old way
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

HALF, DRAW = np.float16, np.random.default_rng(8)
ROW, LAYER_OF_ROW, RMS_OF_ROW = [1, 2, 3, 4], [-1.342, -0.447, 0.447, 1.342], [0.365, 0.730, 1.095, 1.461]

IDS = """
C01 C03 C05 C07 C08 C09 C11 C13 C15 C17 C18 C20 C21 C24 C25 C27 C28 C30 C32 C33 C34 C36 C38 C39 C41 C42 C45 C47 C49 C50
C51 C52 C53 C55 C57 C59 C60 C62 C64 C65 C67 C68 C70 C72 C73 C75 C76 C79 C80 C82 C83 C85 C86 C88 C89 C90 C92 C94 C95 C97
C98 C100 C101 C103 C106 C108 C109 C111 C112 C114 C117 C119
"""

# Reports whose cause no single model file holds.
ELSEWHERE = {
    "C01": "ggml-org/llama.cpp 2373: the kernels had an epsilon of their own; the file was right or had none",
    "C09": "huggingface/candle 271: the constant stood in a program, beside files that say what is right",
    "C18": "tensorflow/tensorflow 58863: a fusion inside the runtime drops the epsilon while the model runs",
    "C21": "pytorch/pytorch 41527: a kernel added epsilon after rounding; the layer is that of the release before",
    "C32": "openvinotoolkit/openvino 28996: a pass divides the input and not epsilon; either network alone is sound",
    "C51": "huggingface/diffusers 10198: two right models order shift and scale differently; a pair shows it",
    "C67": "vllm-project/llm-compressor 2102: w·s and (1+w)·s−1 are both plausible values; a pair tells them apart",
    "C70": "NVIDIA-NeMo 11951: one norm's values were written to another's name; a pair shows whose they were",
    "C73": "renmada/t5-pegasus-pytorch 16: one source tensor was loaded into two places; a pair shows which is wrong",
    "C80": "microsoft/onnxruntime 14156: the kernel's fourth output lacked the bias; the file says nothing of it",
    "C82": "microsoft/onnxruntime 20623: the kernel writes into its input",
    "C85": "ml-explore/mlx 3817: training stored a variance over n, not n − 1; the numbers do not say which",
    "C101": "pytorch/pytorch 177163: the compiler decomposes the operator in memory; no file has the steps",
    "C109": "apache/mxnet 9624: whether gamma counts stands in MXNet's own graph, a format that is not read",
    "C114": "openvinotoolkit/openvino 5787: the int8 kernel rounds epsilon to 0; the file holds it whole",
    "C119": "onnx/onnx 4263: the expected results of a test were generated with another epsilon; the model was right",
}  # fmt: skip


def test_each_report_is_tested_or_says_why_not():
    tested = [m[1].upper() for name in globals() if (m := re.match(r"test_(c\d+)_", name))]
    assert sorted([*tested, *ELSEWHERE]) == sorted(IDS.split())
    assert len(set(IDS.split())) == 72
    source = r".+ \((?:[\w.-]+/[\w.-]+ \d+(?:, )?)+\)\."
    for name, test in globals().items():
        if re.match(r"test_c\d", name):
            assert re.fullmatch(source, test.__doc__ or ""), name


# -- small files ---------------------------------------------------------------------------------------------


def read(path):
    """Find the norms of a file or folder."""
    return identify(read_model(path))


def drawn(folder, b, *outputs):
    """Find the norms of a draft, written to a file."""
    return read(small_files.drawn(folder / "m.onnx", b, *outputs))


def fused(folder, op, *inputs, **more):
    """Find the norms of a file with one operator."""
    return read(small_files.fused(folder / "m.onnx", op, *inputs, **more))


def checkpoint(folder, config, **tensors):
    """Find the norms of a folder with a configuration and named tensors, `__` standing for a dot."""
    return read(small_files.checkpoint(folder, config, dotted(tensors)))


def llama_cpp(path, arch, keys, **tensors):
    """Find the norms of a GGUF."""
    return read(small_files.llama_cpp(path, arch, keys, dotted(tensors)))


def keras_file(folder, shape, *layers):
    """Find the norms of a Keras model."""
    return read(small_files.keras_file(folder / "m.keras", shape, *layers))


def dotted(tensors):
    return {name.replace("__", "."): value for name, value in tensors.items()}


def only(found):
    """Give the one norm of a file that leaves nothing open."""
    assert not found.unidentified
    (norm,) = found.norms
    return norm


def said(norm, **fields):
    assert {name: getattr(norm.spec, name) for name in fields} == fields


def codes(found):
    return {(risk.code, risk.severity) for risk in found.risks}


def kept(norm):
    """Name the type of a norm's statistics."""
    return norm.dtype if norm.spec.stats_dtype == "input" else norm.spec.stats_dtype


def close(norm, x, expected, atol=6e-4, **parameters):
    """Hold what the spec computes against the numbers of a report."""
    y = ln.normalize(np.asarray(x, np.float64), norm.spec.assume(NormSpec()), **parameters)
    np.testing.assert_allclose(y, expected, atol=atol)


# -- epsilon -------------------------------------------------------------------------------------------------


def test_c03_each_tower_has_its_own_epsilon(tmp_path):
    """Gemma 4's converter wrote 1e-5 for the audio tower, where the model has 1e-6 (ggml-org/llama.cpp 23815)."""
    keys = {"clip.vision.attention.layer_norm_epsilon": 1e-6, "clip.audio.attention.layer_norm_epsilon": 1e-5}
    found = llama_cpp(
        tmp_path / "m.gguf", "clip", keys, v__blk__0__ln1__weight=np.ones(4), a__blk__0__ln1__weight=np.ones(4)
    )
    assert {norm.name: norm.spec.eps for norm in found.norms} == {"v.blk.0.ln1": 1e-6, "a.blk.0.ln1": 1e-5}


def test_c05_group_norms_of_one_network_differ():
    """A spatial transformer opens with 1e-6, ResNets have 1e-5 (ml-explore/mlx-examples 1434)."""
    unet = torch.nn.ModuleDict({
        "resnet": torch.nn.GroupNorm(32, 64, eps=1e-5), "transformer": torch.nn.GroupNorm(32, 64, eps=1e-6),
        "inner": torch.nn.LayerNorm(64),
    })  # fmt: skip
    norms = ln.inspect(unet).found.norms
    assert [(n.name, n.spec.eps, n.spec.groups) for n in norms] == [
        ("resnet", 1e-5, 32), ("transformer", 1e-6, 32), ("inner", 1e-5, None),
    ]  # fmt: skip


def test_c07_epsilon_is_the_inner_configurations_own(tmp_path):
    """LLaVA's text tower has 1e-5; a table by model names said 1e-6 (TransformerLensOrg/TransformerLens 944)."""
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "rms_norm_eps": 1e-5}}
    norm = only(checkpoint(tmp_path, config, language_model__model__norm__weight=np.ones(8)))
    said(norm, eps=1e-5, centered=False, spread="rms")
    assert norm.evidence["eps"].source == "config"


def test_c08_a_keras_batch_norm_has_its_own_default(tmp_path):
    """Keras adds 1e-3 where PyTorch and darknet add 1e-5 (gzuidhof/nn-transfer 3, qqwweee/keras-yolo3 451)."""
    import keras

    norm = only(keras_file(tmp_path, (5, 5, 3), keras.layers.BatchNormalization()))
    said(norm, eps=1e-3, statistics="stored", axes=(0, 1, 2))
    close(norm, np.full((1, 1, 1, 3), 0.1), np.full((1, 1, 1, 3), 0.9535), mean=np.zeros(3), var=np.full(3, 0.01))


def test_c11_a_ported_vit_has_another_epsilon(tmp_path):
    """ViTConfig says 1e-12 for weights that were trained with 1e-6 (huggingface/transformers 18137)."""
    pair = {"vit__encoder__layer__0__layernorm_before__weight": np.ones(4),
            "vit__encoder__layer__0__layernorm_before__bias": np.zeros(4)}  # fmt: skip
    norm = only(checkpoint(tmp_path, {"model_type": "vit", "layer_norm_eps": 1e-12}, **pair))
    said(norm, eps=1e-12)
    row = 0.01 * (np.array(ROW) - 2.5) / np.std(ROW)
    close(norm, row, np.array([-1, -1 / 3, 1 / 3, 1]) * 1.341641, 2e-6)
    timm = only(checkpoint(tmp_path, {"architecture": "vit_base_patch16_224"}, blocks__0__norm1__weight=np.ones(4),
                           blocks__0__norm1__bias=np.zeros(4)))  # fmt: skip
    said(timm, eps=1e-6)
    close(timm, row, np.array([-1, -1 / 3, 1 / 3, 1]) * 1.334982, 2e-6)


def test_c13_an_epsilon_that_is_zero_in_half(tmp_path):
    """Exported in half, an epsilon of 1e-8 is the constant 0 (pytorch/pytorch 86580)."""
    b = Draft((8, 4), HALF, opset=11)
    found = drawn(tmp_path, b, chain(b, b.x, eps=1e-8, gamma=DRAW.uniform(0.5, 2, 4)))
    said(only(found), eps=0.0)
    assert kept(only(found)) == "float16"
    assert {code for code, _ in codes(found)} == {"eps-lost", "overflow"}


def test_c15_an_epsilon_that_half_rounds(tmp_path):
    """1e-12 is lifted to 1e-7, which half stores as 1.19e-7 (microsoft/onnxconverter-common 153)."""
    b = Draft(("B", 4), HALF)
    found = drawn(tmp_path, b, chain(b, b.x, eps=1e-7, gamma=[1, 2, 3, 2e4]))
    norm = only(found)
    said(norm, eps=1e-7)
    (lost,) = [risk for risk in found.risks if risk.code == "eps-lost"]
    assert (lost.severity, lost.numbers["stored"]) == ("minor", pytest.approx(1.19e-7, rel=2e-3))
    row = 1e-4 * np.array(LAYER_OF_ROW)
    assert ln.normalize(row, replace(norm.spec, stats_dtype="float64"))[-1] == pytest.approx(0.4045, abs=1e-3)
    stored = replace(norm.spec, eps=lost.numbers["stored"])
    assert ln.normalize(row, stored)[-1] == pytest.approx(0.3733, abs=1e-3)


def test_c17_an_epsilon_of_zero(tmp_path):
    """A driver passed on every epsilon as 0, and constant rows were NaN (VeriSilicon/TIM-VX 589)."""
    found = fused(tmp_path, "LayerNormalization", np.ones(6), np.zeros(6), shape=(2, 6), epsilon=0.0)
    norm = only(found)
    said(norm, eps=0.0)
    assert codes(found) == {("eps-lost", "minor")}
    close(norm, np.arange(6.0), [-1.46385, -0.87831, -0.29277, 0.29277, 0.87831, 1.46385], 1e-5)


def test_c20_the_fused_operators_own_default(tmp_path):
    """Without the attribute it has 1e-12, not the 1e-5 that it replaced (microsoft/onnxruntime 3768)."""
    b = Draft()
    skip = b.input("skip", ("B", 4, 8))
    norm = only(drawn(tmp_path, b, b("SkipLayerNormalization", b.x, skip, np.ones(8), domain="com.microsoft")))
    said(norm, eps=1e-12)
    assert norm.evidence["eps"].source == "default"
    close(norm, 1e-3 * (np.array(ROW) - 2.5) / np.std(ROW), LAYER_OF_ROW)


def test_c24_a_batch_norm_used_for_its_statistics(tmp_path):
    """A fused batch norm lifts Keras' 1e-6 to 1.001e-5 (tensorflow/tensorflow 37768)."""
    b = Draft((2, 6, 8), opset=15)
    rows = b("Reshape", b.x, np.array([1, 12, 8, 1]))
    ones, zeros = np.ones(12), np.zeros(12)
    y = b("BatchNormalization", rows, ones, zeros, zeros, ones, epsilon=1.001e-5, training_mode=1)
    b.nodes[-1].output.extend(["mean", "variance"])
    y = b("Mul", b("Reshape", y, np.array([2, 6, 8])), b.const(DRAW.uniform(0.5, 2, 8), "norm.weight"))
    norm = only(drawn(tmp_path, b, y))
    said(norm, eps=1.001e-5, axes=(-1,), scale_axes=(-1,))
    assert norm.spec.kind == "layer"


def test_c25_an_epsilon_that_grows_with_the_input(tmp_path):
    """Where x is divided by max|x| first, epsilon counts max|x|² times (apple/coremltools 2821)."""
    b = Draft((2, 3, 16))
    most = b("ReduceMax", b("Abs", b.x), axes=[-1], keepdims=1)
    small = b("Div", b.x, most)
    root = b("Mul", b("Sqrt", b("Add", b.mean(b("Mul", small, small)), 1e-5)), most)
    found = drawn(tmp_path, b, b("Div", b.x, root))
    assert not found.norms
    assert len(found.unidentified) == 1


def test_c27_epsilon_beside_the_deviation_of_a_batch(tmp_path):
    """CNTK's batch norm divided by √var + eps (keras-team/keras 10427)."""
    b = Draft((6, 5))
    found = drawn(tmp_path, b, chain(b, b.x, axes=(0,), eps=1e-3, outside=True, gamma=DRAW.uniform(0.5, 2, 5)))
    said(only(found), eps=1e-3, eps_at="deviation", axes=(0,))
    assert only(found).spec.kind == "batch"
    close(only(found), [[-0.1], [0.1]], [[-0.1 / 0.101], [0.1 / 0.101]], 1e-9)


def test_c28_epsilon_beside_the_root_mean_square(tmp_path):
    """OLMo's RMS norm divided by rms + eps (allenai/OLMo 281)."""
    b = Draft()
    norm = only(drawn(tmp_path, b, chain(b, b.x, centered=False, outside=True, gamma=DRAW.uniform(0.5, 2, 8))))
    said(norm, spread="rms", centered=False, eps=1e-5, eps_at="deviation")
    close(norm, [0.01, -0.01], [0.01 / 0.01001, -0.01 / 0.01001], 1e-9)


@pytest.mark.parametrize(("outside", "root"), [(False, 0.0332), (True, 0.0110)])
def test_c30_one_layer_type_with_epsilon_in_two_places(tmp_path, outside, root):
    """Caffe adds epsilon to the deviation, Keras and OpenVINO to the variance (opencv/opencv 14683)."""
    b = Draft((2, 3, 4, 5))
    norm = only(drawn(tmp_path, b, chain(b, b.x, axes=(2, 3), eps=1e-3, outside=outside)))
    said(norm, eps=1e-3, eps_at="deviation" if outside else "variance", axes=("2:",))
    close(norm, [[[[-0.01, 0.01]]]], [[[[-0.01 / root, 0.01 / root]]]], 2e-3)
    said(only(fused(tmp_path, "MeanVarianceNormalization", shape=(2, 3, 4, 5))), eps=1e-9, eps_at="deviation")


def test_c33_division_by_the_inverse_root(tmp_path):
    """x divided by 1/rms is multiplied by it, which is no norm (mosaicml/llm-foundry 371)."""
    b = Draft((2, 4))
    inverse = b("Reciprocal", b("Sqrt", b("Add", b.mean(b("Mul", b.x, b.x)), 1e-6)))
    assert not drawn(tmp_path, b, b("Mul", b("Div", b.x, inverse), b.const(np.arange(1, 5), "weight"))).norms
    right = b("Mul", b("Mul", b.x, inverse), b.const(np.arange(1, 5), "norm.weight"))
    close(only(drawn(tmp_path, b, right)), ROW, RMS_OF_ROW)


# -- axes ----------------------------------------------------------------------------------------------------


def test_c34_statistics_over_several_axes(tmp_path):
    """A fusion took any axes for the last one (microsoft/onnxruntime 15844, microsoft/onnxruntime 17060)."""
    b = Draft((2, 10, 10, 10))
    norm = only(drawn(tmp_path, b, chain(b, b.x, axes=(1, 2, 3), gamma=DRAW.uniform(0.5, 2, (10, 10, 10)))))
    assert norm.spec.resolve(4).axes == (1, 2, 3)
    assert norm.size == 1000


def test_c36_a_mean_over_the_wrong_axis(tmp_path):
    """A converter reduced another axis than the last, along which gamma lies (PINTO0309/onnx2tf 312)."""
    b = Draft((1, 16, 8))
    norm = only(drawn(tmp_path, b, chain(b, b.x, axes=(1,), gamma=DRAW.uniform(0.5, 2, 8))))
    spec = norm.spec.resolve(3)
    assert (spec.axes, spec.scale_axes, spec.kind, norm.size) == ((1,), (2,), "instance", 16)
    right = fused(tmp_path, "LayerNormalization", np.ones(8), shape=(1, 16, 8), axis=-1)
    assert only(right).spec.resolve(3).axes == (2,)


def test_c38_one_group_takes_all_channels(tmp_path):
    """With one group the statistics were taken channel by channel (NVIDIA/TensorRT 4756)."""
    norm = only(
        fused(tmp_path, "GroupNormalization", np.ones(4), np.zeros(4), shape=(1, 4, 2, 2), opset=21, num_groups=1)
    )
    x = np.arange(16.0).reshape(1, 4, 2, 2)
    y = ln.normalize(x, norm.spec.assume(NormSpec()), np.ones(4), np.zeros(4)).ravel()
    assert y[[0, 3, 15]] == pytest.approx([-1.627, -0.976, 1.627], abs=1e-3)
    said(norm, groups=1, channel_axis=1)
    assert norm.size == 16


@pytest.mark.parametrize("heads", [1, 2])
def test_c39_each_head_or_all_of_them(tmp_path, heads):
    """Llama 4's queries are normalized head by head, not as one vector (vllm-project/vllm 16311)."""
    b = Draft((3, heads, 8 // heads))
    norm = only(drawn(tmp_path, b, chain(b, b.x, centered=False)))
    assert norm.size == 8 // heads
    q = np.array([1, 2, 3, 4, 0.1, 0.2, 0.3, 0.4]).reshape(1, heads, -1)
    whole = [0.514, 1.028, 1.542, 2.055, 0.051, 0.103, 0.154, 0.206]
    close(norm, q, np.reshape(RMS_OF_ROW * 2 if heads == 2 else whole, q.shape))


def test_c41_the_width_of_a_norm_of_queries(tmp_path):
    """GLM-4-MoE's q_norm is as wide as a head, not as the model (PaddlePaddle/PaddleFormers 2998)."""
    norm = only(checkpoint(tmp_path, {"model_type": "glm4_moe", "rms_norm_eps": 1e-5, "hidden_size": 4096},
                           model__layers__0__self_attn__q_norm__weight=np.ones(128)))  # fmt: skip
    assert (norm.size, norm.placement) == (128, "qk")


def test_c42_an_axis_in_a_list(tmp_path):
    """Keras may store axis=[3], which a converter did not take for the last (onnx/keras-onnx 117)."""
    import keras

    path = tmp_path / "m.keras"
    keras.Sequential([keras.Input((4, 4, 4)), keras.layers.BatchNormalization(axis=3)]).save(path)
    listed = tmp_path / "listed.keras"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(listed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(b'"axis": 3', b'"axis": [3]') if name == "config.json" else data)
    assert zipfile.ZipFile(listed).read("config.json") != zipfile.ZipFile(path).read("config.json")
    spec = only(identify(read_model(listed))).spec
    assert (spec.axes, spec.scale_axes) == ((0, 1, 2), (3,))


# -- gamma and beta ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opset", "length", "axes"), [(18, 2, "group"), (21, 4, (1,))])
def test_c45_a_scale_for_each_group_or_channel(tmp_path, opset, length, axes):
    """GroupNormalization of opset 18 has one scale a group, of opset 21 one a channel (onnx/onnx 5466)."""
    parameters = np.ones(length), np.zeros(length)
    norm = only(fused(tmp_path, "GroupNormalization", *parameters, shape=(2, 4, 6), opset=opset, num_groups=2))
    said(norm, groups=2, scale_axes=axes, shift_axes=axes)


def test_c47_gamma_along_one_of_two_axes(tmp_path):
    """Gamma of shape (1, 1, 4, 1) lies along the height, and was taken for one of channels (apple/coremltools 2807)."""
    b = Draft((1, 3, 4, 5))
    norm = only(drawn(tmp_path, b, chain(b, b.x, axes=(2, 3), gamma=DRAW.uniform(0.5, 2, (1, 1, 4, 1)))))
    spec = norm.spec.resolve(4)
    assert (spec.axes, spec.scale_axes) == ((2, 3), (2,))
    b = Draft((1, 2, 5))
    said(only(drawn(tmp_path, b, chain(b, b.x, gamma=[1.5]))), scale_axes=None)


def test_c49_a_factor_of_another_shape(tmp_path):
    """A product that makes the array wider is no scale of the norm (microsoft/onnxruntime 31980, onnx/onnx 8203)."""
    b = Draft((1, 1))
    found = drawn(tmp_path, b, chain(b, b.x, gamma=[0.0, 0.0]))
    assert all(norm.scale is None and norm.spec.scale_axes is None for norm in found.norms)


def test_c50_parameters_for_each_element(tmp_path):
    """BatchNormalization with spatial=0 has parameters of shape (C, H, W) (PaddlePaddle/Paddle2ONNX 449)."""
    four = [np.ones((3, 4, 5))] * 4
    norm = only(fused(tmp_path, "BatchNormalization", *four, shape=(2, 3, 4, 5), opset=7, spatial=0))
    said(norm, axes=(0,), scale_axes=("1:",), statistics="stored")


def test_c52_a_norm_without_beta(tmp_path):
    """Without a bias an importer made one as long as another axis (apache/tvm 19691)."""
    norm = only(fused(tmp_path, "LayerNormalization", np.ones(8), shape=(2, 3, 4, 8)))
    said(norm, shift_axes=None, scale_axes=(-1,))
    assert (norm.shift, norm.scale.shape, norm.size) == (None, (8,), 8)


def test_c112_gamma_without_beta():
    """A kernel took for granted that there are both or neither (pytorch/pytorch 69208)."""
    (norm,) = ln.inspect(torch.nn.Sequential(torch.nn.LayerNorm((2, 2, 2), bias=False))).found.norms
    said(norm, axes=(-3, -2, -1), scale_axes=(-3, -2, -1), shift_axes=None)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_c53_the_simplified_operator_takes_no_mean_off(tmp_path, domain):
    """SimplifiedLayerNormalization is an RMS norm, and was lowered to a layer norm (sonos/tract 2646)."""
    norm = only(fused(tmp_path, "SimplifiedLayerNormalization", np.ones(8), shape=(3, 8), domain=domain))
    said(norm, centered=False, spread="rms", eps=1e-5)
    close(norm, ROW, RMS_OF_ROW)


def test_c55_a_name_is_no_alarm(tmp_path):
    """T5LayerNorm takes no mean off, by design (huggingface/transformers 14772, ggml-org/ggml 900)."""
    config = {"model_type": "t5", "layer_norm_epsilon": 1e-6}
    found = checkpoint(tmp_path, config, encoder__block__0__layer__0__layer_norm__weight=np.linspace(0.5, 1.5, 8))
    said(only(found), centered=False, spread="rms", shift_axes=None)
    assert codes(found) == {("name-only", "info")}


# -- 1 + w ---------------------------------------------------------------------------------------------------

W = np.array([-0.2, 0.1, -0.1, 0.05, 0.15, -0.05, 0.02, 0.03])
GEMMA = {"gemma.attention.layer_norm_rms_epsilon": 1e-6}


def gemma(folder, *, blocks, last):
    return llama_cpp(folder / "m.gguf", "gemma", GEMMA, blk__0__attn_norm__weight=blocks, output_norm__weight=last)


def offsets(found):
    """Name the norms whose gamma may lack the 1, or have it twice."""
    return [risk.a for risk in found.risks if risk.code == "gamma-offset"]


def test_c57_a_converter_adds_the_one(tmp_path):
    """A checkpoint of Gemma stores w, its GGUF 1 + w (ggml-org/llama.cpp 5631)."""
    stored = checkpoint(tmp_path, {"model_type": "gemma", "rms_norm_eps": 1e-6}, model__norm__weight=W)
    said(only(stored), scale_offset=1)
    converted = gemma(tmp_path, blocks=1 + W, last=1 + W)
    assert [norm.spec.scale_offset for norm in converted.norms] == [0, 0]
    assert offsets(stored) == offsets(converted) == []
    assert offsets(gemma(tmp_path, blocks=W, last=W)) == ["blk.0.attn_norm", "output_norm"]


def test_c59_an_exported_graph_without_the_one(tmp_path):
    """On one path the 1 was not added to 157 norms, those of queries and keys too (pytorch/executorch 19901)."""
    b = Draft((2, 8), opset=23)
    y = b("RMSNormalization", b.x, b.const(W, "layers.0.attention_norm.weight"))
    y = b("RMSNormalization", y, b.const(W[::-1], "layers.0.attention.q_norm.weight"))
    found = drawn(tmp_path, b, y)
    assert offsets(found) == ["layers.0.attention_norm", "layers.0.attention.q_norm"]


def test_c60_the_one_twice(tmp_path):
    """A file that holds 1 + w was read as one that holds w (utensils/mold 1074)."""
    found = checkpoint(tmp_path, {"model_type": "gemma3_text", "rms_norm_eps": 1e-6}, model__norm__weight=1 + W)
    said(only(found), scale_offset=1)
    assert offsets(found) == ["model.norm"]


def test_c62_the_last_norm_alone_lacks_the_one(tmp_path):
    """All norms but the last one had the 1 added (kekzl/imp 1287)."""
    assert offsets(gemma(tmp_path, blocks=1 + W, last=W)) == ["output_norm"]


def test_c64_the_offset_is_recorded_norm_by_norm(tmp_path):
    """A flag was lost, so some of six norms multiply by w and others by 1 + w (pytorch/executorch 22444)."""
    b = Draft((2, 8))
    y, wanted = b.x, [1, 1, 0, 1, 0, 0]
    for site, offset in enumerate(wanted):
        w = b.const(1.0 - offset + W + site / 100, f"layers.0.norm_{site}.weight")
        y = b("Mul", chain(b, y, centered=False), b("Add", w, 1.0) if offset else w)
    found = drawn(tmp_path, b, y)
    assert [norm.spec.scale_offset for norm in found.norms] == wanted
    assert offsets(found) == []


def test_c65_two_conventions_in_one_checkpoint(tmp_path):
    """The gated norm multiplies by w, the other by 1 + w (Blaizzy/mlx-vlm 2041, jundot/omlx 3181)."""
    config = {"model_type": "qwen4_exp", "rms_norm_eps": 1e-6}
    norm, gated = "model__layers__0__input_layernorm__weight", "model__layers__0__linear_attn__norm__weight"
    official = checkpoint(tmp_path, config, **{norm: 0.22 + W, gated: 1 + W})
    assert [n.spec.scale_offset for n in official.norms] == [1, 0]
    assert offsets(official) == []
    after = norm.replace("input", "post_attention")
    shifted = checkpoint(tmp_path, config, **{norm: 1.15 + W, after: 1.36 + W, gated: 1 + W})
    assert offsets(shifted) == ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
    # one w above 1 beside others that are not is what training made of it
    assert offsets(checkpoint(tmp_path, config, **{norm: 1.36 + W, after: 0.22 + W, gated: 1 + W})) == []


# -- names and places ----------------------------------------------------------------------------------------


def test_c68_gamma_and_beta(tmp_path):
    """Old files of BERT call a scale gamma, which readers miss (huggingface/transformers 11809)."""
    name = "bert__encoder__layer__0__output__LayerNorm"
    found = checkpoint(tmp_path, {"model_type": "bert"}, **{f"{name}__gamma": np.ones(4), f"{name}__beta": np.zeros(4)})
    norm = only(found)
    assert (norm.scale.name, norm.shift.name) == (f"{norm.name}.gamma", f"{norm.name}.beta")
    said(norm, eps=1e-12, scale_axes=(-1,), shift_axes=(-1,))


@pytest.mark.parametrize(("kind", "place"), [("llama", "pre"), ("gemma3_text", "post")])
def test_c72_one_name_for_two_places(tmp_path, kind, place):
    """In Llama it stands before the feed-forward part, in Gemma after attention (nurl-lang/nurl 576)."""
    names = ["input_layernorm", "post_attention_layernorm"]
    names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if kind == "gemma3_text" else []
    tensors = {f"model__layers__0__{name}__weight": np.full(4, 0.5) for name in names}
    found = checkpoint(tmp_path, {"model_type": kind, "rms_norm_eps": 1e-6}, **tensors)
    places = {norm.name.rpartition(".")[2]: norm.placement for norm in found.norms}
    assert places["post_attention_layernorm"] == place


def test_c75_a_norm_kept_in_the_linear_layer(tmp_path):
    """A norm fused into a projection has a name that a mapping missed (NVIDIA-NeMo/Megatron-Bridge 5295)."""
    name = "decoder__layers__0__self_attention__linear_q_proj"
    found = checkpoint(tmp_path, {}, **{f"{name}__layer_norm_weight": np.ones(8), f"{name}__weight": np.ones((8, 8))})
    assert [norm.scale.name for norm in found.norms] == [f"{name.replace('__', '.')}.layer_norm_weight"]


@pytest.mark.parametrize("last", [True, False])
def test_c76_the_norm_at_the_end(tmp_path, last):
    """OPT has one more norm than two a layer, except where it normalizes after (huggingface/transformers 17653)."""
    names = [f"decoder.layers.{n}.{w}_layer_norm" for n in range(2) for w in ("self_attn", "final")]
    names += ["decoder.final_layer_norm"] if last else []
    pairs = {f"model.{name}.{leaf}": np.ones(4) for name in names for leaf in ("weight", "bias")}
    found = checkpoint(tmp_path, {"model_type": "opt"}, **pairs)
    assert len(found.norms) == 4 + last
    assert [norm.name for norm in found.norms if norm.placement == "final"] == ["model.decoder.final_layer_norm"] * last


def test_c79_norms_of_queries_by_another_name(tmp_path):
    """Hunyuan calls them query_layernorm and key_layernorm, so they were skipped (vllm-project/vllm-metal 659)."""
    tensors = {f"model.layers.0.self_attn.{side}_layernorm.weight": np.ones(8) for side in ("query", "key")}
    found = checkpoint(tmp_path, {"model_type": "hunyuan_v1_dense", "rms_norm_eps": 1e-5}, **tensors)
    assert [(norm.placement, norm.size, norm.spec.eps) for norm in found.norms] == [("qk", 8, 1e-5)] * 2


# -- variance ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 512])
def test_c83_the_sample_deviation(tmp_path, n):
    """Written by hand, it takes n − 1, epsilon outside (allenai/allennlp 953, harvardnlp/annotated-transformer 119)."""
    b = Draft((2, n))
    norm = only(drawn(tmp_path, b, chain(b, b.x, eps=1e-6, outside=True, ddof=1, gamma=DRAW.uniform(0.5, 2, n))))
    said(norm, ddof=1, eps_at="deviation", eps=1e-6)
    x = DRAW.standard_normal(n)
    close(norm, x, (x - x.mean()) / x.std() * {4: 0.8660, 512: 0.99902}[n], 1e-4)


def moments(b, least=None):
    """Write a layer norm by E[x²] − E[x]²."""
    mean = b.mean(b.x)
    variance = b("Sub", b.mean(b("Mul", b.x, b.x)), b("Mul", mean, mean))
    variance = variance if least is None else b("Max", variance, least)
    y = b("Div", b("Sub", b.x, mean), b("Sqrt", b("Add", variance, 1e-5)))
    return b("Mul", y, b.const(DRAW.uniform(0.5, 2, 8), "norm.weight"))


def test_c86_a_difference_of_large_numbers(tmp_path):
    """At a mean of 40000 the one-pass variance is −128 (microsoft/onnxruntime 28463, apache/tvm 19592)."""
    found = drawn(tmp_path, b := Draft(), moments(b))
    said(only(found), variance_by="moments")
    assert codes(found) == {("cancellation", "minor")}
    x = np.float32([40000, 40001, 40002, 40003])
    assert (x * x).mean(dtype=np.float32) - x.mean(dtype=np.float32) ** 2 < 0
    close(only(found), ROW, LAYER_OF_ROW)


def test_c88_a_mean_far_from_zero(tmp_path):
    """At a mean of 2000 the one-pass result is far off (pytorch/pytorch 51102, pytorch/pytorch 40302)."""
    found = drawn(tmp_path, b := Draft((5, 8)), moments(b))
    (risk,) = found.risks
    assert (risk.code, risk.numbers["dtype"]) == ("cancellation", "float32")
    b = Draft((5, 8))
    assert codes(drawn(tmp_path, b, chain(b, b.x, gamma=DRAW.uniform(0.5, 2, 8)))) == set()


def test_c89_a_variance_held_above_zero(tmp_path):
    """Libraries clamp the one-pass variance at 0, which hides the loss (patrick-kidger/equinox 314)."""
    found = drawn(tmp_path, b := Draft(), moments(b, 0.0))
    said(only(found), variance_by="moments_clamped")
    assert codes(found) == {("cancellation", "minor")}


# -- types ---------------------------------------------------------------------------------------------------


def half_chain(b, casts):
    """Write a float16 layer norm, its statistics in float32 or not."""
    x = b("Cast", b.x, to=1) if casts else b.x
    eps = b.const(1e-3, dtype=np.float32 if casts else HALF)
    y = chain(b, x, eps=eps)
    y = b("Cast", y, to=10) if casts else y
    return b("Mul", y, b.const(DRAW.uniform(0.5, 2, 768), "norm.weight"))


@pytest.mark.parametrize("casts", [False, True])
def test_c90_squares_in_half(tmp_path, casts):
    """A value 795 above the mean squares to infinity, and the bias is left (microsoft/onnxruntime 31626)."""
    b = Draft(("B", 768), HALF)
    found = drawn(tmp_path, b, half_chain(b, casts))
    said(only(found), eps=1e-3)
    assert kept(only(found)) == ("float32" if casts else "float16")
    assert codes(found) & {("overflow", "major")} == (set() if casts else {("overflow", "major")})
    with np.errstate(over="ignore"):
        assert np.isinf(HALF(795) ** 2)


@pytest.mark.parametrize(("stash", "kept"), [(1, "float32"), (10, "float16")])
def test_c92_the_type_of_the_statistics(tmp_path, stash, kept):
    """A runtime ignores stash_type, and a variance of 246419 does not fit half (microsoft/onnxruntime 17692)."""
    found = fused(tmp_path, "LayerNormalization", np.ones(8), dtype=HALF, stash_type=stash)
    norm = only(found)
    said(norm, stats_dtype=kept)
    assert norm.dtype == "float16"
    assert (("overflow", "major") in codes(found)) == (kept == "float16")


def test_c94_pow_in_half(tmp_path):
    """Pow and ReduceMean in half cost BERT its accuracy (NVIDIA/TensorRT 2564, microsoft/onnxruntime 13639)."""
    b = Draft(("B", 8), HALF)
    d = b("Sub", b.x, b.mean(b.x))
    y = b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, 2.0)), 1e-5)))
    found = drawn(tmp_path, b, b("Mul", y, b.const(np.linspace(0.5, 2, 8), "norm.weight")))
    (risk,) = [risk for risk in found.risks if risk.code == "overflow"]
    assert (risk.severity, risk.a, risk.numbers["from"]) == ("major", "norm", 256)


@pytest.mark.parametrize("casts", [False, True])
def test_c95_a_cast_that_was_taken_out(tmp_path, casts):
    """A lowering strips the cast to float32 around an RMS norm (pytorch/executorch 19523)."""
    b = Draft(("B", 8), HALF)
    x = b("Cast", b.x, to=1) if casts else b.x
    y = chain(b, x, eps=b.const(1e-3, dtype=np.float32 if casts else HALF), centered=False)
    found = drawn(tmp_path, b, b("Cast", y, to=10) if casts else y)
    said(only(found), spread="rms")
    assert kept(only(found)) == ("float32" if casts else "float16")
    assert (("overflow", "major") in codes(found)) is not casts


def test_c97_a_sum_of_25_million_in_half(tmp_path):
    """A converter computes in the type of the input, over an image of 512 channels (pytorch/TensorRT 3272)."""
    shape = (512, 224, 224)
    b = Draft((1, *shape), HALF)
    w = b.input("w", shape)
    found = drawn(tmp_path, b, b("LayerNormalization", b.x, w, axis=1, stash_type=10))
    assert only(found).size == 512 * 224 * 224
    assert ("overflow", "major") in codes(found)


@pytest.mark.parametrize("first", [True, False])
def test_c98_where_it_rounds(tmp_path, first):
    """Llama rounds before the scale, Gemma after it (huggingface/transformers 29402, InternLM/lmdeploy 2842)."""
    b = Draft(("B", 64), HALF)
    w = b.const(0.1 * DRAW.standard_normal(64), "norm.weight", np.float32)
    one = b.const(1.0, dtype=np.float32)
    scale = b("Add", w, one)
    y = chain(b, b("Cast", b.x, to=1), centered=False, eps=b.const(1e-6, dtype=np.float32))
    y = b("Mul", b("Cast", y, to=10), b("Cast", scale, to=10)) if first else b("Cast", b("Mul", y, scale), to=10)
    norm = only(drawn(tmp_path, b, y))
    said(norm, cast_before_scale=first, scale_offset=1)
    assert (norm.dtype, kept(norm)) == ("float16", "float32")


def test_c100_a_norm_without_gamma_in_bfloat16(tmp_path):
    """Without a gamma it did not fuse, and its square ran in bfloat16 (openvinotoolkit/openvino 36718)."""
    import ml_dtypes

    b = Draft(("B", 8), ml_dtypes.bfloat16)
    norm = only(drawn(tmp_path, b, chain(b, b.x, centered=False, eps=b.const(1e-6, dtype=ml_dtypes.bfloat16))))
    said(norm, round_each=True, scale_axes=None, spread="rms")
    assert kept(norm) == "bfloat16"


# -- look-alikes and statistics ------------------------------------------------------------------------------


def test_c103_a_mean_that_lost_its_axis(tmp_path):
    """With keepdims=0 the mean is taken off along another axis: no layer norm (microsoft/onnxruntime 30513)."""
    b = Draft((3, 3))
    found = drawn(tmp_path, b, chain(b, b.x, keepdims=0, gamma=[1.0, 2.0, 3.0]))
    assert not found.norms
    x = np.array([[1.0, 2, 4], [2, 1, 0], [5, 3, 1]])
    d = x - x.mean(-1)
    assert (d / np.sqrt((d * d).mean(-1) + 1e-5))[0] == pytest.approx([-1.188, 0.574, 0.446], abs=1e-3)


def test_c106_an_instance_norm_that_keeps_statistics(tmp_path):
    """In evaluation it uses what it stored, its export did not (pytorch/pytorch 53887, pytorch/pytorch 72057)."""
    layer = torch.nn.InstanceNorm2d(2, track_running_stats=True).eval()
    (norm,) = ln.inspect(torch.nn.Sequential(layer)).found.norms
    said(norm, statistics="stored")
    x = DRAW.standard_normal((2, 2, 1, 4))
    close(norm, x, x / np.sqrt(1 + 1e-5), 1e-9, mean=np.zeros(2), var=np.ones(2))
    exported = only(fused(tmp_path, "InstanceNormalization", np.ones(2), np.zeros(2), shape=(2, 2, 1, 4)))
    said(exported, statistics="input", axes=("2:",))


def test_c108_a_batch_norm_that_takes_its_inputs_statistics(tmp_path):
    """Without running statistics, training mode is meant (pytorch/pytorch 75252, microsoft/onnxscript 1262)."""
    four = [np.ones(3), np.zeros(3), np.zeros(3), np.ones(3)]
    found = fused(tmp_path, "BatchNormalization", *four, shape=(2, 3, 4, 5), training_mode=1)
    said(only(found), statistics="input", axes=(0, "2:"))
    assert ("statistics", "major") in codes(found)
    assert "statistics of its input" in found.risks[0].sentence


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_c111_momentum_is_no_part_of_the_result(tmp_path, momentum):
    """In training mode the result is that of the batch, whatever the momentum (microsoft/onnxruntime 29790)."""
    four = [np.ones(4), np.zeros(4), np.zeros(4), np.ones(4)]
    found = fused(tmp_path, "BatchNormalization", *four, shape=(2, 4, 3), training_mode=1, momentum=momentum)
    norm = only(found)
    said(norm, statistics="input")
    assert norm.spec == only(fused(tmp_path, "BatchNormalization", *four, shape=(2, 4, 3), training_mode=1)).spec


def test_c117_a_wrong_shape_in_the_file(tmp_path):
    """An export said (950, 950, 256) of values that are (950, 1, 256) (pytorch/pytorch 84563)."""
    b = Draft((950, 1, 256), opset=11)
    y = chain(b, b.x, gamma=DRAW.uniform(0.5, 2, 256))
    for node in b.nodes:
        b.values.append(helper.make_tensor_value_info(node.output[0], 1, (950, 950, 256)))
    norm = only(drawn(tmp_path, b, y))
    assert (norm.spec.resolve(3).axes, norm.size, norm.scale.shape) == ((2,), 256, (256,))
    assert UNKNOWN not in (norm.spec.axes, norm.spec.eps)
