# SPDX-License-Identifier: MIT
"""This file reads norms that are one operator of ONNX or ONNX Runtime: the whole spec, and where it was read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from layernorm.models.decimals import shortest
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import Tensor
from layernorm.models.names import name_of
from layernorm.models.norm_record import Evidence, Form, NormRecord, Source, Unidentified
from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import UNKNOWN, Axes, NormSpec, Unknown, plain_axes

STANDARD = ""
RUNTIME = "com.microsoft"
# Types by the numbers that ONNX gives them.
FLOATS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
# In these a chain of rounded steps stays within a few units in the last place of its exact value.
WIDE = ("float32", "float64")
NEVER = 10**6
_LIKE_A_NORM = re.compile(r"(?i).*norm(?:ali[sz]ation)?(?:_?v?\d+)?")
_PARAMETERS = ("scale", "shift", "mean", "variance")


def record_of(graph: Graph, node: Node) -> NormRecord | Unidentified | None:
    """Read a norm from the node that computes it.

    None is for a node that is no norm; `Unidentified` for one that is called a norm, with the reason that its spec
    cannot be told.
    """
    operator = OPERATORS.get(node.op)
    ours = operator is not None and (node.domain == STANDARD or (node.domain == RUNTIME and operator.runtime))
    if operator is None or not ours:
        if not _LIKE_A_NORM.fullmatch(node.op):
            return None
        named = f"{node.domain}.{node.op}" if node.domain else node.op
        why = f"{named} is called a norm and is no operator whose definition is known here."
        return Unidentified(_where(node), why)
    try:
        reading = _Reading(graph, node, operator)
        operator.read(reading)
        return reading.record()
    except (_Malformed, SpecError) as error:
        return Unidentified(_where(node), str(error))


class _Malformed(Exception):
    """The node contradicts its operator's definition."""


@dataclass(frozen=True)
class Operator:
    """A fused norm: what it reads in order (`?` for what may be left out), and who defines it since when."""

    read: Callable[[_Reading], None]
    inputs: str
    since: int = 1
    """The first version of ONNX's operators to have it; what stands there before is the runtime's own."""
    runtime: bool = False
    """ONNX Runtime defines it, for its own domain and, by habit, for ONNX's."""


