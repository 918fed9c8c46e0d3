# SPDX-License-Identifier: MIT
"""This file says how coarse a parameter is that a model keeps as integers."""

from __future__ import annotations

import numpy as np

from layernorm.models.model_file import ModelFile, Tensor


def step_of(parameter: Tensor | None, model: ModelFile) -> float:
    """Give the distance between neighbouring values of a parameter; 0 if it is kept as floats.

    A parameter read through its scale bears the name of the integers that it was made of, which are in the file under
    that name; (v − v′)/(q − q′) is the scale, whatever the zero point.
    """
    if parameter is None:
        return 0.0
    stored = model.tensors.get(parameter.name)
    if stored is None or "int" not in stored.dtype or "int" in parameter.dtype or stored.shape != parameter.shape:
        return 0.0
    whole, values = stored.values().astype(np.float64).ravel(), parameter.values().astype(np.float64).ravel()
    if not whole.size or not np.isfinite(values).all():
        return 0.0
    high, low = int(np.argmax(whole)), int(np.argmin(whole))
    if whole[high] == whole[low]:  # one value, of which q·scale is all that is known
        return float(abs(values[0]) / max(abs(whole[0]), 1.0))
    return float(abs(values[high] - values[low]) / (whole[high] - whole[low]))
