# SPDX-License-Identifier: MIT
"""This file reads ONNX models: their graph with functions put in place and weights behind casts, reading no weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layernorm.models.formats import onnx_tensors
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import MOST_AXES, ModelFile, Tensor
from layernorm.spec.errors import FileError, MissingExtraError, UnsupportedError
from layernorm.spec.files import opened

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

# Protobuf holds no more in one message; larger models keep their weights in files beside them.
MOST_BYTES = 2**31 - 1
# Functions that call functions can stand for more nodes than there is memory for. An honest export, one function
# for every layer, grows some tenfold. A node counts for its bytes and for what its objects take besides.
ALWAYS_ALLOWED = 2**25
MOST_EXPANSION = 20
NODE_COST = 100
# A long name would be repeated in the name of everything inside.
MOST_SHOWN = 120
MOST_DEPTH = 64
# Reading a weight behind n operations may take 3ⁿ reads; a cast, a zero point, a scale and two casts are five.
MOST_FOLDS = 5
# Where other weights lie, an ONNX file in the folder is one of several exports and not the model.
OTHER_WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin", "*.pt", "*.pth", "*.keras", "*.h5", "*.tflite")
# The fields of ModelProto, each with protobuf's wire type.
MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
# The attribute's field for each AttributeType; the rest are graphs and types.
ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings", 9: "tensors"}
GRAPH_FIELDS = {5: "g", 10: "graphs"}

Key = tuple[str, str, str]


def recognizes(path: Path, head: bytes) -> bool:
    """Tell an ONNX file by its suffix or first fields, a folder by an ONNX file where no other weights are."""
    if path.is_dir():
        return any(path.glob("*.onnx")) and not any(any(path.glob(pattern)) for pattern in OTHER_WEIGHTS)
    return path.suffix.lower() == ".onnx" or _begins_a_model(head)


def read(path: Path) -> ModelFile:
    """Read a model.

    Raises:
        FileError: the file is damaged, lies about itself or goes round in circles.
        UnsupportedError: the folder holds several models.
        MissingExtraError: the package onnx is not installed.
    """
    if path.is_dir():
        files = sorted(path.glob("*.onnx"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files)
            raise UnsupportedError(f"{path}: it holds {len(files)} ONNX models ({names}); pass one of them.", str(path))
        path = files[0]
    model = _parsed(path)
    try:
        reader = _Reader(model, path)
        graph = reader.graph(model.graph, _Scope(versions=_versions(model.opset_import)), None)
        beside = {_name(entry.key): entry.value for entry in model.metadata_props}
    except UnicodeError as error:
        sentence = f"{path}: a name in it is no text ({error}); it is damaged, fetch it again."
        raise FileError(sentence, str(path)) from None
    return ModelFile(str(path), "onnx", graph.constants, beside, graph, notes=tuple(reader.notes))


def _parsed(path: Path) -> ModelProto:
    try:
        import onnx
    except ImportError as error:
        sentence = f"reading ONNX needs the package onnx ({error}); pip install onnx."
        raise MissingExtraError(sentence, str(path)) from None
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            sentence = f"{path}: it has {size} bytes, over the {MOST_BYTES} of a protobuf message; it is no ONNX model."
            raise FileError(sentence, str(path))
        with opened(path) as file:
            model: ModelProto = onnx.ModelProto.FromString(file.read())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; pass a file that can be read.", str(path)) from None
    except FileError:
        raise
    except Exception as error:  # protobuf's DecodeError, whose package has no types
        sentence = f"{path}: it is no whole ONNX model ({error}); it is cut off or damaged, fetch it again."
        raise FileError(sentence, str(path)) from None
    if not model.HasField("graph"):
        raise FileError(f"{path}: it holds no graph; it is no ONNX model, or a damaged one.", str(path))
    return model


def _begins_a_model(head: bytes) -> bool:
    """Walk over the first fields of a protobuf message; a model has its version and, soon, its graph."""
    at, seen = 0, set()
    while at < len(head) and 7 not in seen:
        tag, at = _varint(head, at)
        if MODEL_FIELDS.get(tag >> 3) != tag & 7:
            return False
        seen.add(tag >> 3)
        length, at = _varint(head, at)
        at += length if tag & 7 == 2 else 0
    return {1, 7} <= seen


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    return 0, len(data)


def _versions(imports: Iterable[Any]) -> dict[str, int]:
    return {_domain(entry.domain): entry.version for entry in imports}


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else _name(name)


def _name(text: str) -> str:
    if not isinstance(text, str):  # protobuf gives bytes where a text is not UTF-8
        raise UnicodeError(repr(text[:MOST_SHOWN]))
    return text


@dataclass
class _Scope:
    """What the names in one graph or function body mean, and what is around it."""

    versions: Mapping[str, int]
    where: str = "graph"
    parent: _Scope | None = None
    prefix: str = ""
    function: str = ""
    calling: tuple[Key, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """From a name in the file to the one that is unique in the model."""
    given: dict[str, str] = field(default_factory=dict)
    """Of outputs whose unique name the caller chose."""
    depth: int = 0

    def within(self, where: str, **changes: Any) -> _Scope:
        """Give the scope of a body inside this one."""
        said: dict[str, Any] = {
            "versions": self.versions, "prefix": self.prefix, "function": self.function, "calling": self.calling,
            "attributes": self.attributes, "parent": self, "depth": self.depth + 1,
        }  # fmt: skip
        return _Scope(where=where, **(said | changes))

    def meaning(self, name: str) -> str:
        """Give the unique name of the value that this name stands for here."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return _name(name)


