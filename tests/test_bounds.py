# SPDX-License-Identifier: MIT
"""This file holds the forward pass to its promise, on a grid of widths, offsets, scales and types.

|y − exact| ≤ 4u·(|γ·x̂| + |γ|·ρ + |β|) + one subnormal, and half an ulp more for 16-bit types; the derivation stands
at `oracle.forward_bound`; the oracle is double-double arithmetic that shares nothing with the package.
"""

import itertools

import ml_dtypes
import mpmath
import numpy as np
import pytest

import layernorm as ln
from layernorm.conformance.oracle import error, forward, forward_bound

DTYPES = ("float16", "bfloat16", "float32", "float64")
WIDTHS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 64, 768, 1000, 4096, 65536)
OFFSETS = (0, 1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
SCALES = (1e-30, 1e-20, 1e-10, 1e-5, 1e-2, 1, 1e2, 1e5, 1e10, 1e20, 1e30)
FEW_SCALES = (1e-30, 1e-5, 1, 1e5, 1e30)  # for the widest rows, where the oracle takes 50 ms a cell
# How many cells are finite in each type, of 88 up to 1000 columns and of 40 above.
LEFT_IN = {"float16": (47, 21), "bfloat16": (88, 40), "float32": (88, 40), "float64": (88, 40)}
NORMS = {"layer": ln.layer_norm, "rms": ln.rms_norm}


def cells(width):
    return itertools.product(OFFSETS, SCALES if width <= 1000 else FEW_SCALES)


def rows_of(dtype, width, offset, scale):
    """scale·(offset + N(0,1)), or None where that is not finite in the type."""
    random = np.random.default_rng([width, OFFSETS.index(offset), SCALES.index(scale)])
    with np.errstate(over="ignore"):
        x = (scale * (offset + random.standard_normal((4 if width < 1000 else 1, width)))).astype(dtype)
    return x if np.isfinite(x.astype(np.float64)).all() else None


def share_of_bound(y, x, gamma, beta, eps, centered):
    """The largest error in units of its bound; infinite where y is NaN and should not be, or the reverse."""
    exact = forward(x, gamma, beta, eps, centered)
    found = error(y, exact.y) / forward_bound(exact, gamma, beta, x.dtype)
    undefined = np.isnan(exact.y.hi)  # a constant row with eps = 0
    found = np.where(undefined & np.isnan(y.astype(np.float64)), 0.0, found)
    return np.max(np.where(np.isnan(found), np.inf, found), initial=0.0)


def parameters(width):
    random = np.random.default_rng(width)
    return tuple(random.standard_normal(width).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_error_stays_within_the_bound(norm, dtype, width):
    ran = 0
    for number, (offset, scale) in enumerate(cells(width)):
        x = rows_of(dtype, width, offset, scale)
        if x is None:
            continue
        gamma, beta = parameters(width) if number % 2 else (None, None)
        # both epsilons up to 17 columns, above by turns; γ and β on every second cell
        for eps in (1e-5, 0.0) if width <= 17 else (1e-5 * (number % 3 > 0),):
            y = NORMS[norm](x, gamma, beta=beta, eps=eps)
            share = share_of_bound(y, x, gamma, beta, eps, norm == "layer")
            assert share <= 1, f"{share} of the bound at offset {offset}, scale {scale}, eps {eps}"
        ran += 1
    assert ran == LEFT_IN[dtype][width > 1000]


def adversarial(width):
    """Rows that a scheme can be right on average and still get wrong."""
    random = np.random.default_rng(width)
    bits = random.integers(0, 2, width)
    outlier = np.where(np.arange(width) == width // 2, 1000.0, random.standard_normal(width))
    one = np.where(np.arange(width) == 0, float.fromhex("0x1.79e311612620ep+0"), 0.0)
    several = np.where(np.arange(width) % max(width // 7, 1) == 0, 1.3, 0.0)
    skewed = np.exp(3 * random.standard_normal(width))
    late = np.where(np.arange(width) < 32, 300.0, random.standard_normal(width))
    half = np.where(np.arange(width) % 2, 1.0, -1.0) * (1 + 2.0**-10)
    return {
        "bits": bits,
        "bits far away": bits + 4096.0,
        "signs": half,
        "ramp": np.linspace(-1, 1, width),
        "ramp far away": np.linspace(1e6, 1e6 + 100, width),
        "one outlier": outlier,
        "one value alone": one,
        "seven values alone": several,
        "skewed": skewed,
        "first values mislead": late,
        "nearly constant": 1 + bits * 2.0**-7,
        "powers": 2.0 ** -(np.arange(width) % 24),
    }


@pytest.mark.parametrize("width", [2, 33, 64, 300, 1000, 1024, 65536])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_adversarial_rows_stay_within_the_bound(norm, dtype, width):
    for name, row in adversarial(width).items():
        with np.errstate(over="ignore"):
            x = np.atleast_2d(row).astype(dtype)
        if not np.isfinite(x.astype(np.float64)).all():
            continue
        y = NORMS[norm](x, eps=1e-12)
        assert share_of_bound(y, x, None, None, 1e-12, norm == "layer") <= 1, name


@pytest.mark.parametrize("norm", NORMS)
def test_parameters_beyond_float32_are_not_lost(norm):
    """float64 parameters of a float32 row: in float32 they would be infinite, and 0 times that NaN, or lose digits."""
    x = np.array([[-1.0, 0.0, 1.0]], np.float32)
    for size in (1e300, 1e39):
        np.testing.assert_array_equal(NORMS[norm](x, np.full(3, size), beta=np.ones(3)), [[-np.inf, 1, np.inf]])
    for size in (1.1e-44, 1e-39, 1e-60):
        gamma = np.full(3, size)
        assert share_of_bound(NORMS[norm](x, gamma, eps=1e-5), x, gamma, None, 1e-5, norm == "layer") <= 1


def test_an_epsilon_that_dwarfs_the_row():
    x = np.array([[1e28, 2e28, 4e28]], np.float32)
    assert share_of_bound(ln.layer_norm(x, eps=1e80), x, None, None, 1e80, True) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_of_two_million_stays_within_the_bound(dtype):
    x = (5 + np.random.default_rng(0).integers(0, 3, (1, 2_000_003))).astype(dtype)
    assert share_of_bound(ln.layer_norm(x), x, None, None, 1e-5, True) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_rows_at_the_ends_of_the_type(norm, dtype):
    kind = ml_dtypes.finfo(dtype)
    largest, tiny = float(kind.max), float(kind.smallest_subnormal)
    random = np.random.default_rng(0)
    rows = {
        "largest": largest * random.uniform(0.5, 1, (2, 64)) * random.choice([-1, 1], (2, 64)),
        "largest and its negative": np.where(np.arange(64) % 2, largest, -largest)[None],
        "subnormals": tiny * random.integers(-3, 4, (2, 64)),
        "largest beside subnormals": np.where(np.arange(64) == 3, largest, tiny)[None],
    }
    for name, row in rows.items():
        x = row.astype(dtype)
        for eps in (1e-5, 0.0, 1e-40):
            y = NORMS[norm](x, eps=eps)
            assert np.isfinite(y.astype(np.float64)).all(), (name, eps)
            assert share_of_bound(y, x, None, None, eps, norm == "layer") <= 1, (name, eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_only_passes_through_infinity_is_finite(dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    x = np.array([[3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]).astype(dtype)  # x̂ of the first is 2.6
    gamma, beta = np.full(8, 0.5 * largest).astype(dtype), np.full(8, -0.5 * largest).astype(dtype)
    y = ln.layer_norm(x, gamma, beta)
    assert np.isfinite(y.astype(np.float64)).all()
    if dtype != "float64":  # the oracle multiplies up to 1e140
        assert share_of_bound(y, x, gamma, beta, 1e-5, True) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1 / 3, 12345.0, 6e4, 1e-7])
@pytest.mark.parametrize("width", [1, 5, 33, 768, 4097])
def test_constant_rows_give_beta_to_the_bit(dtype, value, width):
    x = np.full((3, width), value).astype(dtype)
    beta = np.random.default_rng(0).standard_normal(width).astype(np.float32)
    for eps in (1e-5, 1e-12, 1e-60):
        y = ln.layer_norm(x, beta * 2, beta, eps=eps)
        np.testing.assert_array_equal(y, np.broadcast_to(beta, x.shape).astype(dtype))


def test_constant_rows_without_epsilon_are_undefined():
    y = ln.layer_norm(np.array([[5.0, 5.0], [1.0, 2.0]]), eps=0)
    assert np.isnan(y[0]).all()
    np.testing.assert_array_equal(y[1], [-1, 1])


def test_pytorch_108072_constant_rows_are_not_1_0001():
    """A row of equal values with γ = 0 and β = 1 came out as 1.0001 where x·r − m·r is one multiply-add."""
    x = np.full((4, 256), 10_000.0, np.float32)
    y = ln.layer_norm(x, np.ones(256, np.float32), np.ones(256, np.float32))
    np.testing.assert_array_equal(y, np.ones_like(x))


def test_onnxruntime_28463_four_large_neighbours():
    """[40000, 40001, 40002, 40003] gave NaN by E[x²] − E[x]²; the row is [0, 1, 2, 3] moved."""
    y = ln.layer_norm(np.array([[40000, 40001, 40002, 40003]], np.float32))
    np.testing.assert_allclose(y, [[-1.3416354, -0.4472118, 0.4472118, 1.3416354]], rtol=1e-6)


def test_pytorch_162489_large_float32_rows_are_not_zero():
    """Values of 1e30 overflow when squared in float32 and gave zeros."""
    y = ln.layer_norm(np.array([[1e30, 2e30, 3e30, 4e30]], np.float32))
    np.testing.assert_allclose(y, [[-1.3416408, -0.4472136, 0.4472136, 1.3416408]], rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("dtype", "scale", "eps", "by"),
    [("float32", 2.0**-90, 2.0**100, 2.0**120), ("float64", 1e-302, 1e30, 1e305), ("float64", 3e-315, 2.0, 1e300)],
)
def test_an_xhat_near_nothing_under_a_large_gamma_keeps_its_digits(norm, dtype, scale, eps, by):
    x = (scale * np.array([[1.0, -2.0, 3.0, 7.0]])).astype(dtype)
    y = NORMS[norm](x, np.full(4, by, dtype), eps=eps)
    with mpmath.workdps(60):
        row = [mpmath.mpf(float(v)) for v in x[0]]
        mean = sum(row) / 4 if norm == "layer" else mpmath.mpf(0)
        variance = sum((v - mean) ** 2 for v in row) / 4
        root = mpmath.sqrt(variance + mpmath.mpf(eps))
        u = mpmath.mpf(2) ** (-24 if dtype == "float32" else -53)
        for found, value in zip(y[0], row, strict=True):
            allowed = 4 * u * by * (abs(value - mean) + mpmath.sqrt(variance)) / root
            assert abs(mpmath.mpf(float(found)) - by * (value - mean) / root) <= allowed


def test_the_check_can_fail():
    """A two-pass norm with a float32 mean, PyTorch's way, breaks the bound at offset 10 000."""
    x = (1e4 + np.random.default_rng(0).standard_normal((4, 768))).astype(np.float32)
    mean = x.mean(axis=1, keepdims=True)
    y = ((x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + np.float32(1e-5))).astype(np.float32)
    assert share_of_bound(y, x, None, None, 1e-5, True) > 100
