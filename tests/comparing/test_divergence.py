# SPDX-License-Identifier: MIT
"""This file checks which norm is said to introduce a difference; what norms give is worked out by NumPy."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from norm_taps import BETA, GAMMA, LAYER, Pair, layer, record, rows

from layernorm.comparing.divergence import Tap, outcomes, replayed
from layernorm.spec.norm_spec import UNKNOWN


def outcome(a, b, record_a=None, record_b=None):
    pair = Pair(record_a or record(), record_b or record())
    (found,) = outcomes([pair], {"n": a}, {"n": b})
    return found


def test_equal_numbers_are_equal():
    x = rows()
    found = outcome(Tap(x, layer(x)), Tap(x, layer(x)))
    assert (found.status, found.gain, found.error) == ("equal", None, 0.0)


@pytest.mark.parametrize(
    "fault",
    [
        {"eps": 1e-3},
        {"axes": (-2, -1)},
        {"beta": 0},
        {"gamma": np.float32(1) + GAMMA},
        {"gamma": GAMMA.astype(np.float16).astype(np.float32) * np.float32(1.001)},
    ],
    ids=["epsilon", "axes", "beta", "offset", "gamma"],
)
def test_a_norm_with_equal_input_and_another_output_introduces(fault):
    x = rows()
    wrong = layer(x, **fault)
    found = outcome(Tap(x, layer(x)), Tap(x, wrong))
    assert found.status == "introduces" and found.gain is None
    y = layer(x).astype(np.float64)
    assert found.error == pytest.approx(np.abs(y - wrong).max() / np.sqrt((y**2).mean()), rel=1e-6)


def test_a_norm_with_another_input_propagates_with_its_gain():
    x, other = rows(), rows() + np.float32(0.01) * rows(1)
    found = outcome(Tap(x, layer(x)), Tap(other, layer(other)))
    assert found.status == "propagates"

    def relative(a, b):
        a, b = a.astype(np.float64), b.astype(np.float64)
        return np.sqrt(((a - b) ** 2).mean() / (a**2).mean())

    assert found.gain == pytest.approx(relative(layer(x), layer(other)) / relative(x, other), rel=1e-6)


@pytest.mark.parametrize("distance", [1e-6, 1e-2, 1.0])
def test_a_fault_is_seen_behind_a_difference_that_was_there_before(distance):
    x, other = rows(), rows() + np.float32(distance) * rows(1)
    assert outcome(Tap(x, layer(x)), Tap(other, layer(other, eps=1e-3))).status == "introduces"


def test_the_record_of_b_serves_where_that_of_a_says_too_little():
    x, other = rows(), rows() + np.float32(0.01) * rows(1)
    silent = record(spec=replace(LAYER, eps=UNKNOWN))
    right, wrong = Tap(other, layer(other)), Tap(other, layer(other, eps=1e-3))
    assert outcome(Tap(x, layer(x)), right, silent).status == "propagates"
    # B does what B's record says, and A does not
    assert outcome(Tap(x, layer(x)), wrong, silent, record(spec=replace(LAYER, eps=1e-3))).status == "introduces"


def test_a_record_that_is_not_true_of_its_own_side_accuses_nobody():
    x, other = rows(), rows() + np.float32(0.01) * rows(1)
    misread = record(spec=replace(LAYER, eps=0.5))
    assert outcome(Tap(x, layer(x)), Tap(other, layer(other)), misread).status == "propagates"
    assert outcome(Tap(x, layer(x)), Tap(other, layer(other, eps=1e-3)), misread).status == "propagates"


def test_inputs_that_differ_by_a_rounding_leave_a_pair_equal():
    x = rows()
    other = np.where(rows(1) > 0, np.nextafter(x, np.float32(9)), x)
    assert not np.array_equal(layer(x), layer(other))
    assert outcome(Tap(x, layer(x)), Tap(other, layer(other))).status == "equal"


def test_without_a_record_that_is_true_of_either_side_only_equal_inputs_can_tell():
    x, other = rows(), rows() + np.float32(0.01) * rows(1)
    silent = record(spec=replace(LAYER, eps=UNKNOWN))
    assert outcome(Tap(x, layer(x)), Tap(x, layer(x, eps=1e-3)), silent, silent).status == "introduces"
    assert outcome(Tap(x, layer(x)), Tap(other, layer(other, eps=1e-3)), silent, silent).status == "propagates"
    assert outcome(Tap(x, layer(x)), Tap(x, layer(x)), silent, silent).status == "equal"


def test_rounding_is_no_difference():
    x = rows(offset=30)
    narrow = np.float32
    mean = np.add.accumulate(x, -1, dtype=narrow)[..., -1:] / narrow(48)  # from left to right, as slow code does
    deviation = x - mean
    variance = np.add.accumulate(deviation**2, -1, dtype=narrow)[..., -1:] / narrow(48)
    y = deviation / np.sqrt(variance + narrow(1e-5)) * GAMMA + BETA
    assert y.dtype == narrow and not np.array_equal(y, layer(x))
    assert outcome(Tap(x, layer(x)), Tap(x, y)).status == "equal"
    moments = (x * x).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(moments + narrow(1e-5)) * GAMMA + BETA
    free = record(spec=replace(LAYER, variance_by=UNKNOWN))
    assert outcome(Tap(x, layer(x)), Tap(x, y), free, free).status == "equal"
    # an E[x²] − E[x]² that is said to be none is a difference: 900 = 30² is lost from the digits of 1
    assert outcome(Tap(x, layer(x)), Tap(x, y)).status == "introduces"


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda d: np.dtype(d).name
)
def test_each_type_has_its_own_rounding(dtype):
    x = rows(dtype=dtype)
    wide = layer(x.astype(np.float64))
    assert outcome(Tap(x, layer(x)), Tap(x, wide.astype(dtype))).status == "equal"
    two = np.nextafter(np.float32(1), np.float32(2)) if dtype == np.float32 else 1 + float(ml_dtypes.finfo(dtype).eps)
    # float64 statistics of float64 rows; 100 ulp are none of them
    spec = replace(LAYER, stats_dtype="input")
    off = (wide * (1 + 100 * (float(two) - 1))).astype(dtype)
    assert outcome(Tap(x, layer(x)), Tap(x, off), record(spec=spec), record(spec=spec)).status == "introduces"


def test_parameters_kept_in_a_narrower_type_may_be_rounded_to_it():
    gamma = np.linspace(0.5, 2, 48).astype(np.float32) * np.float32(1.0004)
    x, rounded = rows(), gamma.astype(np.float16)
    a, b = record(scale=gamma), record(scale=rounded)
    tap = Tap(x, layer(x, gamma=rounded.astype(np.float32)))
    assert outcome(Tap(x, layer(x, gamma=gamma)), tap, a, b).status == "equal"
    off = Tap(x, layer(x, gamma=gamma * np.float32(1.001)))  # two of float16's half ulps
    assert outcome(Tap(x, layer(x, gamma=gamma)), off, a, b).status == "introduces"


def test_parameters_kept_as_integers_may_be_half_a_step_off():
    x, step = rows(), 2 / 127
    coarse = (np.rint(GAMMA / step) * step).astype(np.float32)
    b = Tap(x, layer(x, gamma=coarse), scale_step=step)
    assert outcome(Tap(x, layer(x)), b, record_b=record(scale=coarse)).status == "equal"
    assert outcome(Tap(x, layer(x)), b._replace(scale_step=0.0), record_b=record(scale=coarse)).status == "introduces"
    wrong = np.roll(coarse, 5)
    b = Tap(x, layer(x, gamma=wrong), scale_step=step)
    assert outcome(Tap(x, layer(x)), b, record_b=record(scale=wrong)).status == "introduces"


@pytest.mark.parametrize("name", ["RELU", "RELU6", "RELU_N1_TO_1", "TANH"])
def test_an_activation_fused_on_one_side_is_no_difference(name):
    apply = {"RELU": lambda y: np.maximum(y, 0), "RELU6": lambda y: np.clip(y, 0, 6), "TANH": np.tanh,
             "RELU_N1_TO_1": lambda y: np.clip(y, -1, 1)}[name]  # fmt: skip
    x = rows()
    fused = Tap(x, apply(layer(x)), name)
    for one, two in ((Tap(x, layer(x)), fused), (fused, Tap(x, layer(x)))):
        found = outcome(one, two)
        assert found.status == "equal" and found.error < 1e-6
    assert outcome(Tap(x, layer(x)), Tap(x, apply(layer(x, eps=1e-2)), name)).status == "introduces"
    (found,) = replayed([Pair(record(), record())], {"n": fused})
    assert found.status == "agrees-on-replay"


def test_what_is_not_finite():
    x = rows()
    x[0, 0, 0] = np.nan
    y = layer(x)
    assert np.isnan(y).any()
    other = y.copy()
    other[1] *= np.float32(1 + 5e-7)  # 4 ulp
    assert outcome(Tap(x, y), Tap(x, other)).status == "equal"
    found = outcome(Tap(x, y), Tap(x, np.nan_to_num(y)))
    assert (found.status, found.error) == ("introduces", None)
    overflowed = layer(rows())
    overflowed[1, 2] = np.inf
    found = outcome(Tap(rows(), layer(rows())), Tap(rows(), overflowed))
    assert (found.status, found.error) == ("introduces", None)


def test_what_was_not_run():
    x = rows()
    tap = Tap(x, layer(x))
    pair = Pair(record(), record())
    for a, b in (({}, {"n": tap}), ({"n": tap}, {}), ({"n": tap}, {"n": Tap(x[:1], layer(x[:1]))})):
        assert outcomes([pair], a, b)[0].status == "not-run"
    assert replayed([pair], {})[0].status == "not-run"


def test_pairs_go_by_the_names_of_their_own_side():
    x = rows()
    pairs = [Pair(record("one"), record("two")), Pair(record("two"), record("one"))]
    good, bad = Tap(x, layer(x)), Tap(x, layer(x, beta=0))
    found = outcomes(pairs, {"one": good, "two": good}, {"one": bad, "two": good})
    assert [o.status for o in found] == ["equal", "introduces"]
    assert [o.status for o in replayed(pairs, {"one": bad, "two": good}, "b")] == ["agrees-on-replay", "differs"]
    assert [o.status for o in replayed(pairs, {"one": bad, "two": good}, "a")] == ["differs", "agrees-on-replay"]
