# SPDX-License-Identifier: MIT
"""The same numbers in other places in memory give the same bits.

What it checks
    x as every second column of a wider array, as a cut out of one, backwards in both axes, one byte off its alignment,
    transposed, and in Fortran order, against x in C order; in the backward pass dy as well.

Why it matters
    A view costs nothing, so callers pass them without a thought: the heads of an attention layer, every other token, a
    reversed sequence. Code that reads them as if they were contiguous gives plausible numbers of other columns; code
    that reads them correctly but adds in another order gives answers that change with the caller's memory.

Example
    x is (1, 2, 4, 8) and the call gets x[::-1]. Right is (1.585, 0.093, −0.653, −1.026). Who takes the stride of −1
    for 1 returns the same numbers in the order of x: nothing about them looks wrong.

What to do
    Read through the strides, or copy to a contiguous row first: a copied row also has the same order of summation.
"""

from collections.abc import Callable, Iterator

import numpy as np

from layernorm.conformance.inputs import Array, Case
from layernorm.conformance.measure import Measured, all_differing, answers, plain_case, with_backward
from layernorm.conformance.targets import Target

# Where to put x, (rows, width): an empty view of its shape and type.
PLACES: dict[str, Callable[[Array], Array]] = {
    "spaced": lambda x: np.zeros((len(x), 2 * x.shape[1] + 3), x.dtype)[:, 1 : 2 * x.shape[1] + 1 : 2],
    "cut": lambda x: np.zeros((len(x), x.shape[1] + 5), x.dtype)[:, 2 : x.shape[1] + 2],
    "backwards": lambda x: np.zeros(x.shape, x.dtype)[::-1, ::-1],
    "unaligned": lambda x: np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "transposed": lambda x: np.zeros((3, x.shape[1], len(x)), x.dtype)[1].T,
    "fortran": lambda x: np.zeros(x.shape, x.dtype, order="F"),
}


def refuses(target: Target) -> str | None:
    """Tell whether views reach the target at all."""
    return None if target.takes_views else "views are copied before it sees them"


def cases(target: Target, quick: bool) -> Iterator[Case]:
    """Give each type in each place."""
    for dtype in target.dtypes:
        for form in PLACES:
            for width in (100,) if quick else (2, 7, 17, 100, 768, 1025):
                case = plain_case(target, width, dtype, rows=13, pattern="mixed", form=form)
                yield from with_backward(target, case)


def measure(target: Target, case: Case) -> Measured:
    """Compare with C order."""
    arrays = case.x, case.dy
    places = [PLACES[case.form.removesuffix("-backward")](a) for a in arrays]
    for place, a in zip(places, arrays, strict=True):
        place[...] = a
    return all_differing(answers(target, case, *arrays), answers(target, case, *places))
