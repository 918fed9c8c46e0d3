# SPDX-License-Identifier: MIT
"""This file grades functions that misbehave: whatever they do is a verdict or a sentence, and stays their own."""

import sys
import threading
import warnings

import numpy as np
import pytest

import layernorm as ln
from layernorm.conformance.conform import LARGEST, Report, report_of_case
from layernorm.conformance.grade import Grade, cases_of
from layernorm.conformance.inputs import Case
from layernorm.conformance.known import known, of_function
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.targets import told
from layernorm.conformance.worst import save_worst
from layernorm.spec.errors import ArgumentError, NotFoundError, UnsupportedError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec


class MuteError(Exception):
    def __str__(self):
        raise SystemExit


RAISES = {
    "sys.exit": (SystemExit(0), "SystemExit: 0"),
    "the end of a generator": (GeneratorExit(), "GeneratorExit: "),
    "what Rust panics with": (BaseException("panic"), "BaseException: panic"),
    "no text": (MuteError(), "MuteError: (it cannot say itself)"),
    "colours": (RuntimeError("a\n\x1b[31mred\x00\ud800"), "RuntimeError: a \\x1b[31mred\\x00\\ud800"),
}


@pytest.mark.parametrize("name", RAISES)
def test_whatever_is_raised_is_a_verdict_in_plain_characters(name):
    fault, said = RAISES[name]

    def broken(x, gamma=None, beta=None):
        raise fault

    report = ln.conform(broken, "layer", quick=True, only="exact")
    assert [(g.verdict, g.why) for g in report.grades] == [("error", said)]


def test_what_a_property_says_of_a_name_is_plain_too():
    strange = type("\x1b[31m", (), {})
    report = ln.conform(lambda x, gamma, beta: strange(), "layer", quick=True, only="output")
    assert report.grades[0].why.isprintable()


def test_a_long_message_is_cut():
    assert len(told(RuntimeError("x" * 10**6))) < 1100


def test_the_keyboard_still_stops_it():
    def stopped(x, gamma=None, beta=None):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ln.conform(stopped, "layer", quick=True, only="exact")


def test_a_function_needs_no_defaults():
    def norm(x, gamma, beta):
        return ln.layer_norm(x, gamma, beta)

    def backward(dy, x, gamma):
        return ln.layer_norm_backward(dy, x, ln.layer_norm(x, gamma, return_stats=True)[1], gamma)

    report = ln.conform(norm, "layer", backward=backward, quick=True, only=["rows", "neighbours", "input-gradient"])
    assert report.holds, report


def test_an_eps_that_is_nowhere_is_none():
    nowhere = NormSpec(eps_at="none", scale_axes=(-1,), shift_axes=(-1,))
    assert of_function(np.add, nowhere).eps == 0
    assert of_function(np.add, NormSpec(eps=UNKNOWN, eps_at="none")).eps == 0

    def norm(x, gamma, beta):
        return ln.layer_norm(x, gamma, beta, 0.0)

    assert ln.conform(norm, nowhere, quick=True, only=["epsilon"]).holds
    assert not ln.conform(lambda x, g, b: ln.layer_norm(x, g, b), nowhere, quick=True, only=["epsilon"]).holds


