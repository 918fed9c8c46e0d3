# SPDX-License-Identifier: MIT
"""This file rebuilds public reports of norms that went wrong as pairs of small files, or a file and a runtime's output.

Each function is one report, named by its number in the list of tests/models/test_cases.py. It takes a folder and gives
`Files`, what is compared, or `Numbers`, a file and what a runtime makes of its norm instead, written out by hand.
Its docstring is the source; `EXPECTED` has the code of the cause, None where nothing is wrong.
"""

import shutil
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from models.drafts import Draft
from small_files import chain, checkpoint, drawn, fused, keras_file, llama_cpp

HALF = np.float16
DRAW = np.random.default_rng(41)
G8, B8 = DRAW.normal(1, 0.3, 8).astype(np.float32), DRAW.normal(0, 0.4, 8).astype(np.float32)
W = np.array([-0.2, 0.1, -0.1, 0.05, 0.15, -0.05, 0.02, 0.03], np.float32)


class Files(NamedTuple):
    """Two models, and the arrays that they are run on; seeded ones if None."""

    a: Any
    b: Any
    inputs: dict | None = None


class Numbers(NamedTuple):
    """A file, what goes into its norm, and what the runtime at fault gives for it, from x, gamma and beta."""

    file: Any
    x: np.ndarray
    does: Callable


class Case(NamedTuple):
    """One report."""

    make: Callable
    expected: str | None
    at: str | None


CASES: dict[str, Case] = {}

# Reports of which there is no pair to compare.
ELSEWHERE = {
    "C49": "microsoft/onnxruntime 31980: what the fusion writes, a scale longer than the axis, is no valid model",
    "C80": "microsoft/onnxruntime 14156: a fourth output that is not the norm's lacked the bias",
    "C82": "microsoft/onnxruntime 20623: the kernel writes into its input; its own output is right",
}


def case(expected, at=None):
    """Enter a report with the code of its cause, and the norm of A where more than one could be named."""

    def enter(make):
        CASES[make.__name__.partition("_")[0].upper()] = Case(make, expected, at)
        return make

    return enter


def layer(x, gamma=1.0, beta=0.0, eps=1e-5, axes=(-1,)):
    """Write the formula out, in float64."""
    d = x - x.mean(axes, keepdims=True)
    return gamma * d / np.sqrt((d * d).mean(axes, keepdims=True) + eps) + beta


def rms(x, gamma=1.0, eps=1e-5):
    return gamma * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def rows(size, *shape, dtype=np.float32):
    return (size * DRAW.standard_normal(shape)).astype(dtype)


# -- epsilon ------------------------------------------------------------------------------------------------


@case("eps-value")
def c01_the_kernels_have_their_own(folder):
    """ggml-org/llama.cpp 2373"""
    file = fused(folder / "a.onnx", "RMSNormalization", G8, shape=(6, 8), opset=23, epsilon=1e-5)
    return Numbers(file, rows(0.01, 6, 8), lambda x, g, b: rms(x, g, 1e-6))


@case("eps-value", "a.blk.0.ln1")
def c03_the_audio_tower(folder):
    """ggml-org/llama.cpp 23815"""
    tensors = {f"{tower}.blk.0.ln1.{leaf}": DRAW.normal(1, 0.2, 8) for tower in "va" for leaf in ("weight", "bias")}
    keys = {"clip.vision.attention.layer_norm_epsilon": 1e-6, "clip.audio.attention.layer_norm_epsilon": 1e-6}
    return Files(
        llama_cpp(folder / "a.gguf", "clip", keys, tensors),
        llama_cpp(folder / "b.gguf", "clip", keys | {"clip.audio.attention.layer_norm_epsilon": 1e-5}, tensors),
    )


@case("eps-value", "transformer")
def c05_group_norms_of_a_spatial_transformer(folder):
    """ml-explore/mlx-examples 1434"""
    import torch

    def unet(eps):
        return torch.nn.ModuleDict({
            "resnet": torch.nn.GroupNorm(32, 64, eps=1e-5), "transformer": torch.nn.GroupNorm(32, 64, eps=eps),
            "inner": torch.nn.LayerNorm(64),
        })  # fmt: skip

    return Files(unet(1e-6), unet(1e-5))


@case("eps-value")
def c07_a_table_by_model_names(folder):
    """TransformerLensOrg/TransformerLens 944"""
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "rms_norm_eps": 1e-5}}
    return Files(
        checkpoint(folder / "a", config, {"language_model.model.norm.weight": G8}),
        checkpoint(folder / "b", {"model_type": "llama", "rms_norm_eps": 1e-6}, {"model.norm.weight": G8}),
    )


@case("eps-value")
def c08_keras_batch_norm(folder):
    """gzuidhof/nn-transfer 3"""
    import keras

    values = [DRAW.normal(1, 0.2, 3), DRAW.normal(0, 0.2, 3), np.zeros(3), np.full(3, 0.01)]
    keras_at = keras_file(folder / "b.keras", (5, 5, 3), keras.layers.BatchNormalization(name="norm"), values=values)
    return Files(keras_file(folder / "a.keras", (5, 5, 3), keras.layers.BatchNormalization(epsilon=1e-5, name="norm"),
                            values=values), keras_at)  # fmt: skip


