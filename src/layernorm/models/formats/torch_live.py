# SPDX-License-Identifier: MIT
"""This file looks at live modules of PyTorch, scripted and traced ones too; it calls none and changes none.

PyTorch is not imported: whoever has a module has it already.
"""

from __future__ import annotations

import copy
import inspect
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.torch_module import CHANGING, PACKAGES, ROLES, Module, believed, without_values
from layernorm.models.formats.torch_script import CALLED
from layernorm.models.model_file import Tensor
from layernorm.models.settings import NAMES, Unreadable, plain
from layernorm.spec.errors import UnsupportedError

# What a subclass may define anew and still compute the same.
_HARMLESS = ("reset_parameters", "extra_repr", "_check_input_dim")


def of_live(module: Any) -> Module | None:
    """Look at a torch.nn.Module; None if it is none."""
    if isinstance(module, type):
        return None
    state = getattr(module, "__dict__", {})
    if "_c" in state or "_actual_script_module" in state:
        return _of_script(module)
    if not isinstance(state.get("_modules"), dict):
        return None
    kept: dict[str, Any] = {**(state.get("_parameters") or {}), **(state.get("_buffers") or {})}
    kind = type(module)
    given = {name: value for name, value in {**kept, **state}.items() if name in NAMES}
    given |= {name: _of_class(kind, name) for name in NAMES if name not in given and _defines(kind, name)}
    loose = {name: state[name] for name in ROLES if hasattr(state.get(name), "detach")}
    # what torch.nn.utils.weight_norm of old leaves as an attribute is set anew before each call
    changing = set(loose) if state.get("_forward_pre_hooks") else set()
    changing |= {name for name in ROLES if _defines(kind, name)}
    held = {
        name: _tensor(value)
        for name, value in {**kept, **loose}.items()
        if isinstance(name, str) and value is not None and name not in changing
    }
    # of a norm alone, whose parameters are few: whether they can be read shows when they are
    computed = {name: partial(_tried, tensor) for name, tensor in held.items() if name in ROLES}
    computed |= {name: partial(_computed, module, name) for name in changing}
    nodes = getattr(state.get("_graph"), "nodes", ())
    functions = [str(getattr(node.target, "__name__", "")).partition(".")[0] for node in nodes]
    same, parent = _lineage(kind)
    return Module(
        kind.__name__,
        kind.__module__,
        {name: plain(value, _decoded) for name, value in given.items()},
        held,
        {name: value for name, value in state["_modules"].items() if value is not None},
        id(module),
        same,
        parent,
        computed,
        tuple(name for name in functions if name in CALLED),
    )


def _of_script(module: Any) -> Module:
    """Look at a module of TorchScript: its class, attributes and constants are PyTorch's, the code has the rest."""
    inner = module._c
    given = {name: inner.getattr(name) for name in NAMES if inner.hasattr(name)}
    given |= {name: vars(module)[name] for name in NAMES if name not in given and name in vars(module)}
    given |= {name: getattr(module, name) for name in NAMES if name not in given and hasattr(module, name)}
    package, _, kind = str(inner._type().qualified_name()).rpartition(".")
    try:
        code = str(module.code)
    except (RuntimeError, AttributeError):  # it has no forward, as a list of modules has none
        code = ""
    settings = {name: plain(value, _decoded) for name, value in given.items()}
    kept = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    held = {name: _tensor(value) for name, value in kept}
    inside = dict(module.named_children())
    return Module(kind, package, settings, held, inside, id(module), believed(package, kind)).with_code(code)


def _lineage(kind: type) -> tuple[str, str]:
    """Give the class of a known package that says what a class computes, and the norm of PyTorch that it is made of.

    Both are empty where there is none. A class that changes what its parent's forward calls is not its parent.
    """
    parents = [parent for parent in kind.__mro__ if parent.__module__.startswith(PACKAGES)]
    norms = [p for p in parents if "norm" in p.__name__.lower() and not p.__name__.startswith("_")]
    same = [p for p in norms if _same(kind, p)]
    return (same[-1].__name__ if same else ""), (norms[-1].__name__ if norms else "")


def _same(kind: type, parent: type) -> bool:
    if getattr(kind, "forward", None) is not getattr(parent, "forward", None):
        return False
    below = kind.__mro__[: kind.__mro__.index(parent)]
    own = {
        name
        for ancestor in parent.__mro__
        if "forward" in dir(ancestor) and ancestor.__name__ != "Module"
        for name, value in vars(ancestor).items()
        if callable(value) and not name.startswith("__")
    } | {"__call__"}
    return not any(name in vars(child) for child in below for name in own.difference(_HARMLESS))


def _defines(kind: type, name: str) -> bool:
    """Tell whether a class has an attribute that its instances need not have."""
    return inspect.getattr_static(kind, name, None) is not None


def _of_class(kind: type, name: str) -> Any:
    value = inspect.getattr_static(kind, name)
    return Unreadable("computed by its class") if hasattr(value, "__get__") else value


def _decoded(value: Any) -> Any:
    """Make a number of a tensor that has one."""
    if not hasattr(value, "detach"):
        return value
    try:
        return value.item()
    except (RuntimeError, ValueError, NotImplementedError):
        return Unreadable("a tensor that is no one number")


def _tried(tensor: Tensor) -> Tensor:
    try:
        tensor.values()
    except UnsupportedError as fault:
        return replace(tensor, unread=str(fault))
    return tensor


def _computed(module: Any, name: str) -> Tensor:
    """Give a parameter that the module computes of others, by torch.nn.utils.parametrize or before each call."""
    made_of = getattr(module, "parametrizations", {})
    if name not in made_of:
        return without_values(f"it is {CHANGING}")
    try:
        # of a copy: in training a spectral norm changes with each look
        chain = copy.deepcopy(made_of[name])
        with sys.modules["torch"].no_grad():
            return _tensor(chain())
    except Exception as fault:  # whatever the module's own code raises
        told = " ".join(f"{type(fault).__name__}: {fault}".split())[:120]
        return without_values(f"its parametrization fails ({told}); remove it with leave_parametrized=True.")


def _tensor(value: Any) -> Tensor:
    try:
        shape = tuple(int(n) for n in value.shape)
    except (RuntimeError, TypeError, AttributeError):
        return without_values("it is not initialized; call the model once, and look again.")
    dtype = "float32" if getattr(value, "is_quantized", False) else str(value.dtype).rpartition(".")[2]
    return Tensor("", shape, dtype, partial(_load, value, dtype))


def _load(value: Any, dtype: str) -> NDArray[Any]:
    if value.is_meta:
        raise UnsupportedError(
            "the module is on the meta device, so its tensors have no values; load its weights first."
        )
    import ml_dtypes  # noqa: F401 - it teaches NumPy the names of the small floats

    try:
        dense = value.detach().cpu()
        dense = dense.dequantize() if dense.is_quantized else dense
        dense = dense if str(dense.layout) == "torch.strided" else dense.to_dense()
        if dtype == "bfloat16" or dtype.startswith("float8"):
            # float32 holds each of them exactly
            return np.asarray(dense.float().numpy()).astype(np.dtype(dtype))
        array: NDArray[Any] = dense.resolve_conj().resolve_neg().numpy().copy()
        return array
    except (RuntimeError, TypeError, NotImplementedError) as fault:
        told = " ".join(str(fault).split())[:120]
        raise UnsupportedError(
            f"a {type(value).__name__} of {dtype} cannot be made an array ({told}); make it a plain tensor first."
        ) from None
