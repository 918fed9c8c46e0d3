# SPDX-License-Identifier: MIT
"""The output is γ·x̂ + β, or (1 + γ)·x̂ + β where the norm says so, with γ or β alone too.

What it checks
    γ alone, β alone and both, random and of either sign, to within 2e-2 of |γ·x̂| + |γ| + |β|.

Why it matters
    Frameworks disagree on the names (gamma, weight, scale), on the order of the arguments, and on whether what is
    stored is γ or γ − 1: Gemma keeps γ − 1, Llama γ. Fresh parameters, ones and zeros, hide most of these mistakes.

Example
    x̂ = 0.5, γ = 2, β = 1. Right is 2; β inside the product gives 3; 1 + γ for γ gives 2.5; γ twice gives 3; without
    β it is 1.

What to do
    Compare the three cases. Only `affine=both` wrong: the shift is inside the product. `affine=gamma` wrong by x̂:
    the stored value is γ − 1 in one of the two. `affine=beta` wrong by β: it is lost when there is no γ.
"""

from collections.abc import Iterator

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, against_exact, plain_case
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Tell whether it has parameters."""
    if target.spec.scale_axes is None and target.spec.shift_axes is None:
        return "the norm has neither γ nor β"
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each of the parameters that the norm has, and both."""
    for width in (5, 100) if quick else (2, 5, 8, 33, 100, 768):
        if target.spec.scale_axes is not None:
            yield plain_case(target, width, pattern="balanced", affine="gamma")
        if target.spec.shift_axes is not None:
            yield plain_case(target, width, pattern="balanced", affine="beta")
        if target.spec.scale_axes is not None and target.spec.shift_axes is not None:
            yield plain_case(target, width, pattern="balanced", affine="both")


def measure(target: Target, case: Case) -> Measured:
    """Compare with the definition, roughly."""
    return against_exact(target, case, tolerance=2e-2)
