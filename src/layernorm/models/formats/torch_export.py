# SPDX-License-Identifier: MIT
"""This file reads what torch.export.save wrote: a program of ATen operators as JSON, and weights as plain bytes.

`torch.export.load` is not called: it evaluates the text of symbolic shapes, unpickles custom constants, and where the
sample inputs are no plain tensors, unpickles them too, so it may execute what is in the file. None of that is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.archive import Archive
from layernorm.models.formats.strides import fits, laid_out, reach
from layernorm.models.formats.torch_module import PACKAGES, without_values
from layernorm.models.model_file import Layer, ModelFile, Tensor
from layernorm.models.settings import Unreadable
from layernorm.spec.errors import FileError, UnsupportedError

_PROGRAM = re.compile(r"([^/]+)/models/([^/]+)\.json")
FAILURES = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
# The numbers that PyTorch's schema gives to types (torch/_export/serde/schema.py).
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 34: "uint32", 35: "uint64",
}  # fmt: skip
# ATen's norms: the class of torch.nn that each is, and what its arguments are to that class.
_KINDS = {
    "layer_norm": "LayerNorm", "native_layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "_fused_rms_norm": "RMSNorm",
    "group_norm": "GroupNorm", "native_group_norm": "GroupNorm", "batch_norm": "BatchNorm2d",
    "_native_batch_norm_legit_no_training": "BatchNorm2d", "instance_norm": "InstanceNorm2d",
}  # fmt: skip
_ROLES = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}
_SETTINGS = {"normalized_shape": "normalized_shape", "num_groups": "num_groups", "group": "num_groups", "eps": "eps"}


@dataclass(frozen=True)
class Program:
    """An exported program: the JSON as it is, and the tensors that its arguments stand for."""

    path: str
    said: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    """By the names of a state dict."""
    pickled: tuple[str, ...] = ()
    """Tensors of the file that only its pickles hold."""

    @cached_property
    def graph(self) -> Mapping[str, Any]:
        """The graph of the program."""
        found: Mapping[str, Any] = self.said["graph_module"]["graph"]
        return found

    @cached_property
    def held(self) -> dict[str, str]:
        """For each argument that stands for a tensor of the file, the name of that tensor."""
        found: dict[str, str] = {}
        keys = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
        for spec in self.said["graph_module"]["signature"]["input_specs"]:
            for kind, key in keys.items():
                if kind in spec:
                    found[spec[kind]["arg"]["name"]] = spec[kind][key]
        return found

    @cached_property
    def inputs(self) -> list[str]:
        """The arguments that the user gives, in order."""
        specs = self.said["graph_module"]["signature"]["input_specs"]
        given = [spec["user_input"]["arg"] for spec in specs if "user_input" in spec]
        return [arg["as_tensor"]["name"] for arg in given if "as_tensor" in arg]


@dataclass
class Call:
    """One use of a norm in a program: the values that go in and come out, and what is known of the layer."""

    name: str
    where: str
    input: str
    output: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    training: bool = False


def recognizes(path: Path, head: bytes) -> bool:
    """Tell a zip archive that holds an exported program."""
    if path.is_dir() or not head.startswith(b"PK"):
        return False
    try:
        return any(_PROGRAM.fullmatch(name) for name in Archive(path).names())
    except FileError:
        return False


def read(path: Path) -> ModelFile:
    """Read a program's norms; its weights stay where they are until they are asked for.

    Raises:
        FileError: the file is damaged or lies about itself.
        UnsupportedError: it holds several programs.
    """
    program = program_of(path)
    try:
        layers = tuple(_layer(call, program) for call in calls(program))
    except FAILURES as error:
        raise damaged(path, error) from None
    notes = tuple(f"{name} is kept as a pickle, which is not read." for name in program.pickled)
    return ModelFile(str(path), "pt2", program.tensors, layers=layers, notes=notes)


def program_of(path: Path) -> Program:
    """Read a program without its weights.

    Raises:
        FileError: the file is damaged or lies about itself.
        UnsupportedError: it holds several programs.
    """
    archive = Archive(path)
    found = [match for name in archive.names() if (match := _PROGRAM.fullmatch(name))]
    if len(found) != 1:
        names = ", ".join(match[2] for match in found)
        raise UnsupportedError(f"{path}: it holds {len(found)} programs ({names}); save one a file.", str(path))
    root, name = found[0][1], found[0][2]
    tensors: dict[str, Tensor] = {}
    pickled: list[str] = []
    try:
        said = json.loads(archive.read(found[0][0]))
        for folder in ("weights", "constants"):
            config = f"{root}/data/{folder}/{name}_{folder}_config.json"
            if config not in archive.names():
                continue
            for key, entry in json.loads(archive.read(config))["config"].items():
                if entry["use_pickle"]:
                    pickled.append(key)
                else:
                    member = f"{root}/data/{folder}/{entry['path_name']}"
                    tensors[key] = _tensor(key, entry["tensor_meta"], member, archive, path)
        program = Program(str(path), said, tensors, tuple(pickled))
        _ = program.held, program.inputs, [(n["target"], n["inputs"], n["outputs"]) for n in program.graph["nodes"]]
    except FAILURES as error:
        if isinstance(error, (FileError, UnsupportedError)):
            raise
        raise damaged(path, error) from None
    return program


def damaged(path: Path, error: Exception) -> FileError:
    """Make the refusal of a file whose JSON is not as the schema says."""
    told = f"{type(error).__name__}: {str(error)[:80]}"
    return FileError(f"{path}: it is no whole torch.export archive ({told}); save it again.", str(path))


def _tensor(name: str, meta: Mapping[str, Any], member: str, archive: Archive, path: Path) -> Tensor:
    shape, strides = (tuple(int(n["as_int"]) for n in meta[key]) for key in ("sizes", "strides"))
    dtype, start = DTYPES.get(meta["dtype"], "unknown"), int(meta["storage_offset"]["as_int"])
    if len(shape) != len(strides) or any(n < 0 for n in (*shape, *strides, start)) or len(shape) > 64:
        raise ValueError(f"tensor {name!r} has no shape")
    return Tensor(name, shape, dtype, partial(_load, shape, strides, start, dtype, member, archive, path))


def _load(
    shape: tuple[int, ...], strides: tuple[int, ...], start: int, dtype: str, member: str, archive: Archive, path: Path
) -> NDArray[Any]:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the names

    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise UnsupportedError(f"{path}: {member} is of a type that is not read here.", str(path)) from None
    data = archive.read(member)
    held = np.frombuffer(data, kind, len(data) // kind.itemsize)
    if not fits(shape, strides, start, held.size):
        raise FileError(
            f"{path}: {member} has {held.size} numbers, and {start + reach(shape, strides)} are needed for the shape "
            f"{shape}; save it again.", str(path)
        )  # fmt: skip
    return laid_out(held[start:], shape, strides)


# -- norms ------------------------------------------------------------------------------------------------


def calls(program: Program) -> list[Call]:
    """List the uses of norms in the order in which they run.

    A norm is an ATen operator, or what a module does whose class is called a norm.
    """
    found = []
    for path, kind, nodes in _by_module(program.graph["nodes"]):
        fused = next((node for node in nodes if _aten(node["target"]) in _KINDS), None)
        call = _of_operator(fused, path, program) if fused is not None else _of_module(nodes, path, kind, program)
        if call is not None:
            found.append(call)
    return found


def _by_module(nodes: list[Mapping[str, Any]]) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Give what belongs together: an operator that is a norm, or the nodes of a module whose class is called so."""
    together: list[Mapping[str, Any]] = []
    before = ("", "")
    for node in nodes:
        path, kind = _module(node)
        if "norm" not in kind.rpartition(".")[2].lower():
            path, kind = ("", "") if _aten(node["target"]) not in _KINDS else (node["name"], "torch.nn.functional")
        if (path, kind) != before and together:
            yield (*before, together)
            together = []
        if path:
            together.append(node)
        before = path, kind
    if together:
        yield (*before, together)


