# SPDX-License-Identifier: MIT
"""This file lists the denominators that a norm may have: which spread, which epsilon, and where it is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from layernorm.comparing.fitting import View
from layernorm.spec.norm_spec import EpsAt, Spread

Array = npt.NDArray[Any]

# What people and frameworks write, the more usual first: PyTorch and ONNX 1e-5, Flax and T5 1e-6, BERT 1e-12, Keras
# 1e-3; torch.nn.RMSNorm's 2**-23, GLM-4's 1.5625e-7, cuDNN's 1.001e-5, and BNNS's and Flux's root of 2**-23.
USUAL = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7, 1e-9, 1e-10, 1e-4, 1e-2, 1e-1, 2.0**-23, 1.5625e-7, 1.001e-5, 2.0**-11.5)
PLACES: tuple[EpsAt, ...] = ("variance", "deviation", "sum", "variance_floor", "deviation_floor", "none")


class Measure(NamedTuple):
    """What is divided and by what: x or x − mean, by a spread of n − ddof."""

    centered: bool
    spread: Spread
    ddof: Literal[0, 1]

    def square(self, view: View) -> Array:
        """Give the square of the spread."""
        return view.squares[self.spread, self.ddof]

    def divisor(self, view: View) -> int:
        """Give what the sum of squares is divided by."""
        return 1 if self.spread == "l2" else view.size - (self.ddof if self.spread == "std" else 0)

    def numerator(self, view: View) -> Array:
        """Give what is divided."""
        return view.deviation if self.centered else view.x

    def places(self) -> tuple[EpsAt, ...]:
        """List where an epsilon may stand; for a length, under the root and to the sum are one place."""
        return PLACES[1:] if self.spread == "l2" else PLACES


MEASURES = (
    Measure(True, "std", 0),
    Measure(True, "std", 1),
    Measure(False, "rms", 0),
    Measure(False, "l2", 0),
    Measure(False, "std", 0),
    Measure(False, "std", 1),
)


def denominators(measure: Measure, view: View, place: EpsAt, eps: Sequence[float] | Array) -> Array:
    """Give K denominators for K epsilons, as the view rounds them."""
    square, each = measure.square(view), view.each
    values = view.to(np.asarray(eps, square.dtype).reshape(-1, *[1] * square.ndim))
    match place:
        case "variance":
            return each(np.sqrt(each(square + values)))
        case "sum":
            return each(np.sqrt(each(square + values / measure.divisor(view))))
        case "deviation":
            return each(each(np.sqrt(square)) + values)
        case "variance_floor":
            return each(np.sqrt(np.maximum(square, values)))
        case "deviation_floor":
            return np.asarray(np.maximum(each(np.sqrt(square)), values))
        case _:
            return np.asarray(each(np.sqrt(square)) + 0 * values)
