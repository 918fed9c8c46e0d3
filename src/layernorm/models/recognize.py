# SPDX-License-Identifier: MIT
"""This file recognizes norms written as loose operations, by what they compute and not by how it is spelled.

A reduction over squares whose root divides what it was taken from is a claim; a claim becomes a record when its
operations and the reference agree on five inputs (claim.py), and is listed as unidentified when they do not.

What is not listed, though it divides by a root of squares: x / ‖x‖ without a scale, which is how embeddings and
cosines are made and normalizes no layer; with a scale it is. A modulation that the network computes (adaptive layer
norm) is no part of the norm, which then has no scale. A scale by one number, such as attention's, is none either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from layernorm.models.claim import MOST_NUMBERS, Fit, Miss, Parameter, Trial, again, fit
from layernorm.models.cone import LAYOUT, REDUCTIONS, WHOLE, Cone, Scope, cone_of, is_step, shapes
from layernorm.models.decimals import shortest
from layernorm.models.evaluate import LARGEST, cast_target, is_usable
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import Tensor
from layernorm.models.names import name_of
from layernorm.models.norm_record import Evidence, NormRecord, Unidentified
from layernorm.spec.norm_spec import UNKNOWN, Axes, NormSpec, Unknown, plain_axes

# From a reduction back to what is normalized: a square, a difference, a cast, a reshape or two.
MOST_STEPS = 8
# A root that was tried costs 10 to 100 ms.
MOST_SHAPES = 8
# What trying may cost in one model, in tenths of a millisecond: some thousand norms of which no two are alike.
MOST_SPENT = 100_000


class Recognized(NamedTuple):
    """What was found in a graph and in the bodies inside it."""

    norms: list[NormRecord]
    unidentified: list[Unidentified]
    explained: set[int]
    """Ids of the nodes that the norms consist of. A fused operator among them is a step of a larger norm (an
    InstanceNormalization between two Reshapes is a group norm), and no norm of its own."""


class _Tried(NamedTuple):
    cone: Cone
    fits: list[Fit]
    why: str


@dataclass
class _Known:
    """What was tried in the graphs of a model, by what makes cones alike, and what all that was tried has cost."""

    tried: dict[object, tuple[tuple[str, ...], _Tried]] = field(default_factory=dict)
    spent: int = 0


class _Claim(NamedTuple):
    """A node that looks like a norm's division, and why it was not confirmed."""

    node: Node
    why: str


def recognize(graph: Graph, taken: set[int]) -> Recognized:
    """Find the norms that are written as loose operations.

    `taken` are the ids of nodes that fused operators explain already.
    """
    found = Recognized([], [], set())
    known = _Known()
    for scope in _scopes(graph):
        _Search(scope, taken, found, known).run()
    return found


def _scopes(graph: Graph) -> Iterator[Scope]:
    waiting: list[tuple[Graph, Scope | None]] = [(graph, None)]
    while waiting:
        body, outer = waiting.pop()
        scope = Scope(body, outer)
        yield scope
        waiting += [(inner, scope) for node in body.nodes for inner in node.graphs]


