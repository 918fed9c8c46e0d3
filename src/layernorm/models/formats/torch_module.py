# SPDX-License-Identifier: MIT
"""This file walks a tree of PyTorch modules, live, pickled or TorchScript, for its tensors and its norms.

All three keep the same things: a class, plain attributes, parameters and buffers, and the modules inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from numpy.typing import NDArray

from layernorm.models.formats.pickles import Call, Global, number_of
from layernorm.models.formats.torch_script import body_of, read_code
from layernorm.models.model_file import Layer, Tensor
from layernorm.models.settings import EPSILONS, NAMES, WIDTHS, Unreadable, plain
from layernorm.spec.errors import LayerNormError, UnsupportedError

ROLES = {"weight": "scale", "gamma": "scale", "bias": "shift", "beta": "shift", "running_mean": "mean",
         "running_var": "variance"}  # fmt: skip
# Whose classes are meant by their bare names; another package's LayerNorm may be anything.
PACKAGES = ("torch.", "transformers.", "torchvision.", "timm.", "apex.")
# Letters in the names of all modules and tensors: 25 for each of 100 000, and a chain 5 000 deep still has as many.
MOST_NAMED = 2**25


@dataclass(slots=True, eq=False)
class Module:
    """One module: `inside` holds what makes the modules within, by name.

    `believed` is the class that says what it computes, empty if nobody here knows; `parent` a norm that the class is
    made of. `computed` gives parameters that are made of others. `calls` are the norms that its code is known to call.
    """

    kind: str
    package: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    inside: dict[str, Any]
    identity: int
    believed: str = ""
    parent: str = ""
    computed: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)
    calls: tuple[str, ...] = ()

    def named(self) -> bool:
        """Tell whether the class is called a norm, or made of one."""
        return "norm" in self.kind.lower() or bool(self.believed or self.parent)

    def keeps(self) -> bool:
        """Tell whether it has an epsilon beside a scale or a width, which only a norm has."""
        scale = any(ROLES[name] == "scale" for name in ROLES if name in self.tensors or name in self.computed)
        return any(name in self.settings for name in EPSILONS) and (scale or any(n in self.settings for n in WIDTHS))

    def is_norm(self) -> bool:
        """Tell whether it may be a norm; what has modules inside and keeps nothing itself leaves it to them."""
        outer = bool(self.inside.keys() - {_MADE_OF})
        if not self.named() and (len(self.calls) > 1 or (self.calls and outer)):
            return False
        return self.keeps() or (self.named() and not outer)

    def with_code(self, body: str) -> Module:
        """Add what TorchScript's code of the class says."""
        said, calls = read_code(body)
        # a trace fixes the mode that the module was in, whatever its attribute says now
        fixed = {"training": said["training"]} if "training" in said else {}
        settings = {name: plain(value) for name, value in {**said, **self.settings, **fixed}.items()}
        return replace(self, settings=settings, calls=calls)


CHANGING = "computed before each call; take the hook or property away that does it, and look again."
# The name of the modules that compute the parameters of the one around them.
_MADE_OF = "parametrizations"


def of_pickled(value: Any) -> Module | None:
    """Look at what a pickle holds; None if that is no module."""
    if not isinstance(value, Call) or not isinstance(value.what, Global) or not isinstance(value.state, dict):
        return None
    what, state = value.what, _by_name(value.state)
    modules = state.get("_modules")
    if _is_script(value):
        inside = {name: held for name, held in state.items() if _is_script(held)}
        kept = {name: held for name, held in state.items() if isinstance(held, (Call, Tensor)) and name not in inside}
    elif isinstance(modules, dict) and isinstance(state.get("_parameters"), dict):
        inside = {name: held for name, held in _by_name(modules).items() if held is not None}
        kept = {name: held for name, held in state.items() if name in ROLES and isinstance(held, Tensor)}
        if state.get("_forward_pre_hooks"):  # the old weight_norm's sets such an attribute anew before each call
            kept = {name: without_values(f"it is {CHANGING}") for name in kept}
        kept |= _by_name(state["_parameters"]) | _by_name(state.get("_buffers"))
    else:
        return None
    tensors = {name: _tensor(held) for name, held in kept.items() if held is not None}
    given = {name: held for name, held in {**kept, **state}.items() if name in NAMES}
    settings = {name: plain(held, _decoded) for name, held in given.items()}
    return Module(what.name, what.module, settings, tensors, inside, id(value), believed(what.module, what.name))


def believed(package: str, kind: str) -> str:
    """Give a class that is meant by its bare name; empty if it is no norm, or anybody's."""
    known = package.removeprefix("__torch__.").startswith(PACKAGES)
    return kind if known and "norm" in kind.lower() else ""


def _is_script(value: Any) -> bool:
    return isinstance(value, Call) and isinstance(value.what, Global) and value.what.module.split(".")[0] == "__torch__"


def _by_name(held: Any) -> dict[str, Any]:
    return {name: value for name, value in held.items() if isinstance(name, str)} if isinstance(held, dict) else {}


