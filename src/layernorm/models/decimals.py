# SPDX-License-Identifier: MIT
"""This file says a stored number as a person would have written it."""

from __future__ import annotations

from typing import SupportsFloat

import numpy as np


def shortest(value: SupportsFloat, dtype: str = "float32") -> float:
    """Give the decimal of fewest digits that, stored in this type, is the same number.

    A file that keeps 1e-12 as a float32 holds 9.999999960041972e-13, which nobody wrote.

    >>> shortest(9.999999960041972e-13)
    1e-12
    >>> shortest(0.00100040435791015625, "float16")
    0.001
    """
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    kind = np.dtype(dtype).type
    with np.errstate(all="ignore"):
        held = kind(float(value))
        for digits in range(17):
            decimal = float(f"{float(held):.{digits}e}")
            if kind(decimal) == held:
                return decimal
    return float(held)  # a NaN is equal to nothing
