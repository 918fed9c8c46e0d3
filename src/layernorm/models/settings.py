# SPDX-License-Identifier: MIT
"""This file reads a setting of a layer, which may be kept as anything, as a plain value, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Under which PyTorch's classes, and those written like them, keep what layers.py asks for.
EPSILONS = ("eps", "epsilon", "variance_epsilon", "layer_norm_eps")
WIDTHS = ("normalized_shape", "num_groups", "num_features")
NAMES = (*EPSILONS, *WIDTHS, "hidden_size", "dim", "data_format", "training")
# As many axes as an array of NumPy may have.
_MOST_LISTED = 64


@dataclass(frozen=True)
class Unreadable:
    """A setting that is there and cannot be read: `why` says what it is instead."""

    why: str


def plain(value: Any, decoded: Callable[[Any], Any] = lambda value: value) -> Any:
    """Give a bool, an integer of 64 bits, a float, a text, None or a tuple of these; `Unreadable` for all else.

    >>> plain(np.float32(0.5)), plain([np.int64(4), 8]), plain(2**2000)
    (0.5, (4, 8), Unreadable(why='an integer of 2001 bits'))

    Args:
        value: the setting.
        decoded: makes a number of what only a format knows; asked once about the value, and about each of a list.
    """
    value = decoded(value)
    if not isinstance(value, (tuple, list)):
        return _scalar(value)
    if len(value) > _MOST_LISTED:
        return Unreadable(f"a list of {len(value)}")
    listed = tuple(_scalar(decoded(item)) for item in value)
    return next((item for item in listed if isinstance(item, Unreadable)), listed)


def _scalar(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.size != 1 or value.dtype.kind == "O":
            return Unreadable(f"an array of {value.dtype} of shape {value.shape}")
        # a longdouble's item is a longdouble
        value = value.astype(np.float64).item() if value.dtype.kind == "f" else value.item()
    if value is None or isinstance(value, (bool, str, Unreadable)):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < 64 else Unreadable(f"an integer of {value.bit_length()} bits")
    return float(value) if isinstance(value, float) else Unreadable(f"a {type(value).__name__}"[:80])
