# SPDX-License-Identifier: MIT
"""This file pairs norms by each rule, and looks that what is like several others is left alone."""

import ml_dtypes
import numpy as np
import pytest
from comparing.pairs import BETA, GAMMA, RANDOM, record, tensor

from layernorm.comparing.pairing import paired
from layernorm.spec.errors import ArgumentError


def norms(*names, start=0):
    """Make norms whose values are like no other's."""
    return [record(name, gamma=np.random.default_rng(start + k).normal(1, 0.2, 16)) for k, name in enumerate(names)]


def rules(a, b, names=None):
    pairing = paired(a, b, names)
    return {(pair.a.name, pair.b.name): pair.rule for pair in pairing.pairs}


def left(a, b):
    pairing = paired(a, b)
    return [n.name for n in pairing.left_a], [n.name for n in pairing.left_b]


def test_the_users_map_comes_first():
    a, b = norms("x", "y"), norms("x", "y", start=9)
    assert rules(a, b, {"x": "y"}) == {("x", "y"): "map"}


@pytest.mark.parametrize(
    ("names", "said"),
    [({"z": "x"}, "'z', which is no norm of A"), ({"x": "z"}, "'z', which is no norm of B"),
     ({"x": "x", "y": "x"}, "'x' of B to two norms of A")],
)  # fmt: skip
def test_a_map_that_cannot_be_followed_is_refused(names, said):
    with pytest.raises(ArgumentError, match=said):
        paired(norms("x", "y"), norms("x", "y"), names)


# Names in two codebases of the same norm, and the rule that finds it.
SAME = [
    ("h.0.ln_1", "h.0.ln_1", "name"),
    ("model.layers.3.input_layernorm", "module.model.layers.3.input_layernorm", "normalized-name"),
    ("layers.3.norm", "_orig_mod.layers.3.norm", "normalized-name"),
    ("/encoder/layer.0/LayerNorm", "encoder.layer.0.LayerNorm", "normalized-name"),
    ("blk.3.attn_norm", "model.layers.3.input_layernorm", "normalized-name"),
    ("blk.3.ffn_norm", "model.layers.3.pre_feedforward_layernorm", "normalized-name"),
    ("encoder/block_1/layer_norm", "encoder.block.1.layer_norm", "normalized-name"),
    ("blk.3.attn_q_norm", "model.layers.3.self_attn.q_norm", "normalized-name"),
    ("output_norm", "model.norm", "normalized-name"),
    ("output_norm", "transformer.ln_f", "normalized-name"),
    ("token_embd_norm", "bert.embeddings.LayerNorm", "normalized-name"),
    ("blk.1.attn_output_norm", "bert.encoder.layer.1.attention.output.LayerNorm", "normalized-name"),
    ("blk.1.layer_output_norm", "bert.encoder.layer.1.output.LayerNorm", "normalized-name"),
    ("h.2.ln_2", "layers.2.norm2", "normalized-name"),
    ("model.encoder.layers.3.norm", "encoder.layers.3.norm", "normalized-name"),
    ("0.auto_model.encoder.layer.1.norm", "encoder.layer.1.norm", "normalized-name"),
    ("blk.0.attn_norm", "transformer.h.0.ln_1", "normalized-name"),
    ("blk.0.ffn_norm", "transformer.h.0.ln_2", "normalized-name"),
    ("vit.encoder.layer.0.layernorm_before", "blocks.0.norm1", "normalized-name"),
    ("vit.encoder.layer.0.layernorm_after", "blocks.0.norm2", "normalized-name"),
    ("vision_model.encoder.layers.0.layer_norm1", "v.blk.0.ln1", "normalized-name"),
    ("vision_tower.vision_model.encoder.layers.4.layer_norm2", "v.blk.4.ln2", "normalized-name"),
    ("visual.blocks.4.norm2", "v.blk.4.ln2", "normalized-name"),
    ("vision_model.pre_layrnorm", "v.pre_ln", "normalized-name"),
    ("vision_model.post_layernorm", "v.post_ln", "normalized-name"),
    ("decoder.layers.2.encoder_attn_layer_norm", "dec.blk.2.cross_attn_norm", "normalized-name"),
]