@case("eps-value")
def c09_a_constant_in_the_program(folder):
    """huggingface/candle 271"""
    file = fused(folder / "a.onnx", "RMSNormalization", G8, shape=(6, 8), opset=23, epsilon=1e-5)
    return Numbers(file, rows(0.02, 6, 8), lambda x, g, b: rms(x, g, 1e-6))


@case("eps-value")
def c11_a_ported_vit(folder):
    """huggingface/transformers 18137"""
    leaves = {"weight": G8, "bias": B8}
    return Files(
        checkpoint(folder / "a", {"architecture": "vit_base_patch16_224"},
                   {f"blocks.0.norm1.{leaf}": value for leaf, value in leaves.items()}),
        checkpoint(folder / "b", {"model_type": "vit", "layer_norm_eps": 1e-12},
                   {f"vit.encoder.layer.0.layernorm_before.{leaf}": value for leaf, value in leaves.items()}),
    )  # fmt: skip


@case("eps-lost")
def c13_an_epsilon_that_is_zero_in_half(folder):
    """pytorch/pytorch 86580"""
    b = Draft((8, 4), HALF, opset=11)
    return Files(
        fused(folder / "a.onnx", "LayerNormalization", G8[:4], shape=(8, 4), dtype=HALF, epsilon=1e-8),
        drawn(folder / "b.onnx", b, chain(b, b.x, eps=1e-8, gamma=G8[:4])),
    )


@case("eps-value")
def c15_an_epsilon_that_a_converter_lifts(folder):
    """microsoft/onnxconverter-common 153"""
    a, b = Draft((2, 4), np.float32), Draft((2, 4), HALF)
    return Files(
        drawn(folder / "a.onnx", a, chain(a, a.x, eps=1e-12, gamma=[1, 2, 3, 4])),
        drawn(folder / "b.onnx", b, chain(b, b.x, eps=1e-7, gamma=[1, 2, 3, 4])),
    )


@case("eps-lost")
def c17_an_epsilon_of_zero(folder):
    """VeriSilicon/TIM-VX 589"""
    return Files(*(
        fused(folder / f"{side}.onnx", "LayerNormalization", G8[:6], B8[:6], shape=(2, 6), epsilon=eps)
        for side, eps in (("a", 1e-5), ("b", 0.0))
    ))  # fmt: skip


@case("eps-value")
def c18_the_fused_kernels_default(folder):
    """tensorflow/tensorflow 58863"""
    file = fused(folder / "a.onnx", "LayerNormalization", G8, B8, shape=(6, 8), epsilon=1e-6)
    return Numbers(file, rows(0.01, 6, 8), lambda x, g, b: layer(x, g, b, 1e-3))


@case("eps-value")
def c20_the_fused_operators_default(folder):
    """microsoft/onnxruntime 3768"""
    a, b = Draft(), Draft()
    both = [(d, d.input("skip", ("B", 4, 8)), d.const(G8, "norm.weight")) for d in (a, b)]
    (_, skip_a, w_a), (_, skip_b, w_b) = both
    return Files(
        drawn(folder / "a.onnx", a, a("LayerNormalization", a("Add", a.x, skip_a), w_a, epsilon=1e-5)),
        drawn(folder / "b.onnx", b, b("SkipLayerNormalization", b.x, skip_b, w_b, domain="com.microsoft")),
    )


@case("eps-lost")
def c21_epsilon_added_after_rounding_to_half(folder):
    """pytorch/pytorch 41527"""
    file = fused(folder / "a.onnx", "LayerNormalization", G8, B8, shape=(4, 8), dtype=HALF, epsilon=1e-12)
    x = rows(1e-3, 4, 8, dtype=HALF)
    x[0] = 0
    # the operator rounds once before gamma, which is not the fault
    return Numbers(file, x, lambda x, g, b: g * layer(x, eps=float(HALF(1e-12))).astype(HALF).astype(float) + b)


@case("eps-value")
def c24_a_fused_batch_norm_lifts_it(folder):
    """tensorflow/tensorflow 37768"""
    import keras

    b = Draft((2, 6, 8), opset=15)
    ones, zeros = np.ones(12), np.zeros(12)
    y = b("BatchNormalization", b("Reshape", b.x, np.array([1, 12, 8, 1])), ones, zeros, zeros, ones,
          epsilon=1.001e-5, training_mode=1)  # fmt: skip
    b.nodes[-1].output.extend(["mean", "variance"])
    y = b("Mul", b("Reshape", y, np.array([2, 6, 8])), b.const(G8, "norm.weight"))
    norm = keras.layers.LayerNormalization(epsilon=1e-6, center=False, name="norm")
    return Files(keras_file(folder / "a.keras", (6, 8), norm, values=[G8]), drawn(folder / "b.onnx", b, y))


