# SPDX-License-Identifier: MIT
"""This file tells where in a model its norms stand: before or after a block's work, at the end, on queries and keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from layernorm.models.graph import Graph, Node
from layernorm.models.norm_record import NormRecord, Placement

# What the common codebases call these. "Before" and "after" are not among them, for Llama's post_attention_layernorm
# stands before its feed-forward part; and a final_layer_norm in a numbered layer ends that layer alone.
_NAMED: tuple[tuple[re.Pattern[str], Placement], ...] = (
    (re.compile(r"(?i)(?:.*[./_])?(?:q|k|qk|query|key)_?(?:layer_?)?(?:norm|ln)\d*(?:[./].*)?"), "qk"),
    (re.compile(r"(?i).*(?:embed[a-z]*[./_]*(?:layer_?)?norm|emb(?:ed)?_ln).*"), "embedding"),
    (
        re.compile(
            r"(?i)(?!.*[./_]\d+[./])(?:.*[./])?"
            r"(?:ln_f|norm_f|ln_final|final_?(?:layer_?)?norm|output_norm|(?:model|backbone)[./]norm)"
        ),
        "final",
    ),
)
# What changes the look of a value and not its place; a cast, a layout, an activation that training alone has.
_THROUGH = ("Cast", "Identity", "Reshape", "Dropout", "Squeeze", "Unsqueeze", "QuantizeLinear", "DequantizeLinear")
_SKIPPING = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_LOOKUPS = ("Gather", "EmbedLayerNormalization")
_MOST_STEPS = 16
# A pattern may take the square of a name's length.
_MOST_READ = 300
# "last" until it is known whether the other norms stand before or after.
_Place = Placement | Literal["last"]


def by_name(name: str) -> Placement:
    """Tell a place by the norm's name alone.

    >>> by_name("model.layers.3.self_attn.q_norm"), by_name("transformer.ln_f"), by_name("layers.3.norm1")
    ('qk', 'final', 'unknown')
    """
    return next((place for pattern, place in _NAMED if pattern.fullmatch(name[-_MOST_READ:])), "unknown")


def placed(graph: Graph, records: Sequence[NormRecord]) -> list[NormRecord]:
    """Give the records of a graph with the places that could be told, by name, else by what is around each norm."""
    neighbours = _Neighbours(graph)
    named = [by_name(record.name) for record in records]
    places = [p if p != "unknown" else neighbours.place(r) for p, r in zip(named, records, strict=True)]
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
