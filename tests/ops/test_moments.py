# SPDX-License-Identifier: MIT
"""This file checks moments against whole-number arithmetic, for every way of cutting and merging the data."""

import math
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layernorm.ops.moments import BLOCK, Moments
from layernorm.spec.errors import ArgumentError, ArrayTypeError

SUBNORMAL = 2**1074  # every float64 is a whole number of 2**-1074


def exact(values):
    """Give mean and M2 as fractions, from sums of whole numbers."""
    ratios = [value.as_integer_ratio() for value in np.asarray(values, np.float64).ravel().tolist()]
    whole = [top * (SUBNORMAL // bottom) for top, bottom in ratios]
    n, total, squares = len(whole), sum(whole), sum(v * v for v in whole)
    return Fraction(total, n * SUBNORMAL), Fraction(n * squares - total * total, n * SUBNORMAL**2)


def real(fraction):
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def errors(mean, std, values):
    """Give the error of a mean in ulp of max(|mean|, std), and that of a deviation in ulp of itself."""
    with mpmath.workprec(250):
        true_mean, true_m2 = (real(f) for f in exact(values))
        true_std = mpmath.sqrt(true_m2 / np.size(values))
        size = float(max(abs(true_mean), true_std))
        return (
            float(abs(float(mean) - true_mean) / math.ulp(size)),
            float(abs(float(std) - true_std) / math.ulp(float(true_std))),
        )


def assert_right(moments, values):
    mean_error, std_error = errors(moments.mean, moments.std(), values)
    assert moments.count == np.size(values)
    # Rounding a pair costs the mean half an ulp. The variance's rounding moves the root by as much again. Among the
    # subnormals there is one rounding more, of a number that has fewer bits than it was first rounded to.
    last = 0.5 if moments.std() < 2.0**-1021 or abs(moments.mean) < 2.0**-1021 else 0.0
    assert mean_error <= 0.51 + last
    assert std_error <= 1.01 + last


@pytest.mark.parametrize("wrong", [(1, 0), (-1, 0), (0, 2), (0, -2)], ids=str)
def test_the_check_can_fail(wrong):
    values = np.array([1.5, 2.25, 7.0, 8.125])
    moments = Moments.of(values)
    mean, std = (float(v) + by * math.ulp(v) for v, by in zip((moments.mean, moments.std()), wrong, strict=True))
    mean_error, std_error = errors(mean, std, values)
    assert mean_error > 0.51 or std_error > 1.01


def whole(x):
    return Moments.of(x)


def chain(x):
    """Merge element by element, as a stream would."""
    total = Moments.of([])
    for value in x:
        total = total.merge(Moments.of(value))
    return total


def backward_chain(x):
    total = Moments.of([])
    for value in x[::-1]:
        total = Moments.of(value).merge(total)
    return total


def tree(x):
    """Merge halves of halves."""
    return Moments.of(x) if len(x) < 3 else tree(x[: len(x) // 2]).merge(tree(x[len(x) // 2 :]))


def shuffled(x):
    """Cut anywhere, empty pieces included, and merge any two pieces next."""
    random = np.random.default_rng(len(x))
    pieces = [Moments.of(piece) for piece in np.split(x, np.sort(random.integers(0, len(x) + 1, 9)))]
    while len(pieces) > 1:
        first = pieces.pop(random.integers(len(pieces)))
        second = pieces.pop(random.integers(len(pieces)))
        pieces.append(first.merge(second))
    return pieces[0]


WAYS = [whole, chain, backward_chain, tree, shuffled]

DRAWN = np.random.default_rng(0).normal(size=(9, 60))
ADVERSARIAL = {
    "two cancel, the rest is small": np.array([1e30, 1.0, -1e30, 1e-30] * 8),
    "one value is 1 ulp off": np.array([0.1] * 40 + [np.nextafter(0.1, 1)]),
    "the first is 1 ulp off": np.array([np.nextafter(1.1, 2)] + [1.1] * 60),
    "every exponent": DRAWN[0] * 2.0 ** np.linspace(-1000, 1000, 60).astype(int),
    "exponents grow": 2.0 ** np.arange(-30, 30),
    "near the largest": np.array([1.7e308, -1.7e308, 1.79e308] * 11),
    "all the largest": np.full(33, np.finfo(np.float64).max),
    "subnormal": np.arange(50) * 5e-324,
    "zeros and subnormals": np.array([0.0, 5e-324, -0.0, 1e-310] * 9),
    "zeros, then small": np.array([0.0] * 20 + [1e-200, 3e-200]),
    "alternating at 1e16": np.array([1e16, 1.0, -1e16, 1.0] * 10),
    "far outlier": np.append(DRAWN[1], 1e15),
    "drift": 1e7 + np.arange(60) * 1e-3,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("offset", [0.0, 1.0, -1e3, 1e7, 1e12])
def test_right_however_merged(way, offset):
    for scale, row in zip([1.0, 1e-30, 1e30, 1e-150, 1e150, 1e-300, 1e290, 3e-310], DRAWN, strict=False):
        values = (row + offset) * scale
        assert_right(way(values), values)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_right_on_adversarial_data(way, name):
    assert_right(way(ADVERSARIAL[name]), ADVERSARIAL[name])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 31, 33])
def test_right_at_every_small_size(n):
    for way in WAYS:
        assert_right(way(DRAWN[2, :n] + 1e5), DRAWN[2, :n] + 1e5)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=150, database=None)
@given(st.lists(st.lists(FINITE, max_size=5), min_size=1, max_size=8), st.randoms(use_true_random=False))
@example([[1e308], [-1e308, 5e-324]], None)
@example([[0.0, 0.0, 5.964938640361695e-308]], None)
def test_right_on_any_pieces(pieces, random):
    values = [value for piece in pieces for value in piece]
    merged = [Moments.of(piece) for piece in pieces]
    while len(merged) > 1:
        if random is not None:
            random.shuffle(merged)
        merged.append(merged.pop().merge(merged.pop()))
    if values:
        assert_right(merged[0], values)
    else:
        assert merged[0].count == 0


def test_right_after_1e5_merges():
    # a few hundred different values, so that the pieces are quick to make; the chain is as long as it says
    random = np.random.default_rng(5)
    pool = 1e7 + random.normal(size=300)
    pieces = [Moments.of(value) for value in pool]
    chosen = random.integers(300, size=100_000)
    total = Moments.of([])
    for index in chosen:
        total = total.merge(pieces[index])
    assert_right(total, pool[chosen])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [1, 3, 1500])
def test_right_over_many_blocks(columns, order):
    rows = 2 * BLOCK + 5 if columns == 1 else 100 + BLOCK // columns
    x = np.random.default_rng(6).normal(size=(rows, columns)) + 1e6
    x = np.asarray(x, order=order)
    moments = Moments.of(x, axis=0)
    for column in range(0, columns, 299):
        assert max(errors(moments.mean[column], moments.std()[column], x[:, column])) <= 1.01


def test_plain_summation_is_worse():
    """Show that the promise is not one that NumPy keeps, or this file would prove little."""
    values = 1e7 + DRAWN[3]
    mean, squares = 0.0, 0.0
    for n, value in enumerate(values, 1):  # Welford in float64
        step = value - mean
        mean += step / n
        squares += step * (value - mean)
    assert errors(mean, math.sqrt(squares / len(values)), values)[1] > 1e4


@settings(deadline=None, max_examples=60, database=None)
@given(FINITE, st.integers(1, 60))
@example(0.1, 57)
@example(1.7e308, 3)
@example(5e-324, 1000)
def test_equal_values_have_no_deviation(value, n):
    one = Moments.of(value)
    total = Moments.of([value] * n)
    for step in range(50):  # up to about 2**34 values
        total = total.merge(total if step % 3 else one)
        assert (total.mean, total.m2, total.std()) == (value, 0, 0)


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(FINITE, max_size=6), st.lists(FINITE, max_size=6))
def test_order_of_two_does_not_matter_to_the_bit(left, right):
    a, b = Moments.of(left), Moments.of(right)
    for get in (lambda m: m.mean_pair, lambda m: (m.m2, m.std(), m.variance(1), m.count)):
        assert np.array_equal(get(a.merge(b)), get(b.merge(a)), equal_nan=True)


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(FINITE, min_size=1, max_size=8))
def test_empty_is_the_identity(values):
    full, empty = Moments.of(values), Moments.of([])
    for merged in (full.merge(empty), empty.merge(full)):
        assert (*merged.mean_pair, merged.m2, merged.std(), merged.count) == (
            *full.mean_pair,
            full.m2,
            full.std(),
            full.count,
        )


