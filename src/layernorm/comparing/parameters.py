# SPDX-License-Identifier: MIT
"""This file compares gammas and betas: what a norm multiplies by and adds, not how a file keeps it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layernorm.comparing.pairing import Pair
from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.norm_spec import UNKNOWN

Array = NDArray[Any]


class Parameter(NamedTuple):
    """What a norm multiplies by or adds, in float64, and how far its file may have rounded it."""

    values: Array
    near: Array


def gamma_of(record: NormRecord, partner: NormRecord) -> Parameter | None:
    """Give offset + w without axes of length 1; None where there is none, or the file does not hold it."""
    if record.scale is None:
        return None
    offset = record.spec.scale_offset
    if offset is UNKNOWN:
        offset = 0 if partner.spec.scale_offset is UNKNOWN else partner.spec.scale_offset
    return _parameter(record.scale, float(offset))


def beta_of(record: NormRecord) -> Parameter | None:
    """Give beta without axes of length 1; None where there is none, or the file does not hold it."""
    return None if record.shift is None else _parameter(record.shift, 0.0)


def has_none(record: NormRecord, axes: str) -> bool:
    """Tell whether a norm surely has no gamma, or no beta."""
    return getattr(record.spec, axes) is None


def same(a: Parameter, b: Parameter) -> bool:
    """Tell whether two parameters are equal but for the rounding of the coarser file."""
    return a.values.shape == b.values.shape and near(a, b.values, b)


def near(a: Parameter, values: Array, b: Parameter) -> bool:
    """Tell whether values lie as near to a's as rounding explains."""
    return not apart(a, values, b).any()


def apart(a: Parameter, values: Array, b: Parameter) -> NDArray[np.bool_]:
    """Tell of each value whether it lies farther from a's than rounding explains; NaN is like NaN alone."""
    with np.errstate(invalid="ignore"):
        close = np.abs(a.values - values) <= np.maximum(a.near, b.near)
    alike = (a.values == values) | (np.isnan(a.values) & np.isnan(values))
    return np.asarray(~(close | alike))


def transposed(a: Parameter, b: Parameter) -> bool:
    """Tell whether b is a transposed, and not a itself."""
    if a.values.ndim < 2 or a.values.shape != b.values.shape[::-1]:
        return False
    return same(a, Parameter(b.values.T, b.near.T)) and not same(a, b)


def both(pair: Pair) -> tuple[Parameter, Parameter] | None:
    """Give both gammas, if both are held and of one shape."""
    a, b = gamma_of(pair.a, pair.b), gamma_of(pair.b, pair.a)
    return None if a is None or b is None or a.values.shape != b.values.shape else (a, b)


def _parameter(tensor: Tensor, offset: float) -> Parameter:
    stored = tensor.values()
    values = stored.astype(np.float64).squeeze()
    if stored.dtype.name in DTYPES:
        # half an ulp, and as much again for a converter that rounded 1 + w, or w − 1, to this type
        near_by = 2.0 ** -DTYPES[stored.dtype.name].digits * (np.abs(values) + abs(offset))
    else:
        near_by = np.full(values.shape, 0.5)
    # half an ulp of an infinity would be infinite, and all be near it
    return Parameter(values + offset, np.where(np.isfinite(values), near_by, 0.0))


def stored(record: NormRecord, name: str) -> Parameter | None:
    """Give a stored mean or variance."""
    tensor = getattr(record, name)
    return None if tensor is None else _parameter(tensor, 0.0)