@pytest.mark.parametrize(("a", "b", "rule"), SAME)
def test_names_of_one_norm_in_two_codebases(a, b, rule):
    # of other values and widths, so that nothing but the name can pair them
    assert rules([record(a)], [record(b, gamma=GAMMA[:8] + 1, beta=BETA[:8])]) == {(a, b): rule}


# T5's names, of parts that are numbered, and GGUF's.
T5 = {
    "encoder.block.0.layer.0.layer_norm": "enc.blk.0.attn_norm",
    "encoder.block.0.layer.1.layer_norm": "enc.blk.0.ffn_norm",
    "encoder.block.1.layer.0.layer_norm": "enc.blk.1.attn_norm",
    "encoder.final_layer_norm": "enc.output_norm",
    "decoder.block.0.layer.0.layer_norm": "dec.blk.0.attn_norm",
    "decoder.block.0.layer.1.layer_norm": "dec.blk.0.cross_attn_norm",
    "decoder.block.0.layer.2.layer_norm": "dec.blk.0.ffn_norm",
    "decoder.final_layer_norm": "dec.output_norm",
}


def test_an_encoder_and_a_decoder_are_not_confused():
    # in another order, so that order cannot help
    gguf = norms(*list(T5.values())[::-1], start=50)
    assert rules(norms(*T5), gguf) == dict.fromkeys(T5.items(), "normalized-name")


def test_a_block_of_the_number_0_is_a_block():
    """What numbers the first block was taken for a wrapper, so that its norm had the name of the last one."""
    first, last = "encoder.block.0.layer.0.layer_norm", "encoder.final_layer_norm"
    assert rules(norms(first, "q"), norms(last, "r", "s", start=50)) == {}
    both = ("blocks.0.norm", "blocks.norm")
    wrapped = [f"module.{name}" for name in both]
    pairs = zip(both, wrapped, strict=True)
    assert rules(norms(*both), norms(*wrapped[::-1], start=50)) == dict.fromkeys(pairs, "normalized-name")
    assert rules(norms("0.norm", "p"), norms("model.norm", "q", "r", start=50)) == {}


def test_post_attention_layernorm_means_two_things():
    """In Llama it is the norm before the feed-forward part, in Gemma 2 one after attention (c72)."""
    llama = ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
    assert rules(norms(*llama), norms("blk.0.attn_norm", "blk.0.ffn_norm", start=50)) == {
        (llama[0], "blk.0.attn_norm"): "normalized-name", (llama[1], "blk.0.ffn_norm"): "normalized-name",
    }  # fmt: skip
    gemma = ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
             "model.layers.0.pre_feedforward_layernorm", "model.layers.0.post_feedforward_layernorm"]  # fmt: skip
    gguf = ["blk.0.attn_norm", "blk.0.post_attention_norm", "blk.0.ffn_norm", "blk.0.post_ffw_norm"]
    pairs = zip(gemma, gguf, strict=True)
    assert rules(norms(*gemma), norms(*gguf, start=50)) == dict.fromkeys(pairs, "normalized-name")


@pytest.mark.parametrize(
    ("a", "b"),
    [("layers.0.norm1", "layers.1.norm1"), ("encoder.norm", "decoder.norm"), ("h.0.ln_1", "h.0.ln_2"),
     ("layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm"), ("layers.1.norm", "h.1.final_layer_norm")],
)  # fmt: skip
def test_names_of_different_norms(a, b):
    # beside another pair, for between two ends whatever is alone is the same by order
    one, other = norms("first", a), [*norms("first"), record(b, gamma=GAMMA[:8], beta=BETA[:8])]
    assert (a, b) not in rules(one, other)


def strange(values, name="b", **more):
    return record(name, gamma=values, **more)