@case("eps-value")
def c25_an_epsilon_that_grows_with_the_input(folder):
    """apple/coremltools 2821"""
    file = fused(folder / "a.onnx", "RMSNormalization", np.ones(64), shape=(4, 64), opset=23, epsilon=1e-5)
    x = rows(0.01, 4, 64)
    x[:, 0] = 10

    def inflated(x, g, b):
        most = np.abs(x).max(-1, keepdims=True)
        return x / (most * np.sqrt(((x / most) ** 2).mean(-1, keepdims=True) + 1e-5))

    return Numbers(file, x, inflated)


@case("eps-place")
def c27_epsilon_beside_the_deviation_of_a_batch(folder):
    """keras-team/keras 10427"""
    return _places(folder, (6, 5), axes=(0,), eps=1e-3, gamma=G8[:5])


@case("eps-place")
def c28_epsilon_beside_the_root_mean_square(folder):
    """allenai/OLMo 281"""
    return _places(folder, ("B", 4, 8), centered=False, gamma=G8)


@case("eps-place")
def c30_mvn_of_two_frameworks(folder):
    """opencv/opencv 14683"""
    return _places(folder, (2, 3, 4, 5), axes=(2, 3), eps=1e-3)


def _places(folder, shape, **more):
    return _chains(folder, shape, {}, {"outside": True}, **more)


def _chains(folder, shape, of_a, of_b, dtype=np.float32, **more):
    paths = []
    for side, own in (("a", of_a), ("b", of_b)):
        b = Draft(shape, dtype)
        paths.append(drawn(folder / f"{side}.onnx", b, chain(b, b.x, **more, **own)))
    return Files(*paths)


@case("eps-value")
def c32_activations_scaled_and_not_epsilon(folder):
    """openvinotoolkit/openvino 28996"""
    file = fused(folder / "a.onnx", "LayerNormalization", G8, B8, shape=(6, 8), epsilon=1e-5)
    return Numbers(file, rows(0.03, 6, 8), lambda x, g, b: layer(x / 8, g, b, 1e-5))


@case("kind")
def c33_division_by_the_inverse_root(folder):
    """mosaicml/llm-foundry 371"""
    file = fused(folder / "a.onnx", "RMSNormalization", G8, shape=(4, 8), opset=23, epsilon=1e-6)
    return Numbers(file, rows(2, 4, 8), lambda x, g, b: g * x * np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))


# -- axes ---------------------------------------------------------------------------------------------------


@case("axes")
def c34_a_fusion_takes_any_axes_for_the_last(folder):
    """microsoft/onnxruntime 15844"""
    b = Draft((2, 10, 10, 10))
    gamma = DRAW.uniform(0.5, 2, 10).astype(np.float32)
    return Files(
        drawn(folder / "a.onnx", b, chain(b, b.x, axes=(1, 2, 3), gamma=gamma)),
        fused(folder / "b.onnx", "LayerNormalization", gamma, shape=(2, 10, 10, 10), axis=-1),
    )


@case("axes")
def c36_a_mean_over_the_wrong_axis(folder):
    """PINTO0309/onnx2tf 312"""
    b = Draft((1, 16, 8))
    return Files(
        fused(folder / "a.onnx", "LayerNormalization", G8, shape=(1, 16, 8), axis=-1),
        drawn(folder / "b.onnx", b, chain(b, b.x, axes=(1,), gamma=G8)),
    )


@case("groups")
def c38_one_group_taken_for_none(folder):
    """NVIDIA/TensorRT 4756"""
    shape, both = (1, 4, 2, 2), (G8[:4], B8[:4])
    return Files(
        fused(folder / "a.onnx", "GroupNormalization", *both, shape=shape, opset=21, num_groups=1),
        fused(folder / "b.onnx", "InstanceNormalization", *both, shape=shape),
    )


@case("axes")
def c39_all_heads_together(folder):
    """vllm-project/vllm 16311"""
    return _chains(folder, (3, 2, 4), {"axes": (-1,)}, {"axes": (-2, -1)}, centered=False, name="q_norm")


@case("gamma-layout")
def c41_the_width_of_a_norm_of_queries(folder):
    """PaddlePaddle/PaddleFormers 2998"""
    config, name = {"model_type": "glm4_moe", "rms_norm_eps": 1e-5}, "model.layers.0.self_attn.q_norm.weight"
    return Files(*(checkpoint(folder / side, config, {name: DRAW.normal(1, 0.2, n)})
                   for side, n in (("a", 128), ("b", 4096))))  # fmt: skip


@case("axes")
def c42_an_axis_in_a_list(folder):
    """onnx/keras-onnx 117"""
    import keras

    values = [G8[:4], B8[:4], np.linspace(-1, 1, 4), np.linspace(0.5, 2, 4)]
    whole = keras_file(folder / "whole.keras", (4, 4, 4), keras.layers.BatchNormalization(axis=3, name="norm"),
                       values=values)  # fmt: skip
    listed = folder / "a.keras"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(listed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(b'"axis": 3', b'"axis": [3]') if name == "config.json" else data)
    wrong = fused(folder / "b.onnx", "BatchNormalization", *values, shape=(2, 4, 4, 4), epsilon=1e-3)
    return Files(listed, wrong)


