# SPDX-License-Identifier: MIT
"""This file cuts out of a graph what depends on one value, the root, and makes of it a Trial that can be run.

The cone of a root ends at operators that no norm is written with (MatMul, Conv, Exp) and where another value joins in:
a residual, or a scale that a network computes.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from layernorm.models.claim import Trial
from layernorm.models.evaluate import (
    LARGEST,
    OPERATIONS,
    Array,
    cast_target,
    evaluate,
    is_usable,
    plain_number,
    promoted,
)
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import MOST_AXES, Tensor

WHOLE = ("InstanceNormalization", "BatchNormalization")  # used as a step of another norm
SQUARES = ("Pow", "Square", "SquaredDifference", "ReduceL2", "ReduceSumSquare", *WHOLE)
REDUCTIONS = ("ReduceMean", "ReduceSum", "GlobalAveragePool", "ReduceL2", "ReduceSumSquare", *WHOLE)
ROOTS = ("Sqrt", "Rsqrt", "Pow")
# Operators whose output has the type of what they work on, and those that rarely change its shape.
SHAPED = (
    "Abs", "Add", "BatchNormalization", "Clip", "Div", "Dropout", "Elu", "Erf", "Gelu", "HardSwish", "Identity",
    "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Mul", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt",
    "Sub", "Tanh",
)  # fmt: skip
KEEPING = (
    *SHAPED, "AveragePool", "Concat", "Conv", "ConvTranspose", "Expand", "Flatten", "Gather", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "MatMul", "MaxPool",
    "Pow", "Reshape", "Slice", "Softmax", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
LAYOUT = ("Cast", "CastLike", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
EPSILON_AT = ("Add", "Sum", "Sub", "Div", "Max", "Clip", "Where")

# A norm takes some 30 operations at most; a residual stream has more around it, and no cone is followed further.
MOST_NODES = 400
MOST_CANDIDATES = 24
SMALL = (2, 3, 5, 4, 6, 2, 2, 2)
# An array so small that its own shape may as well be taken.
LITTLE = 2**13


Dims = tuple[int | None, ...]


class Scope:
    """A graph with its edges: who makes a value, who reads it, and which values only constants decide."""

    def __init__(self, graph: Graph, outer: Scope | None) -> None:
        self.graph, self.outer = graph, outer
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self._fixed: set[str] = set()
        self._dims: dict[str, Dims | None] = {}
        for index, node in enumerate(graph.nodes):
            self.maker.update((name, index) for name in node.outputs if name)
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(index)
            if (
                node.op in OPERATIONS
                and not node.graphs
                and all(not name or self.is_fixed(name) for name in node.inputs)
            ):
                self._fixed.update(node.outputs)

    def is_fixed(self, name: str) -> bool:
        """Tell whether a value is a constant, or made from constants alone."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._fixed or name in scope.graph.constants:
                return True
            scope = scope.outer
        return False

    def dtype(self, name: str) -> str:
        """Give a value's type; where the file is silent, that of the weights it was made with."""
        for _ in range(MOST_CANDIDATES):
            said = self.graph.about(name)[0]
            node = self.made_by(name)
            if said != "unknown" or node is None:
                return said
            weights = [t for n in node.inputs if (t := self.graph.constant(n)) is not None and "float" in t.dtype]
            if to := cast_target(node):
                return to
            if node.op not in KEEPING:
                break
            if weights:
                return weights[0].dtype
            name = next((n for n in node.inputs if n and not self.is_fixed(n)), "")
        return "unknown"

    def dims(self, name: str) -> Dims | None:
        """Give a value's shape; where the file is silent, what its maker suggests, which may be wrong."""
        if name not in self._dims:
            self._dims[name] = self._suggested(name)
        return self._dims[name]

    def _suggested(self, name: str) -> Dims | None:
        for _ in range(MOST_CANDIDATES):
            said = self.graph.about(name)[1]
            node = self.made_by(name)
            if said is not None or node is None:
                return said
            last = self.graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
            if node.op == "Conv" and last is not None and len(last.shape) > 1:
                return None, last.shape[0], *(None,) * (len(last.shape) - 2)
            if node.op == "Reshape" and len(node.inputs) > 1:
                return self._lengths(node.inputs[1])
            if node.op not in SHAPED:
                break
            name = next((n for n in node.inputs if n and not self.is_fixed(n)), "")
        return None

    def _lengths(self, target: str) -> Dims | None:
        """Read what is fixed of the shape that a Reshape makes; it may be put together from single lengths."""
        if (tensor := self.graph.constant(target)) is not None:
            if not is_usable(tensor) or tensor.size > MOST_AXES:
                return None
            return tuple(int(n) if 0 < n < 2**63 else None for n in tensor.values().reshape(-1))
        node = self.made_by(target)
        if node is not None and node.op == "Cast" and node.inputs:
            node = self.made_by(node.inputs[0])
        if node is None or node.op != "Concat":
            return None
        parts = [self._lengths(name) if self.graph.constant(name) is not None else (None,) for name in node.inputs]
        return tuple(n for part in parts if part is not None for n in part)

    def made_by(self, name: str) -> Node | None:
        """Find the node of this graph that makes a value."""
        index = self.maker.get(name)
        return None if index is None else self.graph.nodes[index]

    def constant(self, name: str, drawn: bool = False) -> tuple[dict[str, Array], dict[str, Tensor]]:
        """Compute a fixed value: all values on the way to it, its own among them, and the file's constants behind.

        `drawn`: float constants of more than one value are drawn at random instead of read.
        """
        nodes, leaves = self.behind(name)
        values = {n: _drawn(t.name, t.shape) if drawn and _is_drawn(t) else _read(t)
                  for n, t in leaves.items() if is_usable(t)}  # fmt: skip
        return evaluate(nodes, values) if nodes else values, leaves

    def behind(self, name: str) -> tuple[list[Node], dict[str, Tensor]]:
        """Find what makes a fixed value: nodes in order of execution, and the file's constants that they start from."""
        if (own := self.graph.constant(name)) is not None:  # most are, and none is made of others
            return [], {name: own}
        nodes: list[tuple[int, int, Node]] = []
        leaves: dict[str, Tensor] = {}
        waiting, seen = [name], {name, ""}
        while waiting and len(seen) < MOST_NODES:
            wanted = waiting.pop()
            tensor = self.graph.constant(wanted)
            if tensor is not None:
                leaves[wanted] = tensor
                continue
            scope: Scope | None = self
            depth = 0
            while scope is not None and wanted not in scope.maker:
                scope, depth = scope.outer, depth - 1
            if scope is not None:
                index = scope.maker[wanted]
                nodes.append((depth, index, scope.graph.nodes[index]))
                fresh = [n for n in scope.graph.nodes[index].inputs if n not in seen]
                seen.update(fresh)
                waiting += fresh
        return [node for *_, node in sorted(nodes, key=lambda n: n[:2])], leaves


