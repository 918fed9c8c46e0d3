# SPDX-License-Identifier: MIT
"""This file shows that the definition executes each field of a spec: where somebody rounds, it rounds."""

import dataclasses

import numpy as np
import pytest

import layernorm as ln
from layernorm.conformance.oracle import forward
from layernorm.ops.reference import rounded

RNG = np.random.default_rng(0)
LLAMA = ln.NormSpec(centered=False, spread="rms", eps=1e-5, scale_axes=(-1,), stats_dtype="float32",
                    cast_before_scale=True)  # fmt: skip


def test_the_recipe_of_the_definition_by_hand():
    """Mean 5, variance 5, and so on: each number below is worked out on paper."""
    y, stats = ln.normalize(
        np.array([2.0, 4.0, 6.0, 8.0]), ln.NormSpec(eps=0.0), return_stats=True, backend="reference"
    )
    np.testing.assert_allclose(y, np.array([-3, -1, 1, 3]) / np.sqrt(5), rtol=1e-15)
    assert (stats.mean[0], stats.residue[0]) == (5.0, 0.0)
    assert stats.rstd[0] == pytest.approx(5**-0.5, rel=1e-15)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_vllm_42379_cast_before_scale_rounds_twice_as_llama_does(dtype, backend):
    """Rounding x̂ before γ or after it is one ulp an element, and turned generated text around."""
    x = RNG.standard_normal((64, 512)).astype(dtype)
    gamma = RNG.standard_normal(512).astype(dtype)
    xhat = forward(x, None, None, 1e-5, centered=False).xhat.to_float()
    before = rounded(rounded(xhat, dtype) * gamma.astype(np.float64), dtype)
    after = rounded(xhat * gamma.astype(np.float64), dtype)
    y = ln.normalize(x, LLAMA, gamma, backend=backend).astype(np.float64)
    once = dataclasses.replace(LLAMA, cast_before_scale=False)
    z = ln.normalize(x, once, gamma, backend=backend).astype(np.float64)
    # the two definitions differ in a quarter of the elements; a float32 x̂ may still fall on the other side of a tie
    assert np.mean(before != after) > 0.1
    assert np.mean(y != before) < 0.002
    assert np.mean(z != after) < 0.002


def test_bfloat16_is_rounded_once():
    """By way of float32, as ml_dtypes goes from float64, this value is rounded twice and ends one ulp high."""
    value = np.array([1 + 2.0**-8 + 2.0**-30])  # just above the middle between 1 and 1 + 2⁻⁷
    assert rounded(value, "bfloat16")[0] == 1 + 2.0**-7
    assert rounded(np.array([1 + 2.0**-8]), "bfloat16")[0] == 1.0
    below = np.array([1 + 3 * 2.0**-8 - 2.0**-40])  # just below a middle whose even neighbour is above
    assert rounded(below, "bfloat16")[0] == 1 + 2.0**-7


def test_deepspeed_581_an_epsilon_of_1e_12_is_lost_in_float16():
    """In float16 1e-12 rounds to 0, so a constant row divides 0 by 0; in float32 it is kept."""
    x = np.full((1, 8), 3.0, np.float16)
    lost = ln.NormSpec(eps=1e-12, stats_dtype="input")
    assert np.isnan(ln.normalize(x, lost)).all()
    np.testing.assert_array_equal(ln.normalize(x, ln.NormSpec(eps=1e-12, stats_dtype="float32")), 0)


def test_pytorch_133085_squares_overflow_in_float16_statistics():
    """300² is beyond float16, so RMS norm there gives 0; in float32 it gives 1."""
    x = np.full((1, 4), 300.0, np.float16)
    rms = {"centered": False, "spread": "rms", "eps": 1e-6}
    np.testing.assert_array_equal(ln.normalize(x, ln.NormSpec(**rms, stats_dtype="float16", round_each=True)), 0)
    np.testing.assert_array_equal(ln.normalize(x, ln.NormSpec(**rms, stats_dtype="float32")), 1)