def _module(node: Mapping[str, Any]) -> tuple[str, str]:
    """Give the innermost module that a node belongs to: its path, and its class."""
    stack = str(node.get("metadata", {}).get("nn_module_stack", "")).rpartition(";")[2].split(",")
    return (stack[1] or stack[2].rpartition(".")[2], stack[2]) if len(stack) == 3 else ("", "")


def _aten(target: str) -> str:
    """Name an ATen operator without its overload; empty if it is none.

    >>> _aten("torch.ops.aten.layer_norm.default")
    'layer_norm'
    """
    found = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.\w+", target)
    return found[1] if found else ""


def _of_operator(node: Mapping[str, Any], path: str, program: Program) -> Call:
    given = {entry["name"]: entry["arg"] for entry in node["inputs"]}
    settings = {_SETTINGS[name]: _plain(arg) for name, arg in given.items() if name in _SETTINGS}
    roles = {
        role: program.held[arg["as_tensor"]["name"]]
        for name, role in _ROLES.items()
        if "as_tensor" in (arg := given.get(name, {})) and arg["as_tensor"]["name"] in program.held
    }
    training = any(given.get(name, {}).get("as_bool") is True for name in ("training", "use_input_stats"))
    source = given["input"]["as_tensor"]["name"]
    kind = _KINDS[_aten(node["target"])]
    return Call(path, f"{node['name']} {node['target']}", source, _output(node), kind, settings, roles, training)


