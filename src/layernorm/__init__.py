# SPDX-License-Identifier: MIT
"""Layer normalization, done exactly, fast, and provably right everywhere."""

from typing import TYPE_CHECKING, Any

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
from layernorm.spec.errors import ArgumentError, ArrayTypeError, LayerNormError, SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec
from layernorm.spec.variants import VARIANTS
from layernorm.standardizer import Standardizer

if TYPE_CHECKING:
    from layernorm.conformance.conform import conform
    from layernorm.report.comparison import compare
    from layernorm.report.inference import infer
    from layernorm.report.inspection import inspect

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


def __getattr__(name: str) -> Any:
    # what few calls need is loaded with the first of them
    if name == "compare":
        from layernorm.report.comparison import compare

        return compare
    if name == "conform":
        from layernorm.conformance.conform import conform

        return conform
    if name == "infer":
        from layernorm.report.inference import infer

        return infer
    if name == "inspect":
        from layernorm.report.inspection import inspect

        return inspect
    raise AttributeError(f"module 'layernorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
