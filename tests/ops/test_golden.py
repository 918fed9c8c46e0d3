# SPDX-License-Identifier: MIT
"""This file holds both backends to the golden answers of mpmath: every eps_at with every spread, and gradients."""

import json
from pathlib import Path

import numpy as np
import pytest

import layernorm as ln
from layernorm.spec.errors import SpecError

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden/norms.json").read_text())}
U = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}


def numbers(nested):
    """Answers are decimal strings; float64 holds them to far more digits than the bounds ask for."""
    return None if nested is None else np.array(nested, dtype=np.float64)


def spec_of(case, **more):
    said = dict(case["spec"])
    axes = tuple(said.pop("axes"))
    return ln.NormSpec(axes=axes, scale_axes=axes, shift_axes=axes, **said, **more)


def arguments(case, dtype):
    return tuple(
        None if case[name] is None else np.array(case[name], np.float64).astype(dtype)
        for name in ("x", "gamma", "beta")
    )


def laid_along(value, x, axes, default):
    """Give gamma or beta x's number of axes, as the package lays it out."""
    if value is None:
        return np.float64(default)
    axes = sorted(a % x.ndim for a in axes)
    value = np.asarray(value, np.float64)
    return value.reshape([n if a in axes else 1 for a, n in enumerate(x.shape)]) if value.ndim else value


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("own_type", [False, True], ids=["float64", "own type"])
@pytest.mark.parametrize("name", CASES)
def test_forward(name, own_type, backend):
    case = CASES[name]
    dtype = case["dtype"] if own_type else "float64"
    x, gamma, beta = arguments(case, dtype)
    try:
        y = ln.normalize(x, spec_of(case), gamma, beta, backend=backend)
    except SpecError:
        assert backend == "cpu"
        assert case["spec"]["eps_at"] not in ("variance", "sum", "none") or (
            case["spec"]["centered"] != (case["spec"]["spread"] == "std")
        )
        return
    exact = numbers(case["y"])
    scale, shift = (laid_along(v, x, case["spec"]["axes"], d) for v, d in ((gamma, 1), (beta, 0)))
    # |γ·x̂| is at most |y| + |β|, ρ at most 1; a 16-bit answer is off by half an ulp of its own
    bound = 4 * U["float64" if dtype == "float64" else "float32"] * (np.abs(exact) + 2 * np.abs(shift) + np.abs(scale))
    if dtype in ("float16", "bfloat16"):
        bound = bound + U[dtype] * np.abs(exact)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), np.isnan(exact))
    error = np.abs(y.astype(np.float64) - exact)
    assert np.all((error <= bound + TINY[dtype]) | np.isnan(exact)), np.nanmax(error / bound)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "dx" in case])
def test_backward(name, backend):
    case = CASES[name]
    x, gamma, _ = arguments(case, "float64")
    dy = np.array(case["dy"], np.float64)
    try:
        dx, dgamma, dbeta = ln.normalize_backward(dy, x, spec_of(case), gamma, backend=backend)
    except SpecError:
        assert backend == "cpu"
        return
    slope = np.abs(dy * laid_along(gamma, x, case["spec"]["axes"], 1))
    axes = tuple(case["spec"]["axes"])
    # eight ulp of (1/D)·max|γ·dy| of the row, as promised; √n more where x̂ has an outlier of that size
    scale = numbers(case["rstd"]) * slope.max(axis=axes, keepdims=True) * np.sqrt(slope[0].size)
    exact = numbers(case["dx"])
    np.testing.assert_array_equal(np.isnan(dx), np.isnan(exact))
    assert np.all((np.abs(dx - exact) <= 16 * U["float64"] * scale + TINY["float64"]) | np.isnan(exact))
    if gamma is not None:
        np.testing.assert_allclose(dgamma, numbers(case["dgamma"]), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(dbeta, numbers(case["dbeta"]), rtol=1e-14, atol=1e-15)


def test_the_golden_cases_cover_every_place_of_epsilon_and_every_spread():
    covered = {(case["spec"]["spread"], case["spec"]["eps_at"]) for case in CASES.values()}
    places = ("variance", "deviation", "sum", "variance_floor", "deviation_floor", "none")
    assert {(spread, at) for spread in ("std", "rms", "l2") for at in places} <= covered
    assert sum("dx" in case for case in CASES.values()) >= 15
