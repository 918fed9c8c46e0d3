# SPDX-License-Identifier: MIT
"""This file finds norms among named tensors: which belong together, and in which order they run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import Unidentified

# The last word of a tensor's name, and what the tensor is to its norm: `gamma` and `beta` are TensorFlow's and old
# BERT's, `scale` Flax's, `g` and `b` the first GPT's, `a_2` and `b_2` the Annotated Transformer's.
ROLES = {
    "weight": "scale", "gamma": "scale", "scale": "scale", "g": "scale", "a_2": "scale",
    "bias": "shift", "beta": "shift", "offset": "shift", "b": "shift", "b_2": "shift",
    "running_mean": "mean", "moving_mean": "mean", "mean": "mean",
    "running_var": "variance", "moving_variance": "variance", "var": "variance",
}  # fmt: skip

# Megatron keeps a norm in the linear layer behind it: linear_fc1.layer_norm_weight.
_SPLIT = re.compile(r"(?P<name>.*)[./](?P<leaf>\w+)|(?P<fused>.*layer_?norm)_(?P<fused_leaf>weight|bias)", re.DOTALL)
_SAYS_NORM = re.compile(r"norm|(?:^|_)(?:ln|bn|gn)(?:_|\d|$)", re.IGNORECASE)
_IS_NORM = re.compile(r"(?:norm|ln|bn)(?:_?\d+)?$", re.IGNORECASE)
_PER_HEAD = re.compile(r"(?:^|_)[qk]_?(?:layer)?norm$|(?:query|key)_(?:layer)?norm$", re.IGNORECASE)


@dataclass(frozen=True)
class Named:
    """The tensors of one norm, by role, under the name that they share."""

    name: str
    tensors: Mapping[str, Tensor]
    words: frozenset[str]
    """The last words of their names."""

    @property
    def last(self) -> str:
        """Give the last word of the name that is no number."""
        return next((word for word in reversed(re.split(r"[./]", self.name)) if not word.isdigit()), "")

    @property
    def where(self) -> str:
        """Give the tensors' names."""
        return ", ".join(tensor.name for tensor in self.tensors.values())


def named_norms(tensors: Iterable[Tensor], others: re.Pattern[str] | None) -> tuple[list[Named], list[Unidentified]]:
    """Find the norms whose names or tensors say what they are.

    Args:
        tensors: of one file.
        others: the names of norms that do not say so themselves.
    """
    together: dict[str, dict[str, tuple[str, Tensor]]] = {}
    for tensor in tensors:
        if not (split := _SPLIT.fullmatch(tensor.name)):
            continue
        name, leaf = split["name"], split["leaf"]
        if fused := re.fullmatch(r"(layer_?norm)_(weight|bias)", leaf or ""):
            name, leaf = f"{name}.{fused[1]}", fused[2]
        elif split["fused"]:
            name, leaf = split["fused"], split["fused_leaf"]
        if leaf in ROLES:
            together.setdefault(name, {}).setdefault(ROLES[leaf], (leaf, tensor))
    norms: list[Named] = []
    unidentified: list[Unidentified] = []
    for name, found in together.items():
        named = Named(
            name, {role: tensor for role, (_, tensor) in found.items()}, frozenset(leaf for leaf, _ in found.values())
        )
        norm, why = _judge(named, others)
        if norm is not None:
            norms.append(norm)
        elif why:
            unidentified.append(Unidentified(named.where, why))
    return norms, unidentified


def per_head(named: Named) -> bool:
    """Tell whether this is a norm of queries or keys, which may have a scale for each head."""
    return bool(_PER_HEAD.search(named.last))