@dataclass
class _Reading:
    """One node being read, field by field."""

    graph: Graph
    node: Node
    operator: Operator
    values: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    result: str = ""
    normalized: str = ""

    def __post_init__(self) -> None:
        node, operator = self.node, self.operator
        if node.domain == STANDARD and node.version < 1:
            raise _Malformed(f"the file imports no version of ONNX's operators, so {node.op} may be any of several.")
        if not operator.runtime and node.version < operator.since:
            since = f"{node.op} is an operator of ONNX since version {operator.since}"
            raise _Malformed(f"{since}, and the file says {node.version}.")
        roles = operator.inputs.split()
        if len(node.inputs) > len(roles):
            raise _Malformed(f"{node.op} has {len(node.inputs)} inputs, and takes {len(roles)} at most.")
        for i, role in enumerate(roles):
            given = node.inputs[i] if i < len(node.inputs) else ""
            if not given and not role.endswith("?"):
                raise _Malformed(f"{node.op} lacks its input {i}, the {role}.")
            self.inputs[role.rstrip("?")] = given
        if not node.outputs or not node.outputs[0]:
            raise _Malformed(f"{node.op} has no output.")
        self.result, self.normalized = node.outputs[0], self.inputs.get("x", "")

    @property
    def is_standard(self) -> bool:
        """Whether ONNX, not the runtime, defines this node."""
        return self.node.domain == STANDARD and not (self.operator.runtime and self.node.version < self.operator.since)

    @property
    def definition(self) -> str:
        """The operator by name, and the version that the file follows."""
        return f"{self.node.op} of " + (f"ONNX, version {self.node.version}" if self.is_standard else "ONNX Runtime")

    def say(self, source: Source, detail: str, **values: Any) -> None:
        """Set fields that were read in one place."""
        self.values |= values
        self.evidence |= dict.fromkeys(values, Evidence(source, detail))

    def define(self, **values: Any) -> None:
        """Set fields that the operator's definition fixes."""
        self.say("convention", self.definition, **values)

    def leave(self, reason: str, *names: str) -> None:
        """Leave fields open."""
        self.say("unknown", reason, **dict.fromkeys(names, UNKNOWN))

    def attribute(self, name: str, default: Any) -> tuple[Any, Evidence]:
        """Read an attribute; a default of None is for one that must be there."""
        if name in self.node.attributes:
            return self.node.attributes[name], Evidence("attribute", name)
        if default is None:
            raise _Malformed(f"{self.node.op} lacks its attribute {name}.")
        return default, Evidence("default", f"{name} is absent; {self.definition}")

    def number(self, name: str, default: int | None = None) -> tuple[int, Evidence]:
        """Read an attribute that is an integer."""
        value, found = self.attribute(name, default)
        if type(value) is not int:
            raise _Malformed(f"{self.node.op} has {name}={value!r}, which is no integer.")
        return value, found

    def epsilon(self, default: float = 1e-5) -> None:
        """Read epsilon, which is kept as a float32."""
        value, found = self.attribute("epsilon", default)
        if type(value) not in (int, float):
            raise _Malformed(f"{self.node.op} has epsilon={value!r}, which is no number.")
        self.say(*found, eps=shortest(value))

    def affine(self, scale_axes: Any, shift_axes: Any) -> None:
        """Say along which axes the parameters lie, None for one that the node is not given."""
        for name, axes in (("scale", scale_axes), ("shift", shift_axes)):
            given = bool(self.inputs.get(name))
            detail = f"input {name}" if given else f"no input {name}"
            self.say("structure", detail, **{f"{name}_axes": axes if given else None})

    def constant(self, role: str) -> Tensor | None:
        return self.graph.constant(self.inputs[role]) if self.inputs.get(role) else None

    def about(self, role: str) -> tuple[str, tuple[int | None, ...] | None]:
        return self.graph.about(self.inputs[role]) if self.inputs.get(role) else ("unknown", None)

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape of what is normalized, as far as the file says."""
        known = (self.graph.about(name)[1] for name in (self.inputs.get("x"), self.node.outputs[0]) if name)
        return next((shape for shape in known if shape is not None), None)

    @property
    def sure(self) -> bool:
        """Whether the shape of x is that of an input of the model, not what the file says of a value between."""
        graph: Graph | None = self.graph
        while graph is not None:
            if self.inputs.get("x") in graph.inputs:
                return True
            graph = graph.parent
        return False

    @property
    def dtype(self) -> str:
        """The type of what is normalized, which the result and the scale share unless the operator lets them differ."""
        apart = {"RMSNormalization": 1, "SimplifiedLayerNormalization": 1, "GroupNorm": 2, "SkipGroupNorm": 2}
        shared = 2 if self.node.op == "BatchNormalization" and self.node.version >= 15 else apart.get(self.node.op, 3)
        names = (self.inputs.get("x"), self.node.outputs[0], self.inputs.get("scale"))[:shared]
        return next((dtype for name in names if name and (dtype := self.graph.about(name)[0]) != "unknown"), "unknown")

    def channels(self, **sizes: int | None) -> None:
        """Check parameters that have one value a channel against each other and against what else must agree."""
        for role in _PARAMETERS:
            shape = self.about(role)[1]
            if shape is not None and None not in shape:
                sizes[role] = math.prod(n for n in shape if n is not None)
        known = {name: size for name, size in sizes.items() if size is not None}
        if len(set(known.values())) > 1:
            said = ", ".join(f"{name} {size}" for name, size in known.items())
            raise _Malformed(f"{self.definition} takes as many values of each, not {said}.")

    def channel(self, axis: int) -> int | None:
        """Give the length of the channel axis, if it is sure."""
        return self.shape[axis] if self.sure and self.shape is not None and len(self.shape) > 1 else None

    def rounding(self) -> None:
        """Say of the fields about rounding what is left to say: the runtime chooses, unless it cannot matter."""
        free = "the runtime chooses"
        kept = self.values.get("stats_dtype", UNKNOWN)
        steps = self.dtype if kept is UNKNOWN else kept
        stored, bare = self.values["statistics"] == "stored", self.values["spread"] != "std"
        plain = self.values["scale_axes"] is None and self.values["shift_axes"] is None
        for name in ("stats_dtype", "cast_before_scale", "variance_by", "round_each"):
            if name in self.values:
                continue
            if name == "variance_by" and (stored or bare):
                self.define(variance_by="centered")  # no variance is taken
            elif name == "cast_before_scale" and plain:
                self.define(cast_before_scale=False)  # nothing comes after
            elif name == "round_each" and steps in WIDE:
                self.define(round_each=False)
            else:
                self.leave(free, name)

    def stash(self, casts_back: bool) -> None:
        """Read the type of the statistics, after which the standard casts back to x's own type, before the scale."""
        number, found = self.number("stash_type", 1)
        kept = FLOATS.get(number)
        if kept is None:
            self.leave(f"stash_type={number} is no floating-point type", "stats_dtype")
            return
        self.say(*found, stats_dtype=kept)
        # float32 is not cast to float32: nothing is rounded there, and no number could tell either way
        if casts_back and self.dtype != kept:
            self.define(cast_before_scale=True)
        elif casts_back:
            self.leave(f"x and its statistics are both {kept}", "cast_before_scale")

    def size(self) -> int | Unknown:
        """Count how many values share one set of statistics, if that is fixed."""
        spec, shape = NormSpec(**self.values), self.shape
        if spec.statistics != "input" or not isinstance(spec.axes, tuple):
            return UNKNOWN
        scale, last = self.constant("scale"), all(isinstance(a, int) and a < 0 for a in spec.axes)
        if scale is not None and spec.scale_axes == spec.axes and last and 1 not in scale.shape:
            return scale.size  # the weights are there, what is said of shapes may be wrong
        if shape is None:
            return UNKNOWN
        try:
            lengths = [shape[a] for a in plain_axes(spec.resolve(len(shape)))]
        except SpecError as error:
            if self.sure:
                raise _Malformed(f"{self.node.op} of x of shape {shape}: {error}") from None
            return UNKNOWN
        if None in lengths:
            return UNKNOWN
        count = math.prod(n for n in lengths if n is not None)
        return count // spec.groups if isinstance(spec.groups, int) else count

    def record(self) -> NormRecord:
        self.rounding()
        spec, node = NormSpec(**self.values), self.node
        form: Form = "function" if node.function else "fused" if self.is_standard else "contrib"
        scale, shift, mean, variance = (self.constant(role) for role in _PARAMETERS)
        names = [self.inputs.get(role, "") for role in _PARAMETERS]
        stored = [t.name if t else name for t, name in zip((scale, shift, mean, variance), names, strict=True)]
        return NormRecord(
            name=name_of(stored, node.name, f"{spec.kind}@{node.where}"), where=_where(node), form=form, spec=spec,
            evidence=self.evidence, dtype=self.dtype, size=self.size(), output=self.result, input=self.normalized,
            scale=scale, shift=shift, mean=mean, variance=variance, node=node.name,
        )  # fmt: skip


