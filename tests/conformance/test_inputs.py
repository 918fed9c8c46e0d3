# SPDX-License-Identifier: MIT
"""This file tests the cases: that a name makes the same arrays again, and that patterns are what they say."""

import numpy as np
import pytest

from layernorm.conformance.inputs import CLEAR, PATTERNS, Case, clear_of
from layernorm.conformance.oracle import forward, forward_bound
from layernorm.spec.errors import ArgumentError


@pytest.mark.parametrize("dtype", CLEAR)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_name_makes_the_same_arrays_again(pattern, dtype):
    case = Case(33, 5, dtype, pattern, 1 / 3, 2.0**-7, "both", 7, "some-form")
    again = Case.parse(f"  {case}\n")
    assert again == case
    for name in ("x", "gamma", "beta", "dy"):
        a, b = getattr(case, name), getattr(again, name)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    assert case.x.shape == case.dy.shape == (5, 33)
    assert case.gamma.dtype == ("float64" if dtype == "float64" else "float32")
    assert np.array_equal(case.gamma.astype(dtype).astype(case.gamma.dtype), case.gamma)


def test_a_case_has_the_parameters_that_it_names():
    found = {a: (Case(3, affine=a).gamma is None, Case(3, affine=a).beta is None) for a in ("none", "gamma", "beta")}
    assert found == {"none": (True, True), "gamma": (False, True), "beta": (True, False)}
    assert "affine" not in str(Case(3))
    assert "affine=beta" in str(Case(3, affine="beta"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "normal",
        "strange d=8 rows=4 float32 offset=0 scale=1 seed=0",
        "normal d=8 rows=4 float8 offset=0 scale=1 seed=0",
        "normal d=8 rows=4 float32 offset=0 scale=1 affine=delta seed=0",
    ],
)
def test_no_case_has_another_name(name):
    with pytest.raises(ArgumentError, match=r"is no case's name; a name looks like 'normal d=768 rows=4 float32 "):
        Case.parse(name)


@pytest.mark.parametrize("dtype", CLEAR)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4, 1e38, 1e300])
def test_whether_the_type_holds_a_case_is_told_rightly(pattern, dtype, scale):
    case = Case(100, dtype=dtype, pattern=pattern, scale=scale, offset=3.0)
    with np.errstate(over="ignore"):
        assert case.is_finite == bool(np.isfinite(case.x.astype(np.float64)).all())


@pytest.mark.parametrize("dtype", CLEAR)
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-5, 1e-3])
def test_rows_clear_of_eps_do_not_feel_it_wherever_it_is(eps, dtype):
    x = Case(50, dtype=dtype, pattern="balanced", scale=clear_of(eps, dtype)).x
    exact = forward(x, eps=eps)
    spread = x.astype(np.float64).std(axis=1, keepdims=True)
    outside = exact.xhat.hi / (1 + eps / spread)
    bound = forward_bound(exact, None, None, dtype)
    for other in (forward(x, eps=0.0).y.hi, forward(x, eps=10 * eps).y.hi, outside):
        assert np.all(np.abs(other - exact.y.hi) < bound / 4)
    assert clear_of(0.0, dtype) == 1.0


def test_balanced_rows_have_no_mean_and_a_spread_of_one():
    for width in (2, 3, 8, 1000):
        x = Case(width, 50, "float64", "balanced").x
        assert np.abs(x.mean(axis=1)).max() < 1e-14
        assert np.abs(x.std(axis=1) - 1).max() < 1e-14
