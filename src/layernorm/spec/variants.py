# SPDX-License-Identifier: MIT
"""This file names the norms that people use, one row each: what it computes, and who says so.

A new norm is one row. "exact" rows keep their statistics in float64, as near to the mathematics as arrays get. The
others say where their own code rounds, as seen with float16, bfloat16 or float32 arrays:

* `stats_dtype="float32"` also where float64 arrays keep float64 (PyTorch, Flax, Keras, Equinox);
* `round_each` only where each step is an operation of its own in the array's type, for there half precision loses
  digits; a chain of float32 steps stays within a few units in the last place of its exact value;
* channels-last batch and instance norms are written for four axes, because no axes mean "all but the last".
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from layernorm.spec.errors import ArgumentError, NotFoundError
from layernorm.spec.norm_spec import NormSpec


@dataclass(frozen=True)
class Variant:
    """One named norm: its spec, the source that says so, and what to know before relying on it."""

    name: str
    spec: NormSpec
    source: str
    note: str = ""


_LAYER = NormSpec(axes=(-1,), eps=1e-5, scale_axes=(-1,), shift_axes=(-1,))
_RMS = NormSpec(axes=(-1,), centered=False, spread="rms", eps=1e-6, scale_axes=(-1,))
_GROUP = NormSpec(
    axes=("1:",), channel_axis=1, groups=32, group_order="blocked", eps=1e-5, scale_axes=(1,), shift_axes=(1,)
)
_INSTANCE = NormSpec(axes=("2:",), eps=1e-5, scale_axes=(1,), shift_axes=(1,))
_BATCH = NormSpec(axes=(0, "2:"), eps=1e-5, scale_axes=(1,), shift_axes=(1,))
_L2 = NormSpec(axes=(-1,), centered=False, spread="l2", eps_at="none")

_LAYER32 = replace(_LAYER, stats_dtype="float32")
_RMS32 = replace(_RMS, stats_dtype="float32")
_GROUP32 = replace(_GROUP, stats_dtype="float32")
_INSTANCE32 = replace(_INSTANCE, stats_dtype="float32")
_BATCH32 = replace(_BATCH, stats_dtype="float32")
_LAST_GROUP32 = replace(_GROUP32, channel_axis=-1, scale_axes=(-1,), shift_axes=(-1,))
_LAST_INSTANCE32 = replace(_INSTANCE32, axes=(1, 2), scale_axes=(-1,), shift_axes=(-1,))
_LAST_BATCH32 = replace(_BATCH32, axes=(0, 1, 2), scale_axes=(-1,), shift_axes=(-1,))

_DEFINITIONS = (
    Variant("layer", _LAYER, "Ba, Kiros and Hinton, arXiv:1607.06450, section 3", "the paper has no eps"),
    Variant("rms", _RMS, "Zhang and Sennrich, arXiv:1910.07467, equation 4", "the paper has no eps"),
    Variant("group", _GROUP, "Wu and He, arXiv:1803.08494, equations 1, 2 and 7", "32 groups are the paper's default"),
    Variant("instance", _INSTANCE, "Ulyanov, Vedaldi and Lempitsky, arXiv:1607.08022, equation 2"),
    Variant("batch", _BATCH, "Ioffe and Szegedy, arXiv:1502.03167, algorithm 1", "this batch's statistics"),
    Variant("l2", _L2, "x divided by its Euclidean length", "an all-zero row is 0/0"),
)

_TORCH_LN = "a torch.nn.LayerNorm"
_MODELS = (
    Variant("bert", replace(_LAYER32, eps=1e-12), f"transformers BertConfig.layer_norm_eps; {_TORCH_LN}"),
    Variant("gpt2", _LAYER32, f"transformers GPT2Config.layer_norm_epsilon; {_TORCH_LN}"),
    Variant(
        "whisper", _LAYER32, f"transformers modeling_whisper.py: {_TORCH_LN} of default eps", "no eps in the config"
    ),
    Variant("vit", replace(_LAYER32, eps=1e-12), f"transformers ViTConfig.layer_norm_eps; {_TORCH_LN}"),
    Variant("vit-timm", replace(_LAYER32, eps=1e-6), f"timm vision_transformer.py; {_TORCH_LN}"),
    Variant(
        "convnext",
        replace(_LAYER, eps=1e-6, axes=(1,), scale_axes=(1,), shift_axes=(1,), stats_dtype="input", round_each=True),
        "facebookresearch/ConvNeXt models/convnext.py, LayerNorm with data_format=channels_first",
        "the final norm is a torch.nn.LayerNorm on the last axis; transformers' config says 1e-12 for that one alone",
    ),
    Variant(
        "olmo",
        replace(_LAYER32, scale_axes=None, shift_axes=None),
        "transformers modeling_olmo.py, OlmoLayerNorm",
        "no scale, no shift, and eps is in the code, not in the config",
    ),
    Variant(
        "cohere",
        replace(_LAYER32, shift_axes=None),
        "transformers modeling_cohere.py, CohereLayerNorm; CohereConfig.layer_norm_eps",
        "a mean, but no shift",
    ),
    Variant(
        "nemotron",
        replace(_LAYER32, scale_offset=1),
        "transformers modeling_nemotron.py, NemotronLayerNorm1P; NemotronConfig.norm_eps",
        "1 + w is added in w's own type",
    ),
    Variant(
        "llama",
        replace(_RMS32, eps=1e-5, cast_before_scale=True),
        "transformers modeling_llama.py, LlamaRMSNorm; rms_norm_eps of Llama 2 and 3",
        "LlamaConfig itself defaults to 1e-6",
    ),
    Variant("llama1", replace(_RMS32, cast_before_scale=True), "LlamaRMSNorm; rms_norm_eps of LLaMA 1 and LlamaConfig"),
    Variant("qwen2", replace(_RMS32, cast_before_scale=True), "transformers Qwen2RMSNorm; Qwen2Config.rms_norm_eps"),
    Variant(
        "glm4",
        replace(_RMS32, eps=1.5625e-07, cast_before_scale=True),
        "transformers Glm4RMSNorm; Glm4Config.rms_norm_eps",
    ),
    Variant(
        "mamba",
        replace(_RMS32, eps=1e-5, cast_before_scale=True),
        "transformers modeling_mamba.py, MambaRMSNorm; MambaConfig.layer_norm_epsilon",
        "an RMS norm, whatever the key is called",
    ),
    Variant(
        "t5",
        replace(_RMS32, cast_before_scale=True),
        "transformers modeling_t5.py, T5LayerNorm; T5Config.layer_norm_epsilon",
        "an RMS norm, whatever the class is called; it rounds before the scale only if the weight is 16 bits wide",
    ),
    Variant(
        "olmo2",
        replace(_RMS32, eps=1e-5),
        "transformers modeling_olmo2.py, Olmo2RMSNorm; Olmo2Config.rms_norm_eps",
        "the first releases rounded before the scale, as LlamaRMSNorm does",
    ),
    Variant("gemma", replace(_RMS32, scale_offset=1), "transformers modeling_gemma.py, GemmaRMSNorm; rms_norm_eps"),
)

_PYTORCH = (
    Variant("pytorch-layer", _LAYER32, "torch 2.13 torch.nn.LayerNorm defaults"),
    Variant(
        "pytorch-rms",
        replace(_RMS32, eps=2.0**-23),
        "torch 2.13 torch.nn.RMSNorm defaults",
        "eps=None: finfo(float32).eps for 16-bit and float32 arrays, finfo(float64).eps for float64; "
        "until early 2025 that of the array's own type",
    ),
    Variant("pytorch-group", _GROUP32, "torch 2.13 torch.nn.GroupNorm", "num_groups has no default"),
    Variant(
        "pytorch-instance",
        replace(_INSTANCE32, scale_axes=None, shift_axes=None),
        "torch 2.13 torch.nn.InstanceNorm2d defaults",
        "affine is off by default",
    ),
    Variant("pytorch-batch", replace(_BATCH32, statistics="stored"), "torch 2.13 torch.nn.BatchNorm2d().eval()"),
    Variant(
        "pytorch-batch-training",
        _BATCH32,
        "torch 2.13 torch.nn.BatchNorm2d().train()",
        "it divides by n here and by n − 1 for the running variance",
    ),
    Variant(
        "pytorch-normalize",
        replace(_L2, eps=1e-12, eps_at="deviation_floor", stats_dtype="input"),
        "torch 2.13 torch.nn.functional.normalize",
        "its own default is dim=1",
    ),
)

_FAST = "use_fast_variance=True is the default: E[x²] − E[x]², at least 0"
_FLAX = (
    Variant(
        "flax-layer",
        replace(_LAYER32, eps=1e-6, variance_by="moments_clamped"),
        "flax 0.12 linen.LayerNorm and nnx.LayerNorm defaults",
        _FAST,
    ),
    Variant("flax-rms", _RMS32, "flax 0.12 linen.RMSNorm and nnx.RMSNorm defaults"),
    Variant(
        "flax-group",
        replace(_LAST_GROUP32, eps=1e-6, variance_by="moments_clamped"),
        "flax 0.12 linen.GroupNorm defaults",
        _FAST,
    ),
    Variant(
        "flax-instance",
        replace(_LAST_INSTANCE32, eps=1e-6, variance_by="moments_clamped"),
        "flax 0.12 linen.InstanceNorm defaults, on arrays of four axes",
        _FAST,
    ),
    Variant(
        "flax-batch",
        replace(_LAST_BATCH32, statistics="stored"),
        "flax 0.12 linen.BatchNorm(use_running_average=True) defaults, on arrays of four axes",
    ),
    Variant(
        "flax-batch-training",
        replace(_LAST_BATCH32, variance_by="moments_clamped"),
        "flax 0.12 linen.BatchNorm(use_running_average=False) defaults, on arrays of four axes",
        _FAST,
    ),
)

_MOMENTS = "the torch backend takes E[x²] − E[x]², the JAX and TensorFlow backends do not"
_KERAS = (
    Variant(
        "keras-layer",
        replace(_LAYER32, eps=1e-3),
        "keras 3.15 layers.LayerNormalization defaults",
        "in Keras 2 it may run as a fused batch norm, whose eps is at least 1.001e-5",
    ),
    Variant("keras-rms", _RMS32, "keras 3.15 layers.RMSNormalization defaults"),
    Variant(
        "keras-rms-scaling",
        replace(_LAYER32, centered=False, eps=1e-3, shift_axes=None),
        "keras 3.15 layers.LayerNormalization(rms_scaling=True)",
        "x over its standard deviation: neither a layer nor an RMS norm; Keras itself warns of it",
    ),
    Variant("keras-group", replace(_LAST_GROUP32, eps=1e-3), "keras 3.15 layers.GroupNormalization defaults", _MOMENTS),
    Variant(
        "keras-batch",
        replace(_LAST_BATCH32, eps=1e-3, statistics="stored"),
        "keras 3.15 layers.BatchNormalization defaults, called with training=False, on arrays of four axes",
    ),
    Variant(
        "keras-batch-training",
        replace(_LAST_BATCH32, eps=1e-3),
        "keras 3.15 layers.BatchNormalization defaults, called with training=True, on arrays of four axes",
        _MOMENTS,
    ),
    Variant(
        "keras-unit",
        replace(_L2, eps=1e-12, eps_at="deviation_floor", stats_dtype="input", round_each=True),
        "keras 3.15 layers.UnitNormalization defaults",
    ),
)

_ONNX = (
    Variant(
        "onnx-layer",
        replace(_LAYER32, cast_before_scale=True),
        "ONNX LayerNormalization-17, text of the operator, stash_type=1",
        "the text squares deviations, the function body takes E[x²] − E[x]²; float64 too is cast to float32",
    ),
    Variant(
        "onnx-rms",
        replace(_RMS32, eps=1e-5, cast_before_scale=True),
        "ONNX RMSNormalization-23, text of the operator, stash_type=1",
    ),
    Variant(
        "onnx-group",
        replace(_GROUP32, cast_before_scale=True),
        "ONNX GroupNormalization-21, text of the operator, stash_type=1",
        "num_groups has no default; the text says variance, the function body takes E[x²] − E[x]²",
    ),
    Variant(
        "onnx-group-18",
        replace(_GROUP, scale_axes="group", shift_axes="group", stats_dtype="input"),
        "ONNX GroupNormalization-18",
        "one scale and shift a group; deprecated by version 21, which has them by channel",
    ),
    Variant("onnx-instance", replace(_INSTANCE, stats_dtype="input"), "ONNX InstanceNormalization-22"),
    Variant(
        "onnx-batch", replace(_BATCH32, statistics="stored"), "ONNX BatchNormalization-15, training_mode=0, its default"
    ),
    Variant(
        "onnx-batch-training",
        _BATCH32,
        "ONNX BatchNormalization-15, training_mode=1",
        "this input's statistics; the running ones are outputs, with momentum the weight of the old",
    ),
    Variant(
        "onnx-batch-updated",
        replace(_BATCH32, statistics="updated"),
        "onnx 1.23 reference evaluator, BatchNormalization of opsets 9 to 13",
        "momentum is never absent there, so it updates and uses running statistics even in an inference model",
    ),
    Variant(
        "onnx-mvn",
        replace(
            _BATCH,
            axes=(0, 2, 3),
            eps=1e-9,
            eps_at="deviation",
            scale_axes=None,
            shift_axes=None,
            stats_dtype="input",
            variance_by="moments",
            round_each=True,
        ),
        "ONNX MeanVarianceNormalization-13, function body",
        "eps is a constant of the body, outside the root",
    ),
    Variant(
        "onnx-lp",
        replace(_L2, eps=2.0**-149, eps_at="deviation_floor", stats_dtype="input"),
        "ONNX LpNormalization-22 with p=2",
        "no eps, but an all-zero row gives 0: what the smallest float32 as a floor does",
    ),
    Variant(
        "ort-skip-layer",
        replace(_LAYER32, eps=1e-12),
        "ONNX Runtime com.microsoft.SkipLayerNormalization, kDefaultSkipLayerNormEpsilon",
        "x is the sum of input, skip and bias; the operator that it replaces has 1e-5",
    ),
    Variant(
        "ort-simplified-layer",
        replace(_RMS32, eps=1e-5),
        "ONNX Runtime SimplifiedLayerNormalization",
        "an RMS norm; written into the default ONNX domain",
    ),
)

_OTHERS = (
    Variant(
        "haiku-layer",
        replace(_LAYER, stats_dtype="input", round_each=True),
        "dm-haiku haiku/_src/layer_norm.py, LayerNorm(axis=-1, create_scale=True, create_offset=True)",
        "axis has no default; under jit XLA may keep more digits between steps",
    ),
    Variant(
        "equinox-layer",
        replace(_LAYER32, axes=("0:",), scale_axes=("0:",), shift_axes=("0:",)),
        "equinox 9336d82 equinox/nn/_normalisation.py, LayerNorm",
        "over the whole array that one call sees: vmap it over the rest",
    ),
    Variant(
        "equinox-rms",
        replace(_RMS32, axes=("0:",), eps=1e-5, scale_axes=("0:",), shift_axes=("0:",)),
        "equinox 9336d82 equinox/nn/_normalisation.py, RMSNorm",
        "it has a shift by default",
    ),
    Variant(
        "mlx-layer",
        replace(_LAYER32, cast_before_scale=True),
        "mlx mlx/fast.cpp, layer_norm; mlx.nn.LayerNorm defaults",
    ),
    Variant(
        "mlx-rms",
        replace(_RMS32, eps=1e-5, cast_before_scale=True),
        "mlx mlx/fast.cpp, rms_norm; mlx.nn.RMSNorm defaults",
    ),
    Variant(
        "mlx-group",
        replace(
            _GROUP,
            channel_axis=-1,
            group_order="interleaved",
            scale_axes=(-1,),
            shift_axes=(-1,),
            stats_dtype="input",
            round_each=True,
        ),
        "mlx python/mlx/nn/layers/normalization.py, GroupNorm",
        "pytorch_compatible=True is what deals channels in blocks; num_groups has no default",
    ),
    Variant(
        "tf-contrib-layer",
        replace(_LAYER, axes=("1:",), eps=1e-12, stats_dtype="input"),
        "TensorFlow 1.15 tf.contrib.layers.layer_norm defaults",
        "begin_norm_axis=1 but begin_params_axis=-1; eps is 1e-3 for float16",
    ),
    Variant(
        "tf-l2",
        replace(_L2, eps=1e-12, eps_at="variance_floor", stats_dtype="input"),
        "TensorFlow tf.math.l2_normalize: x / sqrt(max(sum(x²), epsilon))",
        "axis has no default worth the name: None is the whole array",
    ),
    Variant(
        "openvino-mvn",
        replace(_INSTANCE32, eps=1e-9, scale_axes=None, shift_axes=None),
        "OpenVINO MVN-6 with eps_mode=inside_sqrt",
        "every attribute is required; eps is MVN-2's default",
    ),
    Variant(
        "openvino-mvn-2",
        replace(_INSTANCE32, eps=1e-9, eps_at="deviation", scale_axes=None, shift_axes=None),
        "OpenVINO MVN-2 with across_channels=False, normalize_variance=True",
        "read as an MVN-6 with eps_mode=outside_sqrt",
    ),
    Variant(
        "coreml-layer",
        replace(_LAYER, axes=("0:",), scale_axes=("0:",), shift_axes=("0:",), stats_dtype="input"),
        "coremltools iOS15 normalization.py, layer_norm",
        "without axes it takes every axis, the first included",
    ),
    Variant(
        "coreml-l2",
        replace(_L2, axes=(-3, -2, -1), eps=1e-6, eps_at="sum", stats_dtype="input"),
        "coremltools iOS15 normalization.py, l2_norm",
        "the last three axes, always",
    ),
    Variant(
        "caffe-mvn",
        replace(_INSTANCE, eps=1e-9, eps_at="deviation", scale_axes=None, shift_axes=None, stats_dtype="input"),
        "Caffe MVNParameter defaults",
    ),
    Variant(
        "mxnet-batch",
        replace(_BATCH32, eps=1e-3, scale_axes=None, statistics="stored"),
        "MXNet BatchNorm operator defaults, in inference",
        "fix_gamma=True: a stored gamma counts as 1",
    ),
    Variant(
        "flux",
        replace(_LAYER, eps_at="deviation", stats_dtype="input", round_each=True),
        "Flux.jl 0.11 to 0.14 src/layers/stateless.jl, normalise",
        "eps is added to σ; from 0.15 (91f2d47) √(σ² + eps²), since August 2026 (ee4ec09) √(σ² + eps)",
    ),
)

ROWS: tuple[Variant, ...] = _DEFINITIONS + _MODELS + _PYTORCH + _FLAX + _KERAS + _ONNX + _OTHERS

VARIANTS: Mapping[str, NormSpec] = MappingProxyType({row.name: row.spec for row in ROWS})


def named(spec: NormSpec | str) -> NormSpec:
    """Give a spec as it is, and for a name the spec of the norm so named.

    Raises:
        NotFoundError: no norm has this name.
        ArgumentError: it is neither a spec nor a name.

    >>> named("bert").eps
    1e-12
    """
    if isinstance(spec, NormSpec):
        return spec
    if not isinstance(spec, str):
        raise ArgumentError(f"spec={spec!r} is a {type(spec).__name__}; give a NormSpec or the name of one.", "spec")
    if spec not in VARIANTS:
        near = difflib.get_close_matches(spec, list(VARIANTS), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "layernorm explain lists them all."
        raise NotFoundError(f"{spec}: no such named norm; {hint}", spec)
    return VARIANTS[spec]
