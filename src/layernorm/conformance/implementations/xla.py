# SPDX-License-Identifier: MIT
"""This file wraps what JAX, Flax and Keras ship, on the CPU."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from layernorm.conformance.implementations.packages import needed, version
from layernorm.conformance.targets import Array, Gradients, Norm, Target, without_beta
from layernorm.spec.errors import MissingExtraError
from layernorm.spec.variants import VARIANTS

ALL = ("float16", "bfloat16", "float32", "float64")


def standardize(norm: Norm, eps: float) -> Target:
    """Wrap `jax.nn.standardize`, times gamma and plus beta; JAX has no RMS norm of its own."""
    jax = needed("jax")

    def run(x: Any, gamma: Any, beta: Any) -> Any:
        y = jax.nn.standardize(x, axis=-1, epsilon=eps)
        y = y if gamma is None else y * gamma
        return (y if beta is None else y + beta).astype(x.dtype)

    spec = replace(
        VARIANTS["layer"], eps=eps, stats_dtype="input", variance_by="moments_clamped", round_each=True
    )  # fmt: skip
    forward, backward = _passes(jax, "jax", norm, run)
    # the product with gamma is written here, so no refusal of a wrong gamma is JAX's
    return Target(
        "jax", version("jax"), spec, forward, backward, ALL, takes_views=False, checks_calls=False
    )  # fmt: skip


def flax(norm: Norm, eps: float) -> Target:
    """Wrap `flax.linen.LayerNorm` and `RMSNorm` with x's type as their `dtype`."""
    jax, linen = needed("jax"), needed("flax.linen", "flax")

    def run(x: Any, gamma: Any, beta: Any) -> Any:
        said = {"epsilon": eps, "use_scale": gamma is not None, "dtype": x.dtype}
        if norm == "layer":
            said["use_bias"] = beta is not None
        given = {name: value for name, value in (("scale", gamma), ("bias", beta)) if value is not None}
        return (linen.LayerNorm if norm == "layer" else linen.RMSNorm)(**said).apply({"params": given}, x)

    forward, backward = _passes(jax, "flax", norm, run)
    spec = replace(VARIANTS[f"flax-{norm}"], eps=eps)
    return Target("flax", version("flax"), spec, forward, backward, ALL, takes_views=False)


def keras(norm: Norm, eps: float) -> Target:
    """Wrap `keras.layers.LayerNormalization` and `RMSNormalization` on the backend that Keras has or finds."""
    if find_spec("keras") is not None and "keras" not in sys.modules:
        # Keras reaches for TensorFlow when nothing is said, whether or not it is installed
        found = next((name for name in ("jax", "torch", "tensorflow") if find_spec(name)), None)
        if found is None:
            raise MissingExtraError("keras needs a backend; pip install jax.", "keras")
        os.environ.setdefault("KERAS_BACKEND", found)
    keras = needed("keras")
    backend = keras.backend.backend()

    @functools.lru_cache(maxsize=64)
    def layer(shape: tuple[int, ...], dtype: str, scaled: bool, shifted: bool) -> Any:
        if norm == "rms":
            made = keras.layers.RMSNormalization(epsilon=eps, dtype=dtype)
        else:
            made = keras.layers.LayerNormalization(epsilon=eps, scale=scaled, center=shifted, dtype=dtype)
        made.build(shape)
        return made

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        without_beta("keras", norm, beta)
        if norm == "rms" and gamma is None:
            gamma = np.ones(x.shape[-1], x.dtype)  # its layer always has one
        with _wide(needed("jax"), x) if backend == "jax" else contextlib.nullcontext():
            made = layer((None, x.shape[-1]), x.dtype.name, gamma is not None, beta is not None)
            for variable, value in zip(made.weights, [p for p in (gamma, beta) if p is not None], strict=True):
                variable.assign(value)
            return np.asarray(keras.ops.convert_to_numpy(made(x)))

    spec = replace(VARIANTS[f"keras-{norm}"], eps=eps)
    said = f"{version('keras')} on {backend} {version(backend)}"
    # it takes float64 and works it out in float32, as OpenVINO does; neither is graded in a type it does not compute in
    return Target("keras", said, spec, forward, None, ALL[:3], takes_views=False)


def _passes(jax: Any, name: str, norm: Norm, run: Callable[..., Any]) -> Any:
    """Make a jitted function of x, gamma, beta into a forward and a backward pass on NumPy arrays."""
    jitted = jax.jit(run)
    gradients = jax.jit(lambda dy, x, gamma, beta: jax.vjp(run, x, gamma, beta)[1](dy))

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        without_beta(name, norm, beta)
        with _wide(jax, x):
            return np.asarray(jitted(x, gamma, beta))

    def backward(dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        beta = None if gamma is None or norm == "rms" else np.zeros_like(gamma)
        with _wide(jax, x):
            dx, dgamma, dbeta = gradients(dy, x, gamma, beta)
        dgamma, dbeta = (None if d is None else np.asarray(d) for d in (dgamma, dbeta))
        return np.asarray(dx), dgamma, dbeta

    return forward, backward


def _wide(jax: Any, x: Array) -> Any:
    """Let JAX keep float64, which it narrows to float32 unless told."""
    if x.dtype != np.float64:
        return contextlib.nullcontext()
    # before 0.8 it was experimental
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else needed("jax.experimental", "jax").enable_x64
    return switch(True)
