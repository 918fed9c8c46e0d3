# SPDX-License-Identifier: MIT
"""This file runs exported PyTorch programs operator by operator, so that nothing in the file is unpickled or evaluated.

Operators are those of ATen itself, but for the one that opens files, and Python's arithmetic on lengths. What else can
be reached by the name of `torch.ops.aten` is TorchScript's, `save` among it, which writes files.
"""

from __future__ import annotations

import importlib.util
import operator
import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from layernorm.models.formats.torch_export import DTYPES, FAILURES, Program, calls, damaged, program_of
from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes.inputs import Input
from layernorm.runtimes.tap import Run, Tap
from layernorm.runtimes.torch import array_of, tensor_of
from layernorm.spec.errors import UnsupportedError

_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
# It maps a file into memory, and makes it where there is none.
_FORBIDDEN = ("from_file",)
_ARITHMETIC = "add sub mul floordiv truediv mod neg eq ne lt le gt ge getitem"
_ON_LENGTHS: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name) for name in _ARITHMETIC.split()
}
_MEMORY = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
_STRIDED = 7


def refuses(model: ModelFile) -> str | None:
    """Say why this runtime does not run a model; None if it may."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed; pip install torch"
    import torch

    program = program_of(Path(model.path))
    if program.pickled:
        return f"{program.pickled[0]} is kept as a pickle, and to read it would execute that"
    known = set(torch._C._dispatch_get_all_op_names())
    for node in program.graph["nodes"]:
        if not _is_known(str(node["target"]), known):
            return f"it calls {node['target']}, and only ATen's operators are run"
    return None


def _is_known(target: str, known: Container[str]) -> bool:
    found = _ATEN.fullmatch(target)
    if found is None:
        return target in _ON_LENGTHS
    name = found[1] if found[2] == "default" else f"{found[1]}.{found[2]}"
    return f"aten::{name}" in known and found[1] not in _FORBIDDEN


def inputs_of(model: ModelFile) -> list[Input]:
    """List what the program takes."""
    program = program_of(Path(model.path))
    values = program.graph["tensor_values"]
    found = []
    try:
        for name in program.inputs:
            sizes = tuple(_size(n) for n in values[name]["sizes"])
            found.append(Input(name, DTYPES.get(values[name]["dtype"], "unknown"), sizes, _rows(program, name)))
    except FAILURES as error:
        raise damaged(Path(model.path), error) from None
    return found


def run(model: ModelFile, norms: Sequence[NormRecord], inputs: Mapping[str, NDArray[Any]], optimized: bool) -> Run:
    """Run a program once and keep what goes into its norms and comes out."""
    import torch

    program = program_of(Path(model.path))
    by_place = {call.where: call for call in calls(program)}
    ends = {norm.name: by_place[norm.where] for norm in norms if norm.where in by_place}
    wanted = {name for call in ends.values() for name in (call.input, call.output)}
    kept: dict[str, NDArray[Any]] = {}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            values = {a: tensor_of(torch, program.tensors[t].values()) for a, t in program.held.items()}
            values |= {name: tensor_of(torch, inputs[name]) for name in program.inputs}
            kept |= {name: array_of(values[name]) for name in wanted & values.keys()}
            for node in program.graph["nodes"]:
                made = _results(torch, node, values)
                values |= made
                # copied at once, for what follows may overwrite it
                kept |= {name: array_of(made[name]) for name in wanted & made.keys()}
    except Exception as fault:
        told = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        raise UnsupportedError(f"{model.path}: PyTorch refuses it: {told}", model.path) from fault
    taps = {
        name: Tap(kept[call.input], kept[call.output])
        for name, call in ends.items()
        if call.input in kept and call.output in kept
    }
    missing = {norm.name: "no value of the program is its input or output" for norm in norms if norm.name not in taps}
    return Run(taps, missing, runtime=f"torch {torch.__version__}, operator by operator")


def _results(torch: Any, node: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Call one operator; its results by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for entry in node["inputs"]:
        value = _value(torch, entry["arg"], values)
        if entry.get("kind") == 2:
            kwargs[entry["name"]] = value
        else:
            args.append(value)
    result = _operator(torch, str(node["target"]))(*args, **kwargs)
    outputs = node["outputs"]
    made: dict[str, Any] = {}
    for output, part in zip(outputs, result if len(outputs) > 1 else [result] * len(outputs), strict=True):
        made |= _named(output, part)
    return made


def _operator(torch: Any, target: str) -> Callable[..., Any]:
    if target in _ON_LENGTHS:
        return _ON_LENGTHS[target]
    found = _ATEN.fullmatch(target)
    if found is None:
        raise ValueError(f"{target} is none of torch.ops.aten")
    called: Callable[..., Any] = getattr(getattr(torch.ops.aten, found[1]), found[2])
    return called


def _named(output: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Give results the names that the program has for them."""
    ((kind, said),) = output.items()
    match kind:
        case "as_tensor":
            return {said["name"]: result}
        case "as_tensors":
            return {part["name"]: value for part, value in zip(said, result, strict=True)}
        case "as_sym_int" | "as_sym_float" | "as_sym_bool":
            return {said["as_name"]: result}
        case "as_optional_tensor":
            return _named(said, result)
    return {}


def _value(torch: Any, arg: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Read an argument: a value made before, or one that is written out."""
    ((kind, said),) = arg.items()
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return values[said["name"]]
        case "as_tensors":
            return [values[part["name"]] for part in said]
        case "as_optional_tensor":
            return _value(torch, said, values)
        case "as_optional_tensors":
            return [_value(torch, part, values) for part in said]
        case "as_sym_int" | "as_sym_float" | "as_sym_bool":
            return values[said["as_name"]] if "as_name" in said else next(iter(said.values()))
        case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
            return [_value(torch, {kind[:-1]: part}, values) for part in said]
        case "as_scalar_type":
            return getattr(torch, DTYPES[said])
        case "as_memory_format":
            return getattr(torch, _MEMORY[said])
        case "as_layout" if said == _STRIDED:
            return torch.strided
        case "as_device":
            return torch.device("cpu")
        case "as_int" | "as_ints" | "as_float" | "as_floats" | "as_bool" | "as_bools" | "as_string":
            return said
        case "as_complex":
            return complex(said["real"], said["imag"])
    raise ValueError(f"an argument of the form {kind} is not read")


def _size(said: Mapping[str, Any]) -> int | str | None:
    if "as_int" in said:
        return int(said["as_int"])
    word = str(said.get("as_expr", {}).get("expr_str", ""))
    return word if word.isidentifier() else None


def _rows(program: Program, name: str) -> int | None:
    """Say how many rows the smallest table has in which an input is looked up."""
    reached, found = {name}, []
    for node in program.graph["nodes"]:
        names = [entry["arg"]["as_tensor"]["name"] for entry in node["inputs"] if "as_tensor" in entry["arg"]]
        target = str(node["target"])
        if len(names) > 1 and ".embedding." in target and names[1] in reached and names[0] in program.held:
            shape = program.tensors[program.held[names[0]]].shape
            found.append(shape[0])
        elif names and names[0] in reached and re.search(r"\.(?:to|_to_copy|view|reshape|clone|contiguous)\.", target):
            reached |= {output["as_tensor"]["name"] for output in node["outputs"] if "as_tensor" in output}
    return min(found, default=None)