# -- gamma and beta -----------------------------------------------------------------------------------------


@case("gamma-layout")
def c45_a_scale_for_each_group(folder):
    """onnx/onnx 5466"""
    shape = (2, 4, 6)
    return Files(*(
        fused(folder / f"{side}.onnx", "GroupNormalization", G8[:n], B8[:n], shape=shape, opset=opset, num_groups=2)
        for side, n, opset in (("a", 4, 21), ("b", 2, 18))
    ))  # fmt: skip


@case("gamma-layout")
def c47_gamma_along_one_of_two_axes(folder):
    """apple/coremltools 2807"""
    gamma = DRAW.uniform(0.5, 2, 4)
    return _chains(folder, (1, 4, 4, 5), {"gamma": gamma.reshape(1, 1, 4, 1)}, {"gamma": gamma.reshape(1, 4, 1, 1)},
                   axes=(2, 3))  # fmt: skip


@case("axes")
def c50_parameters_for_each_element(folder):
    """PaddlePaddle/Paddle2ONNX 449"""
    held = [DRAW.normal(1, 0.2, 3), DRAW.normal(0, 0.2, 3), DRAW.normal(0, 0.2, 3), DRAW.uniform(0.5, 2, 3)]
    whole = [np.broadcast_to(v[:, None, None], (3, 4, 5)) + 0.1 * DRAW.uniform(0, 1, (3, 4, 5)) for v in held]
    return Files(
        fused(folder / "a.onnx", "BatchNormalization", *held, shape=(2, 3, 4, 5), opset=7),
        fused(folder / "b.onnx", "BatchNormalization", *whole, shape=(2, 3, 4, 5), opset=7, spatial=0),
    )


@case("parameter-swapped")
def c51_the_halves_of_a_modulation(folder):
    """huggingface/diffusers 10198"""
    shift, scale = DRAW.normal(0, 0.4, 8), DRAW.normal(0, 0.3, 8)
    return Files(
        fused(folder / "a.onnx", "LayerNormalization", 1 + scale, shift, shape=(2, 4, 8), epsilon=1e-6),
        fused(folder / "b.onnx", "LayerNormalization", 1 + shift, scale, shape=(2, 4, 8), epsilon=1e-6),
    )


@case(None)
def c52_no_beta_or_one_of_zeros(folder):
    """apache/tvm 19691"""
    return Files(
        fused(folder / "a.onnx", "LayerNormalization", G8, shape=(2, 8, 4, 8)),
        fused(folder / "b.onnx", "LayerNormalization", G8, np.zeros(8), shape=(2, 8, 4, 8)),
    )


@case("gamma-missing")
def c112_gamma_without_beta(folder):
    """pytorch/pytorch 69208"""
    gamma = DRAW.uniform(0.5, 2, (2, 2, 2)).astype(np.float32)
    file = fused(folder / "a.onnx", "LayerNormalization", gamma, shape=(4, 2, 2, 2), axis=1)
    return Numbers(file, rows(1, 4, 2, 2, 2), lambda x, g, b: layer(x, axes=(1, 2, 3)))


# -- kinds --------------------------------------------------------------------------------------------------


@case("kind")
def c53_the_simplified_operator(folder):
    """sonos/tract 2646"""
    return Files(
        fused(folder / "a.onnx", "SimplifiedLayerNormalization", G8, shape=(3, 8), epsilon=1e-5),
        fused(folder / "b.onnx", "LayerNormalization", G8, shape=(3, 8), epsilon=1e-5),
    )


@case(None)
def c55_a_name_is_no_alarm(folder):
    """huggingface/transformers 14772"""
    config = {"model_type": "t5", "layer_norm_epsilon": 1e-6}
    return Files(
        checkpoint(folder / "a", config, {"encoder.block.0.layer.0.layer_norm.weight": G8}),
        llama_cpp(folder / "b.gguf", "t5", {"t5.attention.layer_norm_rms_epsilon": 1e-6},
                  {"enc.blk.0.attn_norm.weight": G8}),
    )  # fmt: skip


# -- 1 + w --------------------------------------------------------------------------------------------------

GEMMA, KEYS = {"model_type": "gemma", "rms_norm_eps": 1e-6}, {"gemma.attention.layer_norm_rms_epsilon": 1e-6}
NAMES = {"model.layers.0.input_layernorm": "blk.0.attn_norm", "model.norm": "output_norm"}


def _gemma(folder, *added):
    """Write w in Hugging Face's way, and in llama.cpp's, with so much added to each."""
    w = [W, W[::-1] + np.float32(0.01)]
    return Files(
        checkpoint(folder / "a", GEMMA, {f"{n}.weight": v for n, v in zip(NAMES, w, strict=True)}),
        llama_cpp(folder / "b.gguf", "gemma", KEYS, {f"{n}.weight": v + np.float32(more) for n, v, more
                                                     in zip(NAMES.values(), w, added, strict=True)}),
    )  # fmt: skip