def test_values_pair_what_names_do_not():
    decoys = [strange(RANDOM.normal(1, 0.2, 16), f"d{k}") for k in range(2)]
    assert rules([record("a")], [decoys[0], strange(GAMMA), decoys[1]]) == {("a", "b"): "values"}
    assert rules([record("a")], [decoys[0], strange(GAMMA - 1), decoys[1]]) == {("a", "b"): "values-minus-one"}
    assert rules([record("a")], [decoys[0], strange(GAMMA + 1), decoys[1]]) == {("a", "b"): "values-minus-one"}
    for dtype in (ml_dtypes.bfloat16, np.float16):
        narrow = strange(tensor("g", GAMMA, dtype), beta=tensor("b", BETA, dtype))
        assert rules([record("a")], [decoys[0], narrow, decoys[1]]) == {("a", "b"): "values-rounded"}
    square, turned = GAMMA.reshape(2, 8), GAMMA.reshape(2, 8).T.copy()
    a, b = record("a", gamma=square, beta=None), strange(turned, beta=None)
    assert rules([a], [decoys[0], b, decoys[1]]) == {("a", "b"): "values"}


def test_rounding_twice_is_not_rounding_once():
    # of 4096 values a few are on another side after float16 and bfloat16 than after bfloat16 alone
    wide = np.random.default_rng(2).normal(1, 0.2, 4096).astype(np.float32)
    once, twice = (wide.astype(t).astype(ml_dtypes.bfloat16) for t in (np.float32, np.float16))
    assert (once != twice).any()
    b = [strange(tensor("g", wide, np.float16), beta=None), *norms("d1", "d2")]
    assert rules([record("a", gamma=wide, beta=None)], b) == {("a", "b"): "values-rounded"}


def test_values_that_a_narrower_type_cannot_hold_are_no_warning():
    wide = [strange(factor * GAMMA, name) for factor, name in ((1e6, "b"), (1e7, "c"))]
    assert rules([record("a", gamma=3e6 * GAMMA)], wide) == {}


def test_values_that_several_norms_share_pair_nothing():
    ones = np.ones(16)
    a, b = [strange(ones, "a1", beta=None), strange(ones, "a2", beta=None)], [strange(ones, "b1", beta=None)]
    assert rules(a, b) == {}
    assert left(a, b) == (["a1", "a2"], ["b1"])
    # a constant is no sign of a norm even where one alone has it
    assert rules([strange(ones, "a1")], [strange(ones, "b1"), *norms("d1", "d2")]) == {}
    twins, one = [strange(GAMMA, "a1"), strange(GAMMA, "a2")], [strange(GAMMA, "b1"), *norms("d1", "d2")]
    assert rules(twins, one) == rules(one, twins) == {}


def test_order_pairs_runs_between_pairs_that_are_as_many_and_as_wide():
    a = norms("first", "p", "q", "last")
    assert rules(a, norms("first", "r", "s", "last", start=9)) == {
        ("first", "first"): "name", ("p", "r"): "order", ("q", "s"): "order", ("last", "last"): "name",
    }  # fmt: skip
    assert left(a, norms("first", "r", "last", start=9)) == (["p", "q"], ["r"])
    narrow = [record(n, gamma=RANDOM.normal(1, 0.2, 8), beta=BETA[:8]) for n in ("r", "s")]
    fewer = [*norms("first"), *narrow, *norms("last", start=9)]
    assert left(a, fewer) == (["p", "q"], ["r", "s"])


def test_order_alone_pairs_lists_as_many_and_as_wide():
    assert rules(norms("p", "q"), norms("r", "s", start=9)) == {("p", "r"): "order", ("q", "s"): "order"}
    assert left(norms("p", "q"), norms("r", start=9)) == (["p", "q"], ["r"])
    assert left(norms("p"), [strange(GAMMA[:8], "r", beta=BETA[:8])]) == (["p"], ["r"])


def test_order_goes_on_to_both_ends_of_what_is_paired():
    a, b = norms("p", "known", "q"), norms("r", "known", "s", start=9)
    assert rules(a, b) == {("p", "r"): "order", ("known", "known"): "name", ("q", "s"): "order"}


def test_what_runs_in_another_order_is_not_paired_by_order():
    a, b = norms("x", "p", "y"), norms("y", "q", "x", start=9)
    assert rules(a, b) == {("x", "x"): "name", ("y", "y"): "name"}
    # after y there are two on both sides, one of which is x
    a, b = norms("x", "y", "p", "q"), norms("y", "r", "x", start=9)
    assert rules(a, b) == {("x", "x"): "name", ("y", "y"): "name"}


def test_nothing_is_paired_with_nothing():
    assert paired([], []) == ([], [], [])
    assert left(norms("a"), []) == (["a"], [])
