# SPDX-License-Identifier: MIT
"""This file defines Tap, what passed through one norm in a run, and Run, what a whole run gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Tap(NamedTuple):
    """What went into one norm and what came out of it.

    Args:
        input, output: the arrays, of the type in which the runtime had them.
        activation: what was applied to the norm's own result before it could be read: TFLite's `RELU`, `RELU6`,
            `RELU_N1_TO_1`, `TANH`; empty where nothing was.
        scale_step, shift_step, output_step: how far apart neighbouring values of gamma, beta and the output are where
            the model keeps them as integers; 0 where they are floats.
    """

    input: NDArray[Any]
    output: NDArray[Any]
    activation: str = ""
    scale_step: float = 0.0
    shift_step: float = 0.0
    output_step: float = 0.0
    coarse: NDArray[Any] | float = 0.0
    """How far rounding to integers inside the norm may move each value of the output."""


@dataclass(frozen=True)
class Run:
    """One run of a model: the taps of its norms by name, and for each norm without one, why there is none."""

    taps: Mapping[str, Tap]
    missing: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    """The values that the runtime kept as integers, each with the distance between neighbours."""
    runtime: str = ""
    """The runtime and its version, for people."""
