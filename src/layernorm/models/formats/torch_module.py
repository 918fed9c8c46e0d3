# SPDX-License-Identifier: MIT
"""This file walks a tree of PyTorch modules, live, pickled or TorchScript, for its tensors and its norms.

All three keep the same things: a class, plain attributes, parameters and buffers, and the modules inside.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.pickles import Call, Global
from layernorm.models.model_file import Layer, Tensor
from layernorm.spec.errors import UnsupportedError

_ROLES = {"weight": "scale", "gamma": "scale", "bias": "shift", "beta": "shift", "running_mean": "mean",
          "running_var": "variance"}  # fmt: skip
# Whose classes are meant by their bare names; another package's LayerNorm may be anything.
_PACKAGES = ("torch.", "transformers.", "torchvision.", "timm.", "apex.")
# A real tree is some 20 modules deep, and its names have some 100 characters.
_DEEPEST = 100
_LONGEST = 500


@dataclass(slots=True, eq=False)
class Module:
    """One module: `inside` holds what makes the modules within, by name."""

    kind: str
    package: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    inside: dict[str, Any]
    identity: int

    @classmethod
    def of_live(cls, module: Any) -> Module:
        """Look at a torch.nn.Module."""
        return cls._of_state(type(module).__name__, type(module).__module__, vars(module), id(module), _live_tensor)

    @classmethod
    def of_pickled(cls, value: Any) -> Module | None:
        """Look at what a pickle holds; None if that is no module."""
        if not isinstance(value, Call) or not isinstance(value.what, Global) or not isinstance(value.state, dict):
            return None
        what, state = value.what, value.state
        if isinstance(state.get("_modules"), dict) and isinstance(state.get("_parameters"), dict):
            return cls._of_state(what.name, what.module, state, id(value), lambda tensor: tensor)
        if what.module.split(".")[0] != "__torch__":
            return None
        named = {name: held for name, held in state.items() if isinstance(name, str)}
        tensors = {name: held for name, held in named.items() if isinstance(held, Tensor)}
        inside = {name: held for name, held in named.items() if isinstance(held, Call)}
        return cls(what.name, what.module, _plain(named), tensors, inside, id(value))

    @classmethod
    def _of_state(
        cls, kind: str, package: str, state: Mapping[str, Any], identity: int, tensor: Callable[[Any], Any]
    ) -> Module:
        tensors: dict[str, Tensor] = {}
        for held in (state.get("_parameters"), state.get("_buffers")):
            for name, value in held.items() if isinstance(held, dict) else ():
                made = tensor(value) if value is not None else None
                if isinstance(name, str) and isinstance(made, Tensor):
                    tensors[name] = made
        inside = {name: held for name, held in state["_modules"].items() if isinstance(name, str) and held is not None}
        return cls(kind, package, _plain(state), tensors, inside, identity)

    def walk(self) -> Iterator[tuple[str, Module]]:
        """Give this module and those inside, each once, in the order of definition, with their dotted names."""
        seen: set[int] = set()
        waiting: list[tuple[str, int, Module]] = [("", 0, self)]
        while waiting:
            name, depth, module = waiting.pop()
            if module.identity in seen or depth > _DEEPEST or len(name) > _LONGEST:
                continue
            seen.add(module.identity)
            yield name, module
            for key, held in reversed(module.inside.items()):
                within = Module.of_pickled(held) if isinstance(held, Call) else _live(held)
                if within is not None:
                    waiting.append((f"{name}.{key}" if name else key, depth + 1, within))


def tensors_in(root: Module) -> dict[str, Tensor]:
    """Name every parameter and buffer as a state dict does."""
    found = {}
    for prefix, module in root.walk():
        for key, tensor in module.tensors.items():
            name = f"{prefix}.{key}" if prefix else key
            found[name] = Tensor(name, tensor.shape, tensor.dtype, tensor.load)
    return found


def layers_of(root: Module, code: Callable[[str], str] | None) -> tuple[Layer, ...]:
    """Find the norms of a tree by the names of their classes.

    Args:
        root: the tree.
        code: reads a file of a TorchScript archive's code, where the numbers stand that its modules do not keep.
    """
    layers: list[Layer] = []
    floats = {
        tensor.dtype for _, module in root.walk() for tensor in module.tensors.values() if "float" in tensor.dtype
    }
    whole = floats.pop() if len(floats) == 1 else "unknown"
    for name, module in root.walk():
        if "norm" not in module.kind.lower() or module.inside:
            continue
        settings = dict(module.settings)
        if code is not None:
            settings = {**_settings_in_code(code(f"{module.package.replace('.', '/')}.py"), module.kind), **settings}
        tensors = {
            _ROLES[key]: Tensor(f"{name}.{key}" if name else key, tensor.shape, tensor.dtype, tensor.load)
            for key, tensor in module.tensors.items()
            if key in _ROLES
        }
        dtype = next((tensor.dtype for tensor in tensors.values()), whole)
        where = f"module {name or '(the whole)'}: {module.package}.{module.kind}"
        training = settings.get("training") is True
        known = module.package.removeprefix("__torch__.").startswith(_PACKAGES)
        kind = module.kind if known else f"{module.package}.{module.kind}"
        layers.append(Layer("torch", kind, name or module.kind, where, settings, tensors, dtype, training))
    return tuple(layers)


def _plain(state: Mapping[Any, Any]) -> dict[str, Any]:
    """Keep the attributes that are numbers, words, or short lists of numbers."""
    kept: dict[str, Any] = {}
    for name, value in state.items():
        if not isinstance(name, str) or (name.startswith("_") and name != "_groups"):
            continue
        if isinstance(value, (bool, int, float, str, type(None))):
            kept[name] = value
        elif isinstance(value, (tuple, list)) and len(value) <= 8 and all(type(n) is int for n in value):
            kept[name] = tuple(value)
    return kept


def _live(value: Any) -> Module | None:
    return Module.of_live(value) if isinstance(getattr(value, "_modules", None), dict) else None


def _live_tensor(value: Any) -> Tensor:
    dtype = str(value.dtype).rpartition(".")[2]
    return Tensor("", tuple(int(n) for n in value.shape), dtype, partial(_load_live, value, dtype))


def _load_live(value: Any, dtype: str) -> NDArray[Any]:
    if value.is_meta:
        raise UnsupportedError(
            "the module is on the meta device, so its tensors have no values; load its weights first."
        )
    host = value.detach().cpu()
    if dtype != "bfloat16" and not dtype.startswith("float8"):
        array: NDArray[Any] = host.numpy().copy()
        return array
    import ml_dtypes  # noqa: F401 - it teaches NumPy the names of the small floats

    # float32 holds each of them exactly
    return np.asarray(host.float().numpy()).astype(np.dtype(dtype))


_CONSTANT = re.compile(r"^ +(\w+) : Final\[[^=\n]*\] = ([^\n]{1,200})$", re.MULTILINE)
_NORM_CALL = re.compile(r"(layer_norm|rms_norm|group_norm|batch_norm|instance_norm)\w*\(([^\n]{1,2000})\)")
_FLOAT = re.compile(r"(?<![\w.])-?\d+(?:\.\d*(?:e[-+]?\d+)?|e[-+]?\d+)(?![\w.])")


def _settings_in_code(text: str, kind: str) -> dict[str, Any]:
    """Read a class of a TorchScript archive: constants of its body, or the numbers in its call of a norm."""
    begin = re.search(rf"^class {re.escape(kind)}\(Module\):$", text, re.MULTILINE)
    if begin is None:
        return {}
    body = text[begin.end() :]
    end = re.search(r"^class ", body, re.MULTILINE)
    body = body[: end.start()] if end else body
    settings: dict[str, Any] = {}
    if call := _NORM_CALL.search(body):
        # eps is the last number of each of these calls; a traced module keeps nothing else
        if floats := _FLOAT.findall(call[2]):
            settings["eps"] = float(floats[-1])
        if call[1] in ("layer_norm", "rms_norm") and (shape := re.search(r"\[(\d[\d, ]*)\]", call[2])):
            settings["normalized_shape"] = tuple(int(n) for n in shape[1].split(","))
        if call[1] == "group_norm" and (groups := re.match(r"[^,]+, (\d+),", call[2])):
            settings["num_groups"] = int(groups[1])
    for name, written in _CONSTANT.findall(body):
        try:
            settings[name] = ast.literal_eval(written)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return settings
