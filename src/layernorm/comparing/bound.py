# SPDX-License-Identifier: MIT
"""This file is the unit in which an output is judged: the error that docs/numerics.md allows each element."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layernorm.ops.reference import rounded
from layernorm.spec.dtypes import DTYPES

Array = npt.NDArray[Any]
# With fewer different values than this an array may fit into a narrower type by chance.
ENOUGH = 32


def bound_of(terms: Array, y: Array, name: str) -> Array:
    """Give 4u·terms and a smallest subnormal, and for a 16-bit type half an ulp more.

    `terms` are |γ·x̂| + |γ|·ρ + |β|, ρ = σ/√(σ² + ε); `y` is the exact result, `name` the type of the output.
    """
    kind = DTYPES[name]
    compute = DTYPES[kind.compute]
    allowed = 4 * 2.0**-compute.digits * terms + compute.tiny
    if kind is not compute:
        allowed = allowed + half_ulp(np.abs(y) + allowed, name)
    return np.asarray(allowed)


def half_ulp(values: Array, name: str) -> Array:
    """Give half the spacing of a type at |values|.

    >>> float(half_ulp(np.array(1.0), "float16"))
    0.00048828125
    """
    kind = DTYPES[name]
    exponent = np.frexp(np.abs(values))[1] - kind.digits
    return np.asarray(np.ldexp(np.ones_like(values), np.maximum(exponent, int(np.log2(kind.tiny))) - 1))


def storage_of(values: Array) -> str:
    """Name the narrowest type that holds every value: a dump of bfloat16 numbers is often saved as float32.

    >>> storage_of(np.linspace(0, 1, 64, dtype=np.float32)), storage_of(np.arange(64.0))
    ('float32', 'bfloat16')
    """
    name = values.dtype.name
    if name in ("float16", "bfloat16") or len(np.unique(values.reshape(-1)[:4096])) < ENOUGH:
        return name
    wide = values.astype(np.float64)
    narrower = ("bfloat16", "float16") if name == "float32" else ("bfloat16", "float16", "float32")
    return next((n for n in narrower if np.array_equal(rounded(wide, n), wide)), name)