def _judge(named: Named, others: re.Pattern[str] | None) -> tuple[Named | None, str]:
    """Give a norm, or the reason why something that is called one is not taken for it; neither for all else."""
    held = named.tensors
    scale = held.get("scale")
    listed = bool(others and others.search(named.name))
    said = listed or bool(_SAYS_NORM.search(named.last))
    kept = {role: held[role] for role in ("scale", "shift") if role in held}
    if "mean" in held and "variance" in held:
        stored = {"running_mean", "moving_mean"} & named.words or said
        if stored and all(len(t.shape) == 1 and t.shape == held["mean"].shape for t in held.values()):
            return named, ""
    if not kept or not (said or {"gamma", "beta"} <= named.words):
        return None, _of_a_sequence(named)
    if strange := next((tensor for tensor in kept.values() if "complex" in tensor.dtype), None):
        return None, f"{strange.name} holds {strange.dtype}, and a norm's parameters are real; take the real part."
    shapes = {tensor.shape for tensor in kept.values()}
    strong = listed or bool(_IS_NORM.search(named.last))
    if len(shapes) > 1:
        a, b = (kept[role].shape for role in ("scale", "shift"))
        return None, f"its scale has the shape {a} and its shift {b}; a norm's agree" if strong and len(a) == 1 else ""
    (shape,) = shapes
    whole = len(shape) == 1 or (len(shape) > 1 and (len(kept) == 2 or per_head(named)))
    if whole and (scale is not None or strong) and shape != (0,):
        return Named(named.name, kept, named.words), ""
    return (
        None,
        f"it is called a norm, but its {'scale' if scale is not None else 'shift'} has the shape {shape}"
        if strong
        else "",
    )


def _of_a_sequence(named: Named) -> str:
    """Say of a member of a Sequential, whose name is its number, that it may be a norm; nothing of all else."""
    shapes = {role: tensor.shape for role, tensor in named.tensors.items()}
    if not re.search(r"(?:^|[./])\d+$", named.name) or {"weight"} != named.words - {"bias"}:
        return ""
    (length,) = shapes["scale"] if len(shapes["scale"]) == 1 else (0,)
    if length < 2 or len(set(shapes.values())) > 1:
        return ""
    if "shift" in shapes:
        return f"it has a scale and a shift of {length} numbers, as layer and group norms have; its name is a number."
    return f"it has one vector of {length} numbers, as RMS norms and PReLUs have; its name is a number."


# Where one word of a name runs beside its siblings; a word that no row names stands at 5, a number at 5 too.
_RUNS = {
    0: r"embeddings? wte embed\w* word_embeddings\w* token_embd\w* patch_embed\w* stem conv_?1 conv_in position_embd",
    1: r"""(?:layer_?|batch_?|group_?)?(?:norm|ln|bn)_?1 \w*norm_?1 ln_pre pre_?layer_?norm pre_layrnorm norm_pre pre_ln
        input_layer_?norm attn_norm attention_norm operator_norm layernorm_before norm_before pre_attention_layernorm
        patch_norm""",
    2: r"""(?:self_?)?att(?:entio)?n self_attention attn_(?:q|k|q_a|kv_a|sub)_norm mixer ssm_norm
        visual vision\w* audio\w*""",
    3: r"""self_attn_layer_norm sa_layer_norm post_self_attn_layernorm attn_output_norm attn_post_norm
        post_attention_norm post_attention_layer_?norm norm_?2 \w*norm_?2 ln_?2 bn_?2
        layernorm_after norm_after encoder""",
    4: r"""encoder_attn_layer_norm pre_feedforward_layernorm\w* pre_ffw_norm ffn_norm ffn_sub_norm pre_mlp_layernorm
        norm_?3 bn_?3""",
    6: r"mlp\w* feed_?forward ffn output decoder model_decoder",
    8: r"norm norm_f ln_f ln_post final_\w* layer_?norm output_norm \w*_final_norm post_layernorm",
    9: r"pooler head lm_head classifier cls score mtp\w*",
    # last, for it takes whatever else is called a norm
    7: r"\w*norm ln bn post_feedforward_layernorm\w*",
}
_RUNS_AT = [(rank, re.compile("|".join(words.split()), re.IGNORECASE)) for rank, words in _RUNS.items()]


def runs_at(name: str) -> list[tuple[int, int, str]]:
    """Give a key that sorts names as the norms run: blocks by number, and within one by what its norms are called.

    >>> sorted(["model.norm", "model.layers.10.input_layernorm", "model.layers.9.input_layernorm"], key=runs_at)
    ['model.layers.9.input_layernorm', 'model.layers.10.input_layernorm', 'model.norm']
    """
    key: list[tuple[int, int, str]] = []
    before = ""
    for word in re.split(r"[./]", name):
        if word.isdecimal():
            key.append((5, int(word[:18]), ""))
        elif word == "norm" and before.isdecimal():  # a block with one norm has it first
            key.append((1, -1, word))
        else:
            rank = next((rank for rank, pattern in _RUNS_AT if pattern.fullmatch(word)), 5)
            key.append((rank, -1, word))
        before = word
    return key
