# SPDX-License-Identifier: MIT
"""This file tells where in a model its norms stand: before or after a block's work, at the end, on queries and keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from layernorm.models.graph import Graph, Node
from layernorm.models.norm_record import NormRecord, Placement

# What the common codebases call norms that stand there; the first that fits counts.
_PLACES: dict[Placement, str] = {
    "qk": r"(?:^|[./_])(?:q|k|qk|query|key)_?(?:layer_?)?(?:norm|ln)\d*(?:$|[./_]) [./]norm_[qk]$",
    "embedding": r"""embed[a-z]*[./_]*(?:layer_?)?norm emb(?:ed)?_ln layernorm_embedding token_embd_norm
        patch_embed\w*[./]norm""",
    "final": r"""(?:^|[./])(?:norm_f|ln_f|ln_final|final_?(?:layer_?)?norm|ln_post|post_layernorm)$ output_norm$
        ^(?:[./]?(?:model|transformer|backbone|language_model)[./])*norm$ (?:model|backbone|encoder|decoder)[./]norm$
        (?:encoder|decoder)[./]layer_?norm$""",
    "post": r"""output[./]layer_?norm$ post_feedforward_layernorm post_ffw_norm post_self_attn_layernorm
        post_mlp_layernorm (?:sa|output)_layer_norm$ full_layer_layer_norm attn_post_norm layer_output_norm
        attn_output_norm$""",
    "pre": r"""input_layer_?norm attn_norm ffn_norm (?:^|[./_])ln_?[12]$ layernorm_(?:before|after)
        pre_feedforward_layernorm attention_norm$ \d[./]layer[./]\d[./]layer_norm$ operator_norm pre_mlp_layernorm""",
    "other": r"(?:q_a|kv_a)_(?:layer)?norm$ ssm_norm sub_norm$ mixer[./]norm$",
}
_NAMED = [(place, re.compile("|".join(words.split()), re.IGNORECASE)) for place, words in _PLACES.items()]
# A final_layer_norm in a numbered layer ends that layer alone.
_IN_BLOCK = re.compile(r"[./_]\d+[./]")
# What a name says surely; "before" and "after" are for the graph to tell where there is one.
_SURE = ("qk", "embedding", "final")
# What changes the look of a value and not its place; a cast, a layout, an activation that training alone has.
_THROUGH = ("Cast", "Identity", "Reshape", "Dropout", "Squeeze", "Unsqueeze", "QuantizeLinear", "DequantizeLinear")
_SKIPPING = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_LOOKUPS = ("Gather", "EmbedLayerNormalization")
_MOST_STEPS = 16
# A pattern may take the square of a name's length.
_MOST_READ = 300
# "last" until it is known whether the other norms stand before or after.
_Place = Placement | Literal["last"]


def by_name(name: str, names: frozenset[str] = frozenset()) -> Placement:
    """Tell a place by a norm's name, and by those of the other norms.

    Llama's post_attention_layernorm stands before the feed-forward part; it is a norm after attention only where that
    part has one of its own, or where none stands before attention.

    >>> by_name("model.layers.3.self_attn.q_norm"), by_name("transformer.ln_f"), by_name("layers.3.norm1")
    ('qk', 'final', 'unknown')
    """
    name = name[-_MOST_READ:]
    if match := re.search(r"post_attention_(?:layer)?norm$", name):
        block = name[: match.start()]
        after = f"{block}pre_feedforward_layernorm" in names or f"{block}ffn_norm" in names
        return "post" if after or not {f"{block}input_layernorm", f"{block}attn_norm"} & names else "pre"
    for place, pattern in _NAMED:
        if pattern.search(name) and not (place == "final" and _IN_BLOCK.search(name)):
            return place
    return "unknown"


def placed(graph: Graph, records: Sequence[NormRecord]) -> list[NormRecord]:
    """Give the records of a graph with the places that could be told, by name, else by what is around each norm."""
    neighbours = _Neighbours(graph)
    named = [by_name(record.name) for record in records]
    places = [p if p in _SURE else neighbours.place(r) for p, r in zip(named, records, strict=True)]
    # The last norm of a model reads a sum that nothing else reads, whether blocks begin or end with a norm.
    before, after = places.count("pre"), places.count("post")
    last: Placement = "final" if before else "post" if after else "unknown"
    return [
        replace(record, placement=last if place == "last" else place)
        for place, record in zip(places, records, strict=True)
    ]


class _Neighbours:
    """Who makes and who reads each value of a model."""

    def __init__(self, graph: Graph) -> None:
        self.makers: dict[str, Node] = {}
        self.readers: dict[str, list[Node]] = {}
        self.graph = graph
        self.joining: dict[str, bool] = {}
        for _, node in graph.walk():
            for name in node.outputs:
                self.makers[name] = node
            for name in set(node.inputs):
                self.readers.setdefault(name, []).append(node)

    def place(self, record: NormRecord) -> _Place:
        """Tell a place by structure: `pre` if what is normalized goes on beside the norm, `post` if through it."""
        if record.spec.kind not in ("layer", "rms"):
            return "other"
        maker = self.makers.get(record.output)
        if maker is not None and maker.op == "EmbedLayerNormalization":
            return "embedding"
        if maker is not None and maker.op in _SKIPPING:
            sums = [name for name in maker.outputs[3:4] if name]
            if any(self.readers.get(name) for name in sums):
                return "pre"
            return "post" if self.joins_a_sum(record.output) else "last"
        source = self.back(record.input)
        if source is None:
            return "pre" if self.goes_on(record) else "unknown"
        if source.op == "Add" and self.looked_up(source):
            return "embedding" if not self.goes_on(record) else "pre"
        if self.goes_on(record):
            return "pre"
        if source.op == "Add" and self.is_residual(source):
            return "post" if self.joins_a_sum(record.output) else "last"
        return "unknown"

    def back(self, name: str) -> Node | None:
        """Find the node that made a value, past those that only change its look."""
        for _ in range(_MOST_STEPS):
            node = self.makers.get(name)
            if node is None or node.op not in _THROUGH or not node.inputs:
                return node
            name = node.inputs[0]
        return None

    def onward(self, name: str) -> list[Node]:
        """Find the nodes that read a value, past those that only change its look."""
        found: list[Node] = []
        names = [name]
        for _ in range(_MOST_STEPS):
            readers = [node for n in names for node in self.readers.get(n, ())]
            found += [node for node in readers if node.op not in _THROUGH]
            names = [node.outputs[0] for node in readers if node.op in _THROUGH and node.outputs]
        return found

    def is_residual(self, node: Node) -> bool:
        """Tell an Add of two computed values from one of a bias."""
        return node.op == "Add" and not any(self.graph.constant(name) for name in node.inputs)

    def joins_a_sum(self, name: str) -> bool:
        """Tell whether a value is added to another computed one."""
        if name not in self.joining:  # many norms may read one value
            self.joining[name] = any(self.is_residual(n) or n.op in _SKIPPING for n in self.onward(name))
        return self.joining[name]

    def goes_on(self, record: NormRecord) -> bool:
        """Tell whether what is normalized is also added to, past the norm."""
        return self.joins_a_sum(record.input)

    def looked_up(self, node: Node) -> bool:
        """Tell whether a sum is of table entries alone."""
        waiting, steps = [node], 0
        while waiting and steps < _MOST_STEPS:
            steps += 1
            for name in waiting.pop().inputs:
                maker = self.back(name)
                if self.graph.constant(name) is not None or (maker is not None and maker.op in _LOOKUPS):
                    continue
                if maker is None or maker.op != "Add":
                    return False
                waiting.append(maker)
        return not waiting