def test_merge_changes_neither():
    a, b = Moments.of([1.0, 2.0]), Moments.of([10.0])
    a.merge(b)
    assert (a.count, a.mean, b.count, b.mean) == (2, 1.5, 1, 10.0)
    with pytest.raises(AttributeError):
        a._count = 3
    a = Moments.of([[1.0, 2.0]], axis=0)
    a.count[0] = 77
    a.mean[0] = 77.0
    assert a.count.tolist() == [1, 1] and a.mean.tolist() == [1.0, 2.0]


def test_empty():
    for moments in (Moments.of([]), Moments.of([]).merge(Moments.of([]))):
        assert moments.count == 0 and moments.m2 == 0
        assert np.isnan([moments.mean, moments.variance(), moments.std()]).all()
    rows = Moments.of(np.zeros((0, 3)), axis=0)
    assert rows.count.tolist() == [0, 0, 0] and np.isnan(rows.mean).all()
    assert Moments.of(np.zeros((4, 0)), axis=0).mean.shape == (0,)


@pytest.mark.parametrize(
    ("bad", "mean"),
    [
        ([np.nan], np.nan),
        ([np.inf], np.inf),
        ([-np.inf], -np.inf),
        ([np.inf, np.inf], np.inf),
        ([np.inf, -np.inf], np.nan),
        ([np.inf, np.nan], np.nan),
    ],
    ids=str,
)
@pytest.mark.parametrize("cut", [0, 1, 2, 5])
def test_a_bad_value_stays_in_its_column(bad, mean, cut):
    x = DRAWN[:3, :20].T.copy()
    clean = Moments.of(x[:cut], axis=0).merge(Moments.of(x[cut:], axis=0))
    x[1 : 1 + len(bad), 1] = bad
    moments = Moments.of(x[:cut], axis=0).merge(Moments.of(x[cut:], axis=0))
    assert moments.mean[[0, 2]].tolist() == clean.mean[[0, 2]].tolist()
    assert moments.std()[[0, 2]].tolist() == clean.std()[[0, 2]].tolist()
    np.testing.assert_equal(moments.mean[1], mean)
    assert np.isnan(moments.std()[1]) and np.isnan(moments.m2[1])
    assert moments.count.tolist() == [20] * 3


