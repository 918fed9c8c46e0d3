# SPDX-License-Identifier: MIT
"""This file says how an epsilon acts: as it is after it was rounded to the type in which it is added."""

import numpy as np

from layernorm.comparing.compared import known
from layernorm.comparing.pairing import Pair
from layernorm.models.norm_record import NormRecord
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.norm_spec import UNKNOWN


def acting(record: NormRecord) -> float | None:
    """Give the epsilon that is added, 0 where none is, None where the source does not say."""
    spec = record.spec
    if spec.eps_at == "none":
        return 0.0
    if not isinstance(spec.eps, float):
        return None
    return float(_rounded(spec.eps, _type_of(record)))


def alike(pair: Pair, a: float, b: float) -> bool:
    """Tell whether two epsilons are equal after rounding to the narrower of their types."""
    types = [_type_of(pair.a), _type_of(pair.b)]
    narrower = min(types, key=lambda name: DTYPES[name].digits)
    rounded = [_rounded(eps, narrower) for eps in (a, b)]
    return bool(np.array_equal(rounded[:1], rounded[1:], equal_nan=True))


def compensated(pair: Pair) -> bool:
    """Tell whether stored variances make up for different epsilons: variance + eps is what counts."""
    sums = []
    for record in (pair.a, pair.b):
        if record.spec.statistics != "stored" or record.variance is None or not isinstance(record.spec.eps, float):
            return False
        sums.append(record.variance.values().astype(np.float64) + record.spec.eps)
    if sums[0].shape != sums[1].shape:
        return False
    # each variance was rounded to float32 once more
    return bool(np.all(np.abs(sums[0] - sums[1]) <= 2.0**-23 * np.abs(sums[0])))


def same_place(pair: Pair) -> bool:
    """Tell whether both say where epsilon is added, and the same."""
    return not known(pair, "eps_at") or pair.a.spec.eps_at == pair.b.spec.eps_at


def _type_of(record: NormRecord) -> str:
    """Name the type in which epsilon is added; where the source does not say, files keep it as a float32."""
    said = record.spec.stats_dtype
    name = record.dtype if said == "input" else "float32" if said is UNKNOWN else str(said)
    return "float32" if name not in DTYPES or name == "float64" else name


def _rounded(value: float, name: str) -> float:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    with np.errstate(over="ignore"):
        return float(np.float64(value).astype(np.dtype(name)))
