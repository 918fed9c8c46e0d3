# SPDX-License-Identifier: MIT
"""This file says how far the integers that a model keeps may move what a norm gives."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from layernorm.models.evaluate import Array, evaluate, promoted
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import NormRecord


def step_of(parameter: Tensor | None, model: ModelFile) -> float:
    """Give the distance between neighbouring values of a parameter; 0 if it is kept as floats.

    A parameter read through its scale bears the name of the integers that it was made of, which are in the file under
    that name; (v − v′)/(q − q′) is the scale, whatever the zero point.
    """
    if parameter is None:
        return 0.0
    stored = model.tensors.get(parameter.name)
    if stored is None or "int" not in stored.dtype or "int" in parameter.dtype or stored.shape != parameter.shape:
        return 0.0
    whole, values = stored.values().astype(np.float64).ravel(), parameter.values().astype(np.float64).ravel()
    if not whole.size or not np.isfinite(values).all():
        return 0.0
    high, low = int(np.argmax(whole)), int(np.argmin(whole))
    if whole[high] == whole[low]:  # one value, of which q·scale is all that is known
        return float(abs(values[0]) / max(abs(whole[0]), 1.0))
    return float(abs(values[high] - values[low]) / (whole[high] - whole[low]))


def steps_in(graph: Graph | None) -> dict[str, float]:
    """Give the values of a graph that are rounded to integers of a known scale, each with that scale."""
    found = {}
    for inside, node in graph.walk() if graph is not None else ():
        scale = inside.constant(node.inputs[1]) if node.op == "QuantizeLinear" and len(node.inputs) > 1 else None
        if scale is not None and node.outputs:
            found[node.outputs[0]] = float(np.max(np.abs(scale.values().astype(np.float64)), initial=0.0))
    return found


def coarseness(norm: NormRecord, model: ModelFile, x: Array, steps: Mapping[str, float]) -> Array | float:
    """Say how far rounding to integers inside a norm may move each of its results; 0 where nothing is rounded there.

    The norm's operations are computed in float64 on x, and again with each rounded value half a step off: all of it to
    one side, which moves sums most, and away from 0, which moves squares most. The changes are added. Infinite where
    that cannot be computed, so that nobody is accused.
    """
    graph = model.graph
    nodes = _between(graph, norm) if graph is not None and norm.input else []
    rounded = [(i, n) for i, node in enumerate(nodes) for n in node.outputs if steps.get(n) and n != norm.output]
    if graph is None or not rounded:
        return 0.0
    try:
        names = {name for node in nodes for name in node.inputs if name}
        held = {name: promoted(t.values()) for name in names if (t := graph.constant(name)) is not None}
        values = evaluate(nodes, {**held, norm.input: promoted(x)})
        y = values[norm.output]
        moved = np.zeros_like(y)
        for i, name in rounded:
            for way in (np.ones_like(values[name]), np.sign(values[name])):
                changed = {**held, norm.input: values[norm.input]}
                changed |= {out: values[out] for node in nodes[: i + 1] for out in node.outputs if out in values}
                changed[name] = values[name] + way * steps[name] / 2
                with np.errstate(all="ignore"):
                    moved = moved + np.abs(evaluate(nodes[i + 1 :], changed)[norm.output] - y)
    except (KeyError, ValueError):
        return math.inf
    return np.where(np.isfinite(moved), moved, math.inf)


def _between(graph: Graph, norm: NormRecord) -> list[Node]:
    """List what leads from a norm's input to its output, in order."""
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    waiting, found = [norm.output], set()
    while waiting:
        name = waiting.pop()
        place = makers.get(name)
        if name != norm.input and place is not None and place not in found:
            found.add(place)
            waiting += graph.nodes[place].inputs
    return [graph.nodes[i] for i in sorted(found)]
