# SPDX-License-Identifier: MIT
"""This file has for each check a pair that it finds something in, and the nearest one in which there is nothing."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from comparing.pairs import BETA, GAMMA, LAYER, RANDOM, RMS, compared, record, side, tensor

from layernorm.comparing.checks import CODES, findings, page_of
from layernorm.comparing.effect import Effect
from layernorm.comparing.pairing import Pair
from layernorm.models.norm_record import Finding
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

GROUP = NormSpec(axes=(1, "2:"), channel_axis=1, groups=4, group_order="blocked", scale_axes=(1,), shift_axes=(1,),
                 stats_dtype="float32")  # fmt: skip
BATCH = NormSpec(axes=(0, "2:"), scale_axes=(1,), shift_axes=(1,), statistics="stored", stats_dtype="float32")
INSTANCE = NormSpec(axes=("2:",), scale_axes=(1,), shift_axes=(1,), stats_dtype="float32")
HALF = replace(LAYER, stats_dtype="float16", round_each=True)
MEAN, VARIANCE = np.linspace(-1, 1, 16), np.linspace(0.01, 2, 16)


def batch(eps=1e-5, variance=VARIANCE, **more):
    return record(spec=replace(BATCH, eps=eps), mean=MEAN, variance=variance, **more)


def of(spec=LAYER, **fields):
    """Make a record of the layer's spec, or another, with some fields changed."""
    held = {name: fields.pop(name) for name in ("gamma", "beta", "dtype", "placement", "name") if name in fields}
    return record(spec=replace(spec, **fields), **held)


def found(a, b, names=None):
    return [(f.code, f.severity) for f in findings(compared(a, b, names))]


