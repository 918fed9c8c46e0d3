# SPDX-License-Identifier: MIT
"""This file lays numbers out by strides, as PyTorch keeps its tensors, and refuses strides that lead out of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# More numbers than the storage holds come of an axis of stride 0; this many are given all the same.
_MOST_REPEATED = 2**20
# NumPy counts the bytes of an array in 63 bits, those of an empty one too.
_MOST = 2**58


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count the numbers from a tensor's first to its last; 0 of an empty one."""
    return 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def fits(shape: Sequence[int], strides: Sequence[int], start: int, held: int) -> bool:
    """Tell whether a tensor lies in `held` numbers, and is not made far larger than they by repeating them."""
    if len(shape) != len(strides) or len(shape) > 64 or min((*shape, *strides, start)) < 0:
        return False
    if 0 in shape:
        return math.prod(n or 1 for n in shape) < _MOST
    return start + reach(shape, strides) <= held and math.prod(shape) <= max(held, _MOST_REPEATED)


def laid_out(flat: NDArray[Any], shape: Sequence[int], strides: Sequence[int]) -> NDArray[Any]:
    """Copy a tensor that begins at the first number and fits."""
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    # the stride of an axis of one says nothing, and may be any number
    steps = [step * flat.itemsize if n > 1 else 0 for n, step in zip(shape, strides, strict=True)]
    return np.lib.stride_tricks.as_strided(flat, shape, steps).copy()