def _where(node: Node) -> str:
    return f"{node.where} {node.op}"


def _last_axes(reading: _Reading, centered: bool) -> None:
    """Read a norm over the axes from `axis` to the last."""
    axis, found = reading.number("axis", -1)
    if not -99 <= axis <= 99:
        raise _Malformed(f"{reading.node.op} has axis={axis}, and no array has so many axes.")
    reading.say(*found, axes=NormSpec(axes=(f"{axis}:",)).axes)
    _simple(reading, centered)
    reading.affine(_carried(reading, "scale", axis), _carried(reading, "shift", axis))
    reading.epsilon()
    reading.stash(casts_back=reading.is_standard)


def _carried(reading: _Reading, role: str, axis: int) -> Axes:
    """Give the axes that a parameter lies along; broadcast to x from the right, it may have fewer than the norm."""
    axes: Axes = reading.values["axes"]
    own, shape = reading.about(role)[1], reading.shape
    normalized = -axis if axis < 0 else len(shape) - axis if shape is not None else None
    if own is None or normalized is None or normalized < 1:
        return axes
    if reading.sure and shape is not None and len(own) > len(shape):
        raise _Malformed(f"{reading.node.op} has a {role} of shape {own} for x of shape {shape}.")
    lengths = dict(enumerate(reversed(shape))) if shape is not None else {}
    carried = tuple(-1 - i for i, n in enumerate(reversed(own)) if n != 1 or lengths.get(i) == 1)
    return axes if not carried or set(carried) == set(range(-normalized, 0)) else carried