# What differs, and the findings: the first is the cause.
DIFFERENT = {
    "c28_rms_for_layer": (of(), of(spec=RMS, shift_axes=(-1,), eps=1e-5), [("kind", "major"), ("name-only", "info")]),
    "c106_input_for_stored_statistics": (
        batch(), record(spec=replace(INSTANCE, scale_axes=(1,))), [("statistics", "major"), ("axes", "major"),
                                                                   ("name-only", "info")],
    ),
    "c38_one_group_taken_for_none": (
        of(spec=GROUP, groups=1), of(spec=INSTANCE), [("groups", "major"), ("name-only", "info")]
    ),
    "two groups for four": (of(spec=GROUP), of(spec=GROUP, groups=2), [("groups", "major")]),
    "mlx_interleaved": (of(spec=GROUP), of(spec=GROUP, group_order="interleaved"), [("group-order", "major")]),
    "c36_tokens_and_features": (of(), of(axes=(-2, -1)), [("axes", "major")]),
    "c13_epsilon_becomes_0_in_float16": (
        of(eps=1e-8, dtype="float16"), of(spec=HALF, eps=1e-8, dtype="float16"),
        [("eps-lost", "major"), ("overflow", "major")],
    ),
    "c17_epsilon_is_0": (of(), of(eps=0.0), [("eps-lost", "major")]),
    "c27_outside_the_root": (of(), of(eps_at="deviation"), [("eps-place", "major")]),
    "c01_1e-6_for_1e-5": (of(spec=RMS, eps=1e-5), of(spec=RMS, eps=1e-6), [("eps-value", "major")]),
    "c08_keras_batch_norm": (batch(), batch(1e-3), [("eps-value", "major")]),
    "c83_n_minus_one": (of(), of(ddof=1), [("ddof", "major")]),
    "c41_a_norm_of_another_width": (
        record(spec=RMS), record(spec=RMS, gamma=RANDOM.normal(1, 0.2, 64)), [("gamma-layout", "major")]
    ),
    "c47_gamma_along_another_axis_of_its_length": (
        of(spec=INSTANCE, gamma=GAMMA.reshape(1, 1, 16, 1), scale_axes=(-2,), shift_axes=None),
        of(spec=INSTANCE, shift_axes=None), [("gamma-layout", "major"), ("name-only", "info")],
    ),
    "a square gamma transposed": (
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=None, gamma=GAMMA.reshape(4, 4)),
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=None, gamma=GAMMA.reshape(4, 4).T.copy()),
        [("gamma-layout", "major")],
    ),
    "c60_the_one_twice": (
        record(spec=RMS, gamma=1 + GAMMA), record(spec=replace(RMS, scale_offset=1), gamma=1 + GAMMA),
        [("gamma-offset", "major")],
    ),
    "gamma and beta exchanged": (
        record(), record(gamma=BETA, beta=GAMMA), [("parameter-swapped", "major")],
    ),
    "c51_halves_of_a_modulation_exchanged": (
        record(gamma=1 + GAMMA, beta=BETA), record(gamma=1 + BETA, beta=GAMMA), [("parameter-swapped", "major")],
    ),
    "gamma lost": (record(), record(spec=replace(LAYER, scale_axes=None)), [("gamma-missing", "major")]),
    "c68_beta_lost": (record(), record(spec=replace(LAYER, shift_axes=None)), [("beta-missing", "major")]),
    "c75_a_gamma_never_loaded": (record(), record(gamma=np.ones(16)), [("parameter-value", "major")]),
    "one beta": (record(), record(beta=BETA + np.float32(2e-4) * (np.arange(16) == 3)), [("parameter-value", "minor")]),
    "another variance": (batch(), batch(variance=2 * VARIANCE), [("parameter-value", "major")]),
    "c90_squares_in_float16": (of(dtype="float16"), of(spec=HALF, dtype="float16"), [("overflow", "major")]),
    "c92_statistics_in_float16_of_what_is_not_said": (
        of(dtype="unknown"), of(stats_dtype="float16", dtype="unknown"), [("overflow", "major")]
    ),
    "c88_moments_in_float32": (
        of(), of(variance_by="moments", round_each=True),
        [("cancellation", "major"), ("precision", "minor")],
    ),
    "moments that lose little": (
        of(stats_dtype="float64"), of(stats_dtype="float64", variance_by="moments"), [("variance-form", "info")]
    ),
    "c100_statistics_in_bfloat16": (
        of(dtype="bfloat16"), of(stats_dtype="bfloat16", round_each=True, dtype="bfloat16"), [("precision", "major")]
    ),
    "c98_rounded_before_gamma": (
        of(dtype="bfloat16"), of(dtype="bfloat16", cast_before_scale=True), [("cast-order", "info")]
    ),
    "c72_before_and_after": (of(placement="pre"), of(placement="post"), [("placement", "major")]),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_found_and_its_cause_comes_first(name):
    a, b, expected = DIFFERENT[name]
    assert found(a, b) == expected


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_norm_does_not_differ_from_itself(name):
    for one in DIFFERENT[name][:2]:
        assert found(one, one) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_both_sides_are_said(name):
    a, b, _ = DIFFERENT[name]
    for finding in findings(compared(a, b)):
        assert (finding.a, finding.b) == (a.name, b.name)
        assert {"a", "b"} <= set(finding.numbers)
        assert finding.sentence.endswith(".")
        assert "A" in finding.sentence or "B" in finding.sentence or "both" in finding.sentence


