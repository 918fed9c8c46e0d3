# SPDX-License-Identifier: MIT
"""This file computes, with the installed library, what the page has computed too."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import layernorm as ln
from layernorm.spec.errors import ArgumentError, LayerNormError

# A page asks for a few small norms at a time.
MOST_CALLS, MOST_VALUES = 64, 100_000
CALLS: dict[str, Callable[..., Any]] = {
    "layer_norm": ln.layer_norm,
    "rms_norm": ln.rms_norm,
    "group_norm": ln.group_norm,
    "instance_norm": ln.instance_norm,
    "batch_norm": ln.batch_norm,
}
OPTIONS = {"eps", "axis", "gamma", "beta", "groups", "channel_axis"}
TYPES = ("float64", "float32", "float16", "bfloat16")


def computed(calls: Any) -> list[Any]:
    """Answer a list of {call, x, options, type} with nested lists of numbers; NaN and infinities are texts.

    Raises:
        ArgumentError: a call is none of the library's, or its arguments are refused.
    """
    if not isinstance(calls, list) or len(calls) > MOST_CALLS:
        raise ArgumentError(f"the request is no list of at most {MOST_CALLS} calls; reload the page.")
    return [plain(_one(call).astype(np.float64).tolist()) for call in calls]


def _one(call: Any) -> np.ndarray:
    if not isinstance(call, Mapping) or call.get("call") not in list(CALLS) or call.get("type") not in TYPES:
        raise ArgumentError(f"a call is none of {', '.join(CALLS)} of {', '.join(TYPES)}; reload the page.")
    options = call.get("options")
    if not isinstance(options, Mapping) or not OPTIONS.issuperset(options):
        raise ArgumentError(f"the options of {call['call']} are none of {', '.join(sorted(OPTIONS))}; reload the page.")
    x = _array(call.get("x"), call["type"])
    said = {
        name: _array(value, "float64") if name in ("gamma", "beta") and value is not None else _listed(value)
        for name, value in options.items()
    }
    try:
        return np.asarray(CALLS[call["call"]](x, **said))
    except (LayerNormError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ArgumentError(f"{call['call']}: {error}") from None


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _array(values: Any, dtype: str) -> np.ndarray:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    try:
        array = np.array(values, np.float64)  # texts of NaN and infinities are numbers to NumPy
        if np.isnan(array).any() and any(value is None for value in np.array(values, object).flat):
            raise ValueError("null is no number")
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("x is no array of numbers; reload the page.") from None
    if array.size > MOST_VALUES:
        raise ArgumentError(f"x has {array.size} values, more than {MOST_VALUES}; ask for fewer.")
    with np.errstate(over="ignore"):  # what a 16-bit type cannot hold is infinite in it
        return array.astype(dtype)


def plain(value: Any) -> Any:
    """Write what JSON has no numbers for as texts."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
