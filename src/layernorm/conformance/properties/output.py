# SPDX-License-Identifier: MIT
"""The output has the shape and the type of x, and x is left as it was.

What it checks
    x of two and of three axes, in each type, with and without γ and β: y has x's shape and x's type, and the numbers
    of x are the same after the call as before it.

Why it matters
    A norm sits between layers that expect what came in. A float32 answer to a float16 question doubles the memory of
    everything after it; an x that was written over spoils the residual branch, which reads it again.

Example
    x is float16 of shape (2, 3, 17), gamma float32 of shape (17,). NumPy's promotion gives a float32 product; the
    answer must be rounded to float16 once, at the end.

What to do
    Remember x's type at the start and cast the result to it after the shift. Never normalize with `-=` or `/=` on the
    array that was passed.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Case
from layernorm.conformance.measure import Measured, parameters_of, plain_case, yes_or_no
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each type with and without parameters, as two axes and as three."""
    for dtype in target.dtypes:
        for form in ("two-axes", "three-axes"):
            yield plain_case(target, 17, dtype, rows=6, form=form)
            yield plain_case(target, 17, dtype, rows=6, affine="both", form=form)


def measure(target: Target, case: Case) -> Measured:
    """Say what is not as it was."""
    before = case.x if case.form == "two-axes" else case.x.reshape(2, 3, case.width)
    x = before.copy()
    y = target.forward(x, *parameters_of(target, case))
    if not isinstance(y, np.ndarray):
        return yes_or_no(f"the output is a {type(y).__name__}, not an array")
    if y.shape != x.shape:
        return yes_or_no(f"the output has shape {y.shape}, x {x.shape}")
    if y.dtype != x.dtype:
        return yes_or_no(f"the output is {y.dtype}, x {x.dtype}")
    return yes_or_no(None if np.array_equal(x, before) else "x was written over")
