# SPDX-License-Identifier: MIT
"""A call that cannot mean anything is refused, not answered.

What it checks
    x without axes; γ of one value, of one value too many, and of half as many as x has columns; β likewise; a dy whose
    shape is not x's. Each must raise.

Why it matters
    NumPy's broadcasting accepts most of them. A γ of shape (1,) scales 768 columns alike, which is what a checkpoint
    with a wrong name looks like; the answer has the right shape and no warning is given.

Example
    x has 768 columns and γ is the array (2.0,). All columns come out doubled, which no test of shapes sees.

What to do
    Compare the parameters' shape with that of the normalized axes before computing, and print both in the error.
"""

from collections.abc import Iterator

import numpy as np

from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import Measured, plain_case, yes_or_no
from layernorm.conformance.targets import Target

WIDTH = 24
SIZES = {"one": 1, "more": 25, "half": 12}


def refuses(target: Target) -> str | None:
    """Tell whether wrong calls reach it."""
    return None if target.checks_calls else "it cannot be called wrongly"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each wrong call."""
    case = plain_case(target, WIDTH)
    yield case.but(form="no-axes")
    for size in SIZES:
        if target.spec.scale_axes is not None:
            yield case.but(form=f"gamma-{size}")
        if target.spec.shift_axes is not None:
            yield case.but(form=f"beta-{size}")
    if target.backward is not None:
        yield case.but(form="dy")


def measure(target: Target, case: Case) -> Measured:
    """Make the wrong call and see whether it is refused."""
    name, _, size = case.form.partition("-")
    try:
        if case.form == "no-axes":
            y = target.forward(case.x[0, 0].reshape(()))
        elif case.form == "dy":
            assert target.backward is not None
            y = target.backward(case.dy[:, :-1].copy(), case.x)[0]
        else:
            wrong: Array = np.ones(SIZES[size], "float64" if case.dtype == "float64" else "float32")
            y = target.forward(case.x, wrong, None) if name == "gamma" else target.forward(case.x, None, wrong)
    except Exception:  # any refusal is one
        return yes_or_no(None)
    return yes_or_no(f"{case.form} gave an answer of shape {np.shape(y)}")
