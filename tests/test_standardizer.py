# SPDX-License-Identifier: MIT
"""This file checks the column method against exact arithmetic and scikit-learn, pipelines included."""

import copy
import math
import pickle
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layernorm.spec.errors import ArgumentError, ArrayTypeError
from layernorm.standardizer import Standardizer

# significant bits of each type, the implicit one included
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
DRAWN = np.random.default_rng(0).normal(size=(200, 3))


def exact_moments(column, ddof=0):
    """Give mean and deviation of a column as mpmath numbers."""
    values = [Fraction(float(v)) for v in column]
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - ddof)
    with mpmath.workprec(250):
        return real(mean), mpmath.sqrt(real(variance))


def exact_column(fitted, given=None, ddof=0):
    """Give the standardized values of a column as mpmath numbers."""
    mean, deviation = exact_moments(fitted, ddof)
    with mpmath.workprec(250):
        return [(float(v) - mean) / deviation for v in (fitted if given is None else given)]


def real(fraction):
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def worst(y, exact, digits=53):
    """Give the largest error in ulp of each exact value, in a type of so many digits."""
    with mpmath.workprec(250):
        errors = [
            abs(float(got) - want) / 2.0 ** (math.frexp(float(want))[1] - digits)
            for got, want in zip(y, exact, strict=True)
        ]
        return float(max(errors))


def agree(ours, theirs, tolerance=1e-13):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, strict=True)


def test_the_check_can_fail():
    exact = exact_column(DRAWN[:, 0])
    y = np.array([float(v) for v in exact])
    assert worst(y, exact) <= 0.5
    y[7] += 6 * math.ulp(y[7])
    assert worst(y, exact) > 5
    with pytest.raises(AssertionError):
        agree(DRAWN, DRAWN + 1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 1e200, 1e-200])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, -1e7, 1e8, 1e12])
def test_float64_is_right_to_a_few_ulp(offset, scale, ddof):
    x = ((DRAWN[:60, 0] + offset) * scale)[:, None]
    y = Standardizer(ddof=ddof).fit_transform(x)
    # two subtractions and the division 0.5 each, the deviation 1: 2.5 ulp, twice as many just above a power of 2
    assert worst(y[:, 0], exact_column(x[:, 0], ddof=ddof)) <= 5


@pytest.mark.parametrize("offset", [0.0, 10.0, 1e3, 3e4, 1e7])
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32"], ids=str)
def test_narrow_types_are_rounded_once(dtype, offset):
    digits = DIGITS[np.dtype(dtype).name]
    offset = min(offset, 3e4) if digits == 11 else offset
    spread = max(1.0, offset * 2.0 ** (4 - digits))  # 8 or more of the type's steps at that offset
    x = (DRAWN[:60] * spread + offset).astype(dtype)
    y = Standardizer().fit_transform(x)
    assert y.dtype == x.dtype
    for column in range(3):
        assert worst(y[:, column], exact_column(x[:, column]), digits) <= 0.5 + 1e-6


def test_new_rows():
    x, new = DRAWN + 1e7, DRAWN[:50] * 3 + 1e7
    y = Standardizer().fit(x).transform(new)
    assert worst(y[:, 1], exact_column(x[:, 1], new[:, 1])) <= 5


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", ">f8", ">f4"])
def test_result_type(dtype):
    x = (DRAWN * 20 > 3).astype(dtype)
    y = Standardizer().fit_transform(x)
    assert y.dtype == (x.dtype.newbyteorder("=") if x.dtype.kind == "f" else np.float64)
    assert worst(y[:, 0], exact_column(x[:, 0]), 24 if dtype == ">f4" else 53) <= 5


@settings(deadline=None, max_examples=15, database=None)
@given(st.lists(st.integers(0, 200), max_size=6), st.sampled_from([0.0, 1e7]), st.sampled_from([0, 1]))
def test_pieces_give_what_the_whole_gives(cuts, offset, ddof):
    x = DRAWN + offset
    pieces = Standardizer(ddof=ddof)
    for piece in np.split(x, sorted(cuts)):
        pieces.partial_fit(piece)
    assert pieces.n_samples_seen_ == 200
    y = pieces.transform(x[:9])
    for column in range(3):
        assert worst(y[:, column], exact_column(x[:, column], x[:9, column], ddof)) <= 5
        mean, deviation = exact_moments(x[:, column], ddof)
        with mpmath.workprec(250):
            assert abs(float(pieces.mean_[column]) - mean) <= 0.51 * math.ulp(max(abs(mean), deviation))
            assert abs(float(pieces.scale_[column]) - deviation) <= 1.01 * math.ulp(deviation)
            assert abs(float(pieces.var_[column]) - deviation**2) <= 0.51 * math.ulp(deviation**2)


