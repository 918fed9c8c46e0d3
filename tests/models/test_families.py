# SPDX-License-Identifier: MIT
"""This file holds what is read from names and a configuration against what each architecture's own code computes."""

import re

import numpy as np
import pytest

from layernorm.models.families import BY_TYPE, FAMILIES, records
from layernorm.models.model_file import Layer, ModelFile, Tensor
from layernorm.spec.norm_spec import UNKNOWN
from layernorm.spec.variants import VARIANTS


def model(names, config=None, form="safetensors", **more):
    """Make a model of tensors: a name alone has 8 numbers, (name, shape) has that shape."""
    tensors = {}
    for name in names:
        name, shape = name if isinstance(name, tuple) else (name, (8,))
        tensors[name] = Tensor(name, shape, "float32", lambda shape=shape: np.zeros(shape, np.float32))
    return ModelFile("m", form, tensors, config or {}, **more)


def norms(*args, **more):
    found, unidentified = records(model(*args, **more))
    assert not unidentified
    return {record.name: record for record in found}


def pair(name):
    return [f"{name}.weight", f"{name}.bias"]


# One line an architecture: its type, its configuration, the name of one of its norms, has it a shift, and what
# the code computes: centered, eps, scale_offset, cast_before_scale.
LN, RMS = True, False
QWEN2_VL = {"rms_norm_eps": 1e-5, "vision_config": {"model_type": "qwen2_vl"}}
CODE = [
    ("bert", {"layer_norm_eps": 1e-12}, "encoder.layer.0.output.LayerNorm", True, LN, 1e-12, 0, False),
    ("roberta", {"layer_norm_eps": 1e-5}, "roberta.encoder.layer.0.output.LayerNorm", True, LN, 1e-5, 0, False),
    ("vit", {"layer_norm_eps": 1e-12}, "vit.encoder.layer.0.layernorm_before", True, LN, 1e-12, 0, False),
    ("gpt2", {"layer_norm_epsilon": 1e-5}, "h.0.ln_1", True, LN, 1e-5, 0, False),
    ("bloom", {"layer_norm_epsilon": 1e-5}, "word_embeddings_layernorm", True, LN, 1e-5, 0, False),
    ("gpt_neox", {"layer_norm_eps": 1e-5}, "gpt_neox.layers.0.input_layernorm", True, LN, 1e-5, 0, False),
    ("starcoder2", {"norm_epsilon": 1e-5}, "model.layers.0.input_layernorm", True, LN, 1e-5, 0, False),
    ("phimoe", {"rms_norm_eps": 1e-5}, "model.layers.0.input_layernorm", True, LN, 1e-5, 0, False),
    ("modernbert", {"norm_eps": 1e-5}, "model.layers.1.attn_norm", False, LN, 1e-5, 0, False),
    ("mpt", {"layer_norm_epsilon": 1e-5}, "transformer.blocks.0.norm_1", False, LN, 1e-5, 0, False),
    ("cohere", {"layer_norm_eps": 1e-5}, "model.layers.0.input_layernorm", False, LN, 1e-5, 0, False),
    ("nemotron", {"norm_eps": 1e-5}, "model.layers.0.input_layernorm", True, LN, 1e-5, 1, False),
    ("whisper", {}, "model.encoder.layers.0.self_attn_layer_norm", True, LN, 1e-5, 0, False),
    ("opt", {}, "model.decoder.layers.0.self_attn_layer_norm", True, LN, 1e-5, 0, False),
    ("distilbert", {}, "distilbert.transformer.layer.0.sa_layer_norm", True, LN, 1e-12, 0, False),
    ("llama", {"rms_norm_eps": 1e-5}, "model.layers.0.input_layernorm", False, RMS, 1e-5, 0, True),
    ("qwen3", {"rms_norm_eps": 1e-6}, "model.layers.0.self_attn.q_norm", False, RMS, 1e-6, 0, True),
    ("glm4", {"rms_norm_eps": 1.5625e-07}, "model.layers.0.post_mlp_layernorm", False, RMS, 1.5625e-07, 0, True),
    ("deepseek_v3", {"rms_norm_eps": 1e-5}, "model.layers.0.input_layernorm", False, RMS, 1e-5, 0, True),
    ("deepseek_v3", {"rms_norm_eps": 1e-5}, "model.layers.0.self_attn.q_a_layernorm", False, RMS, 1e-6, 0, True),
    ("deepseek_v3", {"rms_norm_eps": 1e-5}, "model.layers.0.self_attn.kv_a_layernorm", False, RMS, 1e-6, 0, True),
    ("mamba", {"layer_norm_epsilon": 1e-5}, "backbone.layers.0.norm", False, RMS, 1e-5, 0, True),
    ("mamba2", {"layer_norm_epsilon": 1e-5}, "backbone.layers.0.mixer.norm", False, RMS, 1e-5, 0, True),
    ("t5", {"layer_norm_epsilon": 1e-6}, "encoder.block.0.layer.0.layer_norm", False, RMS, 1e-6, 0, True),
    ("olmo2", {"rms_norm_eps": 1e-6}, "model.layers.0.self_attn.q_norm", False, RMS, 1e-6, 0, False),
    ("gpt_oss", {"rms_norm_eps": 1e-5}, "model.layers.0.input_layernorm", False, RMS, 1e-5, 0, False),
    ("gemma2", {"rms_norm_eps": 1e-6}, "model.layers.0.pre_feedforward_layernorm", False, RMS, 1e-6, 1, False),
    ("gemma3", {"text_config": {"model_type": "gemma3_text", "rms_norm_eps": 1e-6}},
     "language_model.model.layers.0.self_attn.q_norm", False, RMS, 1e-6, 1, False),
    ("gemma3n", {"text_config": {"model_type": "gemma3n_text", "rms_norm_eps": 1e-6}},
     "model.language_model.layers.0.input_layernorm", False, RMS, 1e-6, 0, False),
    ("qwen3_next", {"rms_norm_eps": 1e-6}, "model.layers.0.input_layernorm", False, RMS, 1e-6, 1, False),
    ("qwen3_next", {"rms_norm_eps": 1e-6}, "model.layers.0.linear_attn.norm", False, RMS, 1e-6, 0, True),
    ("qwen2_vl", QWEN2_VL, "visual.blocks.0.norm1", True, LN, 1e-6, 0, False),
    ("qwen2_vl", QWEN2_VL, "model.layers.0.input_layernorm", False, RMS, 1e-5, 0, True),
    ("llava", {"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "pixtral"}},
     "vision_tower.transformer.layers.0.attention_norm", False, RMS, 1e-5, 0, True),
    ("clip", {"text_config": {"layer_norm_eps": 1e-4}, "vision_config": {"layer_norm_eps": 1e-3}},
     "text_model.encoder.layers.0.layer_norm1", True, LN, 1e-4, 0, False),
    ("clip", {"text_config": {}, "vision_config": {"model_type": "clip_vision_model", "layer_norm_eps": 1e-3}},
     "vision_model.encoder.layers.0.layer_norm1", True, LN, 1e-3, 0, False),
    ("convnext", {"layer_norm_eps": 1e-12}, "convnext.layernorm", True, LN, 1e-12, 0, False),
    ("convnext", {"layer_norm_eps": 1e-12}, "convnext.encoder.stages.0.layers.0.layernorm", True, LN, 1e-6, 0, False),
    ("swin", {"layer_norm_eps": 1e-3}, "swin.encoder.layers.0.blocks.0.layernorm_before", True, LN, 1e-3, 0, False),
    ("swin", {"layer_norm_eps": 1e-3}, "swin.encoder.layers.0.downsample.norm", True, LN, 1e-5, 0, False),
    ("swin", {"layer_norm_eps": 1e-3}, "swin.embeddings.norm", True, LN, 1e-5, 0, False),
]  # fmt: skip


@pytest.mark.parametrize("kind, config, name, shift, centered, eps, offset, cast", CODE)
def test_each_architecture_is_what_its_code_says(kind, config, name, shift, centered, eps, offset, cast):
    names = pair(name) if shift else [f"{name}.weight"]
    spec = norms(names, {"model_type": kind, **config})[name].spec
    assert (spec.centered, spec.spread) == (centered, "std" if centered else "rms")
    assert (spec.eps, spec.eps_at, spec.scale_offset, spec.cast_before_scale) == (eps, "variance", offset, cast)
    assert spec.axes == (-1,) == spec.scale_axes
    assert spec.shift_axes == ((-1,) if shift else None)
    assert spec.unknown() == ()


def test_every_row_is_complete_and_no_type_has_two():
    assert sum(len(row.types) for row in FAMILIES) == len(BY_TYPE)
    for row in FAMILIES:
        assert row.source
        assert row.spec.eps is not UNKNOWN


@pytest.mark.parametrize(
    "kind, config, name, source, detail",
    [
        ("bert", {"layer_norm_eps": 1e-12}, "encoder.layer.0.output.LayerNorm", "config", "layer_norm_eps"),
        ("bert", {}, "encoder.layer.0.output.LayerNorm", "default", "bert: layer_norm_eps"),
        (
            "distilbert",
            {"layer_norm_eps": 7.0},
            "transformer.layer.0.sa_layer_norm",
            "convention",
            "eps=1e-12 in the code",
        ),
        ("gemma3", {}, "multi_modal_projector.mm_soft_emb_norm", "unknown", "from elsewhere"),
    ],
)
def test_eps_says_where_it_is_from(kind, config, name, source, detail):
    record = norms([f"{name}.weight"], {"model_type": kind, **config})[name]
    assert record.evidence["eps"].source == source
    assert detail in record.evidence["eps"].detail
    assert (record.spec.eps is UNKNOWN) == (source == "unknown")
    assert record.evidence["centered"].source == "convention"


def test_convnext_normalizes_channels_first_where_it_does_and_finds_the_silent_norms():
    found = norms(
        [*pair("convnext.embeddings.layernorm"), *pair("convnext.encoder.stages.1.downsampling_layer.0"),
         ("convnext.encoder.stages.1.downsampling_layer.1.weight", (8, 8, 2, 2)),
         "convnext.encoder.stages.1.layers.0.layer_scale_parameter"],
        {"model_type": "convnext", "layer_norm_eps": 1e-12},
    )  # fmt: skip
    assert list(found) == ["convnext.embeddings.layernorm", "convnext.encoder.stages.1.downsampling_layer.0"]
    assert {record.spec.axes for record in found.values()} == {(1,)}
    assert {record.spec.eps for record in found.values()} == {1e-6}


def test_olmo_has_norms_without_tensors():
    found = norms(
        [(f"model.layers.{n}.mlp.up_proj.weight", (8, 8)) for n in (0, 1)], {"model_type": "olmo", "hidden_size": 8}
    )
    assert list(found) == [
        "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
        "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm", "model.norm",
    ]  # fmt: skip
    assert found["model.norm"].spec == VARIANTS["olmo"]
    assert found["model.norm"].size == 8


def test_resnet_is_batch_normalization():
    names = [f"bn1.{word}" for word in ("weight", "bias", "running_mean", "running_var")]
    record = norms(names, {"model_type": "resnet"})["bn1"]
    assert record.spec.kind == "batch"
    assert (record.spec.eps, record.spec.axes, record.spec.scale_axes) == (1e-5, (0, "2:"), (1,))
    assert (record.mean.name, record.variance.name) == ("bn1.running_mean", "bn1.running_var")


# -- architectures that no row names ------------------------------------------------------------------


def unknown(record):
    return {
        name
        for name in ("centered", "spread", "axes", "eps", "scale_offset", "groups")
        if getattr(record.spec, name) is UNKNOWN
    }


def test_a_layer_norm_by_name_and_shift_in_a_state_dict_lacks_only_eps():
    record = norms(pair("encoder.layer_norm"), form="pytorch")["encoder.layer_norm"]
    assert record.spec.kind == "layer"
    assert unknown(record) == {"eps"}
    assert record.evidence["eps"].source == "unknown"
    assert (record.dtype, record.size, record.form) == ("float32", 8, "named")


@pytest.mark.parametrize("name", ["model.norm", "encoder.layer_norm", "final_layernorm", "ln_f"])
def test_a_scale_alone_does_not_prove_an_rms_norm(name):
    record = norms([f"{name}.weight"])[name]
    assert {"centered", "spread", "eps", "scale_offset"} <= unknown(record)


def test_two_signs_of_an_rms_norm_do():
    record = norms(["model.norm.weight"], {"model_type": "new", "rms_norm_eps": 1e-6})["model.norm"]
    assert (record.spec.kind, record.spec.eps) == ("rms", 1e-6)
    assert unknown(record) == {"scale_offset"}
    assert norms(["blocks.0.rms_norm.weight"])["blocks.0.rms_norm"].spec.kind == "rms"


def test_the_key_of_a_layer_norm_beside_a_scale_alone_proves_no_kind():
    record = norms(["model.norm.weight"], {"model_type": "new", "layer_norm_epsilon": 1e-6})["model.norm"]
    assert record.spec.eps == 1e-6
    assert {"centered", "spread"} <= unknown(record)


def test_beside_convolutions_the_axes_of_a_norm_are_unknown():
    flat = norms(pair("blocks.0.norm1"))["blocks.0.norm1"]
    assert flat.spec.kind == "layer"
    beside = norms([*pair("blocks.0.norm1"), ("conv.weight", (8, 8, 3, 3))])["blocks.0.norm1"]
    assert {"axes", "groups", "eps"} <= unknown(beside)


def test_group_norm_by_name():
    record = norms([*pair("group_norm"), ("conv.weight", (8, 8, 3, 3))])["group_norm"]
    assert (record.spec.channel_axis, record.spec.scale_axes) == (1, (1,))
    assert "groups" in unknown(record)


@pytest.mark.parametrize("words", [("running_mean", "running_var"), ("moving_mean", "moving_variance")])
def test_batch_norm_by_its_statistics_whatever_it_is_called(words):
    record = norms([f"layers.0.1.{word}" for word in ("weight", "bias", *words)], form="pytorch")["layers.0.1"]
    assert record.spec.kind == "batch"
    assert record.spec.statistics == "stored"
    assert unknown(record) == {"eps"}


def test_old_names_of_tensors():
    assert norms(["bert.LayerNorm.gamma", "bert.LayerNorm.beta"])["bert.LayerNorm"].spec.kind == "layer"
    assert norms(["block.7.gamma", "block.7.beta"])["block.7"].scale.name == "block.7.gamma"
    assert norms(["params/LayerNorm_0/scale", "params/LayerNorm_0/bias"])["params/LayerNorm_0"].spec.kind == "layer"
    fused = norms(["decoder.layers.0.mlp.linear_fc1.layer_norm_weight"])
    assert list(fused) == ["decoder.layers.0.mlp.linear_fc1.layer_norm"]


def test_the_annotated_transformer_divides_by_the_sample_deviation_plus_eps():
    spec = norms(["encoder.norm.a_2", "encoder.norm.b_2"])["encoder.norm"].spec
    assert (spec.ddof, spec.eps_at, spec.centered) == (1, "deviation", True)


def test_a_norm_over_several_axes_shows_them():
    record = norms([("layer_norm.weight", (4, 8)), ("layer_norm.bias", (4, 8))])["layer_norm"]
    assert record.spec.axes == record.spec.scale_axes == (-2, -1)
    assert record.size == 32
    heads = norms([("self_attn.q_norm.weight", (4, 8))])["self_attn.q_norm"]
    assert (heads.spec.axes, heads.spec.scale_axes, heads.size) == ((-1,), (-2, -1), 8)


def test_what_is_called_a_norm_and_is_none_is_listed_with_the_reason():
    _, unidentified = records(model([("a.norm.weight", (8, 8)), ("b.norm.weight", (8,)), ("b.norm.bias", (4,))]))
    assert [item.where for item in unidentified] == ["a.norm.weight", "b.norm.weight, b.norm.bias"]
    assert "(8, 8)" in unidentified[0].why
    assert "(4,)" in unidentified[1].why


@pytest.mark.parametrize(
    "names",
    [
        ["encoder.fc.weight", "encoder.fc.bias"],
        ["convnext.layers.0.gamma"],
        ["normalizer.mean", "x.var"],
        [("norm1.linear.weight", (16, 8)), ("norm1.linear.bias", (16,))],
        ["conv.weight_g", "embed.weight"],
        ["bn.num_batches_tracked"],
        [("attn.rotary.inv_freq", (4,))],
    ],
)
def test_what_is_no_norm_is_not_taken_for_one(names):
    assert norms(names) == {}


def test_tensors_of_a_described_layer_are_left_out():
    held = model(pair("a.norm") + pair("b.norm"))
    layer = Layer(
        "torch",
        "LayerNorm",
        "a.norm",
        "",
        {},
        {"scale": held.tensors["a.norm.weight"], "shift": held.tensors["a.norm.bias"]},
    )
    found, _ = records(ModelFile("m", "pytorch", held.tensors, layers=(layer,)))
    assert [record.name for record in found] == ["b.norm"]


# -- order and place ----------------------------------------------------------------------------------


ORDERS = {
    "llama": ["model.layers.2.input_layernorm", "model.layers.2.self_attn.q_norm",
              "model.layers.2.post_attention_layernorm", "model.layers.10.input_layernorm", "model.norm"],
    "gemma2": ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
               "model.layers.0.pre_feedforward_layernorm", "model.layers.0.post_feedforward_layernorm", "model.norm"],
    "bert": ["bert.embeddings.LayerNorm", "bert.encoder.layer.0.attention.output.LayerNorm",
             "bert.encoder.layer.0.output.LayerNorm",
             "bert.encoder.layer.11.output.LayerNorm", "cls.predictions.transform.LayerNorm"],
    "gpt2": ["h.0.ln_1", "h.0.ln_2", "h.9.ln_1", "h.10.ln_1", "ln_f"],
    "t5": ["encoder.block.0.layer.0.layer_norm", "encoder.block.0.layer.1.layer_norm", "encoder.final_layer_norm",
           "decoder.block.0.layer.0.layer_norm", "decoder.final_layer_norm"],
    "whisper": ["model.encoder.layers.0.self_attn_layer_norm", "model.encoder.layers.0.final_layer_norm",
                "model.encoder.layer_norm",
                "model.decoder.layers.0.self_attn_layer_norm", "model.decoder.layers.0.encoder_attn_layer_norm",
                "model.decoder.layers.0.final_layer_norm", "model.decoder.layer_norm"],
    "vit": ["vit.encoder.layer.0.layernorm_before", "vit.encoder.layer.0.layernorm_after", "vit.layernorm"],
    "mamba2": ["backbone.layers.0.norm", "backbone.layers.0.mixer.norm", "backbone.layers.1.norm", "backbone.norm_f"],
    "gguf": ["token_embd_norm", "blk.0.attn_norm", "blk.0.attn_q_norm", "blk.0.post_attention_norm", "blk.0.ffn_norm",
             "blk.0.post_ffw_norm", "blk.11.attn_norm", "output_norm"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ORDERS)
def test_records_stand_in_the_order_in_which_the_norms_run(kind):
    config = {"general.architecture": "llama"} if kind == "gguf" else {"model_type": kind}
    names = [f"{name}.weight" for name in sorted(ORDERS[kind], reverse=True)]
    found, _ = records(model(names, config, "gguf" if kind == "gguf" else "safetensors"))
    assert [record.name for record in found] == ORDERS[kind]


def test_a_state_dict_of_an_unknown_architecture_keeps_its_own_order():
    names = pair("b.norm") + pair("a.norm")
    assert list(norms(names, form="pytorch")) == ["b.norm", "a.norm"]
    assert list(norms(names)) == ["a.norm", "b.norm"]


@pytest.mark.parametrize(
    "name, beside, place",
    [
        ("model.layers.0.input_layernorm", (), "pre"),
        ("model.layers.0.post_attention_layernorm", ("model.layers.0.input_layernorm",), "pre"),
        ("model.layers.0.post_attention_layernorm", (), "post"),
        ("model.layers.0.post_attention_layernorm",
         ("model.layers.0.input_layernorm", "model.layers.0.pre_feedforward_layernorm"), "post"),
        ("model.layers.0.post_feedforward_layernorm", (), "post"),
        ("model.layers.0.self_attn.q_norm", (), "qk"),
        ("model.layers.0.self_attn.k_layernorm", (), "qk"),
        ("model.norm", (), "final"),
        ("transformer.ln_f", (), "final"),
        ("transformer.h.0.ln_1", (), "pre"),
        ("bert.embeddings.LayerNorm", (), "embedding"),
        ("bert.encoder.layer.0.attention.output.LayerNorm", (), "post"),
        ("encoder.block.0.layer.1.layer_norm", (), "pre"),
        ("encoder.final_layer_norm", (), "final"),
        ("model.encoder.layers.0.final_layer_norm", (), "unknown"),
        ("model.layers.0.self_attn.kv_a_layernorm", (), "other"),
        ("blk.0.attn_norm", (), "pre"),
        ("blk.0.attn_q_norm", (), "qk"),
        ("blk.0.post_attention_norm", ("blk.0.attn_norm", "blk.0.ffn_norm"), "post"),
        ("output_norm", (), "final"),
        ("layers.3.norm", (), "unknown"),
    ],
)  # fmt: skip
def test_places_in_a_block(name, beside, place):
    assert norms([f"{one}.weight" for one in (name, *beside)])[name].placement == place


# -- GGUF ---------------------------------------------------------------------------------------------


def gguf(names, arch="llama", **keys):
    config = {"general.architecture": arch, **{f"{arch}.attention.{key}": value for key, value in keys.items()}}
    return norms(names, config, "gguf")


def test_the_key_of_a_gguf_says_the_kind():
    rms = gguf(["blk.0.attn_norm.weight"], layer_norm_rms_epsilon=1e-5)["blk.0.attn_norm"]
    assert (rms.spec.kind, rms.spec.eps, rms.evidence["eps"].source) == ("rms", 1e-5, "key")
    layer = gguf(pair("blk.0.attn_norm"), "gpt2", layer_norm_epsilon=1e-5)["blk.0.attn_norm"]
    assert (layer.spec.kind, layer.spec.eps) == ("layer", 1e-5)
    cohere = gguf(["blk.0.attn_norm.weight"], "command-r", layer_norm_epsilon=1e-5)["blk.0.attn_norm"]
    assert (cohere.spec.kind, cohere.spec.shift_axes) == ("layer", None)


def test_gemma_and_nemotron_are_already_folded():
    assert (
        gguf(["blk.0.attn_norm.weight"], "gemma2", layer_norm_rms_epsilon=1e-6)["blk.0.attn_norm"].spec.scale_offset
        == 0
    )
    assert gguf(pair("blk.0.attn_norm"), "nemotron", layer_norm_epsilon=1e-5)["blk.0.attn_norm"].spec.scale_offset == 0


def test_how_a_gguf_is_rounded_is_the_runtimes_choice():
    spec = gguf(pair("blk.0.attn_norm"), "gpt2", layer_norm_epsilon=1e-5)["blk.0.attn_norm"].spec
    assert set(spec.unknown()) == {"stats_dtype", "cast_before_scale", "variance_by", "round_each"}


def test_a_key_and_a_shift_that_disagree_leave_the_kind_unknown():
    record = gguf(pair("blk.0.attn_norm"), "phimoe", layer_norm_rms_epsilon=1e-5)["blk.0.attn_norm"]
    assert {"centered", "spread"} <= unknown(record)
    assert record.spec.eps == 1e-5


def test_t5_is_an_rms_norm_under_either_key():
    for keys in (
        {"layer_norm_epsilon": 1e-6},
        {"layer_norm_rms_epsilon": 1e-6},
        {"layer_norm_epsilon": 1e-6, "layer_norm_rms_epsilon": 1e-6},
    ):
        assert gguf(["enc.blk.0.attn_norm.weight"], "t5encoder", **keys)["enc.blk.0.attn_norm"].spec.kind == "rms"


def test_both_keys_are_told_apart_by_the_shift():
    found = gguf(
        [*pair("blk.0.attn_norm"), "blk.0.ffn_norm.weight"], "new", layer_norm_epsilon=1e-5, layer_norm_rms_epsilon=1e-6
    )
    assert (found["blk.0.attn_norm"].spec.kind, found["blk.0.attn_norm"].spec.eps) == ("layer", 1e-5)
    assert found["blk.0.ffn_norm"].spec.eps is UNKNOWN


def test_groups_of_a_gguf():
    names = [*pair("posnet.0.norm1"), *pair("convnext.0.norm")]
    found = gguf(names, "wavtokenizer-dec", group_norm_epsilon=1e-6, group_norm_groups=4, layer_norm_epsilon=1e-5)
    assert found["posnet.0.norm1"].spec.kind == "group"
    assert (found["posnet.0.norm1"].spec.groups, found["posnet.0.norm1"].spec.eps) == (4, 1e-6)
    assert (found["convnext.0.norm"].spec.kind, found["convnext.0.norm"].spec.eps) == ("layer", 1e-5)


def test_a_gguf_without_a_key_leaves_eps_and_kind_unknown():
    assert {"eps", "centered"} <= unknown(gguf(["blk.0.attn_norm.weight"])["blk.0.attn_norm"])


@pytest.mark.parametrize("value", ["1e-5", None, [1e-5], True, 10**400])
def test_an_eps_that_is_no_number_is_the_default_or_unknown(value):
    assert norms(pair("a.norm"), {"model_type": "bert", "layer_norm_eps": value})["a.norm"].spec.eps == 1e-12
    assert gguf(["a_norm.weight"], layer_norm_rms_epsilon=value)["a_norm"].spec.eps is UNKNOWN


def test_the_sources_in_the_table_are_sentences():
    assert not [row.source for row in FAMILIES if re.search(r"https?:|\.com|#\d", row.source)]


def test_a_member_of_a_sequential_that_may_be_a_norm_is_told():
    """Its name is a number; before, a LayerNorm of a Sequential was in neither list."""
    tensors = [("0.weight", (8, 4)), ("0.bias", (8,)), *pair("body.1"), "body.2.weight", ("body.3.weight", (1,))]
    found, unidentified = records(model(tensors, form="pytorch"))
    assert found == []
    assert [item.where for item in unidentified] == ["body.1.weight, body.1.bias", "body.2.weight"]
    assert "8 numbers, as layer and group norms have" in unidentified[0].why
    assert "PReLU" in unidentified[1].why
