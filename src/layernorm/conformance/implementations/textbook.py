# SPDX-License-Identifier: MIT
"""This file is the formula as people write it in NumPy: two passes, every step in the array's own type."""

from dataclasses import replace

import numpy as np

from layernorm.conformance.implementations.packages import version
from layernorm.conformance.targets import Array, Norm, Target
from layernorm.spec.variants import VARIANTS


def two_pass(norm: Norm, eps: float) -> Target:
    """Wrap the textbook: subtract the mean, divide by the root of the mean square plus eps."""

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            centered = x - x.mean(axis=-1, keepdims=True) if norm == "layer" else x
            y = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)
            y = y if gamma is None else y * gamma
            y = y if beta is None else y + beta
        return np.asarray(y.astype(x.dtype))

    spec = replace(VARIANTS[norm], eps=eps, shift_axes=(-1,), stats_dtype="input", round_each=True)
    return Target("numpy", version("numpy"), spec, forward, dtypes=("float16", "float32", "float64"))
