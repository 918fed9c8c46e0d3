# SPDX-License-Identifier: MIT
"""This file proves each property necessary by a broken norm that it is the first to name, and none too strict."""

import ast
import math

import mutants
import numpy as np
import pytest
from mutants import BARE, GEMMA, LAYER, MUTANTS, RMS, exact

import layernorm as ln
from layernorm.conformance.grade import cases_of, grade, page_of, property_module, property_source
from layernorm.conformance.inputs import PATTERNS, Case
from layernorm.conformance.measure import Measured, differing
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.targets import Target

TYPES = ("float32", "float16", "bfloat16", "float64")
HEADINGS = ["What it checks", "Why it matters", "Example", "What to do"]
FUNCTIONS = {
    "layer": (LAYER, ln.layer_norm, ln.layer_norm_backward),
    "rms": (RMS, ln.rms_norm, ln.rms_norm_backward),
}


@pytest.fixture(autouse=True)
def threads():
    before = ln.get_num_threads()
    yield
    ln.set_num_threads(before)


def eager(kind, dtypes=TYPES):
    spec, forward, backward = FUNCTIONS[kind]

    def gradients(dy, x, gamma=None):
        _, stats = forward(x, gamma, return_stats=True)
        return backward(dy, x, stats, gamma)

    return Target(
        kind, None, spec, lambda x, gamma=None, beta=None: forward(x, gamma, beta=beta), gradients, dtypes,
        in_place=lambda x: forward(x, out=x), set_threads=ln.set_num_threads,
    )  # fmt: skip


def definition(spec, dtypes=TYPES):
    def forward(x, gamma=None, beta=None):
        return ln.normalize(x, spec, gamma, beta, backend="reference")

    def backward(dy, x, gamma=None):
        return ln.normalize_backward(dy, x, spec, gamma, backend="reference")

    return Target("reference", None, spec, forward, backward, dtypes)


def first_failure(target, quick=True):
    for name in PROPERTIES:
        (found,) = grade(target, quick=quick, only=[name])
        if found.verdict in ("fails", "error"):
            return found
    return None


def not_held(target, quick=True):
    return {g.property: g for g in grade(target, quick=quick) if g.verdict in ("fails", "error")}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_broken_norm_is_named_by_the_property_that_it_breaks(mutant):
    found = first_failure(mutant.target, mutant.quick)
    assert found is not None, "no property fails"
    assert found.property == mutant.named_by, found


def test_each_property_is_the_first_to_name_some_mutant():
    assert {m.named_by for m in MUTANTS} == set(PROPERTIES)
    assert len(MUTANTS) >= 45
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("spec", [LAYER, RMS, GEMMA, BARE], ids=["layer", "rms", "gemma", "eps 0"])
def test_a_right_norm_passes(spec):
    assert not_held(exact(spec)) == {}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_our_norms_pass(kind):
    found = grade(eager(kind), quick=True)
    assert [g for g in found if g.verdict in ("fails", "error")] == []
    uncentered = {"constant", "constant-gradients"} if kind == "rms" else set()
    assert {g.property for g in found if g.verdict == "not-applicable"} == uncentered


def test_layer_norm_passes_every_case():
    assert not_held(eager("layer"), quick=False) == {}


@pytest.mark.parametrize(
    ("spec", "dtypes"),
    [
        (LAYER, TYPES),
        (RMS, TYPES),
        (GEMMA, TYPES),
        (BARE, TYPES),
    ],
    ids=["layer", "rms", "gemma", "eps 0"],
)
def test_the_reference_passes(spec, dtypes):
    assert not_held(definition(spec, dtypes)) == {}


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_page_has_its_four_headings_and_numbers(name):
    page = page_of(name)
    assert [line for line in page.splitlines() if line and not line.startswith(" ")][1:] == HEADINGS
    assert page.splitlines()[0].endswith(".")
    example = page.partition("Example\n")[2].partition("What to do\n")[0]
    assert any(c.isdigit() for c in example)
    assert page == ast.get_docstring(ast.parse(property_source(name)))


