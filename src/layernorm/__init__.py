# SPDX-License-Identifier: MIT
"""Layer normalization, done exactly, fast, and provably right everywhere."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layernorm.conformance.conform import conform
    from layernorm.dispatch import Plan, Stats
    from layernorm.functional import (
        batch_norm,
        batch_norm_backward,
        get_num_threads,
        group_norm,
        group_norm_backward,
        instance_norm,
        instance_norm_backward,
        layer_norm,
        layer_norm_backward,
        normalize,
        normalize_backward,
        plan,
        rms_norm,
        rms_norm_backward,
        set_num_threads,
    )
    from layernorm.ops.moments import Moments
    from layernorm.report.comparison import compare
    from layernorm.report.inference import infer
    from layernorm.report.inspection import inspect
    from layernorm.spec.errors import ArgumentError, ArrayTypeError, LayerNormError, SpecError
    from layernorm.spec.norm_spec import UNKNOWN, NormSpec
    from layernorm.spec.variants import VARIANTS
    from layernorm.standardizer import Standardizer

__version__ = "0.1.0"

__all__ = [
    "UNKNOWN",
    "VARIANTS",
    "ArgumentError",
    "ArrayTypeError",
    "LayerNormError",
    "Moments",
    "NormSpec",
    "Plan",
    "SpecError",
    "Standardizer",
    "Stats",
    "batch_norm",
    "batch_norm_backward",
    "compare",
    "conform",
    "get_num_threads",
    "group_norm",
    "group_norm_backward",
    "infer",
    "inspect",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "normalize",
    "normalize_backward",
    "plan",
    "rms_norm",
    "rms_norm_backward",
    "set_num_threads",
]

# What does not stand in functional. Each is loaded when it is first asked for: the command line must not wait for NumPy
# before it can be stopped, and `inspect` needs nothing that `layer_norm` does.
_PLACES = {
    "Moments": "ops.moments",
    "Plan": "dispatch",
    "Standardizer": "standardizer",
    "Stats": "dispatch",
    "UNKNOWN": "spec.norm_spec",
    "VARIANTS": "spec.variants",
    "compare": "report.comparison",
    "conform": "conformance.conform",
    "infer": "report.inference",
    "inspect": "report.inspection",
    "NormSpec": "spec.norm_spec",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'layernorm' has no attribute {name!r}")
    place = _PLACES.get(name, "spec.errors" if name.endswith("Error") else "functional")
    value = globals()[name] = getattr(importlib.import_module(f"layernorm.{place}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