class _Reader:
    """One model being read: its functions, the names taken so far, and how far it may grow."""

    def __init__(self, model: ModelProto, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.functions: dict[Key, FunctionProto] = {}
        for function in model.functions:
            self.functions[_domain(function.domain), _name(function.name), _name(function.overload)] = function
        self.taken: dict[str, int] = {}
        self.folds: dict[str, int] = {}
        self.quantized: set[str] = set()
        self.grown = 0
        self.most = max(ALWAYS_ALLOWED, MOST_EXPANSION * path.stat().st_size)

    def refuse(self, what: str) -> FileError:
        return FileError(f"{self.path}: {what}; the file is damaged or was made to do harm.", str(self.path))

    def graph(self, proto: GraphProto, scope: _Scope, parent: Graph | None) -> Graph:
        """Read a graph: the model's own, or the body of an If, Loop or Scan."""
        if scope.depth > MOST_DEPTH:
            raise self.refuse(f"bodies and functions lie over {MOST_DEPTH} deep at {scope.where}")
        graph = Graph([], {}, {}, (), {}, parent)
        for tensor in proto.initializer:
            name = self.define(tensor.name, scope)
            graph.constants[name] = onnx_tensors.stored(tensor, name, self.path)
        for thin in proto.sparse_initializer:
            name = self.define(thin.values.name, scope)
            graph.constants[name] = onnx_tensors.sparse(thin, name, self.path)
        for value in proto.input:
            if value.name not in scope.names:  # else it is an initializer, which older files list among the inputs too
                graph.inputs[self.define(value.name, scope)] = _about(value)
        self.body(proto.node, graph, scope)
        for value in (*proto.value_info, *proto.output):
            graph.values[scope.meaning(value.name)] = _about(value)
        graph.outputs = tuple(scope.meaning(value.name) for value in proto.output)
        graph.nodes = self.in_order(graph.nodes)
        return graph

    def body(self, nodes: Sequence[NodeProto], graph: Graph, scope: _Scope) -> None:
        """Add nodes to a graph; all their outputs are named before any is read, for a file may be out of order."""
        if scope.depth:
            share = NODE_COST + len(scope.prefix) + len(scope.where)
            self.grown += sum(proto.ByteSize() + share * (1 + len(proto.output)) for proto in nodes)
            if self.grown > self.most:
                raise self.refuse(f"its functions and bodies stand for over {self.most} bytes of nodes")
        outputs = [tuple(self.define(name, scope) for name in proto.output) for proto in nodes]
        for i, (proto, given) in enumerate(zip(nodes, outputs, strict=True)):
            self.node(proto, given, graph, scope, f"{scope.where}/node[{i}]")

    def define(self, name: str, scope: _Scope) -> str:
        """Give a value its unique name."""
        if not name:
            return ""
        if _name(name) in scope.names:
            raise self.refuse(f"two values of {scope.where} are called {name!r}")
        unique = scope.given.pop(name, None) or self.unique(scope.prefix + name)
        scope.names[name] = unique
        return unique

    def unique(self, name: str) -> str:
        wanted = name
        while name in self.taken:
            self.taken[wanted] += 1
            name = f"{wanted}#{self.taken[wanted]}"
        self.taken[name] = 1
        return name

    def node(self, proto: NodeProto, outputs: tuple[str, ...], graph: Graph, scope: _Scope, where: str) -> None:
        """Add one node: a function's nodes for a call, a constant for what is constant."""
        op, domain = _name(proto.op_type), _domain(proto.domain)
        if not op:
            raise self.refuse(f"{where} has no operator")
        inputs = tuple(scope.meaning(name) if name else "" for name in proto.input)
        key = (domain, op, _name(proto.overload))
        attributes, bodies = self.attributes(proto.attribute, graph, scope, where)
        if key in self.functions:
            self.call(key, _name(proto.name), inputs, outputs, attributes, graph, scope, where)
            return
        if domain == "" and len(outputs) == 1:
            if op == "Constant":
                graph.constants[outputs[0]] = self.constant(proto.attribute, attributes, outputs[0], where)
                return
            folded = self.folded(op, inputs, attributes, outputs[0], graph)
            if folded is not None:
                graph.constants[outputs[0]] = folded
                return
        if op == "EPContext":
            self.notes.append(f"{where} is a part of the model compiled for one device; norms inside cannot be seen.")
        name = f"{scope.prefix}{_name(proto.name)}" if proto.name else ""
        version = scope.versions.get(domain, 0)
        graph.nodes.append(Node(op, inputs, outputs, attributes, name, domain, where, version, scope.function, bodies))

    def call(
        self, key: Key, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: Mapping[str, Any],
        graph: Graph, scope: _Scope, where: str,
    ) -> None:  # fmt: skip
        """Put a function's nodes in the place of a call."""
        function = self.functions[key]
        if key in scope.calling:
            raise self.refuse(f"the function {key[1]!r} calls itself at {where}")
        if scope.depth >= MOST_DEPTH:
            raise self.refuse(f"functions call each other over {MOST_DEPTH} deep at {where}")
        silent = {a.name: a for a in function.attribute_proto if a.name not in attributes}
        defaults, _ = self.attributes(silent.values(), graph, scope, where)
        inner = scope.within(
            f"{where}/{key[1][:MOST_SHOWN]}", parent=None, function=key[1],
            prefix=f"{scope.prefix}{(name or key[1])[:MOST_SHOWN]}/", calling=(*scope.calling, key),
            attributes={**defaults, **attributes}, versions={**scope.versions, **_versions(function.opset_import)},
        )  # fmt: skip
        for i, formal in enumerate(function.input):
            inner.names[formal] = inputs[i] if i < len(inputs) else ""
        copies = []
        for i, formal in enumerate(function.output):
            actual = outputs[i] if i < len(outputs) else ""
            if formal in inner.names or formal in inner.given:
                copies.append((formal, actual))
            elif actual:
                inner.given[formal] = actual
        self.body(function.node, graph, inner)
        if inner.given:
            raise self.refuse(f"the function {key[1]!r} does not make its output {next(iter(inner.given))!r}")
        for formal, actual in copies:  # an output that is an input, or given twice
            if actual:
                copied, made = (inner.meaning(formal),), (actual,)
                graph.nodes.append(Node("Identity", copied, made, where=inner.where, version=1, function=key[1]))
        for value in function.value_info:
            if value.name in inner.names:
                graph.values.setdefault(inner.names[value.name], _about(value))

    def attributes(
        self, protos: Iterable[AttributeProto], graph: Graph, scope: _Scope, where: str
    ) -> tuple[dict[str, Any], tuple[Graph, ...]]:
        """Read attributes into plain values, and graphs among them into bodies."""
        said: dict[str, Any] = {}
        bodies: list[Graph] = []
        for proto in protos:
            name = _name(proto.name)
            if proto.ref_attr_name:
                if proto.ref_attr_name in scope.attributes:
                    said[name] = scope.attributes[proto.ref_attr_name]
            elif proto.type in GRAPH_FIELDS:
                value = getattr(proto, GRAPH_FIELDS[proto.type])
                for i, body in enumerate((value,) if proto.type == 5 else value):
                    place = f"{where}/{name[:MOST_SHOWN]}" + (f"[{i}]" if proto.type == 10 else "")
                    bodies.append(self.graph(body, scope.within(place), graph))
            else:
                # the first version of the format had no types; there, the field that is filled is meant
                kinds = (
                    [ATTRIBUTE_FIELDS.get(proto.type, "")] if proto.type else [f.name for f, _ in proto.ListFields()]
                )
                for kind in kinds:
                    if kind in ATTRIBUTE_FIELDS.values():
                        said[name] = self.plain(getattr(proto, kind), kind, name)
        return said, tuple(bodies)

    def plain(self, value: Any, kind: str, name: str) -> Any:
        match kind:
            case "s":
                return _text(value)
            case "strings":
                return [_text(item) for item in value]
            case "t":
                return onnx_tensors.stored(value, value.name or name, self.path)
            case "tensors":
                return [onnx_tensors.stored(item, item.name or name, self.path) for item in value]
            case "f" | "i":
                return value
        return list(value)

    def constant(self, protos: Iterable[AttributeProto], said: Mapping[str, Any], name: str, where: str) -> Tensor:
        """Read a Constant node, whichever attribute its value is in."""
        kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64",
                 "value_string": "string", "value_strings": "string"}  # fmt: skip
        value = said.get("value")
        if isinstance(value, Tensor):
            return Tensor(name, value.shape, value.dtype, value.load)
        for kind, dtype in kinds.items():
            if kind in said:
                try:
                    return onnx_tensors.literal(said[kind], dtype, name)
                except (TypeError, ValueError, OverflowError):
                    raise self.refuse(f"the Constant {where} has a {kind} that is none") from None
        for proto in protos:
            if proto.name == "sparse_value":
                return onnx_tensors.sparse(proto.sparse_tensor, name, self.path)
        raise self.refuse(f"the Constant {where} has no value")

    def folded(
        self, op: str, inputs: tuple[str, ...], said: Mapping[str, Any], name: str, graph: Graph
    ) -> Tensor | None:  # fmt: skip
        """Give the weight that a node makes of stored ones by passing on, casting or dequantizing, if it does.

        Sums and products are left to stand, for 1 + γ is no weight of the file; only an integer's scale and zero point
        are taken in.
        """
        if op not in ("Identity", "Cast", "DequantizeLinear", "Mul", "Sub"):
            return None
        tensors = [graph.constant(name) if name else None for name in inputs]
        depth = 1 + max((self.folds.get(name, 0) for name in inputs), default=0)
        first = tensors[0] if tensors else None
        if first is None or depth > MOST_FOLDS:
            return None
        made: Tensor | None = None
        if op == "Identity":
            made = first
        elif op == "Cast" and isinstance(said.get("to"), int):
            made = onnx_tensors.cast(first, onnx_tensors.type_name(said["to"]))
            if made is not None and "int" in first.dtype:
                self.quantized.add(name)
        elif op == "DequantizeLinear" and len(tensors) > 1 and tensors[1] is not None:
            zero = tensors[2] if len(tensors) > 2 else None
            if zero is not None or not any(inputs[2:]):
                axis, block = said.get("axis", 1), said.get("block_size", 0)
                if isinstance(axis, int) and isinstance(block, int):
                    made = onnx_tensors.dequantized(first, tensors[1], zero, axis, block)
        elif op in ("Mul", "Sub") and len(tensors) == 2 and tensors[1] is not None:
            number = next((t for n, t in zip(inputs, tensors, strict=True) if n in self.quantized), None)
            if number is not None:
                operation: Callable[..., Any] = np.multiply if op == "Mul" else np.subtract
                made = onnx_tensors.combined(operation, first, tensors[1], number)
                if made is not None and op == "Sub":
                    self.quantized.add(name)
        if made is not None:
            self.folds[name] = depth
        return made

    def in_order(self, nodes: list[Node]) -> list[Node]:
        """Order nodes so that each comes after those that it reads from."""
        makers = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
        sources = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
        if all(source < i for i, before in enumerate(sources) for source in before):
            return nodes
        readers: list[list[int]] = [[] for _ in nodes]
        for i, before in enumerate(sources):
            for source in before:
                readers[source].append(i)
        missing = [len(before) for before in sources]
        ready, order = deque(i for i, n in enumerate(missing) if not n), []
        while ready:
            order.append(ready.popleft())
            for reader in readers[order[-1]]:
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
        if len(order) < len(nodes):
            stuck = next(node for node, n in zip(nodes, missing, strict=True) if n)
            raise self.refuse(f"{stuck.where} ({stuck.op}) waits for its own output")
        return [nodes[i] for i in order]


def _reads(node: Node) -> Iterator[str]:
    """Name what a node reads, by its inputs or from inside its bodies."""
    yield from node.inputs
    waiting = list(node.graphs)
    while waiting:
        graph = waiting.pop()
        yield from graph.outputs
        for inner in graph.nodes:
            yield from inner.inputs
            waiting += inner.graphs


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _about(value: ValueInfoProto) -> tuple[str, tuple[int | None, ...] | None]:
    """Give what the file says of a value: its dtype, and its shape with None for a length that is not fixed."""
    if value.type.WhichOneof("value") != "tensor_type":
        return "unknown", None
    said = value.type.tensor_type
    shape = None
    if said.HasField("shape") and len(said.shape.dim) <= MOST_AXES:
        shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in said.shape.dim)
    return onnx_tensors.type_name(said.elem_type), shape
