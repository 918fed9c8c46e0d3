# SPDX-License-Identifier: MIT
"""This file lists where a norm may round in between, and fits a dump under such a rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layernorm.comparing.fitting import Fit, Parameter, View, fit
from layernorm.ops.reference import rounded, statistics
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rounding:
    """The fields of a spec that say where somebody rounds; the others of `spec` are not used."""

    rank: int
    spec: NormSpec

    @np.errstate(all="ignore")
    def fit(self, view: View, dtype: np.dtype[Any], spec: NormSpec, gamma: Parameter, beta: Parameter) -> Fit:
        """Fit the dump with x̂ as the definition rounds it."""
        kept = tuple(a for a in range(view.x.ndim) if a not in view.normalized)
        order = kept + view.normalized
        rows = view.x.transpose(order).reshape(-1, view.size).astype(dtype)
        row = statistics(rows, spec)
        normalized = row.numerator / row.denominator
        if spec.cast_before_scale:
            normalized = rounded(normalized, dtype.name)
        elif spec.round_each:
            normalized = rounded(normalized, dtype.name if spec.stats_dtype == "input" else str(spec.stats_dtype))
        shape = [view.x.shape[a] for a in order]
        back = np.argsort(order)
        z = normalized.reshape(shape).transpose(back)[None].astype(view.y.dtype)
        rho = np.sqrt(np.mean(np.square(z), axis=tuple(a + 1 for a in view.normalized), keepdims=True))
        return fit(view, z, np.ones_like(rho), rho, gamma, beta)


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
