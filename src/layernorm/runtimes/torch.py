# SPDX-License-Identifier: MIT
"""This file runs live PyTorch modules, with hooks on their norms that are taken off again."""

from __future__ import annotations

import contextlib
import inspect
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes.tap import Run, Tap
from layernorm.spec.errors import UnsupportedError


def refuses(model: ModelFile) -> str | None:
    """Say why this runtime does not run a model; None if it may."""
    if model.module is not None:
        return None
    if _is_script(model.path):
        return "the modules of a TorchScript file cannot be tapped; pass the torch.nn.Module itself"
    if model.layers:
        return "to load the module would execute the pickle in the file; load it yourself and pass the torch.nn.Module"
    return "the file holds weights and no program that can be run; pass the torch.nn.Module that uses them"


def run(model: ModelFile, norms: Sequence[NormRecord], inputs: Mapping[str, NDArray[Any]], optimized: bool) -> Run:
    """Call a module once, in the mode that it is in; it is left as it was.

    A norm that is called more than once is read the first time.
    """
    import torch

    module = model.module
    named = {type(module).__name__: module, **dict(module.named_modules())}
    entered: dict[str, Any] = {}
    left: dict[str, Any] = {}
    hooks = []
    try:
        for norm in norms:
            if (inside := named.get(norm.name)) is not None:
                # the input is copied before the call, for what follows may overwrite it
                hooks.append(inside.register_forward_pre_hook(_entering(entered, norm.name), with_kwargs=True))
                hooks.append(inside.register_forward_hook(_leaving(left, norm.name)))
        with torch.no_grad(), _unchanged(torch, module):
            args, named_inputs = _arguments(torch, module, inputs)
            module(*args, **named_inputs)
    except (KeyboardInterrupt, UnsupportedError):
        raise
    except (Exception, SystemExit) as fault:
        raise UnsupportedError(
            f"{model.path}: PyTorch refuses it: {type(fault).__name__}: {' '.join(str(fault).split())}", model.path
        ) from fault
    finally:
        for hook in hooks:
            hook.remove()
    taps = {name: Tap(x, left[name]) for name, x in entered.items() if x is not None and left.get(name) is not None}
    missing = {
        norm.name: "it was called with no tensor" if norm.name in entered else "the module's forward did not call it"
        for norm in norms
        if norm.name not in taps
    }
    return Run(taps, missing, runtime=f"torch {torch.__version__}")


def _is_script(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _entering(entered: dict[str, Any], name: str) -> Any:
    def hook(module: Any, args: Any, kwargs: Any) -> None:
        if name not in entered:
            entered[name] = _copied(_first([*args, *kwargs.values()]))

    return hook


def _leaving(left: dict[str, Any], name: str) -> Any:
    def hook(module: Any, args: Any, output: Any) -> None:
        if name not in left:
            left[name] = _copied(_first(output if isinstance(output, (tuple, list)) else [output]))

    return hook


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if hasattr(value, "detach")), None)


def _copied(value: Any) -> NDArray[Any] | None:
    return None if value is None else array_of(value)


def array_of(value: Any) -> NDArray[Any]:
    """Copy a tensor to NumPy; bfloat16, which it does not know, by way of float32."""
    host = value.detach().cpu()
    if str(host.dtype) == "torch.bfloat16":
        import ml_dtypes

        return np.asarray(host.float().numpy()).astype(ml_dtypes.bfloat16)
    return np.array(host.numpy())


@contextlib.contextmanager
def _unchanged(torch: Any, module: Any) -> Iterator[None]:
    """Undo what a call leaves behind: buffers, and the state of the random numbers.

    In evaluation too, for a functional dropout asks no module for its mode, and a forward may count its calls.
    """
    kept = [
        (inside, name, buffer, buffer.clone())
        for inside in module.modules()
        for name, buffer in inside.named_buffers(recurse=False)
    ]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        for inside, name, buffer, before in kept:
            buffer.copy_(before)
            setattr(inside, name, buffer)  # forward may have put another in its place


def _arguments(torch: Any, module: Any, inputs: Mapping[str, NDArray[Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Give arrays as tensors, by name where forward has such parameters, else in order."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    tensors = {name: tensor_of(torch, value, like) for name, value in inputs.items()}
    parameters = inspect.signature(module.forward).parameters.values()
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if tensors.keys() <= by_name:
        return [], tensors
    return list(tensors.values()), {}


def tensor_of(torch: Any, value: NDArray[Any], like: Any = None) -> Any:
    """Copy an array to a tensor; of `like` it takes the device and, if both are floats, the type."""
    if value.dtype.name == "bfloat16":
        tensor = torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16)
    else:
        tensor = torch.from_numpy(np.array(value))  # a copy, for forward may write to it
    if like is None:
        return tensor
    return tensor.to(device=like.device, dtype=like.dtype if tensor.is_floating_point() else None)