def _of_module(nodes: list[Mapping[str, Any]], path: str, kind: str, program: Program) -> Call | None:
    """Read a norm of loose operators: the class says what it computes, and the number that is added is epsilon."""
    made = {_output(node) for node in nodes}
    used = [arg["as_tensor"]["name"] for node in nodes for e in node["inputs"] if "as_tensor" in (arg := e["arg"])]
    source = next((name for name in used if name not in made and name not in program.held), "")
    added = [
        entry["arg"]["as_float"]
        for node in nodes
        if _aten(node["target"]) == "add"
        for entry in node["inputs"]
        if "as_float" in entry["arg"]
    ]
    roles = {
        role: f"{path}.{key}"
        for key, role in _ROLES.items()
        if any(program.held.get(name) == f"{path}.{key}" for name in used)
    }
    if not source:
        return None
    shown = kind.rpartition(".")[2] if kind.startswith(PACKAGES) else kind
    # 1 is what is added to gamma
    numbers = [number for number in added if number != 1]
    several = Unreadable(f"one of the {len(numbers)} numbers that are added" if numbers else "no number of the program")
    settings = {"variance_epsilon": numbers[0] if len(numbers) == 1 else several}
    where = f"{nodes[0]['name']} … {nodes[-1]['name']} {kind}"
    return Call(path, where, source, _output(nodes[-1]), shown, settings, roles)


def _plain(arg: Mapping[str, Any]) -> Any:
    value = next((arg[key] for key in ("as_int", "as_float", "as_ints") if key in arg), None)
    return tuple(value) if isinstance(value, list) else value


def _output(node: Mapping[str, Any]) -> str:
    """Name a node's first result, which of ATen's norms is the normalized array."""
    for arg in node["outputs"]:
        if "as_tensor" in arg:
            return str(arg["as_tensor"]["name"])
        if arg.get("as_tensors"):
            return str(arg["as_tensors"][0]["name"])
    return str(node["name"])


def _layer(call: Call, program: Program) -> Layer:
    meta = program.graph["tensor_values"].get(call.input, {})
    pickled = without_values("it is kept as a pickle, which is not read.")
    tensors = {role: program.tensors.get(name) or replace(pickled, name=name) for role, name in call.roles.items()}
    dtype = DTYPES.get(meta.get("dtype"), "unknown")
    return Layer("torch", call.kind, call.name, call.where, call.settings, tensors, dtype, call.training)
