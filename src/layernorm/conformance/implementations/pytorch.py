# SPDX-License-Identifier: MIT
"""This file wraps PyTorch's functional norms on the CPU, run as they are and through torch.compile."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from layernorm.conformance.implementations.packages import needed, version
from layernorm.conformance.targets import Array, Gradients, Norm, Target, without_beta
from layernorm.spec.errors import MissingExtraError
from layernorm.spec.norm_spec import NormSpec
from layernorm.spec.variants import VARIANTS

ALL = ("float16", "bfloat16", "float32", "float64")
# torch.compile makes one program a type and set of arguments; at its default of 8 it would quietly run uncompiled
PROGRAMS = 256


def eager(norm: Norm, eps: float) -> Target:
    """Wrap `torch.nn.functional.layer_norm` and `rms_norm`."""
    torch = needed("torch")
    return _target("torch", torch, norm, eps, _function(torch, norm, eps))


def compiled(norm: Norm, eps: float) -> Target:
    """Wrap the same through `torch.compile` with dynamic shapes.

    Raises:
        MissingExtraError: no C++ compiler that works was found.
    """
    torch = needed("torch")
    config = needed("torch._dynamo.config", "torch")
    made = torch.compile(_function(torch, norm, eps), dynamic=True, fullgraph=True)

    def run(*tensors: Any) -> Any:
        with config.patch(recompile_limit=PROGRAMS, accumulated_recompile_limit=PROGRAMS):
            return made(*tensors)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Inductor's own modules use what torch has deprecated
            run(torch.zeros(2, 4), None, None)
    except Exception as fault:  # Inductor's classes for this are not public, and differ by release
        lines = [line for line in str(fault).splitlines() if line and not line.endswith("raised:")]
        said = lines[0] if lines else type(fault).__name__
        raise MissingExtraError(
            f"torch.compile cannot compile here ({said}); install a C++ compiler such as g++.", "torch-compile"
        ) from fault
    return _target("torch-compile", torch, norm, eps, run)


def _function(torch: Any, norm: Norm, eps: float) -> Callable[..., Any]:
    layer, rms = torch.nn.functional.layer_norm, torch.nn.functional.rms_norm
    # a half x beside a float32 gamma, which it takes as it should, makes it warn once that it is slower
    warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
    if norm == "rms":
        return lambda x, gamma, beta: rms(x, x.shape[-1:], gamma, eps)
    return lambda x, gamma, beta: layer(x, x.shape[-1:], gamma, beta, eps)


def _target(name: str, torch: Any, norm: Norm, eps: float, run: Callable[..., Any]) -> Target:
    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        without_beta(name, norm, beta)
        with torch.no_grad():
            return _array(torch, run(*(None if a is None else _tensor(torch, a) for a in (x, gamma, beta))))

    def backward(dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        given = _tensor(torch, x).detach().requires_grad_()
        scale = None if gamma is None else _tensor(torch, gamma).detach().requires_grad_()
        # beta's own type is gamma's; without a gamma there is none either
        shift = None if scale is None or norm == "rms" else torch.zeros_like(scale).requires_grad_()
        wanted = [t for t in (given, scale, shift) if t is not None]
        found = torch.autograd.grad(run(given, scale, shift), wanted, _tensor(torch, dy))
        dx, *rest = (_array(torch, t) for t in found)
        return dx, rest[0] if rest else None, rest[1] if len(rest) > 1 else None

    spec: NormSpec = replace(VARIANTS[f"pytorch-{norm}"], eps=eps)
    return Target(name, version("torch"), spec, forward, backward, ALL, None, torch.set_num_threads)


def _tensor(torch: Any, x: Array) -> Any:
    # PyTorch has no negative and no odd strides, and no foreign byte order: those are handed over as copies
    if not x.dtype.isnative or any(s < 0 or s % x.itemsize for s in x.strides):
        x = np.ascontiguousarray(x.astype(x.dtype.newbyteorder("=")))
    narrow = x.dtype == ml_dtypes.bfloat16
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nobody writes to it
        made = torch.from_numpy(x.view(np.int16) if narrow else x)
    return made.view(torch.bfloat16) if narrow else made


def _array(torch: Any, y: Any) -> Array:
    y = y.detach()
    return np.asarray(y.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if y.dtype == torch.bfloat16 else y.numpy())
