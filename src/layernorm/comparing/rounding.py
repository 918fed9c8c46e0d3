# SPDX-License-Identifier: MIT
"""This file lists where a norm may round in between, and sees a dump as such a norm would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from layernorm.comparing.fitting import View
from layernorm.ops.reference import rounded
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rounding:
    """The fields of a spec that say where somebody rounds; its others are not used."""

    rank: int
    spec: NormSpec

    @np.errstate(all="ignore")
    def seen(self, view: View, dtype: str) -> View:
        """Take the statistics of a view again, rounded as ops/reference.py rounds; `dtype` is the input's type."""
        spec, n, axes = self.spec, view.size, view.normalized
        if self.rank == EXACT.rank:
            return view
        finish = _to(dtype) if spec.cast_before_scale else np.asarray
        if spec.stats_dtype == "float64":
            return replace(view, finish=finish)
        to = _to(str(spec.stats_dtype))
        each = to if spec.round_each else np.asarray
        x = to(view.x)
        mean = to(x.mean(axis=axes, keepdims=True))
        deviation = each(x - mean)
        squares: dict[Any, Array] = {}
        for ddof in (0, 1):
            total = np.sum(each(np.square(deviation)), axis=axes, keepdims=True)
            squares["std", ddof] = to(total / (n - ddof))
            if spec.variance_by != "centered":
                moment = to(np.mean(each(np.square(x)), axis=axes, keepdims=True)) - each(np.square(mean))
                moment = each(moment) * (n / (n - ddof))
                squares["std", ddof] = np.maximum(moment, 0) if spec.variance_by == "moments_clamped" else moment
        total = np.sum(each(np.square(x)), axis=axes, keepdims=True)
        squares["rms", 0], squares["l2", 0] = to(total / n), to(total)
        finish = each if finish is np.asarray else finish
        return replace(view, x=x, deviation=deviation, squares=squares, to=to, each=each, finish=finish)


EXACT = Rounding(0, NormSpec())


def roundings(dtype: str) -> list[Rounding]:
    """List the ways of rounding that are tried for an input of this type, the usual ones first."""
    ways: list[dict[str, Any]] = [
        {"stats_dtype": "float32"},
        {"stats_dtype": "float32", "variance_by": "moments"},
        {"stats_dtype": "float32", "variance_by": "moments_clamped"},
        {"stats_dtype": "float16"},
        {"stats_dtype": "bfloat16"},
    ]
    if dtype in ("float16", "bfloat16"):
        ways += [
            {"stats_dtype": "float32", "cast_before_scale": True},
            {"cast_before_scale": True},
            {"stats_dtype": dtype, "round_each": True},
        ]
    return [Rounding(k + 1, NormSpec(**way)) for k, way in enumerate(ways)]


def _to(name: str) -> Callable[[Array], Array]:
    return lambda values: rounded(np.asarray(values, np.float64), name)
