# SPDX-License-Identifier: MIT
"""This file runs the spellings of specs in their frameworks, and compares what comes out with the spec."""

import collections
import dataclasses
import functools
import random
from dataclasses import replace

import framework_layers
import pytest
import torch
import well_behaved

import layernorm as ln
from layernorm.ops.layout import layout_of
from layernorm.spec.errors import SpecError
from layernorm.spec.norm_spec import UNKNOWN, NormSpec
from layernorm.spec.spelling import FRAMEWORKS
from layernorm.spec.variants import VARIANTS

pytestmark = [
    # Keras says so wherever rms_scaling is used, and is right
    pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`:UserWarning"),
    # the evaluator divides by a length of 0 before it puts 0 in the place of the result
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning:onnx.reference.ops.op_lp_normalization"),
]

SPELLED = [
    (name, framework)
    for name, spec in VARIANTS.items()
    for framework, spell in FRAMEWORKS.items()
    if not spell(spec).startswith("cannot: ")
]
LEAST = {"pytorch": 48, "keras": 55, "flax": 48, "onnx": 42}
FIELDS = {field.name for field in dataclasses.fields(NormSpec)}
PLAIN = NormSpec(scale_axes=(-1,), shift_axes=(-1,))


def evaluated(spelling, framework, given):
    """Give what the layer makes of the example, or None where it says that x has too many axes for it."""
    x = torch.from_numpy(given.x) if framework == "pytorch" else given.x
    layer = eval(spelling, {**framework_layers.NAMESPACE, "x": x})
    return None if layer is None else framework_layers.RUN[framework](layer, given)


@functools.cache
def once(spelling, framework, spec, shape=well_behaved.SHAPE):
    return evaluated(spelling, framework, well_behaved.example(spec, shape))


def distance(spelling, framework, spec, shape=well_behaved.SHAPE):
    """Give how far the spelling is from the spec, in units of what is allowed; None where x does not fit it."""
    # rounding fields are not spelled, so rows that differ in those alone share one run
    exact = replace(spec, stats_dtype="float64", cast_before_scale=False, round_each=False)
    theirs = once(spelling, framework, exact, shape)
    if theirs is None:
        return None
    given = well_behaved.example(spec, shape)
    ours = ln.normalize(given.x, spec, given.gamma, given.beta, mean=given.mean, var=given.var)
    return well_behaved.worst(theirs, ours, well_behaved.allowed(spec, given, ours))


@pytest.mark.parametrize(("name", "framework"), SPELLED)
def test_a_spelling_computes_the_spec(name, framework):
    spelling = FRAMEWORKS[framework](VARIANTS[name])
    assert distance(spelling, framework, VARIANTS[name]) <= 1, spelling


AXES = (
    (-1,), (-2, -1), ("0:",), ("1:",), ("2:",), (1, "2:"), (0, "2:"), (1,), (0,), (1, 2), (0, 1, 2), (0, 2, 3), (2, 3),
    (0, -1), (-3, -1),
)  # fmt: skip


def drawn_specs(count, seed):
    """Draw specs that a layer may or may not have, each with a shape that it fits."""
    draw = random.Random(seed)
    while count:
        axes, groups = draw.choice(AXES), draw.choice((None, None, None, 1, 2))
        carried = draw.choice((axes, axes, (1,), (-1,), (0,), (3,)))
        centered, spread = draw.choice((*[(True, "std")] * 3, (False, "std"), (False, "rms"), (False, "l2")))
        try:
            spec = NormSpec(
                axes=axes,
                channel_axis=None if groups is None else draw.choice((1, -1)),
                groups=groups,
                group_order=None if groups is None else draw.choice(("blocked", "blocked", "interleaved")),
                centered=centered,
                spread=spread,
                eps=draw.choice((1e-12, 1e-9, 1e-5, 1e-3)),
                eps_at=draw.choice((*["variance"] * 3, "deviation", "none", "deviation_floor", "variance_floor")),
                scale_axes=carried if draw.random() < 0.8 else None,
                shift_axes=carried if draw.random() < 0.7 else None,
                statistics="stored" if groups is None and draw.random() < 0.2 else "input",
                variance_by=draw.choice(("centered", "moments_clamped")),
            )
            shape = (4, 6, 3, 8, 5)[: draw.choice((2, 3, 4, 4, 5))]
            layout_of(shape, spec)
        except SpecError:
            continue
        count -= 1
        yield spec, shape


@pytest.mark.parametrize(
    ("framework", "draws", "least"), [("pytorch", 1000, 25), ("onnx", 1000, 20), ("flax", 40, 4), ("keras", 40, 4)]
)
def test_no_spelling_computes_something_else(framework, draws, least):
    # 5000 draws were run once, each for every framework; JAX compiles for each new shape, so here it gets few
    ran = 0
    for spec, shape in drawn_specs(draws, seed=3):
        spelling = FRAMEWORKS[framework](spec)
        if not spelling.startswith("cannot: "):
            far = distance(spelling, framework, spec, shape)
            assert far is None or far <= 1, f"{spelling} for {spec} on {shape}"
            ran += far is not None
    assert ran >= least


def test_every_framework_spells_many_variants():
    ran = collections.Counter(framework for _, framework in SPELLED)
    assert ran.keys() == FRAMEWORKS.keys()
    assert all(ran[framework] >= least for framework, least in LEAST.items())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("wrong", [{"eps": 2e-5}, {"eps_at": "deviation", "eps": 1e-3}, {"scale_offset": 1}], ids=str)
def test_the_comparison_can_fail(framework, wrong):
    spelling = FRAMEWORKS[framework](PLAIN)
    assert distance(spelling, framework, PLAIN) <= 1
    given = well_behaved.example(PLAIN)
    theirs = once(spelling, framework, PLAIN)
    ours = ln.normalize(given.x, replace(PLAIN, **wrong), given.gamma, given.beta)
    assert well_behaved.worst(theirs, ours, well_behaved.allowed(PLAIN, given, ours)) > 1


def test_every_refusal_names_a_field():
    for spec, _ in drawn_specs(300, seed=4):
        for spelling in [*spec.spelling().values(), *replace(spec, eps=UNKNOWN).spelling().values()]:
            assert not spelling.startswith("cannot: ") or any(name in spelling for name in FIELDS), spelling


REFUSALS = [
    ("pytorch", {"ddof": 1}, "ddof=1; layers divide the variance by n"),
    ("keras", {"eps_at": "sum"}, "eps_at='sum'; layers add their epsilon to the variance"),
    ("flax", {"scale_offset": 1}, "scale_offset=1; layers multiply by the weight alone, so store 1 + γ in it"),
    ("onnx", {"scale_axes": None}, "scale_axes=None; LayerNormalization requires a scale, so give it ones"),
    ("onnx", {"eps": UNKNOWN, "axes": UNKNOWN}, "axes, eps unknown; fill in with assume()"),
    ("pytorch", {"axes": (1,), "scale_axes": (1,), "shift_axes": (1,)},
     "axes=(1,); only a run of last axes can be normalized, so transpose x first"),
    ("pytorch", {"scale_axes": (-2,), "shift_axes": (-2,)},
     "scale_axes=(-2,); the parameters of torch.nn.LayerNorm lie along the axes it normalizes"),
    ("keras", {"shift_axes": (-2,)},
     "scale_axes=(-1,) and shift_axes=(-2,); layers carry both along the same axes"),
    ("keras", {"centered": False, "spread": "rms"}, "shift_axes=(-1,); keras.layers.RMSNormalization has no shift"),
    ("keras", {"centered": False, "spread": "rms", "axes": (1,), "scale_axes": (1,), "shift_axes": None},
     "axes=(1,); only a run of last axes can be normalized, so transpose x first"),
    ("pytorch", {"centered": True, "spread": "rms"}, "spread='rms' of what is not centered, with centered=True"),
    ("flax", {"statistics": "updated"},
     "statistics='updated'; layers use this input's statistics or those stored before it"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "change", "why"), REFUSALS)
def test_a_refusal_says_why(framework, change, why):
    assert FRAMEWORKS[framework](replace(PLAIN, **change)) == f"cannot: {why}"


@pytest.mark.parametrize("change", [{"stats_dtype": UNKNOWN}, {"cast_before_scale": UNKNOWN}, {"variance_by": UNKNOWN}])
def test_unknown_rounding_does_not_keep_a_layer_from_being_spelled(change):
    spelled = replace(PLAIN, **change).spelling()
    assert spelled == PLAIN.spelling()