# Factors that a norm is written with, by their n.
_FACTORS: tuple[tuple[Callable[[float], float], Callable[[int], float]], ...] = (
    (lambda stored: 1 / stored, lambda n: 1 / n),
    (lambda stored: stored**2, lambda n: float(n**0.5)),
    (lambda stored: stored**-2, lambda n: float(n**-0.5)),
    (lambda stored: stored / (stored - 1), lambda n: n / (n - 1)),
)


def _read(tensor: Tensor) -> Array:
    """Read a constant; a lone 1/n, √n or n/(n − 1), rounded to its type, is taken for what it was rounded from."""
    values = tensor.values()
    if values.size != 1 or "float" not in tensor.dtype:
        return promoted(values)
    stored, kind = float(values.reshape(-1)[0]), values.dtype.type
    if not 1e-30 < stored < 1e30 or stored == round(stored):
        return promoted(values)
    for number_in, factor_of in _FACTORS:
        n = number_in(stored)
        if 1.5 < n < 2**52 and kind(factor_of(round(n))) == kind(stored):
            return np.full(values.shape, factor_of(round(n)))
    return promoted(values)


def _is_drawn(tensor: Tensor) -> bool:
    return tensor.size > 1 and "float" in tensor.dtype


@lru_cache(maxsize=16)  # a norm's parameters are read for each of its two or three roots, one after another
def _drawn(name: str, shape: tuple[int, ...]) -> Array:
    # positive, so that a root of it exists; the same array wherever the constant is read
    return np.random.default_rng(zlib.crc32(name.encode())).uniform(0.5, 1.5, shape)


@dataclass
class Cone:
    """What depends on one root, as far as norms go."""

    root: str
    nodes: list[int]
    trial: Trial
    claimed: list[Node]
    """Where x, or x less something, is divided by a root of a mean or sum of squares: a norm, by the look of it."""
    leaves: Mapping[str, Tensor]
    pins: dict[int, int] = field(default_factory=dict)
    """Lengths that parameters fix, by axis from the end (from the front: 1)."""

    def slice(self, scope: Scope, output: str) -> list[Node]:
        """Give the nodes between the root and an output, in order of execution, without those that compute shapes."""
        wanted, kept = {output}, []
        for index in reversed(self.nodes):
            node = scope.graph.nodes[index]
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        reached = {self.root}
        for node in kept[::-1]:
            if node.op not in ("Shape", "Size") and reached.intersection(node.inputs):
                reached.update(node.outputs)
        return [node for node in kept[::-1] if reached.intersection(node.outputs)]