def without_values(why: str) -> Tensor:
    """Make a tensor of which only this is known, that it is there, and why no more is."""

    def load() -> NDArray[Any]:
        raise UnsupportedError(why)

    return Tensor("", (), "unknown", load, why)


def _tensor(held: Any) -> Tensor:
    if isinstance(held, Tensor):
        return held
    shown = str(held.what)[:80] if isinstance(held, Call) else type(held).__name__
    return without_values(f"it is pickled as a {shown}, which is not read; save the state dict with plain tensors.")


def _decoded(value: Any) -> Any:
    """Make a number of what a pickle holds for one of NumPy's, and of a tensor that has one."""
    if not isinstance(value, Tensor):
        return number_of(value) if isinstance(value, Call) else value
    if value.size != 1 or value.unread:
        return Unreadable(value.unread or f"a tensor of shape {value.shape}")
    try:
        return value.values()
    except LayerNormError:
        return Unreadable("a tensor whose value is not in the file")


@dataclass(frozen=True)
class Tree:
    """The modules of a model, each once, in the order of definition, with their dotted names, and what was left out."""

    modules: list[tuple[str, Module]]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, root: Any, look: Callable[[Any], Module | None]) -> Tree | None:
        """Walk from a module; None if `look` finds none."""
        first = look(root)
        if first is None:
            return None
        modules: list[tuple[str, Module]] = []
        seen: set[int] = set()
        waiting: list[tuple[str, Module]] = [("", first)]
        letters = 0
        while waiting:
            name, module = waiting.pop()
            if module.identity in seen:
                continue
            seen.add(module.identity)
            modules.append((name, module))
            letters += len(name) * (1 + len(module.tensors) + len(module.inside))
            if letters > MOST_NAMED:
                note = f"{name[:80]}… and what follows is not looked into: the names of its modules take over "
                return cls(modules, (f"{note}{MOST_NAMED} letters; look into a part of the model.",))
            for key, held in reversed(module.inside.items()):
                if (within := look(held)) is not None:
                    waiting.append((f"{name}.{key}" if name else key, within))
        return cls(modules)

    def tensors(self) -> dict[str, Tensor]:
        """Name every parameter and buffer as a state dict does."""
        found = {}
        for prefix, module in self.modules:
            for key, tensor in module.tensors.items():
                if tensor.shape or not tensor.unread:
                    name = f"{prefix}.{key}" if prefix else key
                    found[name] = replace(tensor, name=name)
        return found

    def layers(self, code: Callable[[str], str] | None = None) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
        """Find the norms, by the names of their classes or by what they keep, and say what was left out.

        Args:
            code: reads a file of a TorchScript archive's code.
        """
        floats = {t.dtype for _, module in self.modules for t in module.tensors.values() if "float" in t.dtype}
        whole = floats.pop() if len(floats) == 1 else "unknown"
        layers: list[Layer] = []
        notes = list(self.notes)
        body = None if code is None else cache(lambda package, kind: body_of(code(f"{package}.py"), kind))
        for name, module in self.modules:
            if body is not None:
                module = module.with_code(body(module.package.replace(".", "/"), module.kind))
            # what computes a parameter is no layer
            if module.is_norm() and _MADE_OF not in name.split("."):
                layers.append(_layer(name, module, whole))
            elif module.calls:
                notes.append(
                    f"module {name or '(the whole)'} calls {', '.join(dict.fromkeys(module.calls))} in its own code, "
                    "which is not read; export the model to ONNX and look into that."
                )
        return tuple(layers), (*notes, *_unread(layers))


def _unread(layers: list[Layer]) -> Iterator[str]:
    """Say which parameters of norms have no values, those of one reason together."""
    together: dict[str, list[str]] = {}
    for tensor in (tensor for layer in layers for tensor in layer.tensors.values() if tensor.unread):
        together.setdefault(tensor.unread, []).append(tensor.name)
    for why, names in together.items():
        yield f"the values of {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} are not known: {why}"


def _layer(name: str, module: Module, whole: str) -> Layer:
    settings = dict(module.settings)
    if module.package.startswith("__torch__") and not any(name in settings for name in EPSILONS):
        settings["eps"] = Unreadable("not kept by TorchScript")
    held = module.tensors | {key: compute() for key, compute in module.computed.items()}
    tensors = {
        ROLES[key]: replace(tensor, name=f"{name}.{key}" if name else key, unread=tensor.unread or _strange(tensor))
        for key, tensor in held.items()
        if key in ROLES
    }
    dtype = next((tensor.dtype for tensor in tensors.values() if not tensor.unread), whole)
    where = f"module {name or '(the whole)'}: {module.package}.{module.kind}"
    made_of = f"({module.parent})" if module.parent else ""
    kind = module.believed or f"{module.package}.{module.kind}{made_of}"
    training = settings.get("training") is True
    return Layer("torch", kind, name or module.kind, where, settings, tensors, dtype, training)


def _strange(tensor: Tensor) -> str:
    return f"they are {tensor.dtype}, and a norm's are real; take the real part." if "complex" in tensor.dtype else ""