@pytest.mark.parametrize("ddof", [0, 1, 2.5])
def test_variance_and_its_root(ddof):
    values = DRAWN[4, :9] + 100
    with mpmath.workprec(250):
        true = real(exact(values)[1])
        for got, want in [
            (Moments.of(values).m2, true),
            (Moments.of(values).variance(ddof), true / (9 - ddof)),
            (Moments.of(values).std(ddof), mpmath.sqrt(true / (9 - ddof))),
        ]:
            assert abs(float(got) - want) <= math.ulp(float(want)) * 1.01


@pytest.mark.parametrize("ddof", [3, 4])
def test_no_variance_without_freedom(ddof):
    assert np.isnan(Moments.of([1.0, 2.0, 4.0]).variance(ddof))
    assert np.isnan(Moments.of([1.0, 2.0, 4.0]).std(ddof))


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_the_deviation_outlives_the_variance(scale):
    moments = Moments.of([1.0 * scale, 3.0 * scale])
    assert moments.variance() == (np.inf if scale > 1 else 0)
    assert moments.std() == scale


def test_mean_pair_keeps_what_rounding_loses():
    values = 1e7 + DRAWN[5]
    with mpmath.workprec(250):
        hi, lo = (mpmath.mpf(float(part)) for part in Moments.of(values).mean_pair)
        true = real(exact(values)[0])
        assert abs(hi - true) > 2.0**-60 * abs(true) > 2.0**-95 * abs(true) > abs(hi + lo - true)


