# SPDX-License-Identifier: MIT
"""This file makes records and arrays for the tests of this folder, and works out what norms give, by NumPy."""

from typing import NamedTuple

import numpy as np

from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.spec.norm_spec import NormSpec

GAMMA, BETA = np.linspace(0.5, 2, 48, dtype=np.float32), np.linspace(-1, 1, 48, dtype=np.float32)
LAYER = NormSpec(eps=1e-5, scale_axes=(-1,), shift_axes=(-1,), stats_dtype="float32")


class Pair(NamedTuple):
    a: NormRecord
    b: NormRecord
    rule: str = "name"


def tensor(values, name="w"):
    values = np.asarray(values)
    return Tensor(name, values.shape, values.dtype.name, lambda: values)


def record(name="n", spec=LAYER, scale=GAMMA, shift=BETA, **more):
    return NormRecord(
        name, "", "fused", spec, {}, scale=None if scale is None else tensor(scale),
        shift=None if shift is None else tensor(shift), **more,
    )  # fmt: skip


def layer(x, eps=1e-5, gamma=GAMMA, beta=BETA, axes=(-1,)):
    """The formula in float64, rounded once to x's type."""
    wide = x.astype(np.float64)
    deviation = wide - wide.mean(axes, keepdims=True)
    y = deviation / np.sqrt((deviation**2).mean(axes, keepdims=True) + eps) * gamma + beta
    return y.astype(x.dtype)


def rows(seed=0, shape=(2, 6, 48), offset=0.5, dtype=np.float32):
    return (offset + np.random.default_rng(seed).standard_normal(shape)).astype(dtype)