@case(None)
def c57_a_converter_adds_the_one(folder):
    """ggml-org/llama.cpp 5631"""
    return _gemma(folder, 1, 1)


@case("gamma-offset")
def c59_a_path_without_the_one(folder):
    """pytorch/executorch 19901"""
    b = Draft((2, 8), opset=23)
    names = ("model.layers.0.input_layernorm", "model.layers.0.self_attn.q_norm")
    y = b.x
    for name in names:
        y = b("RMSNormalization", y, b.const(W if "input" in name else W[::-1], f"{name}.weight"), epsilon=1e-6)
    tensors = {f"{name}.weight": W if "input" in name else W[::-1] for name in names}
    return Files(checkpoint(folder / "a", GEMMA | {"model_type": "gemma3_text"}, tensors),
                 drawn(folder / "b.onnx", b, y))  # fmt: skip


@case("gamma-offset")
def c60_the_one_twice(folder):
    """utensils/mold 1074"""
    return Files(
        llama_cpp(folder / "a.gguf", "gemma", KEYS, {"output_norm.weight": 1 + W}),
        checkpoint(folder / "b", GEMMA, {"model.norm.weight": 1 + W}),
    )


@case("gamma-offset", "model.norm")
def c62_the_last_norm_alone(folder):
    """kekzl/imp 1287"""
    return _gemma(folder, 1, 0)


@case("gamma-offset", "layers.0.norm_1")
def c64_a_flag_that_five_of_six_sites_lost(folder):
    """pytorch/executorch 22444"""
    paths = []
    for side, offsets in (("a", [1] * 6), ("b", [1, 0, 0, 0, 0, 0])):
        b = Draft((2, 8))
        y = b.x
        for site, offset in enumerate(offsets):
            w = b.const(W + site / 100, f"layers.0.norm_{site}.weight")
            y = b("Mul", chain(b, y, centered=False), b("Add", w, 1.0) if offset else w)
        paths.append(drawn(folder / f"{side}.onnx", b, y))
    return Files(*paths)


@case("gamma-offset", "model.layers.0.input_layernorm")
def c65_two_conventions_in_one_checkpoint(folder):
    """Blaizzy/mlx-vlm 2041"""
    config = {"model_type": "qwen4_exp", "rms_norm_eps": 1e-6}
    norm, gated = "model.layers.0.input_layernorm.weight", "model.layers.0.linear_attn.norm.weight"
    return Files(*(checkpoint(folder / side, config, {norm: 0.22 + W + more, gated: 1 + W})
                   for side, more in (("a", 0), ("b", 1))))  # fmt: skip


@case("parameter-value")
def c67_smoothing_folded_into_w(folder):
    """vllm-project/llm-compressor 2102"""
    w, s = np.full(8, 0.5) + W / 10, np.float32(0.25)
    return Files(*(checkpoint(folder / side, GEMMA, {"model.norm.weight": v})
                   for side, v in (("a", (1 + w) * s - 1), ("b", w * s))))  # fmt: skip


# -- names and places ---------------------------------------------------------------------------------------


@case("parameter-value")
def c68_gamma_and_beta_not_found(folder):
    """huggingface/transformers 11809"""
    name = "bert.encoder.layer.0.output.LayerNorm"
    return Files(
        checkpoint(folder / "a", {"model_type": "bert"}, {f"{name}.gamma": G8, f"{name}.beta": B8}),
        checkpoint(folder / "b", {"model_type": "bert"},
                   {f"{name}.weight": np.ones(8), f"{name}.bias": np.zeros(8)}),
    )  # fmt: skip


@case("parameter-swapped", "model.layers.0.post_attention_layernorm")
def c70_written_to_another_norms_name(folder):
    """NVIDIA-NeMo 11951"""
    parts = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    held = {f"model.layers.0.{part}_layernorm.weight": W * (k + 1) for k, part in enumerate(parts)}
    _, second, third, _ = held
    wrong = held | {second: held[third], third: np.zeros(8)}
    config = {"model_type": "gemma2", "rms_norm_eps": 1e-6}
    return Files(checkpoint(folder / "a", config, held), checkpoint(folder / "b", config, wrong))


@case("placement")
def c72_one_name_for_two_places(folder):
    """nurl-lang/nurl 576"""
    config = {"model_type": "llama", "rms_norm_eps": 1e-6}
    names = [f"model.layers.0.{part}_layernorm.weight" for part in ("input", "post_attention")]
    held = dict(zip(names, (G8, G8[::-1]), strict=True))
    more = {f"model.layers.0.{part}_feedforward_layernorm.weight": np.ones(8) for part in ("pre", "post")}
    return Files(checkpoint(folder / "a", config, held), checkpoint(folder / "b", config, held | more))


@case("parameter-swapped", "decoder.block.0.layer.1.layer_norm")
def c73_one_scope_loaded_twice(folder):
    """renmada/t5-pegasus-pytorch 16"""
    config = {"model_type": "t5", "layer_norm_epsilon": 1e-6}
    first, second = (f"decoder.block.0.layer.{k}.layer_norm.weight" for k in (0, 1))
    return Files(checkpoint(folder / "a", config, {first: G8, second: G8[::-1]}),
                 checkpoint(folder / "b", config, {first: G8, second: G8}))  # fmt: skip


