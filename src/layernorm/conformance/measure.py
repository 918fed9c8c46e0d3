# SPDX-License-Identifier: MIT
"""This file measures one case: the error of an answer in units of what is allowed, and in ulp."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.oracle import Exact, error, forward, forward_bound, ulp
from layernorm.conformance.targets import Target


@dataclass(frozen=True)
class Measured:
    """How far an answer is off: `share` in units of the allowed error (at most 1 holds), `ulp` in those of its type."""

    share: float
    ulp: float | None = None


def exact_of(target: Target, case: Case, gamma: Array | None = None, beta: Array | None = None) -> Exact:
    """Work a case out exactly, as the target's spec says."""
    ddof = 1 if target.spec.ddof == 1 else 0
    scale = None if gamma is None else gamma.astype(np.float64) + float(target.spec.scale_offset == 1)
    return forward(case.x, scale, beta, target.eps, target.centered, ddof)


def against_exact(target: Target, case: Case, slack: float = 0.0, tolerance: float | None = None) -> Measured:
    """Run a case and hold the answer to the bound of the numerics, and `slack` ulp of the type more.

    With a tolerance the allowed error is that times (|γ·x̂| + |γ|·ρ + |β|) instead: enough for a wrong definition to
    show, and not for an imprecise one.
    """
    gamma, beta = case.gamma, case.beta
    y = target.forward(case.x, gamma, beta)
    exact = exact_of(target, case, gamma, beta)
    scale = None if gamma is None else gamma.astype(np.float64) + float(target.spec.scale_offset == 1)
    bound = forward_bound(exact, scale, beta, case.dtype)
    if tolerance is not None:
        unit = 2.0**-53 if case.dtype == "float64" else 2.0**-24
        bound = bound / (4 * unit) * tolerance
    return compare(y, exact, bound + slack * ulp(exact.y.hi, case.dtype), case.dtype)


def compare(y: Array, exact: Exact, allowed: Array, dtype: str) -> Measured:
    """Take the largest error; NaN and infinity are infinitely wrong unless the exact answer is so in this type."""
    if y.shape != exact.y.hi.shape:
        return Measured(np.inf)
    off = error(y, exact.y)
    beyond = np.abs(exact.y.hi) > float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    undefined = np.isnan(exact.y.hi)
    wide = y.astype(np.float64)
    excused = (beyond & ~np.isfinite(wide)) | (undefined & np.isnan(wide))
    share = np.where(excused, 0.0, off / allowed)
    digits = np.where(excused, 0.0, off / ulp(exact.y.hi, dtype))
    return Measured(_largest(share), _largest(digits))


def differing(a: Array, b: Array) -> Measured:
    """Compare two answers that must have the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return Measured(np.inf)
    same = np.ascontiguousarray(a).view(np.uint8) == np.ascontiguousarray(b).view(np.uint8)
    if bool(same.all()):
        return Measured(0.0, 0.0)
    wide, other = a.astype(np.float64), b.astype(np.float64)
    digits = _largest(np.abs(wide - other) / ulp(wide, a.dtype))
    return Measured(max(2.0, digits), digits)


def worst(*found: Measured) -> Measured:
    """Give the worst of several."""
    return max(found, key=lambda m: m.share)


def _largest(values: Array) -> float:
    return float(np.max(np.where(np.isnan(values), np.inf, values), initial=0.0))