def test_fit_forgets():
    standardizer = Standardizer().fit(DRAWN + 5).fit(DRAWN[:, :2])
    assert standardizer.n_features_in_ == 2
    assert standardizer.mean_.tolist() == Standardizer().fit(DRAWN[:, :2]).mean_.tolist()


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e7])
def test_inverse(offset):
    x = DRAWN + offset
    y = np.array([[0.0, -1.5, 2.0], [1e-3, 7.0, -300.0]])
    back = Standardizer().fit(x).inverse_transform(y)
    for row, column in np.ndindex(y.shape):
        mean, deviation = exact_moments(x[:, column])
        with mpmath.workprec(250):
            step = deviation * float(y[row, column])
            # the last addition rounds once; before it, the deviation is an ulp off and the product rounds too
            bound = 0.5 * math.ulp(mean + step) + 2 * math.ulp(step) + 2.0**-100
            assert abs(float(back[row, column]) - (mean + step)) <= bound


def test_inverse_undoes_transform():
    x = (DRAWN + 1e4).astype("float32")
    standardizer = Standardizer().fit(x)
    back = standardizer.inverse_transform(standardizer.transform(x))
    assert back.dtype == x.dtype
    assert (abs(back - x) <= np.spacing(x)).all()


# scikit-learn agrees where its own arithmetic suffices