class _Search:
    """One graph's reductions, each followed to its root once."""

    def __init__(self, scope: Scope, taken: set[int], found: Recognized, known: _Known) -> None:
        self.scope, self.taken, self.found, self.known = scope, taken, found, known
        self.tried: dict[str, _Tried | None] = {}
        self.claims: list[_Claim] = []
        self.ended: set[str] = set()

    def run(self) -> None:
        """Add this graph's norms to what was found."""
        for node in self.scope.graph.nodes:
            usable = is_step(node) or (node.op not in WHOLE and id(node) not in self.taken)
            if node.op in REDUCTIONS and node.inputs and usable and id(node) not in self.found.explained:
                self._follow(node)
        said: set[int] = set()
        for node, why in self.claims:
            # a fused norm has a record of its own
            if node.op not in WHOLE and not any(id(node) in seen for seen in (self.found.explained, self.taken, said)):
                said.add(id(node))
                self.found.unidentified.append(Unidentified(_address([node]), why))

    def _follow(self, reduction: Node) -> None:
        best: tuple[tuple[tuple[int, bool], int], _Tried] | None = None
        for distance, root, differs in self._roots(reduction):
            if root not in self.tried:
                self.tried[root] = self._try(root)
            tried = self.tried[root]
            if tried is None:
                continue
            if not tried.fits:
                self.claims += [_Claim(node, tried.why) for node in tried.cone.claimed[:1]]
                # d = x − m over a root of its squares is an RMS norm of d, but with x's own mean in d no norm is meant
                if differs and best is not None and {*map(id, tried.cone.claimed)} & {*map(id, best[1].cone.claimed)}:
                    return
                continue
            rank = max(f.strength for f in tried.fits), distance
            if best is None or rank > best[0]:
                best = rank, tried
        if best is not None:
            self._record(best[1])

    def _roots(self, reduction: Node) -> Iterator[tuple[int, str, bool]]:
        """Go back from a reduction to the values that may be what is normalized, each with a preference.

        Of x and its reshaped copy the first is preferred, for the norm ends in x's shape; of x and what x was made
        from by arithmetic, the nearer. Each says too whether a difference of computed values was passed.
        """
        name, distance, arithmetic, differs = reduction.inputs[0], 0, 0, False
        for _ in range(MOST_STEPS):
            if not name or self.scope.is_fixed(name):
                return
            node = self.scope.made_by(name)
            inputs = node.inputs if node is not None else ()
            square = node is not None and (
                node.op in ("Pow", "Square", "Abs", "SquaredDifference")
                or (node.op == "Mul" and inputs[0] == inputs[-1])
            )
            if not square:
                yield (-arithmetic if arithmetic else distance), name, differs
            if node is None or id(node) in self.taken or not inputs:
                return
            if node.op in LAYOUT:
                distance += 1
            elif not square and node.op not in ("Sub", "Div", "Mul", "Transpose"):
                return
            elif not square:
                arithmetic += 1
                differs |= node.op == "Sub" and not any(self.scope.is_fixed(n) for n in inputs)
            name = next((n for n in inputs if n and not self.scope.is_fixed(n)), "")

    def _try(self, root: str) -> _Tried | None:
        """Run a root's cone in the shapes it may have; None where nothing there looks like a norm."""
        cone = cone_of(self.scope, root, self.taken)
        if cone is None:
            return None
        alike = _signature(self.scope, cone)
        if alike is not None and alike.key in self.known.tried:
            names, before = self.known.tried[alike.key]
            here = dict(zip(names, alike.names, strict=True))
            moved = [_moved(f, here, before.cone.trial, cone.trial) for f in before.fits]
            if all(moved) and (moved or _numbers(before.cone.trial) == _numbers(cone.trial)):
                return _Tried(cone, [f for f in moved if f is not None], before.why)
        best: list[Fit] = []
        nearest: Miss | None = None
        for attempt, shape in enumerate(shapes(self.scope, cone)):
            self.known.spent += _cost(cone.trial, shape)
            if attempt == MOST_SHAPES or self.known.spent > MOST_SPENT:
                break
            fits, misses = fit(cone.trial, shape)
            best = max(best, fits, key=lambda fits: max((f.strength for f in fits), default=(-1, False)))
            if any(f.scale for f in best) or (best and not cone.trial.parameters):
                break
            nearest = min([*misses, *([nearest] if nearest else [])], key=lambda m: m.error, default=None)
        if not best and self.known.spent > MOST_SPENT:
            return _Tried(cone, [], "looks like a norm, but trying those before it took all the time that one file has")
        why = "looks like a norm, but cannot be run on small arrays of the shapes that it may have"
        tried = _Tried(cone, best, f"looks like a norm, but {nearest.why}" if nearest else why)
        tried = tried._replace(fits=_ends(self.scope, tried))
        if alike is not None:
            self.known.tried[alike.key] = alike.names, tried
        return tried

    def _record(self, tried: _Tried) -> None:
        for found in tried.fits:
            nodes = tried.cone.slice(self.scope, found.output)
            if found.output in self.ended or _is_fused(found, nodes):
                continue
            self.ended.add(found.output)
            self.found.explained.update(map(id, nodes))
            if found.spec.spread != "l2" or found.scale:
                self.found.norms.append(_record_of(self.scope, tried.cone, found, nodes))


