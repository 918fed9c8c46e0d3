# SPDX-License-Identifier: MIT
"""Gradients of rows of one value are finite and right.

What it checks
    Rows that hold one value, and rows of one column, where the mean is taken off: dx = (g − mean(g))/√eps within 8 ulp
    of max|g|/√eps, dγ = 0 to the bit and dβ = Σ dy.

Why it matters
    x̂ is 0 there, and 1/σ is finite only because of eps. A gradient that goes through the root of the variance alone is
    0/0, and one padded token then makes every weight of the model NaN.

Example
    The row (7, 7) with dy = (1, 0) and eps = 1e-5 has dx = (0.5, −0.5)/√1e-5 = (158.1, −158.1), and dγ = 0. By way of
    √0 it is NaN.

What to do
    Differentiate 1/√(var + eps), not √var and then the division. Take x̂ from (x − m) − δ in the backward pass too.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, parameters_of, yes_or_no
from layernorm.conformance.properties import input_gradient
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Tell whether it gives such gradients."""
    if not target.centered:
        return "without a mean taken off, a constant row is a row like others"
    return input_gradient.refuses(target) or (None if target.eps else "with eps = 0 a constant row has no gradient")


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give values at several widths, one column among them."""
    for dtype in target.dtypes:
        for width in (1, 100) if quick else (1, 2, 7, 100, 768, 1025):
            for value in (0.0, 7.0, 0.1, -1e4):
                yield Case(width, 5, dtype, "constant", offset=value, affine="gamma")


def measure(target: Target, case: Case) -> Measured:
    """Compare dx with the exact one, and dγ with zero."""
    assert target.backward is not None
    found = input_gradient.measure(target, case)
    gamma, _ = parameters_of(target, case)
    dgamma = target.backward(case.dy, case.x, gamma)[1]
    if dgamma is not None and not np.all(dgamma.astype(np.float64) == 0):
        return yes_or_no("dγ is not 0 where x̂ is")
    return found