@case("parameter-value")
def c75_a_norm_kept_in_the_linear_layer(folder):
    """NVIDIA-NeMo/Megatron-Bridge 5295"""
    config = {"model_type": "llama", "rms_norm_eps": 1e-6}
    after = {"decoder.layers.0.pre_mlp_layernorm.weight": G8[::-1], "decoder.final_layernorm.weight": B8}
    return Files(
        checkpoint(folder / "a", config, {"decoder.layers.0.input_layernorm.weight": G8} | after),
        checkpoint(folder / "b", config,
                   {"decoder.layers.0.self_attention.linear_q_proj.layer_norm_weight": np.ones(8)} | after),
    )  # fmt: skip


@case("unpaired", "model.decoder.final_layer_norm")
def c76_the_norm_at_the_end(folder):
    """huggingface/transformers 17653"""
    names = [f"model.decoder.layers.{n}.{w}_layer_norm" for n in range(2) for w in ("self_attn", "final")]
    held = {f"{name}.{leaf}": DRAW.normal(1, 0.2, 4) for name in names for leaf in ("weight", "bias")}
    last = {f"model.decoder.final_layer_norm.{leaf}": DRAW.normal(1, 0.2, 4) for leaf in ("weight", "bias")}
    config = {"model_type": "opt"}
    return Files(checkpoint(folder / "a", config, held | last), checkpoint(folder / "b", config, held))


@case("unpaired")
def c79_norms_of_queries_skipped(folder):
    """vllm-project/vllm-metal 659"""
    config = {"model_type": "hunyuan_v1_dense", "rms_norm_eps": 1e-5}
    held = {"model.layers.0.input_layernorm.weight": G8}
    both = {f"model.layers.0.self_attn.{side}_layernorm.weight": DRAW.normal(1, 0.2, 8) for side in ("query", "key")}
    return Files(checkpoint(folder / "a", config, held | both), checkpoint(folder / "b", config, held))


# -- variance -----------------------------------------------------------------------------------------------


@case("ddof")
def c83_the_sample_deviation(folder):
    """allenai/allennlp 953"""
    return _chains(folder, (2, 8), {}, {"ddof": 1}, eps=1e-6, outside=True, gamma=G8)


@case("parameter-value")
def c85_a_running_variance_over_n(folder):
    """ml-explore/mlx 3817"""
    mean, variance = DRAW.normal(0, 0.3, 8), DRAW.uniform(0.5, 2, 8)
    return Files(*(fused(folder / f"{side}.onnx", "BatchNormalization", G8, B8, mean, v, shape=(2, 8, 3))
                   for side, v in (("a", variance * 4 / 3), ("b", variance))))  # fmt: skip


def _moments(b, least=None):
    mean = b.mean(b.x)
    variance = b("Sub", b.mean(b("Mul", b.x, b.x)), b("Mul", mean, mean))
    variance = variance if least is None else b("Max", variance, least)
    y = b("Div", b("Sub", b.x, mean), b("Sqrt", b("Add", variance, 1e-5)))
    return b("Mul", y, b.const(G8, "norm.weight"))


@case("cancellation")
def c86_a_difference_of_large_numbers(folder):
    """microsoft/onnxruntime 28463"""
    a, b = Draft(), Draft()
    return Files(drawn(folder / "a.onnx", a, chain(a, a.x, gamma=G8)), drawn(folder / "b.onnx", b, _moments(b)))


@case("cancellation")
def c88_a_mean_far_from_zero(folder):
    """pytorch/pytorch 51102"""
    a, b = Draft((5, 8)), Draft((5, 8))
    x = rows(1, 5, 8) + np.float32(2000)
    return Files(
        drawn(folder / "a.onnx", a, chain(a, a.x, gamma=G8)), drawn(folder / "b.onnx", b, _moments(b)), {"x": x}
    )


@case("cancellation")
def c89_a_variance_held_above_zero(folder):
    """patrick-kidger/equinox 314"""
    a, b = Draft(), Draft()
    return Files(drawn(folder / "a.onnx", a, chain(a, a.x, gamma=G8)), drawn(folder / "b.onnx", b, _moments(b, 0.0)))


# -- types --------------------------------------------------------------------------------------------------


def _halves(folder, width, centered=True, eps=1e-3):
    """Write a float16 norm with its statistics in float32, and without."""
    paths = []
    for side, casts in (("a", True), ("b", False)):
        b = Draft(("B", width), HALF)
        x = b("Cast", b.x, to=1) if casts else b.x
        y = chain(b, x, eps=b.const(eps, dtype=np.float32 if casts else HALF), centered=centered)
        y = b("Cast", y, to=10) if casts else y
        gamma = np.linspace(0.5, 2, width)
        paths.append(drawn(folder / f"{side}.onnx", b, b("Mul", y, b.const(gamma, "norm.weight"))))
    return Files(*paths)


