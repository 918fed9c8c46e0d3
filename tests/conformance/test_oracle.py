# SPDX-License-Identifier: MIT
"""This file tests the oracle itself, and the golden answers, against mpmath and against each other."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from layernorm.conformance.oracle import DD, backward, error, forward, forward_bound, ulp

GOLDEN = Path(__file__).parents[1] / "golden"
MAKE = runpy.run_path(str(GOLDEN / "make_golden.py"))
CASES = json.loads((GOLDEN / "norms.json").read_text())
LAYER, RMS = MAKE["LAYER"], MAKE["RMS"]
MAX64, MIN64 = MAKE["MAX64"], MAKE["MIN64"]

# Division is the worst operation: 15u² = 2**-102 by proof, 2**-103.6 as seen. A sum of n is off by log2(n)·
# 2**-104 of its terms. A row: x − mean is off by that much of max|x − x[0]|, which is at most 2√d·σ, so x̂ by
# log2(d)·2**-103·√d·ρ: at d = 768 2**-95. Asserted is 2**-90, and one float64 subnormal each for hi and lo.
OPERATION, ROW, FLOOR = mpf(2) ** -102, mpf(2) ** -90, mpf(2) ** -1073


@pytest.fixture(autouse=True)
def precision():
    with mpmath.workprec(MAKE["PRECISION"]):
        yield


def exactly(value, at=()):
    return mpf(float(value.hi[at])) + mpf(float(value.lo[at]))


@st.composite
def doubles(draw, least=0.0):
    """One DD: a float64 and, below half its ulp, another."""
    size = st.floats(max(least, 1e-140), 1e140) | st.floats(max(least, 0.5), 4.0)
    hi = np.float64(draw(size if least else st.just(0.0) | size | size.map(lambda v: -v)))
    # No lo below 1e-30 of that: mpmath would round hi + lo, and the double-double would be the better one.
    share = st.floats(1e-30, 0.5)
    lo = draw(st.just(0.0) | share | share.map(lambda v: -v)) * np.spacing(hi) if hi else 0.0
    return DD(hi + lo, lo - ((hi + lo) - hi))


@given(doubles(), doubles())
@settings(max_examples=300, deadline=None)
def test_sum_difference_and_product(a, b):
    for got, want in (
        (a + b, exactly(a) + exactly(b)),
        (a - b, exactly(a) - exactly(b)),
        (a * b, exactly(a) * exactly(b)),
    ):
        assert abs(exactly(got) - want) <= OPERATION * abs(want)
        assert got.hi + got.lo == got.hi


@given(doubles(), doubles(least=1e-140))
@settings(max_examples=300, deadline=None)
def test_quotient_and_root(a, b):
    assert abs(exactly(a / b) - exactly(a) / exactly(b)) <= OPERATION * abs(exactly(a) / exactly(b))
    assert abs(exactly(b.sqrt()) - mpmath.sqrt(exactly(b))) <= OPERATION * mpmath.sqrt(exactly(b))
    assert exactly(abs(a)) == abs(exactly(a))
    assert exactly(-a) == -exactly(a)


@given(doubles(), st.floats(1e-100, 1e100), st.integers(-60, -30))
@settings(max_examples=200, deadline=None)
def test_a_difference_of_neighbours_keeps_its_digits(a, b, power):
    near = a + DD.of(float(np.ldexp(a.hi, power))) + DD.of(b)
    want = exactly(near) - exactly(a)
    assert abs(exactly(near - a) - want) <= OPERATION * abs(want)


@given(st.lists(doubles(), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_sum_by_halves(values):
    row = DD(np.array([[v.hi for v in values]]), np.array([[v.lo for v in values]]))
    exact = [exactly(v) for v in values]
    # Six halvings bring 40 terms to one.
    limit = 6 * OPERATION * mpmath.fsum(exact, absolute=True)
    assert abs(exactly(row.sum(), (0, 0)) - mpmath.fsum(exact)) <= limit
    column = DD(row.hi.T, row.lo.T).sum(axis=0, keepdims=False)
    assert exactly(column, 0) == exactly(row.sum(), (0, 0))


def test_arrays_and_numbers_stand_on_either_side():
    three, array = DD.of(3.0), np.array([1.0, 2.0])
    for got in (array * three, three * array, array + three, array - three, array / three, 6.0 / three):
        assert isinstance(got, DD)
    assert (array - three).to_float().tolist() == [-2.0, -1.0]
    assert (6.0 / three).to_float() == 2.0
    with np.errstate(over="ignore"):
        assert DD(1.0, -1e-17).ldexp(3000).to_float() == np.inf
    assert DD.of(np.zeros((0, 3))).sum(axis=0).hi.tolist() == [[0.0, 0.0, 0.0]]


def check_forward(x, exact, gamma, beta, eps, centered, ddof=0, columns=slice(None)):
    """Every number of `exact` against mpmath; `columns` picks which of a long row are worth the time."""
    spec = (LAYER if centered else RMS) | {"eps": eps, "ddof": ddof}
    for row in range(len(x)):
        values = [mpf(float(v)) for v in x[row]]
        xhat, mean, denominator = MAKE["normalize"](values, spec)
        rho = MAKE["normalize"](values, spec | {"eps": 0})[2] / denominator
        assert abs(mpf(float(exact.rho[row, 0])) - rho) <= mpf(2) ** -49 * rho + FLOOR
        if mpf(2) ** -960 < denominator < mpf(2) ** 960:
            assert abs(exactly(exact.rstd, (row, 0)) * denominator - 1) <= ROW
        spread = max(abs(v - values[0]) for v in values)
        assert abs(exactly(exact.mean, (row, 0)) - (mean if centered else 0)) <= ROW * (abs(mean) + spread) + FLOOR
        for j in range(x.shape[1])[columns]:
            g, b = mpf(float(gamma[j])), mpf(float(beta[j]))
            assert abs(exactly(exact.xhat, (row, j)) - xhat[j]) <= ROW * (abs(xhat[j]) + rho) + FLOOR
            scale = abs(g * xhat[j]) + abs(g) * rho + abs(b)
            assert abs(exactly(exact.y, (row, j)) - (g * xhat[j] + b)) <= ROW * scale + FLOOR


def check_backward(x, dy, gamma, eps, centered):
    dx, dgamma, dbeta, abs_gamma, abs_beta = backward(dy, x, gamma, eps=eps, centered=centered)
    spec = (LAYER if centered else RMS) | {"eps": eps}
    rows, columns = x.shape
    terms = [[] for _ in range(columns)]
    for row in range(rows):
        values = [mpf(float(v)) for v in x[row]]
        g = [mpf(float(a)) * mpf(float(b)) for a, b in zip(dy[row], gamma, strict=True)]
        want = MAKE["gradient"](values, g, spec)
        xhat, _, denominator = MAKE["normalize"](values, spec)
        limit = ROW * mpmath.sqrt(columns) * max(abs(v) for v in g) / denominator + FLOOR
        for j in range(columns):
            if abs(want[j]) <= MAX64:
                assert abs(exactly(dx, (row, j)) - want[j]) <= limit
            else:
                assert dx.to_float()[row, j] == mpmath.sign(want[j]) * np.inf
            terms[j].append(mpf(float(dy[row, j])) * xhat[j])
    for j in range(columns):
        total, scale = mpmath.fsum(terms[j]), mpmath.fsum(terms[j], absolute=True)
        # x̂ is right to 2**-90 of |x̂| + ρ, and ρ <= 1.
        absolute = ROW * mpmath.fsum(mpf(float(v)) for v in np.abs(dy[:, j]))
        assert abs(exactly(dgamma, j) - total) <= ROW * scale + absolute + FLOOR
        assert abs(float(abs_gamma[j]) - scale) <= mpf(2) ** -48 * scale + absolute + FLOOR
        assert abs(exactly(dbeta, j) - mpmath.fsum(mpf(float(v)) for v in dy[:, j])) <= absolute
        assert abs_beta[j] == pytest.approx(np.abs(dy[:, j].astype(float)).sum(), rel=1e-14)


def rows_of(columns, offset, scale, dtype="float64", rows=2):
    rng = np.random.default_rng(columns)
    return ((rng.standard_normal((rows, columns)) + offset) * scale).astype(dtype)


def affine_of(columns):
    rng = np.random.default_rng(columns + 1)
    return rng.standard_normal((2, columns)).astype("float32")


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("offset", [0.0, 100.0, 1e7])
@pytest.mark.parametrize("columns", [1, 2, 3, 17, 768])
def test_forward_and_backward_against_mpmath(columns, offset, scale, centered):
    x = rows_of(columns, offset, scale)
    gamma, beta = affine_of(columns)
    for eps in (1e-5, 0.0) if columns > 1 or not centered else (1e-5,):
        exact = forward(x, gamma, beta, eps=eps, centered=centered)
        check_forward(x, exact, gamma, beta, eps, centered, columns=slice(0, None, 1 + columns // 40))
    if columns < 768 or (offset == 1e7 and scale == 1.0):
        check_backward(x, rows_of(columns, 0.5, 1.0, "float32"), gamma, 1e-5, centered)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_types_are_taken_as_they_are(dtype):
    x, dy = rows_of(17, 3.0, 1.0, dtype), rows_of(17, 0.0, 1.0, dtype)
    gamma, beta = affine_of(17).astype(dtype)
    check_forward(x, forward(x, gamma, beta), gamma, beta, 1e-5, True)
    check_backward(x, dy, gamma, 1e-5, True)


EXTREME = {
    "subnormal": [MIN64 * v for v in (1, -2, 3, 70)],
    "subnormal, offset": [MIN64 * v for v in (2**40, 2**40 + 1, 2**40 + 3, 2**40)],
    "largest": [MAX64, -MAX64, MAX64, -0.0],
    "largest, neighbours": [MAX64, np.nextafter(MAX64, 0), MAX64, MAX64],
    "both ends": [MAX64, MIN64, -MIN64, 1.0],
    "outlier first": [1e300, 1.0, 2.0, -3.0],
    "outlier last": [1.0, 2.0, -3.0, 1e30],
    "neighbours": [1.0, np.nextafter(1.0, 2), 1.0, 1.0],
}


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1e300, MIN64])
@pytest.mark.parametrize("row", EXTREME)
def test_rows_at_the_ends_of_float64(row, eps, centered):
    x = np.array([EXTREME[row]])
    ones = np.ones(4)
    check_forward(x, forward(x, eps=eps, centered=centered), ones, 0 * ones, eps, centered)
    # γ lifts a subnormal x̂ back into range, and its digits must still be there.
    high = 1e140 * ones
    check_forward(x, forward(x, high, eps=eps, centered=centered), high, 0 * ones, eps, centered)
    check_backward(x, np.array([[1.0, -2.0, 0.5, 3.0]]), ones, eps, centered)


def test_sample_variance():
    x = rows_of(5, 10.0, 1.0)
    check_forward(x, forward(x, ddof=1), np.ones(5), np.zeros(5), 1e-5, True, ddof=1)
    assert np.isnan(forward(np.array([[1.0]]), ddof=1).y.hi).all()


def test_constant_rows_and_rows_that_are_not_finite():
    x = np.array([[5.0, 5.0, 5.0], [1e300] * 3, [0.0] * 3, [np.nan, 1, 2], [np.inf, 1, 2], [1.0, 2.0, 3.0]])
    assert forward(x[:3]).y.hi.tolist() == [[0.0] * 3] * 3
    assert forward(x).mean.hi[:2, 0].tolist() == [5.0, 1e300]
    assert np.isnan(forward(x[:3], eps=0.0).y.to_float()).all()
    assert np.isnan(forward(x[:3], eps=0.0).rstd.to_float()).all()
    y = forward(x, eps=0.0).y.to_float()
    assert np.isnan(y[:5]).all()
    assert y[5].tolist() == forward(x[5:], eps=0.0).y.to_float()[0].tolist()
    assert y[5, 1] == 0.0


def test_the_check_can_fail():
    """A plain float64 two-pass is caught by the very assertion that double-double passes."""
    x = rows_of(17, 1e7, 1.0)
    gamma, beta = affine_of(17)
    exact = forward(x, gamma, beta)
    check_forward(x, exact, gamma, beta, 1e-5, True)
    centred = x - x.mean(axis=1, keepdims=True)
    xhat = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    y = DD.of(gamma.astype(float) * xhat + beta)
    with pytest.raises(AssertionError):
        check_forward(x, type(exact)(y, exact.xhat, exact.rho, exact.mean, exact.rstd), gamma, beta, 1e-5, True)


def test_error_keeps_the_digits_below_a_float64():
    exact = DD(np.array([1.0, 1.0, 1.0]), np.array([1e-20, -1e-20, 0.0]))
    assert error(np.array([1.0, 1.0, np.nan]), exact)[:2].tolist() == [1e-20, 1e-20]
    assert np.isnan(error(np.array([1.0, np.inf, np.nan]), exact)).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ulp_is_the_spacing_of_the_type(dtype):
    kind = np.dtype(dtype).type
    least = np.finfo(dtype).smallest_subnormal
    values = np.array([0, least, least * kind(3), np.finfo(dtype).tiny, 0.1, 1, 2, 2047, 60000], dtype=dtype)
    assert ulp(values, dtype).tolist() == np.spacing(values).astype(float).tolist()
    assert ulp(-values, dtype).tolist() == ulp(values, dtype).tolist()


def test_ulp_of_bfloat16():
    assert ulp([1.0, 1.99, 2.0, 256.0, 0.0, 2.0**-126, 2.0**-133], "bfloat16").tolist() == [
        2.0**-7, 2.0**-7, 2.0**-6, 2.0, 2.0**-133, 2.0**-133, 2.0**-133,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_bound_admits_a_rounding_and_no_more_than_it_says(dtype):
    x = rows_of(17, 3.0, 1.0, dtype)
    gamma, beta = affine_of(17)
    exact = forward(x, gamma, beta)
    bound = forward_bound(exact, gamma, beta, dtype)
    y = exact.y.to_float()
    assert (error(y.astype(dtype), exact.y) <= bound).all()
    assert (error(np.nextafter(y + bound, np.inf), exact.y) > bound).all()
    # Two ulp of a 16-bit type are beyond half an ulp and change; 16u of the sum are beyond 4u of it.
    coarse = 2 * ulp(y, dtype) if "16" in dtype else 4 * bound
    assert (error(y + coarse, exact.y) > bound).all()


def test_the_bound_of_a_known_row():
    exact = forward(np.array([[-1.0, 1.0]]), eps=0.0)
    u = 2.0**-24
    assert forward_bound(exact, None, None, "float32").tolist() == [[8 * u + 2.0**-149] * 2]
    assert forward_bound(exact, 2.0, 3.0, np.float32).tolist() == [[28 * u + 2.0**-149] * 2]
    assert forward_bound(exact, None, None, "float64").tolist() == [[8 * 2.0**-53] * 2]
    assert forward_bound(exact, None, None, "float16").tolist() == [[8 * u + 2.0**-149 + 2.0**-11] * 2]
    nothing = forward(np.zeros((1, 2)))
    assert forward_bound(nothing, None, None, "bfloat16").tolist() == [[2.0**-149 + 2.0**-134] * 2]
    assert forward_bound(nothing, None, None, "float64").tolist() == [[2.0**-1074] * 2]
    # Just below 2 the float32 may come out above it, where float16 is spaced twice as wide.
    edge = forward(np.array([[-1.0, 1.0]]), gamma=2 - 2.0**-30, eps=0.0)
    assert forward_bound(edge, 2.0, None, "float16").min() > 2.0**-10


def test_golden_file_is_what_the_script_makes():
    assert (GOLDEN / "norms.json").read_text() == MAKE["document"]()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_inputs_are_exact_in_their_type(case):
    for key in ("x", "gamma", "beta", "dy"):
        if case.get(key) is not None:
            values = np.array(case[key], dtype="float64")
            assert (values.astype(case["dtype"]).astype("float64") == values).all()


STANDARD = [
    case
    for case in CASES
    if case["spec"]["axes"] == [-1]
    and case["spec"]["eps_at"] == "variance"
    and (case["spec"]["centered"], case["spec"]["spread"]) in {(True, "std"), (False, "rms")}
    and np.ndim(case["x"]) == 2
]


@pytest.mark.parametrize("case", STANDARD, ids=lambda case: case["name"])
def test_golden_answers_and_this_oracle_agree(case):
    spec, x = case["spec"], np.array(case["x"])
    options = {"eps": spec["eps"], "centered": spec["centered"]}
    exact = forward(x, case["gamma"], case["beta"], ddof=spec["ddof"], **options)
    gamma = np.abs(case["gamma"] or 1.0)
    scale = gamma * (np.abs(exact.xhat.hi) + exact.rho) + np.abs(case["beta"] or 0.0)
    agree(exact.y, case["y"], scale)
    if case["mean"]:
        agree(exact.mean, case["mean"], np.abs(x).max(axis=1, keepdims=True))
    if "dx" in case and spec["ddof"] == 0:
        dy = np.array(case["dy"])
        dx, dgamma, dbeta, abs_gamma, abs_beta = backward(dy, x, case["gamma"], **options)
        reach = np.abs(gamma * dy).max(axis=1, keepdims=True) * np.sqrt(x.shape[1])
        agree(dx, case["dx"], exact.rstd.hi * reach)
        agree(dgamma, case["dgamma"], abs_gamma)
        agree(dbeta, case["dbeta"], abs_beta)


def agree(got, strings, scale):
    strings, scale = np.array(strings, dtype=object), np.broadcast_to(scale, np.shape(strings))
    for at in np.ndindex(strings.shape):
        want = mpf(strings[at])
        if mpmath.isnan(want):
            assert np.isnan(got.hi[at])
        else:
            # 25 digits are 2**-82 of the answer.
            assert abs(exactly(got, at) - want) <= mpf(2) ** -80 * mpf(float(scale[at])) + FLOOR


ROOTS = {
    "variance": lambda q, n, eps: np.sqrt(q / n + eps),
    "deviation": lambda q, n, eps: np.sqrt(q / n) + eps,
    "sum": lambda q, n, eps: np.sqrt((q + eps) / n),
    "variance_floor": lambda q, n, eps: np.sqrt(np.maximum(q / n, eps)),
    "deviation_floor": lambda q, n, eps: np.maximum(np.sqrt(q / n), eps),
    "none": lambda q, n, eps: np.sqrt(q / n),
}
# Neither near the ends of the range nor far from zero, so that plain float64 can follow.
PLAIN = [case for case in CASES if 1e-3 < np.abs(case["x"]).max() < 2e3 and case["spec"]["eps"]]


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case["name"])
def test_golden_answers_by_textbook_numpy(case):
    """Every axis, spread and place of eps once more, in the words of the definition."""
    spec, x = case["spec"], np.array(case["x"])
    axes, keep = tuple(spec["axes"]), {"axis": tuple(spec["axes"]), "keepdims": True}
    mean = x.mean(**keep)
    squares = ((x - (mean if spec["spread"] == "std" else 0.0)) ** 2).sum(**keep)
    count = 1 if spec["spread"] == "l2" else x.size / mean.size - spec["ddof"]
    rstd = 1 / ROOTS[spec["eps_at"]](squares, count, spec["eps"])
    assert np.array(case["rstd"], dtype=float) == pytest.approx(rstd, rel=1e-10)
    extent = [size if kept == 1 else 1 for size, kept in zip(x.shape, mean.shape, strict=True)]
    gamma, beta = (
        np.full(extent, float(plain)) if case[key] is None else np.reshape(case[key], extent)
        for key, plain in (("gamma", 1), ("beta", 0))
    )
    xhat = (x - mean if spec["centered"] else x) * rstd
    assert np.array(case["y"], dtype=float) == pytest.approx(gamma * xhat + beta, rel=1e-7, abs=1e-7)
    if "dy" in case:
        others = tuple(axis for axis in range(x.ndim) if axis not in {a % x.ndim for a in axes})
        dy = np.array(case["dy"])
        assert np.array(case["dbeta"], dtype=float) == pytest.approx(dy.sum(axis=others), rel=1e-10)
        assert np.array(case["dgamma"], dtype=float) == pytest.approx((dy * xhat).sum(axis=others), rel=1e-7, abs=1e-7)
    if "dy" in case and (spec["centered"], spec["eps_at"], spec["ddof"]) == (True, "variance", 0):
        g = gamma * dy
        dx = rstd * (g - g.mean(**keep) - xhat * (g * xhat).mean(**keep))
        assert np.array(case["dx"], dtype=float) == pytest.approx(dx, rel=1e-7, abs=1e-7 * np.abs(rstd * g).max())


DIFFERENTIABLE = [case for case in CASES if "dx" in case and np.ndim(case["x"]) == 2 and len(case["x"]) == 1]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case["name"])
def test_golden_gradients_are_slopes_of_golden_norms(case):
    """dx against a difference quotient of Σ dy·y, which knows no rule of differentiation."""
    spec, x = case["spec"], [mpf(v) for v in case["x"][0]]
    g = [mpf(a) * mpf(b) for a, b in zip(case["dy"][0], case["gamma"] or [1] * len(x), strict=True)]
    _, _, denominator = MAKE["normalize"](x, spec)
    scale = max(abs(v) for v in g) / denominator * mpmath.sqrt(len(x))
    step = denominator * mpf(10) ** -60
    for j, want in enumerate(case["dx"][0]):
        ends = [[*x[:j], x[j] + side * step, *x[j + 1 :]] for side in (1, -1)]
        above, below = (mpmath.fdot(g, MAKE["normalize"](values, spec)[0]) for values in ends)
        assert abs((above - below) / (2 * step) - mpf(want)) <= mpf(2) ** -80 * scale