OFFSET = replace(RMS, scale_offset=1)
SAME = {
    "c57_the_one_added_when_converting": (record(spec=OFFSET, gamma=GAMMA - 1), record(spec=RMS, gamma=GAMMA)),
    "c57_and_rounded": (
        record(spec=OFFSET, gamma=tensor("w", GAMMA - 1, ml_dtypes.bfloat16)),
        record(spec=RMS, gamma=1 + (GAMMA - 1).astype(ml_dtypes.bfloat16).astype(np.float32)),
    ),
    "c08_the_variance_makes_up_for_it": (batch(), batch(1e-3, VARIANCE + 1e-5 - 1e-3)),
    "c112_no_beta_and_zeros": (record(beta=np.zeros(16)), record(spec=replace(LAYER, shift_axes=None))),
    "no gamma and ones": (record(gamma=np.ones(16)), record(spec=replace(LAYER, scale_axes=None))),
    "no gamma and 1 + 0": (
        record(spec=OFFSET, gamma=np.zeros(16)), record(spec=replace(RMS, scale_axes=None))
    ),
    "epsilon rounded to float32": (of(eps=1e-12), of(eps=float(np.float32(1e-12)))),
    "epsilon in float16 statistics": (
        of(spec=HALF, eps=1e-4, dtype="float16"), of(spec=HALF, eps=float(np.float16(1e-4)), dtype="float16")
    ),
    "n times epsilon in the sum": (of(), of(eps=16e-5, eps_at="sum")),
    "gamma in float16": (record(), record(gamma=tensor("g", GAMMA, np.float16))),
    "gamma of other axes of length 1": (record(), record(gamma=GAMMA.reshape(1, 1, 16))),
    "a constant gamma, wherever it lies": (
        of(spec=INSTANCE, gamma=np.full((1, 1, 16, 1), 2.0), scale_axes=(-2,), shift_axes=None),
        of(spec=INSTANCE, gamma=np.full(16, 2.0), shift_axes=None),
    ),
    "c45_a_value_a_group": (
        of(spec=GROUP, gamma=np.repeat(GAMMA[:4], 4), beta=np.repeat(BETA[:4], 4)),
        of(spec=GROUP, scale_axes="group", shift_axes="group", gamma=GAMMA[:4], beta=BETA[:4]),
    ),
    "as many groups as channels": (of(spec=GROUP, groups=16), of(spec=INSTANCE)),
    "axes from the front": (of(axes=(2,), scale_axes=(2,), shift_axes=(2,)), of()),
    "a cast that float32 does not make": (of(), of(cast_before_scale=True)),
    "a cast that one side, in float32, does not make": (of(), of(dtype="bfloat16", cast_before_scale=True)),
    "statistics in the input's own type": (of(), of(stats_dtype="input")),
    "places that are no contradiction": (of(placement="pre"), of(placement="unknown")),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_what_comes_to_the_same_is_no_finding(name):
    a, b = SAME[name]
    for first, second in ((a, b), (b, a)):
        assert [f for f in found(first, second) if f[0] != "name-only"] == []


@pytest.mark.parametrize("field", ["axes", "centered", "spread", "eps", "eps_at", "ddof", "scale_offset", "statistics",
                                   "stats_dtype", "cast_before_scale", "variance_by", "round_each"])  # fmt: skip
def test_what_one_side_does_not_say_is_no_difference(field):
    silent = replace(LAYER, **{field: UNKNOWN})
    assert found(record(), record(spec=silent)) == found(record(spec=silent), record()) == []


def test_c73_and_c70_a_norm_that_holds_anothers_gamma():
    """Two scales of one block were mixed up (renmada/t5-pegasus-pytorch 16, NVIDIA-NeMo 11951)."""
    first, second = record("h.0.ln_1"), record("h.0.ln_2", gamma=RANDOM.normal(1, 0.2, 16))
    wrong = record("h.0.ln_2")
    (finding,) = findings(compared(side(first, second), side(first, wrong)))
    assert (finding.code, finding.severity, finding.a) == ("parameter-swapped", "major", "h.0.ln_2")
    assert finding.sentence == "B's gamma is that of h.0.ln_1 in A."


def test_c76_the_last_norm_left_out():
    """OPT's last norm was left out (huggingface/transformers 17653)."""
    first, last = record("h.0.ln_1"), record("ln_f", gamma=RANDOM.normal(1, 0.2, 16))
    (finding,) = findings(compared(side(first, last), side(first)))
    assert (finding.code, finding.severity, finding.a, finding.b) == ("unpaired", "major", "ln_f", None)
    (finding,) = findings(compared(side(first), side(first, last)))
    assert (finding.code, finding.severity, finding.a, finding.b) == ("unpaired", "major", None, "ln_f")


def test_a_norm_without_parameters_may_be_in_a_file_that_names_tensors_alone():
    first, bare = record("h.0.ln_1"), record("h.0.bare", spec=replace(LAYER, scale_axes=None, shift_axes=None))
    names_alone = side(first, graph=False)
    assert found(side(first, bare), names_alone) == [("unpaired", "info")]
    assert found(side(first, bare), side(first)) == [("unpaired", "major")]


def test_a_batch_norm_that_was_folded_is_not_missing():
    first, gone = record("h.0.ln_1"), record("bn", spec=BATCH, mean=MEAN, variance=VARIANCE)
    said = Finding("folded", "info", None, "names speak of bn.", None)
    assert found(side(first, gone), side(first, risks=[said])) == [("folded", "info")]
    assert found(side(first, gone), side(first)) == [("unpaired", "major")]


def test_names_are_no_alarm():
    """T5LayerNorm is an RMS norm on both sides (c55)."""
    assert found(record("layer_norm", spec=RMS), record("layer_norm", spec=RMS)) == []


# -- the size of an effect, against the formula written out by hand ------------------------------------------


def effect(a, b):
    return Effect(Pair(a, b, "map"))


EXACT = {"stats_dtype": "float64"}


def by_hand(x, eps=1e-5, ddof=0, gamma=GAMMA, beta=BETA, axes=(-1,), centered=True):
    x = x.astype(np.float64)
    d = x - x.mean(axes, keepdims=True) if centered else x
    n = np.prod([x.shape[a] for a in axes])
    return np.float64(gamma) * d / np.sqrt((d**2).sum(axes, keepdims=True) / (n - ddof) + eps) + np.float64(beta)


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"eps": 1e-3}, {"eps": 1e-3}), ({"ddof": 1}, {"ddof": 1}), ({"axes": (-2, -1)}, {"axes": (-2, -1)}),
     ({"centered": False, "spread": "rms"}, {"centered": False})],
)  # fmt: skip
def test_an_effect_is_the_largest_change_in_units_of_the_output(fields, told):
    seen = effect(of(**EXACT), of(**EXACT, **fields))
    for name, x in seen.probes.items():
        y, other = by_hand(x), by_hand(x, **told)
        expected = np.abs(y - other).max() / np.sqrt((y**2).mean())
        assert seen.by_probe(*fields)[name] == pytest.approx(expected, rel=1e-6)


