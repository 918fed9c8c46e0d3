# SPDX-License-Identifier: MIT
"""This file finds which norm of one model is which norm of another, and says by which rule.

The rules are tried in order, each on what the ones before left over; each pairs only what is like nothing else on
either side. What is left over is listed, never paired by its position alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.models.placement import by_name
from layernorm.spec.errors import ArgumentError

Array = NDArray[Any]
Rule = Literal["map", "name", "normalized-name", "values", "values-minus-one", "values-rounded", "order"]


@dataclass(frozen=True)
class Pair:
    """A norm of A, the norm of B that it is compared with, and the rule that put them together."""

    a: NormRecord
    b: NormRecord
    rule: Rule


class Pairing(NamedTuple):
    """Pairs in the order of A, and what has no partner on either side."""

    pairs: list[Pair]
    left_a: list[NormRecord]
    left_b: list[NormRecord]


def paired(a: Sequence[NormRecord], b: Sequence[NormRecord], names: Mapping[str, str] | None = None) -> Pairing:
    """Pair the norms of two models.

    Args:
        a, b: their records, in the order in which they run.
        names: the user's own pairs, {name in A: name in B}, which come first.

    Raises:
        ArgumentError: `names` names a norm that is not there, or one of B's twice.
    """
    match = _Match(a, b)
    match.given(names or {})
    match.alike("name", lambda record: record.name, lambda record: record.name)
    match.alike("normalized-name", _plain, _plain)
    match.alike("normalized-name", _Role(a), _Role(b))
    match.alike("values", _values(), _values())
    match.alike("values", _values(transposed=True), _values())
    match.alike("values-minus-one", _values(plus=1.0), _values())
    match.alike("values-minus-one", _values(), _values(plus=1.0))
    for dtype in ("bfloat16", "float16"):
        match.alike("values-rounded", _values(dtype), _values(dtype))
    match.between()
    return match.result()


class _Match:
    """What has been paired so far, by positions in both lists."""

    def __init__(self, a: Sequence[NormRecord], b: Sequence[NormRecord]) -> None:
        self.a, self.b = a, b
        self.of_a: dict[int, tuple[int, Rule]] = {}
        self.of_b: dict[int, int] = {}

    def pair(self, i: int, j: int, rule: Rule) -> None:
        self.of_a[i], self.of_b[j] = (j, rule), i

    def given(self, names: Mapping[str, str]) -> None:
        at_a, at_b = ({record.name: i for i, record in enumerate(side)} for side in (self.a, self.b))
        for name, partner in names.items():
            for which, asked, known in (("A", name, at_a), ("B", partner, at_b)):
                if asked not in known:
                    listed = ", ".join([*list(known)[:5], *["…"] * (len(known) > 5)]) or "none"
                    raise ArgumentError(f"the map names {asked!r}, which is no norm of {which}; its norms: {listed}.")
            if at_b[partner] in self.of_b:
                raise ArgumentError(f"the map gives {partner!r} of B to two norms of A; give it to one.")
            self.pair(at_a[name], at_b[partner], "map")

    def alike(
        self, rule: Rule, key_a: Callable[[NormRecord], Hashable | None], key_b: Callable[[NormRecord], Hashable | None]
    ) -> None:
        """Pair what is left and has the same key, where no other norm of its side has that key."""
        left_a, left_b = self.left()
        if not left_a or not left_b:
            return
        keys_a, keys_b = {i: key_a(self.a[i]) for i in left_a}, {j: key_b(self.b[j]) for j in left_b}
        count_a, count_b = Counter(keys_a.values()), Counter(keys_b.values())
        at_b = {key: j for j, key in keys_b.items()}
        for i, key in keys_a.items():
            if key is not None and count_a[key] == 1 and count_b[key] == 1:
                self.pair(i, at_b[key], rule)

    def between(self) -> None:
        """Pair runs that lie between the same pairs on both sides, if they are as many and no known widths differ."""
        ends = [(-1, -1), *sorted((i, j) for i, (j, _) in self.of_a.items()), (len(self.a), len(self.b))]
        if any(j >= after for (_, j), (_, after) in pairwise(ends)):
            return  # the sides run in different orders
        for (i, j), (next_i, next_j) in pairwise(ends):
            run_a, run_b = range(i + 1, next_i), range(j + 1, next_j)
            widths_a, widths_b = [_width(self.a[k]) for k in run_a], [_width(self.b[k]) for k in run_b]
            if len(run_a) != len(run_b):
                continue
            if all(None in widths or widths[0] == widths[1] for widths in zip(widths_a, widths_b, strict=True)):
                for k, m in zip(run_a, run_b, strict=True):
                    self.pair(k, m, "order")

    def left(self) -> tuple[list[int], list[int]]:
        return (
            [i for i in range(len(self.a)) if i not in self.of_a],
            [j for j in range(len(self.b)) if j not in self.of_b],
        )

    def result(self) -> Pairing:
        left_a, left_b = self.left()
        pairs = [Pair(self.a[i], self.b[j], rule) for i, (j, rule) in sorted(self.of_a.items())]
        return Pairing(pairs, [self.a[i] for i in left_a], [self.b[j] for j in left_b])


# -- names --------------------------------------------------------------------------------------------------

# What frameworks put before or between the words of a name, and what a norm is called when it is called nothing else.
_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_model|auto_model|wrapped|"
    r"backbone|model|transformer|bert|roberta|\d_?transformer|0(?=\.(?:auto_model|transformer)\.)|kernel_?model|"
    r"stateful\w*)\."
)
# GGUF's letters for the parts of a model that has several.
_PARTS = {"enc": "encoder", "dec": "decoder", "v": "vision", "a": "audio"}
_PART = re.compile(rf"^(?:{'|'.join(_PARTS)})(?=\.)")
_LAST = re.compile(r"\.(?:layernormalization|layer_normalization|rmsnorm|batchnormalization|add_1|add|mul_1|mul)$")
# A norm's part in its block, by what the common codebases and GGUF call it; the first that fits counts. Llama's
# post_attention_layernorm is the one before the feed-forward part unless that has its own: `placement.by_name` tells.
_ROLES = {
    "query": r"(?:q|query)_?(?:layer_?)?(?:norm|ln)|norm_?q",
    "key": r"(?:k|key)_?(?:layer_?)?(?:norm|ln)|norm_?k",
    "embedding": r"embed\w*\.(?:layer_?)?norm|\w*embed\w*_(?:layer_?)?norm|layernorm_embedding|token_embd_norm|emb_ln",
    # T5 numbers the parts of a block, of which a decoder's second looks at the encoder
    "cross attention": r"cross_attn_norm|encoder_attn_layer_norm|crossattention\.output\.layer_?norm|"
    r"decoder\.\S*layer\.1\.layer_norm",
    "after attention": r"post_attention_norm|post_self_attn_layernorm|attention\.output\.layer_?norm|attn_output_norm|"
    r"sa_layer_?norm|attn_post_norm",
    "after feed-forward": r"post_ffw_norm|post_feedforward_layernorm|output\.layer_?norm|layer_output_norm|"
    r"output_layer_?norm|post_mlp_layernorm|ffn_post_norm",
    "attention": r"input_layer_?norm|attn_norm|attention_norm|ln_?1|norm_?1|layernorm_before|norm_before|"
    r"self_attn_layer_norm|pre_attention_layernorm|operator_norm|layer\.0\.layer_norm",
    "feed-forward": r"ffn_norm|ln_?2|norm_?2|layernorm_after|norm_after|pre_feedforward_layernorm|pre_mlp_layernorm|"
    r"layer\.[12]\.layer_norm|mlp_norm|ff_norm",
    "first": r"pre_layer_?norm|pre_layrnorm|ln_pre|pre_ln",
    "final": r"norm_f|ln_f|final_?(?:layer_?)?norm|output_norm|ln_post|post_ln|post_layernorm|layer_?norm|norm",
}
_ROLE = [(role, re.compile(rf"(?:.*[._])?(?:{words})", re.IGNORECASE)) for role, words in _ROLES.items()]
_TOWERS = re.compile(r"decoder|vision|visual|audio|text")


def _plain(record: NormRecord) -> str:
    """Take off a name what wrappers added, and write all separators as dots."""
    name = re.sub(r"[./:]+", ".", record.name).strip(".").lower()
    before = ""
    while before != name:
        before, name = name, _LAST.sub("", _WRAPPERS.sub("", name))
    # TensorFlow writes layer_0 where others write layer.0
    return re.sub(r"\b(layer|layers|block|blocks|stage)_(\d+)", r"\1.\2", name)


class _Role:
    """A norm's place by its name: its tower, its block's numbers, its part in the block."""

    def __init__(self, records: Sequence[NormRecord]) -> None:
        self.names = frozenset(record.name for record in records)

    def __call__(self, record: NormRecord) -> Hashable | None:
        name = _PART.sub(lambda part: _PARTS[part[0]], _plain(record))
        numbers = tuple(int(n) for n in re.findall(r"(?<=\.)(\d{1,6})(?=\.)", f".{name}."))
        tower = tuple(dict.fromkeys(word.replace("visual", "vision") for word in _TOWERS.findall(name)))
        if re.search(r"post_attention_layernorm$", name):
            after = by_name(record.name, self.names) == "post"
            return tower, numbers, "after attention" if after else "feed-forward"
        role = next((role for role, pattern in _ROLE if pattern.fullmatch(name)), None)
        if role is None or (role == "final" and numbers):
            return None
        # a part's number, by which T5 tells its role, is no number of a block
        return tower, numbers[:1] if re.search(r"layer\.[012]\.layer_norm$", name) else numbers, role


# -- values -------------------------------------------------------------------------------------------------


def _values(dtype: str = "", plus: float = 0.0, transposed: bool = False) -> Callable[[NormRecord], Hashable | None]:
    """Make a key of gamma and beta; constant ones, which many norms share, are none."""

    def key(record: NormRecord) -> Hashable | None:
        if record.scale is None or record.scale.size < 2 or (transposed and len(record.scale.shape) < 2):
            return None
        gamma = _numbers(record.scale, dtype, plus, transposed)
        if np.all(gamma == gamma[0]):
            return None
        beta = b"" if record.shift is None else _numbers(record.shift, dtype, 0.0, transposed).tobytes()
        return gamma.tobytes(), beta

    return key


def _numbers(tensor: Tensor, dtype: str, plus: float, transposed: bool) -> Array:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    values = tensor.values()
    wide = (values.T if transposed else values).astype(np.float64).ravel() + plus
    with np.errstate(over="ignore"):  # what a narrower type cannot hold is infinite on both sides
        if plus:
            wide = wide.astype(np.float32).astype(np.float64)
        return wide.astype(dtype).astype(np.float64) if dtype else wide


def _width(record: NormRecord) -> int | None:
    if record.scale is not None:
        return record.scale.size
    return record.size if isinstance(record.size, int) else None
