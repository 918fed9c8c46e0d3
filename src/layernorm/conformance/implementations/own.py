# SPDX-License-Identifier: MIT
"""This file wraps this package's own norms, the kernels and the definition they are held to."""

from dataclasses import replace

from layernorm.conformance.implementations.packages import version
from layernorm.conformance.targets import Array, Gradients, Norm, Target
from layernorm.functional import (
    layer_norm,
    layer_norm_backward,
    normalize,
    normalize_backward,
    rms_norm,
    rms_norm_backward,
    set_num_threads,
)
from layernorm.spec.norm_spec import NormSpec
from layernorm.spec.variants import VARIANTS

ALL = ("float16", "bfloat16", "float32", "float64")


def kernels(norm: Norm, eps: float) -> Target:
    """Wrap `layer_norm` and `rms_norm`, which run on the CPU's kernels."""

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        return _norm(norm, x, gamma, beta, eps)

    def backward(dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        if norm == "rms":
            _, stats = rms_norm(x, gamma, eps=eps, return_stats=True)
            return rms_norm_backward(dy, x, stats, gamma)
        _, stats = layer_norm(x, gamma, eps=eps, return_stats=True)
        return layer_norm_backward(dy, x, stats, gamma)

    def in_place(x: Array) -> None:
        _norm(norm, x, None, None, eps, out=x)

    return Target(
        "layernorm", version("layernorm"), _spec(norm, eps), forward, backward, ALL, in_place,
        set_num_threads,
    )  # fmt: skip


def definition(norm: Norm, eps: float) -> Target:
    """Wrap `normalize(…, backend="reference")`: float64 NumPy, after which it rounds."""
    spec = _spec(norm, eps)

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        said = replace(spec, scale_axes=None if gamma is None else (-1,), shift_axes=None if beta is None else (-1,))
        return normalize(x, said, gamma, beta, backend="reference")

    def backward(dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        said = replace(spec, scale_axes=None if gamma is None else (-1,))
        return normalize_backward(dy, x, said, gamma, backend="reference")

    def in_place(x: Array) -> None:
        bare = replace(spec, scale_axes=None, shift_axes=None)
        normalize(x, bare, out=x, backend="reference")

    return Target("layernorm-reference", version("layernorm"), spec, forward, backward, ALL, in_place)


def _norm(norm: Norm, x: Array, gamma: Array | None, beta: Array | None, eps: float, out: Array | None = None) -> Array:
    if norm == "rms":
        return rms_norm(x, gamma, beta=beta, eps=eps, out=out)
    return layer_norm(x, gamma, beta, eps, out=out)


def _spec(norm: Norm, eps: float) -> NormSpec:
    # rms_norm takes a beta, which the row of the paper has not
    return replace(VARIANTS[norm], eps=eps, shift_axes=(-1,))
