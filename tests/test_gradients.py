# SPDX-License-Identifier: MIT
"""This file holds the backward pass to its promises, against double-double arithmetic.

dx within 8 ulp of (1/σ)·max|γ·dy| of its row; dγ and dβ within 2u·Σ|dy·x̂| and 2u·Σ|dy|, plus half an ulp of the type
they are given in; a 16-bit dx half an ulp of its own more, for its last rounding.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

import layernorm as ln
from layernorm.conformance.oracle import backward, error, forward, ulp

DTYPES = ("float16", "bfloat16", "float32", "float64")
WIDTHS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 64, 768, 1000, 4096, 65536)
OFFSETS = (0, 1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
SCALES = (1e-30, 1e-10, 1e-5, 1, 1e5, 1e10, 1e30)
NORMS = {"layer": (ln.layer_norm, ln.layer_norm_backward), "rms": (ln.rms_norm, ln.rms_norm_backward)}


def compute(dtype):
    return "float64" if dtype == "float64" else "float32"


def shares(gradients, dy, x, gamma, eps, centered):
    """The largest error of dx, dgamma and dbeta, each in units of its bound."""
    dx, dgamma, dbeta = gradients
    exact_dx, exact_dgamma, exact_dbeta, abs_dgamma, abs_dbeta = backward(dy, x, gamma, eps, centered)
    name = compute(x.dtype.name)
    u = 2.0 ** -(53 if name == "float64" else 24)
    rstd = forward(x, None, None, eps, centered).rstd.to_float()
    scale = rstd * np.max(np.abs(dy.astype(np.float64) * gamma.astype(np.float64)), axis=1, keepdims=True)
    bound_dx = 8 * ulp(scale, name) + (ulp(exact_dx.hi, x.dtype) / 2 if x.dtype.itemsize == 2 else 0)
    too_large = np.abs(exact_dx.hi) > float(ml_dtypes.finfo(x.dtype).max)
    tiny = 2.0**-1074  # half of it, where the exact value is 0, would be 0
    bound_dgamma = 2 * u * abs_dgamma + ulp(exact_dgamma.hi, dgamma.dtype) / 2 + tiny
    bound_dbeta = 2 * u * abs_dbeta + ulp(exact_dbeta.hi, dbeta.dtype) / 2 + tiny
    return (
        np.max(np.where(too_large, 0, error(dx, exact_dx) / bound_dx)),
        np.max(error(dgamma, exact_dgamma) / bound_dgamma),
        np.max(error(dbeta, exact_dbeta) / bound_dbeta),
    )


@pytest.mark.parametrize(("rows", "width"), [(r, w) for r in (1, 3, 70) for w in WIDTHS if r * w <= 300_000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_stay_within_their_bounds(norm, dtype, rows, width):
    run, run_backward = NORMS[norm]
    ran = 0
    for number, (offset, scale) in enumerate(itertools.product(OFFSETS, SCALES)):
        # every cell up to 17 columns; a fifth of them, or of the widest a thirteenth, above, all offsets and scales met
        if number % (1 if width <= 17 else 5 if rows * width <= 10_000 else 13):
            continue
        random = np.random.default_rng([width, rows, number])
        with np.errstate(over="ignore"):
            x = (scale * (offset + random.standard_normal((rows, width)))).astype(dtype)
        if not np.isfinite(x.astype(np.float64)).all():
            continue
        dy = random.standard_normal((rows, width)).astype(dtype)
        gamma = random.standard_normal(width).astype(compute(dtype))
        _, stats = run(x, gamma, return_stats=True, eps=1e-5)
        found = shares(run_backward(dy, x, stats, gamma), dy, x, gamma, 1e-5, norm == "layer")
        assert max(found) <= 1, f"dx, dgamma, dbeta at {found} of their bounds, offset {offset}, scale {scale}"
        ran += 1
    assert ran >= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_row_alone_in_the_loss(dtype):
    """A masked loss: dy is zero but for one token, so that nothing averages the errors of dgamma."""
    random = np.random.default_rng(0)
    x = (1e3 + random.standard_normal((64, 768))).astype(dtype)
    dy = np.zeros_like(x)
    dy[17] = random.standard_normal(768)
    gamma = np.ones(768, dtype)
    _, stats = ln.layer_norm(x, gamma, return_stats=True)
    found = shares(ln.layer_norm_backward(dy, x, stats, gamma), dy[17:18], x[17:18], gamma, 1e-5, True)[1:]
    assert max(found) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_188375_single_columns_have_no_gradient_through_gamma(dtype):
    """Rows of one column gave dweight a value, where x̂ is 0 and so is the gradient."""
    x = np.full((5, 1), 7.0).astype(dtype)
    _, stats = ln.layer_norm(x, np.ones(1, dtype), return_stats=True)
    dx, dgamma, dbeta = ln.layer_norm_backward(np.ones_like(x), x, stats, np.ones(1, dtype))
    np.testing.assert_array_equal(dx.astype(float), 0)
    np.testing.assert_array_equal(dgamma.astype(float), 0)
    np.testing.assert_array_equal(dbeta.astype(float), 5)


def test_the_residue_is_what_keeps_gradients_right_far_from_zero():
    """With the mean saved as one float32, dx at offset 1e4 is off by hundreds of ulp."""
    random = np.random.default_rng(0)
    x = (1e4 + random.standard_normal((8, 768))).astype(np.float32)
    dy, gamma = random.standard_normal((8, 768)).astype(np.float32), np.ones(768, np.float32)
    _, stats = ln.layer_norm(x, gamma, return_stats=True)
    rounded = stats._replace(residue=np.zeros_like(stats.residue))
    kept = shares(ln.layer_norm_backward(dy, x, stats, gamma), dy, x, gamma, 1e-5, True)
    lost = shares(ln.layer_norm_backward(dy, x, rounded, gamma), dy, x, gamma, 1e-5, True)
    assert max(kept) <= 1
    assert lost[0] > 20


@pytest.mark.parametrize("form", ["scalar", "vector", "per sample", "per row", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_form_of_gamma_gets_a_gradient_of_its_own_shape(form, dtype):
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal((3, 5, 16)).astype(dtype) for _ in range(2))
    gamma = {
        "scalar": 2.0,
        "vector": random.standard_normal(16),
        "per sample": random.standard_normal((3, 1, 16)),
        "per row": random.standard_normal((3, 5, 1)),
        "none": None,
    }[form]
    _, stats = ln.layer_norm(x, gamma, return_stats=True)
    dx, dgamma, dbeta = ln.layer_norm_backward(dy, x, stats, gamma)
    flat, flat_dy = x.reshape(15, 16), dy.reshape(15, 16)
    full = np.broadcast_to(1.0 if gamma is None else gamma, x.shape).reshape(15, 16)
    exact_dx = backward(flat_dy, flat, full, 1e-5)[0]
    xhat = forward(flat).xhat.to_float().reshape(x.shape)
    np.testing.assert_allclose(dx.reshape(15, 16), exact_dx.to_float(), rtol=0, atol=1e-5)
    if gamma is None:
        assert dgamma is None
        np.testing.assert_allclose(dbeta, dy.sum((0, 1)), rtol=1e-5, atol=1e-6)
        return
    axes = {"scalar": (0, 1, 2), "vector": (0, 1), "per sample": 1, "per row": 2}[form]
    expected = (dy.astype(np.float64) * xhat).sum(axes).reshape(np.shape(gamma))
    assert dgamma.shape == np.shape(gamma)
    np.testing.assert_allclose(dgamma, expected, rtol=1e-5, atol=1e-5)
    assert dbeta.shape == (np.shape(gamma) or (16,))
    assert dgamma.dtype == (np.dtype(dtype) if form == "scalar" else np.float64)


def test_a_gradient_of_another_type_than_x_is_not_rounded_to_it():
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 32)).astype(np.float16)
    dy = random.standard_normal((4, 32)).astype(np.float32)
    gamma = np.ones(32, np.float32)
    _, stats = ln.layer_norm(x, gamma, return_stats=True)
    dx, dgamma, dbeta = ln.layer_norm_backward(dy, x, stats, gamma)
    assert dx.dtype == np.float16
    assert max(shares((dx, dgamma, dbeta), dy, x, gamma, 1e-5, True)) <= 1


@pytest.mark.parametrize("name", ["keras-rms-scaling", "pytorch-normalize", "flux", "bert", "t5", "tf-l2"])
def test_saved_statistics_change_no_gradient(name):
    """Where 1/D alone does not tell the deviation, saved statistics are not relied on."""
    spec = ln.VARIANTS[name]
    random = np.random.default_rng(0)
    x, dy = 5 + random.standard_normal((4, 7)), random.standard_normal((4, 7))
    gamma = random.standard_normal(7) if spec.scale_axes else None
    _, stats = ln.normalize(x, spec, gamma, return_stats=True)
    for a, b in zip(
        ln.normalize_backward(dy, x, spec, gamma, stats=stats), ln.normalize_backward(dy, x, spec, gamma), strict=True
    ):
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_infinite_gradient_leaves_the_sum_infinite():
    x = np.random.default_rng(0).standard_normal((3, 4))
    dy = np.ones((3, 4))
    dy[1, 2] = np.inf
    _, stats = ln.layer_norm(x, return_stats=True)
    for dtype in ("float32", "float64"):
        dbeta = ln.layer_norm_backward(dy.astype(dtype), x.astype(dtype), stats)[2]
        np.testing.assert_array_equal(dbeta, [3, 3, np.inf, 3])


def test_gradients_of_two_kinds_of_16_bits():
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((2, 8)).astype("bfloat16"), random.standard_normal((2, 8)).astype(np.float16)
    _, stats = ln.layer_norm(x, return_stats=True)
    assert ln.layer_norm_backward(dy, x, stats)[0].dtype == x.dtype


def test_the_check_can_fail():
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal((70, 64)).astype(np.float32) for _ in range(2))
    gamma = np.ones(64, np.float32)
    _, stats = ln.layer_norm(x, gamma, return_stats=True)
    dx, dgamma, dbeta = ln.layer_norm_backward(dy, x, stats, gamma)
    wrong = (dx * np.float32(1 + 1e-5), dgamma + np.float32(1e-4), dbeta[::-1].copy())
    assert min(shares(wrong, dy, x, gamma, 1e-5, True)) > 1