def _simple(reading: _Reading, centered: bool) -> None:
    """Say what the definitions of layer and RMS norms have in common."""
    reading.define(
        channel_axis=None, groups=None, group_order=None, centered=centered, spread="std" if centered else "rms",
        eps_at="variance", ddof=0, scale_offset=0, statistics="input",
    )  # fmt: skip


def _skip(reading: _Reading, centered: bool) -> None:
    """Read a norm of a sum that the node itself takes; the sum is a value of the graph only where it is an output."""
    node = reading.node
    reading.define(axes=(-1,))
    _simple(reading, centered)
    reading.affine((-1,), (-1,))
    reading.epsilon(1e-12)
    place = 2 if node.op == "EmbedLayerNormalization" else 3
    reading.normalized = node.outputs[place] if len(node.outputs) > place else ""


def _group(reading: _Reading) -> None:
    groups, found = reading.number("num_groups")
    by_group = reading.node.version < 21
    if by_group:
        reading.channels(num_groups=groups)
    else:
        reading.channels(channels=reading.channel(1))
    _in_groups(reading, groups, found, 1, "group" if by_group else (1,))
    if not by_group:
        reading.stash(casts_back=True)


def _group_of_runtime(reading: _Reading) -> None:
    last, _ = reading.number("channels_last", 1)
    groups, found = reading.number("groups")
    axis = -1 if last else 1
    reading.channels(channels=reading.channel(axis))
    _in_groups(reading, groups, found, axis, (axis,))
    if reading.number("activation", 0)[0]:
        reading.result = ""  # SiLU comes after, inside the node: what the norm gives is no value of the graph
    if reading.node.op == "SkipGroupNorm":
        reading.normalized = reading.node.outputs[1] if len(reading.node.outputs) > 1 else ""


def _in_groups(reading: _Reading, groups: int, found: Evidence, axis: int, carried: Any) -> None:
    channels = reading.channel(axis)
    if channels is None and carried != "group":
        channels = next((t.size for role in ("scale", "shift") if (t := reading.constant(role)) is not None), None)
    if groups < 1 or (channels is not None and channels % groups):
        said = f"{reading.node.op} has {found.detail}={groups}"
        raise _Malformed(f"{said}, which does not divide {channels or 'its'} channels.")
    reading.say(*found, groups=groups)
    reading.define(
        axes=("1:",), channel_axis=axis, group_order="blocked", centered=True, spread="std", eps_at="variance", ddof=0,
        scale_offset=0, statistics="input",
    )  # fmt: skip
    reading.affine(carried, carried)
    reading.epsilon()


def _instance(reading: _Reading) -> None:
    reading.channels(channels=reading.channel(1))
    _simple(reading, centered=True)
    reading.define(axes=("2:",))
    reading.affine((1,), (1,))
    reading.epsilon()


def _batch(reading: _Reading) -> None:
    node = reading.node
    axes: Axes
    carried: Axes
    spatial, found = 1, Evidence("convention", reading.definition)
    if node.version < 9:
        spatial, found = reading.number("spatial", 1)
    if spatial:
        reading.channels(channels=reading.channel(1))
        axes, carried = (0, "2:"), (1,)
    else:  # each feature of a sample has statistics, and parameters, of its own
        axes, carried = (0,), ("1:",)
    _simple(reading, centered=True)
    reading.say(*found, axes=axes)
    reading.affine(carried, carried)
    reading.epsilon()
    _statistics(reading)
    kept, statistics = reading.about("mean")[0], reading.values["statistics"]
    if statistics == "stored" and kept in FLOATS.values():
        reading.say("constant" if reading.constant("mean") else "shape", "type of the stored mean", stats_dtype=kept)
    elif statistics == "input" and node.version >= 15 and reading.dtype in ("float16", "bfloat16", "float32"):
        reading.define(stats_dtype="float32")  # "uses float to avoid overflow for float16 inputs"