@pytest.mark.parametrize("name", PROPERTIES)
def test_quick_is_less_and_both_are_something(name):
    target = exact()
    quick, full = (len(list(cases_of(name, target, quick))) for quick in (True, False))
    assert 1 <= quick <= full <= 1000
    assert len({str(case) for case in cases_of(name, target, False)}) == full


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_case_can_be_made_again_from_its_name(name):
    for case in cases_of(name, exact(), False):
        again = Case.parse(str(case))
        assert again == case
        assert str(again) == str(case)


def test_what_a_case_gives_again_is_graded_alike():
    target = next(m.target for m in MUTANTS if m.name == "the mean is one float32")
    (found,) = grade(target, quick=True, only=["offset"])
    again = property_module("offset").measure(target, Case.parse(found.at))
    assert (again.share, again.ulp) == (found.worst, found.ulp)


def test_a_target_that_raises_is_an_error_with_its_words_and_its_case():
    def forward(x, gamma=None, beta=None):
        if x.shape[-1] == 100:
            raise OSError("no such kernel")
        return ln.layer_norm(x, gamma, beta)

    (found,) = grade(Target("broken", None, LAYER, forward), quick=True, only=["offset"])
    assert (found.verdict, found.worst, found.why) == ("error", None, "OSError: no such kernel")
    assert Case.parse(found.at).width == 100


def test_a_target_without_what_a_property_needs_is_not_applicable():
    target = Target("bare", None, BARE, lambda x, gamma=None, beta=None: x, takes_views=False, checks_calls=False)
    found = grade(target, quick=True)
    said = {g.property: g.why for g in found if g.verdict == "not-applicable"}
    assert said == {
        "layout": "views are copied before it sees them",
        "affine": "the norm has neither γ nor β",
        "rounding": "it takes no 16-bit type",
        "epsilon-digits": "eps is 0",
        "constant": "with eps = 0 a constant row has no answer",
        "in-place": "it has no way to write over x",
        "input-gradient": "it gives no gradients",
        "parameter-gradients": "it gives no gradients",
        "constant-gradients": "it gives no gradients",
        "wrong-calls": "it cannot be called wrongly",
    }
    assert {g.cases for g in found if g.verdict == "not-applicable"} == {0}


def test_what_a_target_warns_of_is_not_held_against_it():
    def forward(x, gamma=None, beta=None):
        np.float32(3e38) * np.float32(3e38)
        return exact().forward(x, gamma, beta)

    assert not_held(Target("noisy", None, LAYER, forward)) == {}


def test_an_error_that_is_not_a_number_is_infinite(monkeypatch):
    monkeypatch.setattr(property_module("centering"), "measure", lambda target, case: Measured(math.nan))
    (found,) = grade(exact(), quick=True, only=["centering"])
    assert (found.verdict, found.worst) == ("fails", math.inf)


def test_grades_come_in_order_and_say_when_they_begin():
    begun = []
    found = grade(exact(), quick=True, only=["centering", "output", "no such"], progress=begun.append)
    assert [g.property for g in found] == ["output", "centering"] == begun


def test_no_target_is_told_what_another_one_did_to_a_case():
    case = Case(8)
    x = case.x
    x[...] = 0
    assert np.any(case.x)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_is_used_by_a_property_or_is_the_normal_one(pattern):
    used = {case.pattern for name in PROPERTIES for case in cases_of(name, exact(), False)}
    assert pattern in used


def test_the_kernel_that_rounds_before_gamma_is_excused_by_a_spec_that_says_so():
    rounded = next(m.target for m in MUTANTS if m.name == "rounded before gamma")
    spec = ln.NormSpec(eps=1e-5, cast_before_scale=True, scale_axes=(-1,))
    excused = Target("llama", None, spec, rounded.forward, dtypes=mutants.TYPES)
    assert not_held(excused) == {}


def test_bits_that_differ_are_counted_in_ulp_of_the_larger_and_beside_a_zero_too():
    one, zero = np.array([1.0], np.float32), np.array([0.0], np.float32)
    assert differing(one, np.nextafter(one, np.float32(2))).ulp == 1
    assert differing(one, zero).ulp == differing(zero, one).ulp == 2.0**23
    assert differing(zero, -zero) == Measured(2.0, 0.0)