def is_step(node: Node) -> bool:
    """Tell whether an operator that is a norm by itself can be a step of another: one that takes statistics."""
    return node.op == "InstanceNormalization" or (
        node.op == "BatchNormalization" and bool(node.attributes.get("training_mode"))
    )


def cone_of(scope: Scope, root: str, taken: set[int]) -> Cone | None:
    """Follow a value to what depends on it alone; None where nothing there looks like a norm."""
    nodes = scope.graph.nodes
    inside, wide = {root}, {root}
    squared: set[str] = set()
    reduced: set[str] = set()
    rooted: set[str] = set()
    kept: set[int] = set()
    like: set[str] = set()
    claimed: list[Node] = []
    candidates: list[str] = []
    waiting = list(scope.readers.get(root, ()))
    queued = set(waiting)
    heapq.heapify(waiting)
    while waiting and len(kept) < MOST_NODES and len(candidates) < MOST_CANDIDATES:
        index = heapq.heappop(waiting)
        node = nodes[index]
        if node.op not in OPERATIONS or ((node.op in WHOLE or id(node) in taken) and not is_step(node)):
            continue
        # statistics of what a norm may have given are another norm's, which has a cone of its own
        if node.op in REDUCTIONS and not is_step(node) and wide & rooted & {*node.inputs}:
            continue
        lacking = [name for name in node.inputs if name and name not in inside and not scope.is_fixed(name)]
        if lacking and node.op in ("Reshape", "Expand"):
            for name in lacking:
                _add_shapes(scope, name, inside, kept, like)
            lacking = [name for name in lacking if name not in inside]
        if lacking:
            continue
        kept.add(index)
        inside.update(node.outputs)
        fresh = [i for name in node.outputs for i in scope.readers.get(name, ()) if name and i not in queued]
        queued.update(fresh)
        for i in fresh:
            heapq.heappush(waiting, i)
        if node.op in ("Shape", "Size"):
            continue
        inputs = {name for name in node.inputs if name}
        squares = node.op in SQUARES or (node.op == "Mul" and node.inputs[0] == node.inputs[-1])
        if squares or inputs & squared:
            squared.update(node.outputs)
        if inputs & reduced or (node.op in REDUCTIONS and (squares or inputs & squared)):
            reduced.update(node.outputs)
        if inputs & rooted or node.op in ("ReduceL2", *WHOLE) or (node.op in ROOTS and inputs & reduced):
            rooted.update(node.outputs)
        if inputs & wide and (node.op in WHOLE or not (node.op in REDUCTIONS or node.op.startswith("Reduce"))):
            wide.update(node.outputs)
            if node.op in WHOLE or (node.op in ("Mul", "Div") and (inputs & rooted) - wide):
                claimed.append(node)
            if rooted.intersection(node.outputs):
                candidates.append(node.outputs[0])
    if not claimed:
        return None
    return _cut(scope, Cone(root, sorted(kept), Trial(root, (), {}, {}, {}, tuple(candidates)), claimed, {}), like)


def _add_shapes(scope: Scope, name: str, inside: set[str], kept: set[int], like: set[str]) -> None:
    """Take in a shape that is computed from values outside the cone, which are then held to be shaped like the root."""
    found: list[int] = []
    sources: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        index = scope.maker.get(waiting.pop())
        node = None if index is None else scope.graph.nodes[index]
        if index is None or node is None or node.op not in OPERATIONS or len(found) > 40:
            return
        found.append(index)
        if node.op == "Shape":
            sources.update(n for n in node.inputs if n not in inside)
            continue
        fresh = [n for n in node.inputs if n and n not in seen and n not in inside and not scope.is_fixed(n)]
        seen.update(fresh)
        waiting += fresh
    kept.update(found)
    like |= sources
    inside.update(output for index in found for output in scope.graph.nodes[index].outputs)