@pytest.mark.parametrize(
    "dtype",
    ["float16", ml_dtypes.bfloat16, "float32", "float64", ">f4", ">f8", "int8", "uint16", "int64", "bool"],
    ids=str,
)
def test_every_type_is_taken_at_its_exact_values(dtype):
    values = np.linspace(0, 90, 37).astype(dtype)
    assert_right(Moments.of(values), values.astype(np.float64))


def test_lists_and_numbers():
    assert Moments.of([[1, 2], [3, 6]]).mean == 3
    assert Moments.of(5).count == 1


X = np.random.default_rng(8).normal(size=(3, 4, 5)) + 50


@pytest.mark.parametrize(
    ("axis", "first"),
    [
        (None, np.s_[:]),
        (0, np.s_[:, 0, 0]),
        (-1, np.s_[0, 0, :]),
        ((0, 2), np.s_[:, 0, :]),
        ([-1, 0], np.s_[:, 0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_axes(axis, first, order):
    moments = Moments.of(np.asarray(X, order=order), axis=axis)
    shape = X.mean(axis=tuple(axis) if isinstance(axis, list) else axis).shape
    assert moments.mean.shape == moments.count.shape == moments.std().shape == moments.m2.shape == shape
    assert max(errors(moments.mean.flat[0], moments.std().flat[0], X[first])) <= 1.01


def test_strided_and_reversed():
    assert_right(Moments.of(X[:, ::-2, 1]), X[:, ::-2, 1])


def test_where_leaves_values_out():
    x = np.array([[1.0, np.nan, 5.0], [2.0, np.inf, 5.0], [4.0, 7.0, np.nan]])
    moments = Moments.of(x, axis=0, where=np.isfinite(x))
    assert moments.count.tolist() == [3, 1, 2]
    assert moments.mean.tolist() == [7 / 3, 7.0, 5.0]
    assert moments.std()[1:].tolist() == [0.0, 0.0]
    assert_right(Moments.of(x[:, 0], where=[True, False, True]), [1.0, 4.0])
    nothing = Moments.of(x, axis=0, where=np.zeros(x.shape, bool))
    assert nothing.count.tolist() == [0, 0, 0] and np.isnan(nothing.mean).all()


def test_says_what_it_holds():
    assert repr(Moments.of([1.0, 3.0])) == "Moments(count=2, mean=2.0, std=1.0)"


@pytest.mark.parametrize(
    ("x", "name"),
    [
        ([1j], "complex128"),
        (np.array([1, None]), "object"),
        (np.zeros(3, np.longdouble), np.dtype(np.longdouble).name),
        (["a"], "<U1"),
    ],
    ids=["complex", "object", "longdouble", "text"],
)
def test_refuses_other_types(x, name):
    with pytest.raises(ArrayTypeError) as refusal:
        Moments.of(x)
    wanted = "float16, bfloat16, float32 or float64 (integers and bools become float64)"
    assert str(refusal.value) == f"x has type {name}, which is not normalized here; use {wanted}."


def test_refuses_masked_arrays():
    with pytest.raises(ArrayTypeError) as refusal:
        Moments.of(np.ma.masked_array([1.0, 2.0], [True, False]))
    assert str(refusal.value).startswith("x is a masked array and the mask would be lost; fill it")


@pytest.mark.parametrize("axis", [3, -4, (0, 0), (0, -3), ()], ids=str)
def test_refuses_axes_that_do_not_fit(axis):
    with pytest.raises(ArgumentError) as refusal:
        Moments.of(X, axis)
    assert str(refusal.value) == f"axis {axis} does not fit x of 3 dimensions; pass distinct axes, -3 to 2."


def test_refuses_to_merge_other_columns():
    with pytest.raises(ArgumentError) as refusal:
        Moments.of(X, axis=0).merge(Moments.of(X, axis=(0, 1)))
    assert str(refusal.value) == (
        "moments of columns of shape (4, 5) and (5,) cannot be merged; reduce the same axes of both pieces."
    )


def test_refuses_a_where_of_another_shape():
    with pytest.raises(ArgumentError) as refusal:
        Moments.of(X, where=np.ones(5, bool))
    assert str(refusal.value) == ("where has shape (5,) but x has shape (3, 4, 5); pass one bool for each value.")
