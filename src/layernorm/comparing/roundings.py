# SPDX-License-Identifier: MIT
"""This file says in which type a norm rounds its statistics and steps."""

from layernorm.comparing.compared import known
from layernorm.comparing.pairing import Pair
from layernorm.models.norm_record import NormRecord
from layernorm.spec.dtypes import DTYPES

FIELDS = ("stats_dtype", "round_each")


def statistics_type(record: NormRecord) -> str | None:
    """Name the type, None where the source does not say it."""
    said = record.spec.stats_dtype
    name = record.dtype if said == "input" else str(said)
    return name if name in DTYPES else None


def differ_in_type(pair: Pair) -> bool:
    """Tell whether the types of the statistics, or the rounding of each step, differ."""
    a, b = statistics_type(pair.a), statistics_type(pair.b)
    if a is None or b is None:
        return False
    return a != b or (known(pair, "round_each") and pair.a.spec.round_each != pair.b.spec.round_each)