@case("overflow")
def c90_squares_in_half(folder):
    """microsoft/onnxruntime 31626"""
    return _halves(folder, 768)


@case("overflow")
def c92_the_type_of_the_statistics(folder):
    """microsoft/onnxruntime 17692"""
    return Files(*(fused(folder / f"{side}.onnx", "LayerNormalization", G8, dtype=HALF, stash_type=stash)
                   for side, stash in (("a", 1), ("b", 10))))  # fmt: skip


@case("overflow")
def c94_pow_in_half(folder):
    """NVIDIA/TensorRT 2564"""
    b = Draft(("B", 8), HALF)
    d = b("Sub", b.x, b.mean(b.x))
    y = b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, 2.0)), 1e-5)))
    return Files(
        fused(folder / "a.onnx", "LayerNormalization", G8, shape=("B", 8), epsilon=1e-5),
        drawn(folder / "b.onnx", b, b("Mul", y, b.const(G8, "norm.weight"))),
    )


@case("overflow")
def c95_a_cast_that_was_taken_out(folder):
    """pytorch/executorch 19523"""
    return _halves(folder, 8, centered=False)


@case("overflow")
def c97_a_sum_of_25_million_in_half(folder):
    """pytorch/TensorRT 3272"""
    shape = (512, 224, 224)
    paths = []
    for side, stash in (("a", 1), ("b", 10)):
        b = Draft((1, *shape), HALF)
        w = b.input("w", shape)
        paths.append(drawn(folder / f"{side}.onnx", b, b("LayerNormalization", b.x, w, axis=1, stash_type=stash)))
    return Files(*paths)


@case("cast-order")
def c98_where_it_rounds(folder):
    """huggingface/transformers 29402"""
    paths = []
    gamma = 1 + 0.1 * DRAW.standard_normal(64)
    for side, first in (("a", False), ("b", True)):
        b = Draft(("B", 64), HALF)
        w = b.const(gamma, "norm.weight", np.float32)
        y = chain(b, b("Cast", b.x, to=1), centered=False, eps=b.const(1e-6, dtype=np.float32))
        y = b("Mul", b("Cast", y, to=10), b("Cast", w, to=10)) if first else b("Cast", b("Mul", y, w), to=10)
        paths.append(drawn(folder / f"{side}.onnx", b, y))
    return Files(*paths)


@case("precision")
def c100_a_norm_without_gamma_in_bfloat16(folder):
    """openvinotoolkit/openvino 36718"""
    import ml_dtypes

    paths = []
    for side, casts in (("a", True), ("b", False)):
        b = Draft(("B", 8), ml_dtypes.bfloat16)
        x = b("Cast", b.x, to=1) if casts else b.x
        eps = b.const(1e-6, dtype=np.float32 if casts else ml_dtypes.bfloat16)
        y = chain(b, x, centered=False, eps=eps, name="" if casts else "norm")
        paths.append(drawn(folder / f"{side}.onnx", b, b("Cast", y, to=16, name="norm") if casts else y))
    return Files(*paths)


@case("precision")
def c101_a_decomposition_rounds_between(folder):
    """pytorch/pytorch 177163"""
    import ml_dtypes

    file = fused(folder / "a.onnx", "LayerNormalization", G8, B8, shape=(64, 8), dtype=ml_dtypes.bfloat16)

    def narrow(v):
        return np.asarray(v).astype(ml_dtypes.bfloat16).astype(np.float64)

    def between(x, g, b):
        d = narrow(x - narrow(x.mean(-1, keepdims=True)))
        root = narrow(np.sqrt(narrow(narrow(narrow(d * d).mean(-1, keepdims=True)) + narrow(1e-5))))
        return narrow(narrow(narrow(d / root) * g) + b)

    return Numbers(file, rows(1, 64, 8).astype(ml_dtypes.bfloat16), between)


# -- look-alikes and statistics -----------------------------------------------------------------------------


@case("unpaired")
def c103_what_is_no_layer_norm(folder):
    """microsoft/onnxruntime 30513"""
    b = Draft((3, 3))
    return Files(
        drawn(folder / "a.onnx", b, chain(b, b.x, keepdims=0, gamma=[1.0, 2.0, 3.0])),
        fused(folder / "b.onnx", "LayerNormalization", np.array([1.0, 2.0, 3.0]), shape=(3, 3)),
    )


@case("statistics")
def c106_an_instance_norm_that_keeps_statistics(folder):
    """pytorch/pytorch 53887"""
    import torch

    module = torch.nn.ModuleDict({"norm": torch.nn.InstanceNorm2d(2, affine=True, track_running_stats=True)}).eval()
    return Files(module, fused(folder / "b.onnx", "InstanceNormalization", np.ones(2), np.zeros(2), shape=(2, 2, 1, 4)))


