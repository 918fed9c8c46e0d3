# SPDX-License-Identifier: MIT
"""This file defines a model's graph as the recognizer sees it: ONNX's operators and names, whatever file it is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from layernorm.models.model_file import Tensor


@dataclass(slots=True)
class Node:
    """One operation. Names of values are unique in a graph and the graphs inside it; "" is an input left out."""

    op: str
    """ONNX's name of the operator; a format with other operators gives the ONNX name of the same meaning."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Plain values: int, float, str, bytes, lists of them, `Tensor`; floats as the file stores them (float32)."""
    name: str = ""
    domain: str = ""
    where: str = ""
    """An address for people, unique in the file: `graph/node[17]`."""
    version: int = 0
    """The operator set's version that this node follows."""
    function: str = ""
    """Of a node that a function's body gave: the function's name."""
    graphs: tuple[Graph, ...] = ()
    """The bodies of an If, Loop or Scan."""


@dataclass(slots=True)
class Graph:
    """Operations in the order of execution, and what they start from."""

    nodes: list[Node]
    constants: dict[str, Tensor]
    """Initializers and the outputs of Constant nodes (which are not among the nodes)."""
    inputs: dict[str, tuple[str, tuple[int | None, ...] | None]]
    """Name → dtype and shape; None stands for a length, or a shape, that is not fixed."""
    outputs: tuple[str, ...]
    values: dict[str, tuple[str, tuple[int | None, ...] | None]] = field(default_factory=dict)
    """What the file says of values between: dtype and shape, which may be wrong."""
    parent: Graph | None = None

    def walk(self) -> Iterator[tuple[Graph, Node]]:
        """Give every node with the graph that it stands in, bodies after the node that holds them.

        >>> [n.op for _, n in Graph([Node("Relu", ("x",), ("y",))], {}, {}, ("y",)).walk()]
        ['Relu']
        """
        waiting: list[tuple[Graph, Iterator[Node]]] = [(self, iter(self.nodes))]
        while waiting:
            graph, nodes = waiting[-1]
            node = next(nodes, None)
            if node is None:
                waiting.pop()
                continue
            yield graph, node
            waiting += [(body, iter(body.nodes)) for body in reversed(node.graphs)]

    def constant(self, name: str) -> Tensor | None:
        """Find a constant here or in a graph around this one."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.constants:
                return graph.constants[name]
            graph = graph.parent
        return None

    def about(self, name: str) -> tuple[str, tuple[int | None, ...] | None]:
        """Give the dtype and shape of a value, `unknown` and None where the file does not say."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.constants:
                return graph.constants[name].dtype, graph.constants[name].shape
            for known in (graph.inputs, graph.values):
                if name in known:
                    return known[name]
            graph = graph.parent
        return "unknown", None
