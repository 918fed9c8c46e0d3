# SPDX-License-Identifier: MIT
"""This file knows the four storage types: their bits, their spacing, and the type that computes for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

DTypeName = Literal["float16", "bfloat16", "float32", "float64"]


@dataclass(frozen=True)
class StorageType:
    """One binary floating-point type.

    `digits` counts the significant bits, the implicit one included; `tiny` is the smallest subnormal;
    `compute` names the type in which the kernels do arithmetic for it.
    """

    name: DTypeName
    bits: int
    digits: int
    tiny: float
    largest: float
    compute: Literal["float32", "float64"]

    def ulp(self, value: float) -> float:
        """Give the spacing of this type at |value|, in units of `value`; at least the smallest subnormal.

        >>> DTYPES["float16"].ulp(1.0)
        0.0009765625
        """
        if not math.isfinite(value):
            return math.nan
        return max(self.tiny, math.ldexp(1.0, math.frexp(value)[1] - self.digits)) if value else self.tiny


# IEEE 754-2019 table 3.5 for binary16, 32 and 64; bfloat16 is binary32 with 16 fewer fraction bits.
DTYPES: dict[str, StorageType] = {
    t.name: t
    for t in (
        StorageType("float16", 16, 11, 2.0**-24, 65504.0, "float32"),
        StorageType("bfloat16", 16, 8, 2.0**-133, (2 - 2.0**-7) * 2.0**127, "float32"),
        StorageType("float32", 32, 24, 2.0**-149, (2 - 2.0**-23) * 2.0**127, "float32"),
        StorageType("float64", 64, 53, 2.0**-1074, (2 - 2.0**-52) * 2.0**1023, "float64"),
    )
}
