# SPDX-License-Identifier: MIT
"""This file says what can be graded: an implementation of one NormSpec, behind plain NumPy arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]
Gradients = tuple[Array, Array | None, Array | None]


class Forward(Protocol):
    """A norm over the last axis: x of any number of axes, gamma and beta of shape (width,) or None."""

    def __call__(self, x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        """Give y, of x's shape and type."""
        ...


class Backward(Protocol):
    """Its gradients: dx, dgamma (None without gamma) and dbeta (None if it has none)."""

    def __call__(self, dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        """Give them for the output's gradient dy."""
        ...


@dataclass(frozen=True)
class Target:
    """One implementation, with what it can be asked to do; what it lacks is not applicable, never passed."""

    name: str
    version: str | None
    spec: NormSpec
    forward: Forward
    backward: Backward | None = None
    dtypes: tuple[str, ...] = ("float32",)
    # writes over the array it is given
    in_place: Callable[[Array], None] | None = None
    # sets how many threads the next calls may use
    set_threads: Callable[[int], None] | None = None
    # takes views of any strides as they are, rather than being handed a copy
    takes_views: bool = True
    # refuses wrong calls of its own accord; a wrapped graph cannot be called wrongly
    checks_calls: bool = True

    @property
    def centered(self) -> bool:
        """Whether the norm takes the mean off: layer norm, against RMS norm."""
        return bool(self.spec.centered)

    @property
    def eps(self) -> float:
        """The epsilon of the spec, as a number."""
        return float(np.float64(self.spec.eps)) if isinstance(self.spec.eps, float) else 0.0
