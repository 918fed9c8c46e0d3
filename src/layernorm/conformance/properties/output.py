# SPDX-License-Identifier: MIT
"""The output has the shape and the type of x, and x is left as it was.

What it checks
    x of two and of three axes, in each type, with and without γ and β: y has x's shape and x's type, and the numbers
    of x are the same after the call as before it. dx has x's shape and type, dγ and dβ have γ's, and dy is left as it
    was.

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

from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import Measured, parameters_of, plain_case, with_backward, yes_or_no
from layernorm.conformance.targets import Target


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each type with and without parameters, as two axes and as three."""
    for dtype in target.dtypes:
        for form in ("two-axes", "three-axes"):
            yield from with_backward(target, plain_case(target, 17, dtype, rows=6, form=form))
            yield plain_case(target, 17, dtype, rows=6, affine="both", form=form)


def measure(target: Target, case: Case) -> Measured:
    """Say what is not as it was."""
    shape = (6, case.width) if case.form.startswith("two-axes") else (2, 3, case.width)
    x, dy, (gamma, beta) = case.x.reshape(shape), case.dy.reshape(shape), parameters_of(target, case)
    wrong: list[str | None]
    if target.backward is None or not case.form.endswith("backward"):
        wrong = [_unlike("the output", target.forward(x, gamma, beta), "x", x)]
    else:
        dx, *others = target.backward(dy, x, gamma)
        wrong = [_unlike("dx", dx, "x", x)]
        for name, given in zip(("dγ", "dβ"), others, strict=True):
            # whether they are missing is for `parameter-gradients`
            wrong += [] if given is None or gamma is None else [_unlike(name, given, "γ", gamma)]
    for name, now, before in (("x", x, case.x), ("dy", dy, case.dy)):
        wrong.append(None if np.array_equal(now, before.reshape(shape)) else f"{name} was written over")
    return yes_or_no(next((said for said in wrong if said is not None), None))


def _unlike(name: str, given: object, other: str, like: Array) -> str | None:
    if not isinstance(given, np.ndarray):
        return f"{name} is a {type(given).__name__}, not an array"
    if given.shape != like.shape:
        return f"{name} has shape {given.shape}, {other} {like.shape}"
    return None if given.dtype == like.dtype else f"{name} is {given.dtype}, {other} {like.dtype}"
