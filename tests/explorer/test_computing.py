# SPDX-License-Identifier: MIT
"""This file asks the installed library as the page does, and as only a broken page would."""

import json

import numpy as np
import pytest

import layernorm as ln
from layernorm.explorer.computing import MOST_CALLS, MOST_VALUES, computed
from layernorm.spec.errors import ArgumentError

X = [[1.0, 2.0, 4.0], [3.0, 5.0, 8.0]]


def call(name="layer_norm", x=X, kind="float64", **options):
    return {"call": name, "x": x, "options": options, "type": kind}


@pytest.mark.parametrize(("asked", "expected"), [
    (call(), ln.layer_norm(np.array(X))),
    (call(eps=0.1, gamma=[1, 2, 3], beta=[0, 0, 1]),
     ln.layer_norm(np.array(X), eps=0.1, gamma=np.array([1.0, 2, 3]), beta=np.array([0.0, 0, 1]))),
    (call(axis=[0, 1]), ln.layer_norm(np.array(X), axis=(0, 1))),
    (call(gamma=None), ln.layer_norm(np.array(X))),
    (call("rms_norm"), ln.rms_norm(np.array(X))),
    (call("group_norm", [[[1, 2], [3, 5]]], groups=2, channel_axis=1),
     ln.group_norm(np.array([[[1.0, 2], [3, 5]]]), groups=2, channel_axis=1)),
    (call("instance_norm", [[[1, 2], [3, 5]]]), ln.instance_norm(np.array([[[1.0, 2], [3, 5]]]))),
    (call("batch_norm", X), ln.batch_norm(np.array(X))),
    (call(kind="float16"), ln.layer_norm(np.array(X, "float16")).astype(float)),
    (call(kind="bfloat16"), ln.layer_norm(np.array(X).astype("bfloat16")).astype(float)),
    (call(kind="float32"), ln.layer_norm(np.array(X, "float32")).astype(float)),
])  # fmt: skip
def test_it_answers_what_the_library_answers_bit_for_bit(asked, expected):
    (answer,) = computed([json.loads(json.dumps(asked))])
    assert np.array(answer).tobytes() == np.asarray(expected, np.float64).tobytes()


def test_what_json_has_no_number_for_is_text_there_and_back():
    (answer,) = computed([call(x=["nan", 1.0])])
    assert answer == ["nan", "nan"]
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert computed([call(x=["-Infinity", 1.0])]) == computed([call(x=["-inf", 1.0])])
    assert computed([call(x=[1e300, 0.0], kind="float16")]) == [["nan", "nan"]]  # 1e300 is infinite in 16 bits


@pytest.mark.parametrize("asked", [None, {}, "layer_norm", 3, [call()] * (MOST_CALLS + 1)])
def test_what_is_no_list_of_calls_is_refused(asked):
    with pytest.raises(ArgumentError, match=f"the request is no list of at most {MOST_CALLS} calls; reload the page"):
        computed(asked)


@pytest.mark.parametrize("asked", [
    None, 3, [], "layer_norm", {}, call("eval"), call("__import__"), call([]), call({}), call(None), call(kind="int8"),
    call(kind="object"), call(kind=[]), {"call": "layer_norm", "x": [1.0], "options": {}},
])  # fmt: skip
def test_what_is_none_of_its_calls_is_refused(asked):
    with pytest.raises(ArgumentError, match=r"a call is none of layer_norm, .* of float64, .*; reload the page"):
        computed([asked])


@pytest.mark.parametrize("options", [None, [], {"out": 1}, {"backend": "reference"}, {"eps": 1e-5, "path": "/etc"}])
def test_an_option_that_the_page_does_not_have_is_refused(options):
    with pytest.raises(ArgumentError, match=r"the options of layer_norm are none of axis, beta, .*; reload the page"):
        computed([{**call(), "options": options}])


@pytest.mark.parametrize("x", [
    [[1, 2], [3]], "text", ["1", "two"], {}, {"a": 1}, [{}], [[[]], 1], [10**400], [None, 1.0], None,
])  # fmt: skip
def test_what_is_no_array_is_refused(x):
    with pytest.raises(ArgumentError, match="x is no array of numbers; reload the page"):
        computed([call(x=x)])


def test_an_array_deeper_than_any_is_refused():
    x = 1.0
    for _ in range(100):
        x = [x]
    with pytest.raises(ArgumentError, match="x is no array of numbers"):
        computed([call(x=x)])


def test_a_large_array_is_refused():
    with pytest.raises(ArgumentError, match=f"x has {MOST_VALUES + 1} values, more than {MOST_VALUES}; ask for fewer"):
        computed([call(x=[0.0] * (MOST_VALUES + 1))])


@pytest.mark.parametrize(("name", "options", "words"), [
    ("layer_norm", {"eps": -1}, "eps"),
    ("layer_norm", {"eps": "much"}, "eps"),
    ("layer_norm", {"eps": [1]}, "eps"),
    ("layer_norm", {"eps": 10**400}, ""),
    ("layer_norm", {"eps": None}, ""),
    ("layer_norm", {"axis": 7}, "axis"),
    ("layer_norm", {"axis": 10**30}, ""),
    ("layer_norm", {"axis": "last"}, ""),
    ("layer_norm", {"axis": [[0]]}, ""),
    ("layer_norm", {"axis": {"a": 1}}, ""),
    ("layer_norm", {"gamma": [1, 2]}, "gamma"),
    ("layer_norm", {"groups": 2}, "groups"),
    ("group_norm", {"groups": 0}, "groups"),
    ("group_norm", {"groups": 10**30}, ""),
    ("group_norm", {"groups": "two"}, ""),
    ("batch_norm", {"channel_axis": 9}, ""),
])  # fmt: skip
def test_what_the_library_refuses_is_said_in_its_words(name, options, words):
    with pytest.raises(ArgumentError, match=f"^{name}: .*{words}"):
        computed([call(name, **options)])


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"])
@pytest.mark.parametrize("x", [1.0, [], [[]], [[[]]]])
def test_an_array_of_no_numbers_or_no_axes_is_answered_or_refused(name, x):
    try:
        computed([call(name, x)])
    except ArgumentError as error:
        assert str(error).startswith(f"{name}: ")
