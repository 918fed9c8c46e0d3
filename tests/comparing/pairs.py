# SPDX-License-Identifier: MIT
"""This file makes records and pairs of them for the tests of what compares them."""

import numpy as np

from layernorm.comparing.compared import Compared, Side
from layernorm.models.model_file import Layer, ModelFile, Tensor
from layernorm.models.norm_record import Found, NormRecord
from layernorm.spec.norm_spec import NormSpec

LAYER = NormSpec(scale_axes=(-1,), shift_axes=(-1,), eps=1e-5, stats_dtype="float32")
RMS = NormSpec(centered=False, spread="rms", scale_axes=(-1,), eps=1e-6, stats_dtype="float32")
RANDOM = np.random.default_rng(11)
GAMMA, BETA = RANDOM.normal(1, 0.2, 16).astype(np.float32), RANDOM.normal(0, 0.5, 16).astype(np.float32)


def tensor(name, values, dtype=None):
    array = np.asarray(values, np.float32) if dtype is None else np.asarray(values).astype(dtype)
    return Tensor(name, array.shape, array.dtype.name, lambda: array)


def record(name="norm", spec=LAYER, gamma=GAMMA, beta=BETA, mean=None, variance=None, dtype="float32", **more):
    """Make a record; a parameter that the spec has no axes for is left out."""
    held = {"scale": gamma, "shift": beta if spec.shift_axes is not None else None, "mean": mean, "variance": variance}
    if spec.scale_axes is None:
        held["scale"] = None
    made = {
        role: value if value is None or isinstance(value, Tensor) else tensor(f"{name}.{role}", value)
        for role, value in held.items()
    }
    return NormRecord(name, f"at {name}", "fused", spec, {}, dtype, **made, **more)


def side(*records, risks=(), graph=True, unidentified=()):
    # a file with layers can show a norm without parameters, one of names alone cannot
    layers = (Layer("torch", "LayerNorm", "x", "x", {}, {}),) if graph else ()
    return Side(ModelFile("m", "safetensors", {}, layers=layers), Found(list(records), list(unidentified), list(risks)))


def compared(a, b, names=None):
    """Compare two records, or two sides."""
    a, b = (part if isinstance(part, Side) else side(part) for part in (a, b))
    return Compared(a, b, names)
