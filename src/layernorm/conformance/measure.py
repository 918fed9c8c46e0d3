# SPDX-License-Identifier: MIT
"""This file measures one case: the error of an answer in units of what is allowed, and in ulp."""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from layernorm.conformance.inputs import Array, Case, clear_of
from layernorm.conformance.oracle import Exact, error, forward, forward_bound, ulp
from layernorm.conformance.targets import Target

NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Measured:
    """How far an answer is off: `share` in units of the allowed error (at most 1 holds), `ulp` in those of its type."""

    share: float
    ulp: float | None = None
    why: str | None = None


def plain_type(target: Target) -> str:
    """Give the type for what has nothing to do with types: float32 where the target takes it."""
    return "float32" if "float32" in target.dtypes else target.dtypes[0]


def plain_case(target: Target, width: int, dtype: str | None = None, **fields: object) -> Case:
    """Make a case whose rows are so large that eps does not show in them."""
    dtype = dtype or plain_type(target)
    return Case(width, dtype=dtype, scale=clear_of(target.eps, dtype)).but(**fields)


def scale_of(target: Target, gamma: Array | None) -> Array | None:
    """Give what x̂ is multiplied by, in float64: γ, or 1 + γ."""
    return None if gamma is None else gamma.astype(np.float64) + float(target.spec.scale_offset == 1)


def parameters_of(target: Target, case: Case) -> tuple[Array | None, Array | None]:
    """Give a case's γ and β, without the one that the target's norm lacks."""
    gamma = None if target.spec.scale_axes is None else case.gamma
    return gamma, None if target.spec.shift_axes is None else case.beta


def with_backward(target: Target, case: Case) -> Iterator[Case]:
    """Give a case, and with a γ the same of the backward pass, if the target has one."""
    yield case
    if target.backward is not None:
        yield case.but(affine="gamma", form=f"{case.form}-backward".lstrip("-"))


def answers(target: Target, case: Case, x: Array, dy: Array) -> tuple[Array, ...]:
    """Give y; for a case of the backward pass dx, dγ and dβ, those that there are."""
    gamma, beta = parameters_of(target, case)
    if target.backward is None or not case.form.endswith("backward"):
        return (target.forward(x, gamma, beta),)
    return tuple(g for g in target.backward(dy, x, gamma) if g is not None)


def exact_of(target: Target, x: Array, gamma: Array | None = None, beta: Array | None = None) -> Exact:
    """Work rows out exactly, as the target's spec says."""
    ddof = 1 if target.spec.ddof == 1 else 0
    return forward(x, scale_of(target, gamma), beta, target.eps, target.centered, ddof)


def against_exact(
    target: Target, case: Case, slack: float | None = None, tolerance: float | None = None
) -> Measured:  # fmt: skip
    """Run a case and hold the answer to the bound of `forward_bound`, and `slack` ulp of the type more.

    Slack is 1 for 16-bit types if nothing is said: rounding twice is for the property `rounding` to show. With a
    tolerance the allowed error is that times (|γ·x̂| + |γ|·ρ + |β|), and the slack: enough for a wrong definition to
    show, and not for an imprecise one.
    """
    (gamma, beta), x, narrow = parameters_of(target, case), case.x, case.dtype in NARROW
    y = target.forward(case.x, gamma, beta)
    exact, scale = exact_of(target, x, gamma, beta), scale_of(target, gamma)
    allowed = forward_bound(exact, scale, beta, case.dtype)
    if tolerance is not None:
        allowed = allowed + tolerance * _terms(exact, scale, beta)
    if narrow and target.spec.cast_before_scale is True and scale is not None:
        # the definition itself rounds x̂ before γ multiplies it
        allowed = allowed + np.abs(scale) * ulp(exact.xhat.hi, case.dtype) / 2
    slack = float(narrow) if slack is None else slack
    return compare(y, exact, allowed + slack * ulp(exact.y.hi, case.dtype), case.dtype)


def _terms(exact: Exact, scale: Array | None, beta: Array | None) -> Array:
    size = np.abs(1.0 if scale is None else scale)
    return np.asarray(size * (np.abs(exact.xhat.hi) + exact.rho) + np.abs(0.0 if beta is None else beta))


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
    return Measured(largest(share), largest(digits))


def differing(a: Array, b: Array) -> Measured:
    """Compare two answers that must have the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return Measured(np.inf)
    same = np.ascontiguousarray(a).view(np.uint8) == np.ascontiguousarray(b).view(np.uint8)
    if bool(same.all()):
        return Measured(0.0, 0.0)
    wide, other = a.astype(np.float64), b.astype(np.float64)
    # of the larger of the two: beside a 0, every difference is 1e40 of the smallest number there is
    digits = largest(np.abs(wide - other) / ulp(np.maximum(np.abs(wide), np.abs(other)), a.dtype))
    return Measured(max(2.0, digits), digits)


def all_differing(some: tuple[Array, ...], others: tuple[Array, ...]) -> Measured:
    """Compare answers of several arrays, which must have the same bits."""
    return max((differing(a, b) for a, b in zip(some, others, strict=True)), key=lambda m: m.share)


def yes_or_no(wrong: str | None) -> Measured:
    """Measure what cannot be wrong by degrees: None if it is right, else a sentence saying what is wrong."""
    return Measured(0.0) if wrong is None else Measured(np.inf, None, wrong)


def largest(values: Array) -> float:
    """Give the largest value, NaN counting as infinity; 0 if there is none."""
    return float(np.max(np.where(np.isnan(values), np.inf, values), initial=0.0))
