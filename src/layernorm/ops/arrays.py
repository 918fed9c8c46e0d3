# SPDX-License-Identifier: MIT
"""This file takes what NumPy users pass and gives a plain native array of a type that can be normalized."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from layernorm.spec.dtypes import DTYPES
from layernorm.spec.errors import ArrayTypeError

# Their arrays turn into NumPy ones without a word, and the caller would get back another kind than it gave.
_FOREIGN = ("torch", "jax", "jaxlib", "tensorflow", "cupy", "mlx", "dask")


@lru_cache(maxsize=64)
def _is_plain(dtype: np.dtype[Any]) -> bool:
    # asking a type for its name costs 2 µs
    return dtype.name in DTYPES and dtype.char != "g" and dtype.isnative


def array_of(value: object, name: str) -> npt.NDArray[Any]:
    """Give `value` as a plain array of float16, bfloat16, float32 or float64 in native byte order.

    Lists, integers and bools become float64; subclasses of ndarray become plain arrays.

    Raises:
        ArrayTypeError: complex numbers, objects, longdouble, a masked array, or another framework's array.
    """
    if type(value) is np.ndarray:
        if _is_plain(value.dtype):
            return value
        array = value
    else:
        if isinstance(value, np.ma.MaskedArray):
            raise ArrayTypeError(
                f"{name} is a masked array and the mask would be lost; fill it (x.filled(0)) or drop the masked "
                "rows first."
            )
        owner = type(value).__module__.partition(".")[0]
        if owner in _FOREIGN:
            raise ArrayTypeError(
                f"{name} is a {owner} array ({type(value).__name__}) and this function takes NumPy arrays; "
                "convert it, for example with numpy.asarray."
            )
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise ArrayTypeError(f"{name} is not an array of numbers: {error}.") from error
    dtype = array.dtype
    if dtype.name in DTYPES and dtype.char != "g":
        return array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    if dtype.kind in "iub":
        return array.astype(np.float64)
    raise ArrayTypeError(
        f"{name} has type {dtype}, which is not normalized here; use float16, bfloat16, float32 or float64 "
        "(integers and bools become float64)."
    )