@pytest.mark.parametrize("clamped", [False, True])
def test_onnxruntime_28463_the_variance_by_moments_cancels(clamped):
    """E[x²] − E[x]² of [40000, 40001, 40002, 40003] in float32, where such squares are multiples of 128.

    E[x²] is 1600120003.5 and rounds to 1600120064 − 64 = 1600120000 or its neighbour; E[x]² is 1600120002.25 and does
    the same. The difference is a multiple of 128, and here 0, where the variance is 1.25.
    """
    x = np.array([[40000, 40001, 40002, 40003]], np.float32)
    squares = np.float32(np.mean(np.float32(x * x).astype(np.float64)))
    variance = squares - np.float32(40001.5) ** 2
    assert variance % 128 == 0
    spec = ln.NormSpec(variance_by="moments_clamped" if clamped else "moments", stats_dtype="float32", round_each=True)
    y = ln.normalize(x, spec)
    wrong = np.float32([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(np.float32(max(variance, 0) if clamped else variance) + 1e-5)
    np.testing.assert_allclose(y[0], wrong, rtol=1e-5)
    right = ln.normalize(x, ln.NormSpec())
    assert np.abs(y - right).max() > 1


def test_statistics_kept_in_float32_are_off_by_the_rounding_of_the_mean():
    """At an offset of 1e6 a float32 mean is off by up to 1/32 of a deviation, which every output shows."""
    x = (1e6 + RNG.standard_normal((1, 768))).astype(np.float32)
    imitation = ln.normalize(x, ln.NormSpec(stats_dtype="float32"), backend="reference")
    wide = x.astype(np.float64)
    mean = np.float32(wide.mean())
    off = mean - wide.mean()
    spread = np.sqrt(wide.var() + off**2 + 1e-5)  # squares about a mean that is off are too large by off²
    np.testing.assert_allclose(imitation, (wide - mean) / spread, atol=1e-6)
    assert abs(off) > 1e-3
    assert np.abs(imitation - forward(x).y.to_float()).max() > 1e-3


def test_updated_statistics_are_a_weighted_mean_of_old_and_new():
    """ONNX training mode with momentum 0.9: the running mean moves a tenth of the way, and is used at once."""
    x = np.array([[1.0, 10.0], [3.0, 30.0]])
    spec = ln.NormSpec(axes=(0,), eps=0.0, statistics="updated")
    y, stats = ln.normalize(x, spec, mean=[0.0, 0.0], var=[1.0, 1.0], update=0.1, return_stats=True)
    np.testing.assert_allclose(stats.mean + stats.residue, [[0.2, 2.0]], rtol=1e-15)
    np.testing.assert_allclose(y, (x - [0.2, 2.0]) / np.sqrt([0.9 + 0.1, 0.9 + 10.0]), rtol=1e-15)


def difference_quotient(function, x, dy, step=1e-6):
    """Differentiate Σ dy·f(x) by central differences, element by element."""
    slope = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        moved = x.copy()
        moved[index] += step
        up = (dy * function(moved)).sum()
        moved[index] -= 2 * step
        slope[index] = (up - (dy * function(moved)).sum()) / (2 * step)
    return slope


@pytest.mark.parametrize("at", ["variance", "deviation", "sum", "variance_floor", "deviation_floor", "none"])
@pytest.mark.parametrize(("centered", "spread"), [(c, s) for c in (True, False) for s in ("std", "rms", "l2")])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.3, 30.0])
def test_gradients_of_every_place_of_epsilon_are_difference_quotients(at, centered, spread, ddof, eps):
    """Central differences with a step of 1e-6 are right to about 1e-9; the floors are tried above and below."""
    spec = ln.NormSpec(centered=centered, spread=spread, ddof=ddof, eps=eps, eps_at=at, scale_axes=(-1,))
    x, dy, gamma = RNG.standard_normal((2, 5)), RNG.standard_normal((2, 5)), RNG.standard_normal(5)
    dx, dgamma, dbeta = ln.normalize_backward(dy, x, spec, gamma, backend="reference")
    np.testing.assert_allclose(dx, difference_quotient(lambda v: ln.normalize(v, spec, gamma), x, dy), atol=1e-7)
    np.testing.assert_allclose(
        dgamma, difference_quotient(lambda g: ln.normalize(x, spec, g), gamma, dy), atol=1e-7
    )  # fmt: skip
    np.testing.assert_array_equal(dbeta, dy[0] + dy[1])


@pytest.mark.parametrize("update", [None, 0.25])
def test_gradients_through_stored_and_updated_statistics(update):
    spec = ln.NormSpec(axes=(0,), scale_axes=(1,), statistics="stored" if update is None else "updated")
    x, dy, gamma = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3)), RNG.standard_normal(3)
    given = {"mean": np.zeros(3), "var": np.ones(3), "update": update}
    dx, _, _ = ln.normalize_backward(dy, x, spec, gamma, **given)
    expected = difference_quotient(lambda v: ln.normalize(v, spec, gamma, **given), x, dy)
    np.testing.assert_allclose(dx, expected, atol=1e-7)


@pytest.mark.parametrize("order", ["blocked", "interleaved"])
def test_groups_are_dealt_in_the_order_that_the_spec_says(order):
    x = np.array([[1.0, 3.0, 10.0, 30.0]])
    y, stats = ln.group_norm(x, 2, eps=0, group_order=order, return_stats=True)
    groups = [(0, 1), (2, 3)] if order == "blocked" else [(0, 2), (1, 3)]
    for i, channels in enumerate(groups):
        np.testing.assert_array_equal(y[0, channels], [-1, 1])
        assert stats.mean[0, i] + stats.residue[0, i] == x[0, list(channels)].mean()