def _cut(scope: Scope, cone: Cone, like: set[str]) -> Cone:
    """Leave of a cone what its candidates need, and read or draw the constants that this takes."""
    nodes = scope.graph.nodes
    wanted, kept = set(cone.trial.candidates), []
    for index in reversed(cone.nodes):
        if wanted.intersection(nodes[index].outputs):
            kept.append(index)
            wanted.update(nodes[index].inputs)
    cone.nodes = kept[::-1]
    constants: dict[str, Array] = {}
    parameters: dict[str, Array] = {}
    numbers: dict[str, float] = {}
    leaves: dict[str, Tensor] = {}
    declared, own_shape = scope.dims(cone.root), []
    for index in cone.nodes:
        node = nodes[index]
        for place, name in enumerate(node.inputs):
            if not name or not scope.is_fixed(name):
                continue
            # scale and shift of a norm that is a step of another are mostly ones and zeros, and then not parameters
            values, behind = scope.constant(name, drawn=node.op not in WHOLE)
            constants.update((n, v) for n, v in values.items() if n == name)
            if name not in values:
                continue
            leaves |= behind
            if node.op in ("Reshape", "Expand") and place == 1 and tuple(values[name].reshape(-1).tolist()) == declared:
                own_shape.append(name)
            ordered = [n for n in (*behind, name) if n in values]
            parameters |= {n: values[n] for n in ordered if values[n].size > 1 and values[n].dtype.kind == "f"}
            if node.op in EPSILON_AT and values[name].size == 1:
                number = float(values[name].reshape(-1)[0])
                adds = node.op in ("Add", "Sum")
                if 0 < number < 1 or (adds and number in (0, 1)):
                    same = next(
                        (
                            n
                            for n in behind
                            if n in values and values[n].size == 1 and float(values[n].reshape(-1)[0]) == number
                        ),
                        name,
                    )
                    numbers[same] = number
            if node.op in WHOLE and place == 1:
                cone.pins[1] = values[name].size
            elif node.op in ("Add", "Sub", "Mul", "Div") and values[name].size > 1:
                cone.pins |= {k - values[name].ndim: n for k, n in enumerate(values[name].shape) if n > 1}
        if node.op in WHOLE:
            numbers[f"{node.where} epsilon"] = plain_number(node, "epsilon", 1e-5)
        if node.op == "Clip" and "min" in node.attributes:
            numbers[f"{node.where} min"] = plain_number(node, "min", 0.0)
    cone.leaves = leaves
    trial = cone.trial
    cone.trial = Trial(
        trial.root, tuple(nodes[i] for i in cone.nodes), constants, parameters, numbers, trial.candidates, tuple(like),
        tuple(own_shape),
    )  # fmt: skip
    return cone


def shapes(scope: Scope, cone: Cone) -> Iterator[tuple[int, ...]]:
    """Give shapes to try a root with: the file's own if it is little, else smaller ones, else the file's own."""
    declared = scope.dims(cone.root)
    tried: set[tuple[int, ...]] = set()
    for rank in (len(declared),) if declared is not None else _ranks(cone):
        said = declared or (None,) * rank
        pins = {axis % rank: n for axis, n in cone.pins.items() if -rank <= axis < rank}
        # a constant of several along a length of 1 makes the array wider, and is no scale
        pins = {a: n for a, n in pins.items() if said[a] != 1}
        agreed = pins | {a: n for a, n in enumerate(said) if n and a in pins}
        whole = set(range(rank))
        # three channels are not to stand for six where a constant deals six into three groups
        dealt = any(node.op in ("Reshape", "Flatten") for node in cone.trial.nodes)
        smaller = [{1, rank - 1}, {1}, {rank - 1}] if dealt else [set()]
        for kept in (whole, *smaller, whole):
            most = LITTLE if kept is whole and not tried else LARGEST
            for believed in (agreed, pins, {}):
                for widened in (True, False):  # a length of 1 hides whether statistics are taken along it
                    shape = tuple(
                        believed[a] if a in believed else _length(a, n, a in kept, widened) for a, n in enumerate(said)
                    )
                    if shape not in tried and 0 < math.prod(shape) <= most:
                        tried.add(shape)
                        yield shape


def _length(axis: int, said: int | None, kept: bool, widened: bool) -> int:
    small = SMALL[min(axis, len(SMALL) - 1)]
    free = said is None or (said == 1 and widened) or (said > small and not kept)
    return small if said is None or free else said


def _ranks(cone: Cone) -> list[int]:
    least = max([-axis for axis in cone.pins if axis < 0] + [2])
    for node in cone.trial.nodes:
        if node.op in WHOLE:
            least = max(least, 3)
        if isinstance(perm := node.attributes.get("perm"), (list, tuple)):
            return [len(perm)] if len(perm) <= MOST_AXES else []
    return [rank for rank in (3, 4, 2, 5) if rank >= least] or [least]
