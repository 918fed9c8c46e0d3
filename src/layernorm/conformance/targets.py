# SPDX-License-Identifier: MIT
"""This file says what can be graded: an implementation of one NormSpec, behind plain NumPy arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

from layernorm.spec.errors import ArgumentError, UnsupportedError
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]
Gradients = tuple[Array, Array | None, Array | None]
Norm = Literal["layer", "rms"]


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
        if self.spec.eps_at == "none" or not isinstance(self.spec.eps, float):
            return 0.0
        return self.spec.eps


def checked_spec(spec: NormSpec) -> NormSpec:
    """Pass a spec that the properties can grade: statistics over the last axis, eps a number added under the root.

    Raises:
        UnsupportedError: it is another kind of norm.

    >>> checked_spec(NormSpec()).kind
    'layer'
    """
    plain = spec.axes == (-1,) and spec.groups is None and spec.statistics == "input"
    lies = all(axes in (None, (-1,)) for axes in (spec.scale_axes, spec.shift_axes))
    added = isinstance(spec.eps, float) and 0 <= spec.eps < math.inf and spec.eps_at == "variance"
    known = added or spec.eps_at == "none"
    if not (plain and lies and known and spec.kind in ("layer", "rms")):
        raise UnsupportedError(
            f"only norms over the last axis with a finite eps on the variance are graded, and this is {spec}; "
            "move its axes last, or fill in what is unknown with assume()."
        )
    return spec


def without_beta(name: str, norm: Norm, beta: Array | None) -> None:
    """Refuse a beta where the norm has none, as frameworks' RMS norms.

    Raises:
        ArgumentError: there is one.
    """
    if norm == "rms" and beta is not None:
        raise ArgumentError(f"{name}'s RMS norm has no beta; pass None.")


def told(fault: BaseException) -> str:
    """Say an exception of a stranger's code in one line of characters that a terminal takes for text.

    >>> told(RuntimeError("no such\\nkernel \\x1b[31m"))
    'RuntimeError: no such kernel \\\\x1b[31m'
    """
    try:
        text = printable(" ".join(str(fault)[:1000].split()))
    except KeyboardInterrupt:
        raise
    except BaseException:  # its __str__ is a stranger's code too
        text = "(it cannot say itself)"
    return f"{printable(type(fault).__name__)}: {text}"


def printable(text: str) -> str:
    """Put a text on one line, and write out what is no character to see."""
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)