WITH_GAPS = np.where(DRAWN > 1.2, np.nan, DRAWN * [1, 10, 0.1] + [3, -2, 0])
TABLES = {
    "plain": DRAWN * [1, 10, 0.1] + [3, -2, 0],
    "one row": DRAWN[:1],
    "one column": DRAWN[:, :1],
    "integers": (DRAWN * 100).astype(int),
    "NaN": WITH_GAPS,
    "constant columns": np.hstack([DRAWN, np.full((200, 1), 0.1), np.zeros((200, 1))]),
    "list": [[1, 2.5], [3, -4], [5, 0]],
}
OPTIONS = [{}, {"with_mean": False}, {"with_std": False}, {"with_mean": False, "with_std": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", TABLES)
def test_agrees_with_scikit_learn(name, options):
    x = TABLES[name]
    ours, theirs = Standardizer(**options).fit(x), StandardScaler(**options).fit(x)
    assert ours.n_features_in_ == theirs.n_features_in_
    np.testing.assert_array_equal(ours.n_samples_seen_, theirs.n_samples_seen_)
    if theirs.mean_ is not None:  # it has none if neither option asks for it
        agree(ours.mean_, theirs.mean_)
    if options.get("with_std", True):
        agree(ours.var_, theirs.var_)
        agree(ours.scale_, theirs.scale_)
    else:
        assert ours.var_ is ours.scale_ is None
    agree(ours.transform(x), theirs.transform(x))
    agree(
        ours.inverse_transform(DRAWN[:5, :1] + np.zeros(ours.n_features_in_)),
        theirs.inverse_transform(DRAWN[:5, :1] + np.zeros(ours.n_features_in_)),
    )


def test_agrees_with_scikit_learn_in_pieces():
    ours, theirs = Standardizer(), StandardScaler()
    for piece in np.split(WITH_GAPS, [20, 60, 150]):
        ours.partial_fit(piece)
        theirs.partial_fit(piece)
    assert ours.n_samples_seen_.tolist() == theirs.n_samples_seen_.tolist()
    agree(ours.mean_, theirs.mean_)
    agree(ours.scale_, theirs.scale_)
    agree(ours.transform(WITH_GAPS), theirs.transform(WITH_GAPS))


def test_scikit_learn_loses_digits_at_a_large_offset():
    x = DRAWN[:, :1] + 1e8
    exact = exact_column(x[:, 0])
    assert worst(Standardizer().fit_transform(x)[:, 0], exact) <= 5
    assert worst(StandardScaler().fit_transform(x)[:, 0], exact) > 1e6


def test_scikit_learn_takes_a_small_variation_for_none():
    x = 1e8 + 2.0**-26 * np.arange(-100, 100)[:, None]  # 200 neighbouring float64
    assert StandardScaler().fit(x).scale_ == 1
    y = Standardizer().fit_transform(x)
    assert worst(y[:, 0], exact_column(x[:, 0])) <= 5


@pytest.mark.parametrize("value", [0.0, 0.1, -1e7 / 3, 1e300, 5e-324])
def test_constant_columns_become_zero(value):
    standardizer = Standardizer()
    for rows in (1, 7, 1000):
        standardizer.partial_fit(np.full((rows, 1), value))
    assert standardizer.scale_ == 1 and standardizer.var_ == 0 and standardizer.mean_ == value
    assert standardizer.transform([[value]]) == 0


def test_a_column_of_nan_stays_nan():
    x = np.where([True, False, True], DRAWN, np.nan)
    standardizer = Standardizer().fit(x)
    assert standardizer.n_samples_seen_.tolist() == [200, 0, 200]
    assert np.isnan([standardizer.mean_[1], standardizer.var_[1], standardizer.scale_[1]]).all()
    assert (np.isnan(standardizer.transform(DRAWN)) == [False, True, False]).all()


def test_nothing_seen():
    standardizer = Standardizer().partial_fit(np.zeros((0, 2)))
    assert standardizer.n_samples_seen_ == 0 and np.isnan(standardizer.mean_).all()
    assert standardizer.partial_fit([[1.0, 2.0], [3.0, 2.0]]).transform([[3.0, 2.0]]).tolist() == [[1.0, 0.0]]
    assert Standardizer().fit_transform(np.zeros((3, 0))).shape == (3, 0)


def test_transform_leaves_its_input_alone():
    x = DRAWN.copy()
    standardizer = Standardizer().fit(x)
    standardizer.inverse_transform(standardizer.transform(x))
    Standardizer(with_mean=False).fit_transform(x)
    assert (x == DRAWN).all()


def test_infinity_passes_through_transform():
    y = Standardizer().fit(DRAWN).transform([[np.inf, -np.inf, np.nan]])
    np.testing.assert_array_equal(y, [[np.inf, -np.inf, np.nan]])


def test_in_a_pipeline():
    target = DRAWN @ [1.0, -2.0, 0.5]
    ours, theirs = (
        make_pipeline(step(), Ridge()).fit(TABLES["plain"], target) for step in (Standardizer, StandardScaler)
    )
    agree(ours.predict(TABLES["plain"]), theirs.predict(TABLES["plain"]), 1e-12)
    agree(ours[:1].inverse_transform(DRAWN), theirs[:1].inverse_transform(DRAWN))
    search = GridSearchCV(
        make_pipeline(Standardizer(), Ridge()), {"standardizer__with_std": [False, True]}, error_score="raise"
    ).fit(DRAWN, target)
    assert set(search.cv_results_["param_standardizer__with_std"]) == {False, True}
    assert "Standardizer(with_mean=True, with_std=True, ddof=0)" in repr(make_pipeline(Standardizer()))


def test_in_a_column_transformer():
    both = ColumnTransformer([("a", Standardizer(), [0, 2]), ("b", "passthrough", [1])]).fit_transform(DRAWN)
    agree(both, np.hstack([Standardizer().fit_transform(DRAWN[:, [0, 2]]), DRAWN[:, 1:2]]))


def test_copies():
    fitted = Standardizer(ddof=1).fit(DRAWN)
    fresh = clone(fitted)
    assert fresh.get_params() == {"with_mean": True, "with_std": True, "ddof": 1}
    assert not hasattr(fresh, "mean_")
    for same in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert (
            same.partial_fit(DRAWN).transform(DRAWN)
            == Standardizer(ddof=1).fit(np.vstack([DRAWN, DRAWN])).transform(DRAWN)
        ).all()
    assert fitted.n_samples_seen_ == 200


def refusal(kind, do):
    with pytest.raises(kind) as raised:
        do()
    return str(raised.value)


def test_options_can_be_set():
    standardizer = Standardizer().set_params(ddof=1, with_mean=False)
    assert standardizer.get_params() == {"with_mean": False, "with_std": True, "ddof": 1}
    assert standardizer.fit([[1.0], [3.0]]).var_ == 2


def test_refuses_before_fit():
    for do in (Standardizer().transform, Standardizer().inverse_transform):
        assert refusal(ArgumentError, lambda do=do: do(DRAWN)) == (
            "this Standardizer has not been fitted and knows no mean yet; call fit(X) first."
        )


def test_refuses_other_columns():
    standardizer = Standardizer().fit(DRAWN)
    for do in (standardizer.transform, standardizer.inverse_transform, standardizer.partial_fit):
        assert refusal(ArgumentError, lambda do=do: do(DRAWN[:, :2])) == (
            "X has 2 columns (X.shape = (200, 2)) but 3 were fitted; pass the same features."
        )
    assert standardizer.n_samples_seen_ == 200


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)], ids=str)
def test_refuses_what_is_no_table(shape):
    for do in (Standardizer().fit, Standardizer().partial_fit, Standardizer().fit(DRAWN).transform):
        assert refusal(ArgumentError, lambda do=do: do(np.ones(shape))) == (
            f"X has shape {shape}, which is not (rows, columns); "
            "pass two dimensions, X.reshape(-1, 1) for a single column."
        )


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_refuses_to_fit_infinity(infinity):
    x = DRAWN.copy()
    x[3, 1] = infinity
    standardizer = Standardizer().fit(DRAWN)
    for do in (standardizer.fit, standardizer.partial_fit):
        assert refusal(ArgumentError, lambda do=do: do(x)) == (
            "X holds an infinity in column 1, so it has no mean; replace it, by NaN if the value is missing."
        )
    assert standardizer.n_samples_seen_ == 200 and np.isfinite(standardizer.mean_).all()


@pytest.mark.parametrize("x", [[[1j]], [["a"]], np.ma.masked_array([[1.0]])], ids=["complex", "text", "masked"])
def test_refuses_other_types(x):
    for do in (Standardizer().fit, Standardizer().fit(DRAWN).transform):
        refusal(ArrayTypeError, lambda do=do: do(x))


def test_refuses_unknown_options():
    assert refusal(ArgumentError, lambda: Standardizer().set_params(copy=False)) == (
        "Standardizer has no option 'copy'; it has with_mean, with_std, ddof."
    )
