# SPDX-License-Identifier: MIT
"""This file checks NormSpec: what it refuses, when two are equal, where they stand, and what they print."""

import dataclasses
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import layernorm as ln
from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec
from layernorm.spec.variants import VARIANTS

SCHEMA = json.loads((Path(__file__).parents[1] / "schema" / "inspect.schema.json").read_text())
SPEC_SCHEMA = {"$ref": "#/$defs/spec", "$defs": SCHEMA["$defs"]}
GROUP = NormSpec(axes=("1:",), channel_axis=1, groups=3, group_order="blocked")
FULL = NormSpec(axes=(-1,), scale_axes=(-1,), shift_axes=(-1,))
FIELDS = tuple(field.name for field in dataclasses.fields(NormSpec) if field.name != "assumed")

NO_GROUPS = "say how groups are dealt, but groups is None; set groups, or leave both out."
REFUSED = [
    ({"axes": -1}, "axes=-1 is not a sequence of axes; write it as a tuple, say (-1,) or (\"2:\",)."),
    ({"axes": "1:"}, "axes='1:' is not a sequence of axes; write it as a tuple, say (-1,) or (\"2:\",)."),
    ({"axes": (1.0,)}, 'axes holds 1.0; an axis is an int or an open run such as "2:".'),
    ({"axes": (True,)}, 'axes holds True; an axis is an int or an open run such as "2:".'),
    ({"axes": ("1",)}, "axes holds '1'; an axis is an int or an open run such as \"2:\"."),
    ({"axes": (":2",)}, "axes holds ':2'; an axis is an int or an open run such as \"2:\"."),
    ({"axes": ()}, "axes is empty; name at least one axis."),
    ({"scale_axes": ()}, "scale_axes is empty; name at least one axis."),
    ({"axes": (1, 1)}, "axes=(1, 1) names an axis twice; name each once, with at most one open run."),
    ({"axes": ("1:", "2:")}, "axes=('1:', '2:') names an axis twice; name each once, with at most one open run."),
    ({"axes": (-1, "-2:")}, "axes=(-1, '-2:') names an axis twice; name each once, with at most one open run."),
    ({"spread": "mad"}, "spread='mad' is not one of 'std', 'rms', 'l2'; use UNKNOWN where a source is silent."),
    ({"spread": None}, "spread=None is not one of 'std', 'rms', 'l2'; use UNKNOWN where a source is silent."),
    ({"ddof": True}, "ddof=True is not one of 0, 1; use UNKNOWN where a source is silent."),
    ({"centered": 1}, "centered=1 is not one of True, False; use UNKNOWN where a source is silent."),
    ({"scale_offset": 2}, "scale_offset=2 is not one of 0, 1; use UNKNOWN where a source is silent."),
    ({"round_each": 0}, "round_each=0 is not one of True, False; use UNKNOWN where a source is silent."),
    ({"eps": "1e-5"}, "eps='1e-5' is not a number; use UNKNOWN where a source is silent."),
    ({"eps": True}, "eps=True is not a number; use UNKNOWN where a source is silent."),
    ({"eps": None}, "eps=None is not a number; use UNKNOWN where a source is silent."),
    ({"groups": 2.0, "channel_axis": 1}, "groups=2.0 is not an integer; give the plain int."),
    ({"groups": 2, "channel_axis": "1"}, "channel_axis='1' is not an integer; give the plain int."),
    ({"groups": 0, "channel_axis": 1}, "groups=0 splits nothing; give 1 or more, or None for no groups."),
    ({"groups": 2}, "groups=2 needs the axis to split; set channel_axis."),
    ({"channel_axis": 1}, f"channel_axis=1 and group_order=None {NO_GROUPS}"),
    ({"group_order": "blocked"}, f"channel_axis=None and group_order='blocked' {NO_GROUPS}"),
    ({"scale_axes": "group"}, 'a scale or shift per "group" needs groups; set groups and channel_axis.'),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_contradiction_is_refused_in_words(fields, sentence):
    with pytest.raises(SpecError) as refusal:
        NormSpec(**fields)
    assert str(refusal.value) == sentence


NOT_IN_AXES = "is split into groups but is not in axes=('2:',); a group's statistics run over its channels, so add it."
UNRESOLVED = [
    (NormSpec(axes=UNKNOWN), 2, "axes is unknown, so nothing says what to average over; fill it in with assume()."),
    (NormSpec(axes=(2,)), 2, "axes names axis 2, but the array has 2 axes (-2 to 1)."),
    (replace(FULL, scale_axes=(-3,)), 2, "scale_axes names axis -3, but the array has 2 axes (-2 to 1)."),
    (NormSpec(axes=(0, -1)), 1, "axes=(0, -1) names an axis twice in an array of 1 axes; name each once."),
    (NormSpec(axes=("2:",)), 2, "axes=('2:',) names no axis of an array of 2 axes; it needs a larger one."),
    (replace(GROUP, axes=("2:",)), 4, f"channel_axis=1 {NOT_IN_AXES}"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "ndim", "sentence"), UNRESOLVED, ids=lambda value: str(value)[:40])
def test_axes_that_do_not_fit_are_refused_in_words(spec, ndim, sentence):
    with pytest.raises(SpecError) as refusal:
        spec.resolve(ndim)
    assert str(refusal.value) == sentence


def test_axes_are_tidied_and_resolved():
    assert NormSpec(axes=(-1, -2)).axes == (-2, -1)
    assert NormSpec(axes=["-2:"]).axes == (-2, -1)
    assert NormSpec(axes=("2:", 0)).axes == (0, "2:")
    resolved = NormSpec(axes=("1:",), scale_axes=(-1,), shift_axes=("2:",)).resolve(4)
    assert (resolved.axes, resolved.scale_axes, resolved.shift_axes) == ((1, 2, 3), (3,), (2, 3))
    assert replace(GROUP, channel_axis=-3, axes=(-3, -2, -1)).resolve(4).channel_axis == 1


# -- equality ---------------------------------------------------------------------------------------------------

IDLE = [
    (NormSpec(), {"scale_offset": 1}),  # no scale to offset
    (NormSpec(), {"cast_before_scale": True}),
    (replace(FULL, eps_at="none"), {"eps": 3.0}),
    (replace(FULL, eps=0.0), {"eps_at": "deviation"}),
    (NormSpec(centered=False, spread="rms"), {"ddof": 1}),
    (NormSpec(centered=False, spread="rms"), {"variance_by": "moments"}),
    (NormSpec(statistics="stored"), {"ddof": 1}),
    (replace(GROUP, groups=1), {"group_order": "interleaved"}),
    (NormSpec(centered=False, spread="l2", eps_at="sum"), {"eps_at": "variance"}),
    (FULL, {"assumed": frozenset({"eps"})}),
]
OTHER = {
    "axes": (0,), "centered": False, "spread": "l2", "eps": 1e-6, "eps_at": "sum", "ddof": 1, "scale_axes": None,
    "shift_axes": (-2,), "scale_offset": 1, "statistics": "stored", "stats_dtype": "float32",
    "cast_before_scale": True, "variance_by": "moments", "round_each": True,
}  # fmt: skip


@pytest.mark.parametrize(("spec", "change"), IDLE, ids=str)
def test_a_field_that_cannot_matter_does_not_make_specs_differ(spec, change):
    other = replace(spec, **change)
    assert spec == other
    assert hash(spec) == hash(other)
    assert len({spec, other}) == 1


@pytest.mark.parametrize("field", OTHER)
def test_a_field_that_matters_makes_specs_differ(field):
    for value in (OTHER[field], UNKNOWN):
        assert replace(FULL, **{field: value}) != FULL


@pytest.mark.parametrize("change", [{"groups": 2}, {"group_order": "interleaved"}, {"channel_axis": 2}], ids=str)
def test_groups_that_differ_make_specs_differ(change):
    assert replace(GROUP, **change) != GROUP
    assert FULL != "y = γ·(x − mean) / √(var + 1e-05) + β"


# -- kind -------------------------------------------------------------------------------------------------------

KINDS = [
    (NormSpec(), "layer"),
    (FULL, "layer"),
    (NormSpec(axes=("0:",), scale_axes=("0:",)), "layer"),
    (NormSpec(axes=(0, 1), scale_axes=(0, 1)), "layer"),
    (NormSpec(axes=("1:",), scale_axes=(-1,)), "layer"),
    (NormSpec(axes=("1:",), scale_axes=(1,)), "layer"),
    (NormSpec(axes=(1,), scale_axes=(1,)), "layer"),
    (NormSpec(axes=("2:",)), "instance"),
    (NormSpec(axes=(1, 2), shift_axes=(-1,)), "instance"),
    (NormSpec(axes=(0, "2:"), scale_axes=(1,)), "batch"),
    (NormSpec(axes=(0, 2, 3)), "batch"),
    (NormSpec(axes=(0,)), "batch"),
    (replace(FULL, statistics="stored"), "batch"),
    (GROUP, "group"),
    (replace(GROUP, groups=1), "group"),
    (NormSpec(centered=False, spread="rms"), "rms"),
    (NormSpec(centered=False, spread="l2"), "l2"),
    (NormSpec(centered=False), "other"),
    (NormSpec(spread="rms"), "other"),
    (NormSpec(axes=UNKNOWN), "other"),
    (NormSpec(centered=UNKNOWN), "other"),
]


@pytest.mark.parametrize(("spec", "kind"), KINDS, ids=str)
def test_kind_follows_from_the_fields(spec, kind):
    assert spec.kind == kind


@pytest.mark.parametrize("name", [name for name, spec in VARIANTS.items() if spec.kind != "instance"])
def test_plain_axes_leave_the_kind_as_it_was(name):
    assert VARIANTS[name].resolve(4).kind == VARIANTS[name].kind


# -- the same function on a shape ---------------------------------------------------------------------------------

SAME = [
    (GROUP, NormSpec(axes=("2:",)), (2, 3, 5)),
    (replace(GROUP, groups=1), NormSpec(axes=("1:",)), (2, 6, 5)),
    (replace(GROUP, scale_axes="group"), NormSpec(axes=("2:",), scale_axes=(1,)), (2, 3, 5)),
    (GROUP, replace(GROUP, channel_axis=-2, axes=(-2, -1)), (2, 6, 5)),
    (NormSpec(axes=(-1,)), NormSpec(axes=(1,)), (4, 5)),
    (NormSpec(axes=("1:",)), NormSpec(axes=(-1,)), (2, 1, 5)),
    (replace(FULL, scale_axes=(0, 1)), FULL, (1, 5)),
    (NormSpec(eps=5e-5, eps_at="sum"), NormSpec(eps=1e-5), (2, 5)),
    (NormSpec(eps=4e-5, eps_at="sum", ddof=1), NormSpec(eps=1e-5, ddof=1), (2, 5)),
    (NormSpec(eps=0.0), NormSpec(eps_at="none"), (2, 5)),
]
NOT_SAME = [
    (GROUP, NormSpec(axes=("2:",)), (2, 6, 5)),
    (GROUP, replace(GROUP, group_order="interleaved"), (2, 6, 5)),
    (NormSpec(axes=("1:",)), NormSpec(axes=(-1,)), (2, 3, 5)),
    (NormSpec(eps=5e-5, eps_at="sum"), NormSpec(eps=1e-5), (2, 6)),
    (NormSpec(eps=1e-5), NormSpec(eps=1.1e-5), (2, 6)),
    (NormSpec(centered=False, spread="l2"), NormSpec(centered=False, spread="rms"), (2, 6)),
    (FULL, replace(FULL, shift_axes=None), (2, 1)),
]


@pytest.mark.parametrize(("a", "b", "shape"), SAME, ids=str)
def test_specs_that_compute_the_same_on_a_shape(a, b, shape):
    assert a.same_as(b, shape)
    assert b.same_as(a, shape)
    x = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_allclose(ln.normalize(x, a), ln.normalize(x, b), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("a", "b", "shape"), NOT_SAME, ids=str)
def test_specs_that_do_not(a, b, shape):
    assert not a.same_as(b, shape)
    assert not b.same_as(a, shape)


# -- what is unknown ----------------------------------------------------------------------------------------------


def test_unknown_names_only_fields_that_count():
    silent = NormSpec(**dict.fromkeys(FIELDS, UNKNOWN))
    assert silent.unknown() == FIELDS
    assert NormSpec(centered=False, spread="rms", ddof=UNKNOWN, scale_offset=UNKNOWN).unknown() == ()
    assert NormSpec(eps_at="none", eps=UNKNOWN).unknown() == ()


def test_assume_fills_only_what_is_unknown_and_says_so():
    silent = replace(FULL, eps=UNKNOWN, stats_dtype=UNKNOWN)
    filled = silent.assume(VARIANTS["bert"])
    assert (filled.eps, filled.stats_dtype) == (1e-12, "float32")
    assert filled.assumed == {"eps", "stats_dtype"}
    assert str(filled).endswith("; assumed: eps, stats_dtype")
    assert filled == VARIANTS["bert"]
    assert silent.assume(replace(FULL, eps=UNKNOWN)).unknown() == ("eps",)


def test_normalize_refuses_what_is_unknown_by_name():
    with pytest.raises(SpecError, match=r"leaves eps, ddof unknown, which would change the result"):
        ln.normalize(np.ones((2, 3)), replace(FULL, eps=UNKNOWN, ddof=UNKNOWN))


# -- what it prints -----------------------------------------------------------------------------------------------

FORMULAS = {
    ("std", "variance"): "√(var + 0.25)",
    ("std", "deviation"): "(std + 0.25)",
    ("std", "sum"): "√((Σ(x − mean)² + 0.25) / n)",
    ("std", "variance_floor"): "√max(var, 0.25)",
    ("std", "deviation_floor"): "max(std, 0.25)",
    ("std", "none"): "std",
    ("rms", "variance"): "√(mean(x²) + 0.25)",
    ("rms", "deviation"): "(rms(x) + 0.25)",
    ("rms", "sum"): "√((Σx² + 0.25) / n)",
    ("rms", "variance_floor"): "√max(mean(x²), 0.25)",
    ("rms", "deviation_floor"): "max(rms(x), 0.25)",
    ("rms", "none"): "rms(x)",
    ("l2", "variance"): "√(Σx² + 0.25)",
    ("l2", "deviation"): "(‖x‖ + 0.25)",
    ("l2", "sum"): "√((Σx² + 0.25))",
    ("l2", "variance_floor"): "√max(Σx², 0.25)",
    ("l2", "deviation_floor"): "max(‖x‖, 0.25)",
    ("l2", "none"): "‖x‖",
}  # fmt: skip


@pytest.mark.parametrize(("spread", "eps_at"), FORMULAS)
def test_a_formula_reads_as_written_here(spread, eps_at):
    spec = NormSpec(centered=False, spread=spread, eps=0.25, eps_at=eps_at)
    assert spec.formula() == f"y = x / {FORMULAS[spread, eps_at]}"


def by_formula(text, x, gamma, beta):
    """Read a formula as Python: what it says must be what is computed."""
    mean = x.mean(-1, keepdims=True)
    total, centered = np.sum(x * x, -1, keepdims=True), np.sum((x - mean) ** 2, -1, keepdims=True)
    n = x.shape[-1]
    named = {
        "x": x, "mean": mean, "n": n, "γ": gamma, "β": beta, "root": np.sqrt, "max": np.maximum,
        "max_root": lambda a, b: np.sqrt(np.maximum(a, b)),
        "var": centered / n, "std": np.sqrt(centered / n), "var1": centered / (n - 1),
        "std1": np.sqrt(centered / (n - 1)), "squares": total, "deviations": centered, "mean_square": total / n,
        "rms": np.sqrt(total / n), "length": np.sqrt(total),
    }  # fmt: skip
    words = (
        ("y = ", ""), ("Σ(x − mean)²", "deviations"), ("Σx²", "squares"), ("mean(x²)", "mean_square"),
        ("rms(x)", "rms"), ("‖x‖", "length"), ("₁", "1"), ("√max(", "max_root("), ("√", "root"), ("·", "*"),
        ("−", "-"),
    )  # fmt: skip
    for written, read in words:
        text = text.replace(written, read)
    return eval(text, named)


@pytest.mark.parametrize("spread", ["std", "rms", "l2"])
@pytest.mark.parametrize("eps_at", ["variance", "deviation", "sum", "variance_floor", "deviation_floor", "none"])
def test_a_formula_computes_what_normalize_computes(eps_at, spread):
    draw = np.random.default_rng(0)
    x, gamma, beta = draw.normal(0.3, 1, (7, 5)), draw.normal(size=5), draw.normal(size=5)
    x *= np.geomspace(0.05, 20, 7)[:, None]  # on both sides of a floor
    for centered, ddof, offset, scaled, shifted in itertools.product((True, False), (0, 1), (0, 1), (0, 1), (0, 1)):
        spec = NormSpec(
            spread=spread, eps_at=eps_at, eps=0.25, centered=centered, ddof=ddof, scale_offset=offset,
            scale_axes=(-1,) if scaled else None, shift_axes=(-1,) if shifted else None,
        )  # fmt: skip
        y = ln.normalize(x, spec, gamma if scaled else None, beta if shifted else None)
        np.testing.assert_allclose(by_formula(spec.formula(), x, gamma, beta), y, rtol=1e-12, atol=1e-12)


def test_a_spec_prints_all_that_its_formula_leaves_out():
    assert str(replace(VARIANTS["mlx-group"], groups=4)) == (
        "y = γ·(x − mean) / √(var + 1e-05) + β over axes (1:); 4 interleaved groups of axis -1; statistics in input; "
        "every step rounded"
    )
    assert str(VARIANTS["llama"]) == (
        "y = γ·x / √(mean(x²) + 1e-05) over axes (-1); statistics in float32; rounded before γ"
    )
    assert str(VARIANTS["flax-batch-training"]) == (
        "y = γ·(x − mean) / √(var + 1e-05) + β over axes (0, 1, 2); statistics in float32; variance by moments_clamped"
    )
    assert str(NormSpec(axes=UNKNOWN, eps=UNKNOWN, scale_axes=UNKNOWN, centered=UNKNOWN, shift_axes=UNKNOWN)) == (
        "y = [γ?]·(x [− mean?]) / √(var + ε?) [+ β?] over axes ?"
    )
    assert NormSpec(spread=UNKNOWN, eps_at=UNKNOWN).formula() == "y = (x − mean) / spread? with 1e-05 somewhere"


# -- documents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_a_document_validates_and_reads_back(name):
    document = json.loads(json.dumps(VARIANTS[name].to_json()))
    jsonschema.validate(document, SPEC_SCHEMA)
    back = NormSpec.from_json(document)
    assert back == VARIANTS[name]
    assert back.to_json() == document


@pytest.mark.parametrize("field", FIELDS)
def test_an_unknown_field_validates_and_reads_back(field):
    spec = replace(FULL, **{field: UNKNOWN})
    document = json.loads(json.dumps(spec.to_json()))
    assert document[field] == "unknown"
    jsonschema.validate(document, SPEC_SCHEMA)
    assert getattr(NormSpec.from_json(document), field) is UNKNOWN


@pytest.mark.parametrize("eps", [math.inf, math.nan, 0.0, 1e-45, 5e-324])
def test_an_odd_epsilon_reads_back(eps):
    document = json.loads(json.dumps(replace(FULL, eps=eps).to_json(), allow_nan=False))
    jsonschema.validate(document, SPEC_SCHEMA)
    assert repr(NormSpec.from_json(document).eps) == repr(eps)


def test_the_schema_can_refuse():
    document = FULL.to_json() | {"spread": "mad"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SPEC_SCHEMA)


def test_a_document_that_contradicts_itself_is_refused_in_words():
    document = FULL.to_json()
    with pytest.raises(SpecError) as refusal:
        NormSpec.from_json(document | {"kind": "rms"})
    assert str(refusal.value) == "kind is 'rms', but the fields make it 'layer'; mend one."
    del document["eps"]
    with pytest.raises(SpecError) as refusal:
        NormSpec.from_json(document | {"epsilon": 1e-5})
    assert str(refusal.value) == (
        "a spec's document lacks ['eps'] and has ['epsilon'] too many; "
        'write every field of NormSpec, "unknown" where the source is silent.'
    )


def test_an_epsilon_on_the_sum_of_a_group_is_divided_by_the_size_of_the_group():
    group = NormSpec(axes=("1:",), channel_axis=1, groups=2, group_order="blocked", eps=1e-5)
    # 6 channels in 2 groups of 3, 4 places each: 12 values share a set
    assert group.same_as(replace(group, eps=12e-5, eps_at="sum"), (5, 6, 4))
    assert not group.same_as(replace(group, eps=24e-5, eps_at="sum"), (5, 6, 4))