def test_two_threads_leave_the_filters_of_warnings_as_they_were():
    before = list(warnings.filters)
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def one(x, gamma=None, beta=None):
        first_in.set()
        second_in.wait(5)
        return x

    def other(x, gamma=None, beta=None):
        first_in.wait(5)
        second_in.set()
        first_out.wait(5)
        return x

    def run(function):
        report_of_case(of_function(function, "layer"), str(Case(8)), ["exact"])
        if function is one:
            first_out.set()

    threads = [threading.Thread(target=run, args=(function,)) for function in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_what_a_stranger_warns_of_is_not_shown_and_not_an_error():
    def warns(x, gamma=None, beta=None):
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        return ln.layer_norm(x, gamma, beta)

    assert ln.conform(warns, "layer", quick=True, only="exact").holds


WRONG = {
    "a spec of another type": ({"spec": {}}, ArgumentError, "spec={} is a dict; give a NormSpec or the name of one."),
    "an infinite eps": (
        {"spec": NormSpec(eps=np.inf)},
        UnsupportedError,
        "only norms over the last axis with a finite",
    ),
    "a type itself": (
        {"dtypes": np.float32},
        ArgumentError,
        "dtypes=<class 'numpy.float32'> is not a tuple of float16",
    ),
    "a number of types": ({"dtypes": 3}, ArgumentError, "dtypes=3 is not a tuple of float16"),
    "an array of types": ({"dtypes": (np.zeros(2),)}, ArgumentError, "is not a tuple of float16"),
    "no property": ({"only": []}, ArgumentError, "only names no property, so nothing would be graded; leave it out"),
    "a number for a property": ({"only": [3]}, NotFoundError, "3: no such property; there are output"),
    "a number of properties": ({"only": 3}, ArgumentError, "only=3 is a int; give names of properties."),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name):
    said, kind, sentence = WRONG[name]
    with pytest.raises(kind) as caught:
        ln.conform(np.add, **{"spec": "layer", "quick": True} | said)
    assert sentence in str(caught.value)


def test_types_and_properties_count_once():
    assert of_function(np.add, "layer", dtypes=iter(["float32", "float16", "float32"])).dtypes == ("float32", "float16")
    report = ln.conform(lambda x, g, b: ln.layer_norm(x, g, b), "layer", quick=True, only=["axes", "axes"])
    assert len(report.grades) == 1


PLAIN = str(Case(10))
CASES = {
    "an offset that is no number": ("exact", PLAIN.replace("offset=0", "offset=abc"), "is no case's name"),
    "an offset that is not finite": (
        "exact",
        PLAIN.replace("offset=0", "offset=nan"),
        "has values beyond what float32",
    ),
    "a scale beyond the type": (
        "exact",
        PLAIN.replace("scale=1", "scale=1e300"),
        "has values beyond what float32 holds",
    ),
    "a seed of 5000 digits": ("exact", PLAIN.replace("seed=0", "seed=" + 5000 * "9"), "…' is no case's name"),
    "no columns": ("exact", str(Case(0)), "has rows of no columns"),
    "too many columns": ("exact", str(Case(999999999)), f"is of more than {LARGEST} values"),
    "too many rows": ("exact", str(Case(768, rows=10**12)), "give fewer rows or columns"),
    "another type": (
        "exact",
        str(Case(10, dtype="bfloat16")),
        "numpy is not graded in bfloat16; name a case of float16",
    ),
    "no form": ("layout", PLAIN, "is no case of layout, whose cases have one of form="),
    "another form": ("constant", f"{PLAIN} form=zzz", "is no case of constant, whose cases have no form"),
    "rows that do not fit": ("axes", str(Case(8, rows=16)), "does not fit axes (ValueError: cannot reshape"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_that_cannot_be_is_refused_and_not_blamed_on_the_target(name):
    only, case, sentence = CASES[name]
    with pytest.raises(ArgumentError) as caught:
        report_of_case(known("numpy"), case, [only])
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_case_of_quick_is_found_by_its_name():
    target = known("layernorm")
    for name in PROPERTIES:
        if name not in ("in-place", "determinism"):
            case = next(cases_of(name, target, True))
            assert name in [g.property for g in report_of_case(target, str(case)).grades], name
    quick_only = [
        (name, case)
        for name in PROPERTIES
        for case in set(cases_of(name, target, True)) - set(cases_of(name, target, False))
    ]
    for name, case in quick_only[:3]:
        assert name in [g.property for g in report_of_case(target, str(case)).grades]


def worst_of(target, case, name="exact"):
    return Report(target, (Grade(name, "fails", 2.0, 2.0, str(case), 1),))


def test_a_file_that_cannot_be_written_leaves_the_older_one(tmp_path, monkeypatch):
    path = tmp_path / "worst.npz"
    report = worst_of(known("numpy"), Case(8))
    save_worst(report, path)
    older = path.read_bytes()

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(ArgumentError, match=r"cannot be written \(No space left on device\); choose another place\.$"):
        save_worst(report, path)
    assert path.read_bytes() == older
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("worst", "arrays are saved as .npz"), ("a.npz", "is a folder"), ("no/such.npz", "its folder does not exist")],
)
def test_other_paths_are_refused(name, sentence, tmp_path):
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(ArgumentError, match=sentence):
        save_worst(worst_of(known("numpy"), Case(8)), tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_no_rows_are_saved_as_none(tmp_path):
    save_worst(worst_of(known("numpy"), Case(64, rows=0, form="two-axes"), "empty"), tmp_path / "a.npz")
    assert np.load(tmp_path / "a.npz")["x"].shape == (0, 64)


NOTHING = {
    "None": lambda *_: None,
    "words": lambda x, *_: x.astype(str),
    "objects": lambda x, *_: x.astype(object),
    "the exit": lambda *_: sys.exit(3),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_target_that_gives_nothing_to_save_is_said_to(name, tmp_path):
    gives = NOTHING[name]
    target = of_function(gives, "layer", backward=gives, name="mine")
    for about in ("exact", "input-gradient"):
        with pytest.raises(ArgumentError, match="cannot be saved, for mine gives no arrays of numbers to compare: "):
            save_worst(worst_of(target, Case(8, affine="gamma"), about), tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


def test_a_gradient_of_none_is_left_out(tmp_path):
    target = of_function(lambda x, *_: x, "layer", backward=lambda dy, *_: (dy, None, None))
    save_worst(worst_of(target, Case(8, affine="gamma"), "parameter-gradients"), tmp_path / "a.npz")
    assert {"dx", "exact_dgamma"} <= set(np.load(tmp_path / "a.npz"))
    assert "dgamma" not in np.load(tmp_path / "a.npz")