def _cost(trial: Trial, shape: tuple[int, ...]) -> int:
    """Say what trying one shape takes: runs of the nodes, and of the reference for each number that may be epsilon."""
    once = len(trial.nodes) + 12 + 8 * min(len(trial.numbers), MOST_NUMBERS)
    return len(trial.candidates) * once * (1 + math.prod(shape) // 4096)


class _Alike(NamedTuple):
    """What two cones share that differ in names alone, as the layers of one model do, and the names in one order."""

    key: object
    names: tuple[str, ...]


def _signature(scope: Scope, cone: Cone) -> _Alike | None:
    """Say what a cone's fits follow from, without names; None where the values of parameters take part."""
    trial = cone.trial
    if not trial.parameters.keys() <= cone.leaves.keys() or any(n.op in WHOLE for n in trial.nodes):
        return None
    number: dict[str, int] = {}

    def told(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(number.setdefault(name, len(number)) for name in names)

    nodes = tuple((n.op, repr(sorted(n.attributes.items())), told(n.inputs), told(n.outputs)) for n in trial.nodes)
    lone = (
        (told([n]), a.shape, a.dtype.str, b"" if 0 < trial.numbers.get(n, 0) < 1 else a.tobytes())
        for n, a in trial.constants.items()
        if n not in trial.parameters
    )
    key = (
        nodes, tuple(lone), tuple((told([n]), a.shape) for n, a in trial.parameters.items()),
        tuple((told([n]), 0 < value < 1 or value) for n, value in trial.numbers.items()), told([trial.root]),
        told(trial.candidates),
        told(trial.like), told(trial.own_shape), scope.dims(cone.root), tuple(cone.pins.items()),
    )  # fmt: skip
    return _Alike(key, tuple(number))


def _numbers(trial: Trial) -> tuple[float, ...]:
    return tuple(trial.numbers.values())


def _moved(found: Fit, names: Mapping[str, str], before: Trial, trial: Trial) -> Fit | None:
    """Give a fit of the same operations for other names; where numbers differ too it is proved anew, or None."""
    scale, shift = (p and p._replace(name=names[p.name]) for p in (found.scale, found.shift))
    eps = found.eps and names[found.eps]
    moved = replace(found, output=names[found.output], scale=scale, shift=shift, eps=eps)
    if _numbers(before) == _numbers(trial):
        return moved
    value = found.spec.eps
    if found.eps and eps and before.numbers[found.eps] and isinstance(value, float):
        value *= trial.numbers[eps] / before.numbers[found.eps]
    return again(trial, moved, value)


def _ends(scope: Scope, tried: _Tried) -> list[Fit]:
    """Of fits that follow from each other keep the first with the most parameters; branches each have their own."""
    fits = {f.output: f for f in tried.fits}
    above: dict[str, set[str]] = {}
    for node in (scope.graph.nodes[i] for i in tried.cone.nodes):
        seen = {n for name in node.inputs for n in (*above.get(name, ()), name) if n in fits}
        above.update((name, seen) for name in node.outputs)
    kept = []
    for name, f in fits.items():
        stronger_below = any(name in above[other] and fits[other].strength > f.strength for other in fits)
        as_strong_above = any(fits[other].strength >= f.strength for other in above[name])
        if not stronger_below and not as_strong_above:
            kept.append(f)
    return kept


def _is_fused(found: Fit, nodes: list[Node]) -> bool:
    """Tell a fused norm that stands alone, and is a step of no other."""
    whole = [n.op for n in nodes if n.op in WHOLE]
    rest = range(2, len(found.shape))
    own = {"InstanceNormalization": (*rest,), "BatchNormalization": (0, *rest)}
    alone = len(whole) == 1 and all(n.op in (*LAYOUT, *WHOLE, "Shape") for n in nodes)
    return alone and found.spec.groups is None and plain_axes(found.spec) == own[whole[0]]


# -- the record -------------------------------------------------------------------------------------------


def _record_of(scope: Scope, cone: Cone, found: Fit, nodes: list[Node]) -> NormRecord:
    spec = spelled(found.spec, len(found.shape))
    reduction = next(n for n in nodes if n.op in REDUCTIONS)
    agreed = Evidence(
        "structure", f"{len(nodes)} operations that agree with the reference to {found.worst:.0e} on five inputs"
    )
    evidence = dict.fromkeys(("centered", "spread", "eps_at", "ddof", "statistics", "variance_by"), agreed)
    evidence["axes"] = Evidence("structure", f"{_address([reduction])}: the values that change with one of them")
    if spec.groups is not None:
        evidence |= dict.fromkeys(("channel_axis", "groups", "group_order"), evidence["axes"])
    if found.eps is not None and isinstance(spec.eps, float):
        attribute = not scope.is_fixed(found.eps)
        evidence["eps"] = Evidence("attribute" if attribute else "constant", found.eps)
        spec = replace(spec, eps=_written(scope, found.eps, spec.eps))
    for role, parameter in (("scale", found.scale), ("shift", found.shift)):
        if parameter is None:
            evidence[f"{role}_axes"] = agreed
        else:
            evidence[f"{role}_axes"] = Evidence("shape", f"{parameter.name}")
            evidence |= {"scale_offset": Evidence("structure", "1 is added")} if parameter.offset else {}
    unread = _unread(scope, found)
    left: dict[str, Any] = dict.fromkeys(unread, UNKNOWN)
    spec, evidence = replace(spec, **left), evidence | unread
    spec, evidence = _rounding(scope, cone.root, spec, evidence, nodes, found)
    scale, shift = _tensor(scope, found.scale), _tensor(scope, found.shift)
    if found.shift and found.shift.shift_as != "itself" and shift is not None:
        shift = _changed(shift, scale if found.shift.shift_as == "times scale" else None, spec)
    return NormRecord(
        name=_name((found.scale, found.shift), nodes, spec, _position(scope, nodes)), where=_address(nodes),
        form="function" if any(n.function for n in nodes) else "decomposed", spec=spec, evidence=evidence,
        dtype=scope.dtype(cone.root), size=_size(scope, cone, found),
        scale=scale, shift=shift, output=_after(scope, found.output), input=cone.root,
        node=_module(nodes),
    )  # fmt: skip


def spelled(spec: NormSpec, ndim: int) -> NormSpec:
    """Write axes counted from the front as people do: `(-1,)` for a layer norm, `("2:",)` for an instance norm."""
    axes = plain_axes(spec)
    carried = {
        a for said in (spec.scale_axes, spec.shift_axes) if isinstance(said, tuple) for a in said if isinstance(a, int)
    }
    trailing = axes == tuple(range(axes[0], ndim))

    def last(said: Any) -> Any:
        return tuple(a - ndim for a in said) if isinstance(said, tuple) else said

    rest: Axes
    if spec.groups is not None:
        channel = spec.channel_axis
        rest = ("1:",) if axes == tuple(range(1, ndim)) else axes
        if isinstance(channel, int) and ndim > 2 and channel == ndim - 1:
            return replace(
                spec, axes=rest, channel_axis=-1, scale_axes=last(spec.scale_axes), shift_axes=last(spec.shift_axes)
            )
        return replace(spec, axes=rest)
    if trailing and axes[0] == 2 and ndim > 2 and (carried == {1} or (not carried and ndim > 3)):
        return replace(spec, axes=("2:",))
    if axes == (0, *range(2, ndim)) and carried == {1}:
        return replace(spec, axes=(0, "2:") if ndim > 2 else (0,))
    if trailing and carried.issubset(axes):
        return replace(spec, axes=last(axes), scale_axes=last(spec.scale_axes), shift_axes=last(spec.shift_axes))
    if carried == {ndim - 1} and ndim - 1 not in axes:
        return replace(spec, scale_axes=last(spec.scale_axes), shift_axes=last(spec.shift_axes))
    return spec


def _unread(scope: Scope, found: Fit) -> dict[str, Evidence]:
    """Say why a scale or shift that follows the norm was not tried: its constant is no array to compute with."""
    output = found.output
    said: dict[str, Evidence] = {}
    for op, parameter, fields in (
        ("Mul", found.scale, ("scale_axes", "scale_offset")),
        ("Add", found.shift, ("shift_axes",)),
    ):
        after = scope.graph.nodes[scope.readers[output][0]] if len(scope.readers.get(output, ())) == 1 else None
        fixed = [n for n in after.inputs if n and scope.is_fixed(n)] if after is not None else []
        if after is None or after.op != op or parameter is not None or not fixed or not after.outputs:
            continue
        strange = next((t for n in fixed for t in scope.behind(n)[1].values() if not is_usable(t)), None)
        if strange is not None:
            why = f"{strange.name} is {strange.dtype} of shape {strange.shape}, which is not tried"
            most = f"numbers are, {LARGEST} at most"
            said |= dict.fromkeys(fields, Evidence("unknown", f"{why}: {most}"))
        elif said:  # a shift that could be read, of a product that could not
            said |= dict.fromkeys(fields, Evidence("unknown", f"{fixed[0]} comes after a scale that is not tried"))
        output = after.outputs[0]
    return said


def _rounding(
    scope: Scope, root: str, spec: NormSpec, evidence: dict[str, Evidence], nodes: list[Node], found: Fit
) -> tuple[NormSpec, dict[str, Evidence]]:
    """Read from the casts in which type the statistics are kept, and what is rounded where."""
    if whole := next((n for n in nodes if n.op in WHOLE), None):
        its = Evidence("unknown", f"{_address([whole])} leaves it to the runtime")
        names = ("stats_dtype", "cast_before_scale", "round_each", "variance_by")
        return replace(
            spec, stats_dtype=UNKNOWN, cast_before_scale=UNKNOWN, round_each=UNKNOWN, variance_by=UNKNOWN
        ), evidence | dict.fromkeys(names, its)  # fmt: skip
    reduction = next(n for n in nodes if n.op in REDUCTIONS)
    cast = _cast_between(scope, root, reduction.inputs[0])
    target = cast_target(cast) if cast is not None else None
    stats: Any = (
        target if target in ("float16", "bfloat16", "float32", "float64") else "input" if target is None else UNKNOWN
    )
    evidence["stats_dtype"] = Evidence(
        "structure", f"{_address([cast])} to {target}" if cast is not None else "no Cast"
    )
    computed = scope.dtype(root) if stats == "input" else str(stats)
    # a chain of float32 steps stays within a few units of its exact value, one of half precision does not
    each: Any = UNKNOWN if computed == "unknown" else computed in ("float16", "bfloat16")
    rounded = _cast_before(scope, nodes, found.scale or found.shift)
    evidence["cast_before_scale"] = Evidence(
        "structure", _address([rounded]) if rounded is not None else "no Cast before the scale"
    )
    evidence["round_each"] = Evidence("structure", f"operations in {computed}")
    return replace(spec, stats_dtype=stats, cast_before_scale=rounded is not None, round_each=each), evidence


def _cast_before(scope: Scope, nodes: list[Node], parameter: Parameter | None) -> Node | None:
    """Find the Cast between the normalized values and the multiplication by the scale."""
    if parameter is None:
        return None
    for node in reversed(nodes):
        fixed = [n for n in node.inputs if n and scope.is_fixed(n)]
        if node.op in ("Mul", "Add") and any(parameter.name in (n, *scope.behind(n)[1]) for n in fixed):
            return _cast_between(scope, "", next((n for n in node.inputs if n not in fixed), ""))
    return None


def _cast_between(scope: Scope, start: str, end: str) -> Node | None:
    """Find the last Cast on the way to a value from another; without another, the one just before it."""
    for _ in range(MOST_STEPS):
        node = scope.made_by(end)
        if node is None or end == start or (not start and node.op not in LAYOUT):
            return None
        if cast_target(node) or node.op == "CastLike":
            return node
        end = next((n for n in node.inputs if n and not scope.is_fixed(n)), "")
    return None


def _after(scope: Scope, output: str) -> str:
    """Follow an output through casts that only it has, to the value that the rest of the graph reads."""
    for _ in range(MOST_STEPS):
        readers = scope.readers.get(output, ())
        node = scope.graph.nodes[readers[0]] if len(readers) == 1 and output not in scope.graph.outputs else None
        if node is None or node.op not in ("Cast", "Identity") or not node.outputs:
            break
        output = node.outputs[0]
    return output


def _size(scope: Scope, cone: Cone, found: Fit) -> int | Unknown:
    """Count what shares one set of statistics, if the file fixes it."""
    declared = scope.dims(cone.root) or (None,) * len(found.shape)
    size = 1
    for a in plain_axes(found.spec):
        pinned = found.shape[a] if {a - len(found.shape), a} & cone.pins.keys() else None
        length = declared[a] if a < len(declared) and declared[a] else pinned
        if length is None:
            return UNKNOWN
        size *= length
    return size // found.spec.groups if isinstance(found.spec.groups, int) else size


def _written(scope: Scope, name: str, value: float) -> float:
    """Give an epsilon as the decimal that reads back as the stored number in its stored type."""
    tensor = scope.graph.constant(name)
    if tensor is not None:
        return shortest(value, tensor.dtype)
    decimal = shortest(value)  # an attribute, or computed from constants, perhaps in more digits
    return decimal if np.float32(decimal) == value else value


def _tensor(scope: Scope, parameter: Parameter | None) -> Tensor | None:
    """Give a parameter as the file holds it, or as its constants make it."""
    if parameter is None:
        return None
    name = parameter.name
    if (tensor := scope.graph.constant(name)) is not None:
        return tensor
    shape = scope.constant(name, drawn=True)[0][name].shape
    return Tensor(name, shape, "float64", lambda: scope.constant(name)[0][name])


def _changed(shift: Tensor, scale: Tensor | None, spec: NormSpec) -> Tensor:
    """Give the shift of x̂·γ − β, or of (x̂ + β)·γ, as the term that is added."""
    if scale is None:
        return Tensor(f"-{shift.name}", shift.shape, shift.dtype, lambda: -shift.values())
    offset = 1 if spec.scale_offset == 1 else 0
    return Tensor(
        f"{shift.name}·{scale.name}", shift.shape, shift.dtype,
        lambda: shift.values() * (scale.values() + np.asarray(offset, scale.values().dtype)).reshape(shift.shape),
    )  # fmt: skip


def _address(nodes: list[Node]) -> str:
    """Say where operations stand: the first, and the last."""
    first, last = nodes[0], nodes[-1]
    start = f"{first.where or first.name or first.outputs[0]} {first.op}"
    return start if len(nodes) == 1 else f"{start} … {last.where or last.name or last.outputs[0]} {last.op}"


def _position(scope: Scope, nodes: list[Node]) -> str:
    return nodes[-1].where or str(scope.maker[nodes[-1].outputs[0]])


def _name(parameters: Iterable[Parameter | None], nodes: Iterable[Node], spec: NormSpec, position: str) -> str:
    """Name a norm after its parameters, else after the module that its nodes name, else what and where it is."""
    return name_of([p.name for p in parameters if p is not None], _module(nodes), f"{spec.kind}@{position}")


def _module(nodes: Iterable[Node]) -> str:
    names = [n.name for n in nodes if n.name]
    shared = zip(*(name.split("/")[:-1] for name in names), strict=False)
    return "/".join(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, shared)).strip("/")
