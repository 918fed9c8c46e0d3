# SPDX-License-Identifier: MIT
"""This file tests that a stored number is said as it was written."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layernorm.models.decimals import shortest


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("decimal", [1e-12, 1e-6, 1e-5, 1e-3, 1.5625e-07, 0.1, 0.0, -1e-5, 1.0, 123.0])
def test_the_decimal_that_was_meant(decimal, dtype):
    kind = np.dtype(dtype).type if dtype != "bfloat16" else ml_dtypes.bfloat16
    held = float(kind(decimal))
    said = shortest(held, dtype)
    assert float(kind(said)) == held
    assert len(repr(said)) <= len(repr(decimal)) or dtype in ("float16", "bfloat16")
    if dtype in ("float32", "float64"):
        assert said == decimal


@given(st.integers(1, 999_999), st.integers(-30, 20))
def test_six_digits_come_back_from_a_float32(digits, exponent):
    decimal = float(f"{digits}e{exponent}")
    assert shortest(np.float32(decimal)) == decimal


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 2.0**-149])
def test_odd_numbers_stay(odd):
    np.testing.assert_equal(np.float32(shortest(odd)), np.float32(odd))


def test_a_number_too_large_for_its_type_is_infinite():
    assert shortest(1e300) == np.inf