@case(None)
def c108_a_batch_norm_that_takes_its_inputs_statistics(folder):
    """pytorch/pytorch 75252"""
    import torch

    module = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm2d(3, track_running_stats=False)}).eval()
    four = [np.ones(3), np.zeros(3), np.zeros(3), np.ones(3)]
    return Files(module, fused(folder / "b.onnx", "BatchNormalization", *four, shape=(2, 3, 4, 5), training_mode=1))


@case("parameter-value")
def c109_a_gamma_that_does_not_count(folder):
    """apache/mxnet 9624"""
    others = B8[:3], np.zeros(3), np.ones(3)
    return Files(*(fused(folder / f"{side}.onnx", "BatchNormalization", gamma, *others, shape=(2, 3, 4, 5))
                   for side, gamma in (("a", np.ones(3)), ("b", np.zeros(3)))))  # fmt: skip


@case("statistics")
def c111_statistics_that_were_updated_first(folder):
    """microsoft/onnxruntime 29790"""
    four = [np.ones(4), np.zeros(4), np.zeros(4), np.ones(4)]
    file = fused(folder / "a.onnx", "BatchNormalization", *four, shape=(2, 4, 3), opset=15, training_mode=1,
                 momentum=0.5)  # fmt: skip

    def updated(x, g, b):
        mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
        return (x - 0.5 * mean) / np.sqrt(0.5 + 0.5 * variance + 1e-5)

    return Numbers(file, rows(1, 2, 4, 3) + np.float32(0.4), updated)


@case("eps-lost")
def c114_an_integer_epsilon(folder):
    """openvinotoolkit/openvino 5787"""
    file = fused(folder / "a.onnx", "LayerNormalization", G8, B8, shape=(8, 8), epsilon=1e-2)
    return Numbers(file, DRAW.integers(-2, 3, (8, 8)).astype(np.float32), lambda x, g, b: layer(x, g, b, 0.0))


@case(None)
def c117_a_wrong_shape_in_the_file(folder):
    """pytorch/pytorch 84563"""
    from onnx import helper

    paths = []
    gamma = DRAW.uniform(0.5, 2, 256)
    for side, wrong in (("a", False), ("b", True)):
        b = Draft((950, 1, 256), opset=11)
        y = chain(b, b.x, gamma=gamma)
        for node in b.nodes if wrong else ():
            b.values.append(helper.make_tensor_value_info(node.output[0], 1, (950, 950, 256)))
        paths.append(drawn(folder / f"{side}.onnx", b, y))
    return Files(*paths)


@case("eps-value")
def c119_expected_results_of_another_epsilon(folder):
    """onnx/onnx 4263"""
    file = fused(folder / "a.onnx", "LayerNormalization", G8, B8, shape=(3, 8), epsilon=1e-1)
    return Numbers(file, rows(1, 3, 8), lambda x, g, b: layer(x, g, b, 1e-5))


# -- pairs that are the same --------------------------------------------------------------------------------


def same(folder):
    """Give pairs between which there is no difference, by what might look like one."""
    leaves = {"weight": G8, "bias": B8}
    mean, variance = DRAW.normal(0, 0.3, 8), DRAW.uniform(0.5, 2, 8)
    rule = {"model_type": "bert"}
    old = {f"bert.encoder.layer.0.output.LayerNorm.{leaf}": v for leaf, v in zip(("gamma", "beta"), (G8, B8))}  # noqa: B905
    new = {f"encoder.layer.0.output.LayerNorm.{leaf}": v for leaf, v in leaves.items()}
    file = fused(folder / "one.onnx", "LayerNormalization", G8, B8)
    shutil.copy(file, folder / "two.onnx")
    return {
        "one file twice": Files(file, folder / "two.onnx"),
        "C68 gamma and beta under their old names": Files(checkpoint(folder / "old", rule, old),
                                                          checkpoint(folder / "new", rule, new)),
        "C08 a variance that makes up for epsilon": Files(*(
            fused(folder / f"{side}.onnx", "BatchNormalization", G8, B8, mean, v, shape=(2, 8, 3), epsilon=eps)
            for side, v, eps in (("c", variance, 1e-5), ("d", variance + 1e-5 - 1e-3, 1e-3))
        )),
        "C45 one value a group, repeated": Files(*(
            fused(folder / f"{side}.onnx", "GroupNormalization", g, b, shape=(2, 4, 6), opset=opset, num_groups=2)
            for side, g, b, opset in (("e", G8[:2], B8[:2], 18),
                                      ("f", np.repeat(G8[:2], 2), np.repeat(B8[:2], 2), 21))
        )),
        "one group an example and a layer norm over all": Files(
            fused(folder / "g.onnx", "GroupNormalization", np.ones(4), np.zeros(4), shape=(2, 4, 6), opset=21,
                  num_groups=4),
            fused(folder / "h.onnx", "InstanceNormalization", np.ones(4), np.zeros(4), shape=(2, 4, 6)),
        ),
        "loose operations and one operator": Files(
            drawn(folder / "i.onnx", b := Draft(), chain(b, b.x, gamma=G8)),
            fused(folder / "j.onnx", "LayerNormalization", G8, epsilon=1e-5, shape=("B", 4, 8)),
        ),
    }  # fmt: skip