def _statistics(reading: _Reading) -> None:
    """Tell a batch norm in training, which normalizes by this input's statistics, from one by the stored ones."""
    node, more = reading.node, any(reading.node.outputs[1:])
    if node.version >= 14:
        training, found = reading.number("training_mode", 0)
        reading.say(*found, statistics="input" if training else "stored")
    elif node.version < 7 and reading.number("is_test", 0)[0]:
        reading.say("attribute", "is_test", statistics="stored")
    elif more:
        reading.say("structure", "the running statistics are outputs too, as in training", statistics="input")
    elif node.version >= 7:
        reading.say("structure", "one output, as in inference", statistics="stored")
    else:
        reading.leave("is_test=0 says training, a single output says inference", "statistics")


def _mean_variance(reading: _Reading) -> None:
    node = reading.node
    if node.version < 9:
        if not reading.number("normalize_variance", 1)[0]:
            raise _Malformed(f"{node.op} has normalize_variance=0: it takes off the mean and divides by nothing.")
        across, found = reading.number("across_channels", 0)
        axes: Any = ("0:",) if across else (0, "2:")
    else:
        axes, found = reading.attribute("axes", (0, 2, 3))
    _simple(reading, centered=True)
    reading.say(*found, axes=NormSpec(axes=axes).axes)
    # the text has no epsilon and the body of the function has this one, as a constant
    reading.define(eps=1e-9, eps_at="deviation", scale_axes=None, shift_axes=None)


def _length(reading: _Reading) -> None:
    power, _ = reading.number("p", 2)
    if power != 2:
        raise _Malformed(f"{reading.node.op} has p={power}: its length is not the root of the sum of squares.")
    axis, found = reading.number("axis", -1)
    reading.say(*found, axes=(axis,))
    _simple(reading, centered=False)
    # "the output is defined to be zero" where all are: what the smallest float32 as a lower bound does
    reading.define(spread="l2", eps=2.0**-149, eps_at="deviation_floor", scale_axes=None, shift_axes=None)


_EMBEDDED = "ids segments? words positions segment_table? scale shift mask? position_ids?"
# LayerNormalization came to ONNX with version 17; before, ONNX Runtime wrote its own into ONNX's domain.
OPERATORS: dict[str, Operator] = {
    "LayerNormalization": Operator(partial(_last_axes, centered=True), "x scale shift?", since=17, runtime=True),
    "RMSNormalization": Operator(partial(_last_axes, centered=False), "x scale", since=23),
    "GroupNormalization": Operator(_group, "x scale shift", since=18),
    "InstanceNormalization": Operator(_instance, "x scale shift"),
    "BatchNormalization": Operator(_batch, "x scale shift mean variance"),
    "MeanVarianceNormalization": Operator(_mean_variance, "x"),
    "LpNormalization": Operator(_length, "x"),
    "SimplifiedLayerNormalization": Operator(partial(_last_axes, centered=False), "x scale", since=NEVER, runtime=True),
    "SkipLayerNormalization": Operator(
        partial(_skip, centered=True), "x skip scale shift? bias?", since=NEVER, runtime=True
    ),
    "SkipSimplifiedLayerNormalization": Operator(
        partial(_skip, centered=False), "x skip scale bias?", since=NEVER, runtime=True
    ),
    "EmbedLayerNormalization": Operator(partial(_skip, centered=True), _EMBEDDED, since=NEVER, runtime=True),
    "GroupNorm": Operator(_group_of_runtime, "x scale shift", since=NEVER, runtime=True),
    "SkipGroupNorm": Operator(_group_of_runtime, "x scale shift skip bias?", since=NEVER, runtime=True),
}