def test_the_effect_of_a_lost_beta():
    seen = effect(of(**EXACT), of(**EXACT, shift_axes=None))
    for name, x in seen.probes.items():
        expected = np.abs(np.float64(BETA)).max() / np.sqrt((by_hand(x) ** 2).mean())
        assert seen.by_probe("beta", "shift_axes")[name] == pytest.approx(expected, rel=1e-6)


def test_no_probe_has_the_mean_zero():
    for x in effect(of(), of(eps=1e-3)).probes.values():
        wide = x.astype(np.float64)
        assert np.abs(wide.mean(-1)).min() > 1e-2 * wide.std()


def test_a_change_is_weighed_by_the_outputs_type():
    seen = effect(of(), of())
    assert [seen.severity(c) for c in (0.0, 1e-8, 2.0**-23, 9e-4, 1e-3, float("inf"), float("nan"))] == [
        "info", "info", "minor", "minor", "major", "major", "info",
    ]  # fmt: skip
    assert effect(of(dtype="bfloat16"), of()).severity(2.0**-8) == "info"


def test_a_probe_too_large_to_try_is_made_smaller():
    wide = record(gamma=np.ones(2**17), beta=np.zeros(2**17))
    assert all(x.size <= 2**20 for x in effect(wide, wide).probes.values())


@pytest.mark.parametrize("code", CODES)
def test_every_check_has_its_page(code):
    page = page_of(code)
    assert page.startswith(f"{code}: ")
    headings = ("What it checks", "Why it matters", "Example", "What to do")
    assert [page.index(heading) for heading in headings] == sorted(page.index(heading) for heading in headings)
    assert len(page) > 200
