# SPDX-License-Identifier: MIT
"""Mean and variance are taken over the last axis, and over no other.

What it checks
    x of three axes, all of different length, whose rows differ in mean and spread. The answer is compared with the
    norms over each of the seven sets of axes. It fails if it is within 1e-2 of one over a wrong set and further from
    the right one; an answer that is near none of them is for the other properties to judge. With γ and β, and in the
    backward pass, three axes must give what the same rows give as two, to within 1e-2.

Why it matters
    Over all axes but the first is another norm, and a trained model may well use it: the error is then not in the
    kernel but in what its axis argument was taken to mean. Each row alone looks plausible.

Example
    x of shape (1, 2, 2) holds the rows (1, 3) and (10, 30). Over the last axis both become (−1, 1). Over the last two
    they become (−0.872, −0.698) and (−0.087, 1.657): the difference between the rows, which a norm is to remove, is
    still there.

What to do
    Look at what the axis or normalized_shape argument means where it was set: -1 is the last axis; (768,) and
    (10, 768) are one and two axes from the end.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import Measured, answers, exact_of, plain_case, with_backward, yes_or_no
from layernorm.conformance.targets import Target

TOLERANCE = 1e-2
WRONG = tuple(axes for n in (1, 2, 3) for axes in combinations(range(3), n) if axes != (2,))


def refuses(target: Target) -> str | None:
    """Every target can show it."""
    return None


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give two widths."""
    for width in (8, 33):
        yield from with_backward(target, plain_case(target, width, rows=15, pattern="mixed"))
        if target.spec.scale_axes is not None:
            yield plain_case(target, width, rows=15, pattern="mixed", affine="both")


def measure(target: Target, case: Case) -> Measured:
    """Find the nearest set of axes; the share is how much further the right one is, in units of the tolerance."""
    if case.affine != "none":
        return _against_two(target, case)
    x = case.x.reshape(3, 5, case.width)
    y = np.asarray(target.forward(x.copy())).astype(np.float64)
    if y.shape != x.shape:
        return yes_or_no(f"the output has shape {y.shape}, x {x.shape}")
    right = _distance(y, _over((2,), target, x))
    distance, axes = min((_distance(y, _over(axes, target, x)), axes) for axes in WRONG)
    if distance >= min(right, TOLERANCE):
        return Measured(0.0)
    return Measured(right / TOLERANCE, None, f"statistics are taken over axes {axes} of 3")


def _against_two(target: Target, case: Case) -> Measured:
    two, three = (answers(target, case, *(a.reshape(*n, -1) for a in (case.x, case.dy))) for n in ((15,), (3, 5)))
    pairs = ([a.reshape(-1).astype(np.float64) for a in pair] for pair in zip(three, two, strict=True))
    return Measured(max(_distance(a, b) for a, b in pairs) / TOLERANCE)


def _over(axes: tuple[int, ...], target: Target, x: Array) -> Array:
    last = range(3 - len(axes), 3)
    moved = np.moveaxis(x, axes, last)
    rows = moved.reshape(int(np.prod(moved.shape[: 3 - len(axes)])), -1)
    return np.moveaxis(exact_of(target, rows).y.to_float().reshape(moved.shape), last, axes)


def _distance(a: Array, b: Array) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))
