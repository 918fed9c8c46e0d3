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
from layernorm.models.norm_record import Finding, Unidentified
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

GROUP = NormSpec(axes=(1, "2:"), channel_axis=1, groups=4, group_order="blocked", scale_axes=(1,), shift_axes=(1,),
                 stats_dtype="float32")  # fmt: skip
BATCH = NormSpec(axes=(0, "2:"), scale_axes=(1,), shift_axes=(1,), statistics="stored", stats_dtype="float32")
INSTANCE = NormSpec(axes=("2:",), scale_axes=(1,), shift_axes=(1,), stats_dtype="float32")
HALF = replace(LAYER, stats_dtype="float16", round_each=True)
MEAN, VARIANCE = np.linspace(-1, 1, 16), np.linspace(0.01, 2, 16)


INTERLEAVED = replace(GROUP, group_order="interleaved")


def put(values, at, value):
    changed = values.copy()
    changed[at] = value
    return changed


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
    "moments beside a file that does not say how": (
        of(variance_by=UNKNOWN), of(variance_by="moments"), [("cancellation", "info")]
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
    "c86_a_difference_of_large_numbers": (
        of(eps=1e-5), of(eps=1e-5, variance_by="moments"), [("cancellation", "major")]
    ),
    "moments, clamped at 0 on one side": (
        of(stats_dtype="float16", round_each=True, variance_by="moments", dtype="float16"),
        of(stats_dtype="float16", round_each=True, variance_by="moments_clamped", dtype="float16"),
        [("cancellation", "major")],
    ),
    "moments that are NaN where rows hardly vary": (
        of(stats_dtype="bfloat16", round_each=True, variance_by="moments", dtype="bfloat16"),
        of(stats_dtype="bfloat16", round_each=True, variance_by="moments_clamped", dtype="bfloat16"),
        [("cancellation", "major")],
    ),
    "c11_a_ported_vit": (of(eps=1e-6), of(eps=1e-12), [("eps-value", "major")]),
    "c15_an_epsilon_that_a_converter_lifts": (of(eps=1e-12), of(eps=1e-7), [("eps-value", "major")]),
    "c67_smoothing_folded_into_w": (
        record(spec=replace(RMS, scale_offset=1), gamma=1.25 * GAMMA - 1),
        record(spec=replace(RMS, scale_offset=1), gamma=1.25 * (GAMMA - 1)), [("parameter-value", "major")],
    ),
    "a gamma that became infinite": (record(), record(gamma=put(GAMMA, 2, np.inf)), [("parameter-value", "major")]),
    "a gamma of which one value is NaN": (
        record(), record(gamma=put(GAMMA, 2, np.nan)), [("parameter-value", "major")]
    ),
    "an infinite gamma for one half as large": (
        record(gamma=put(GAMMA, 2, np.inf)), record(gamma=put(2 * GAMMA, 2, np.inf)), [("parameter-value", "major")]
    ),
    "a square gamma transposed and rounded": (
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=None, gamma=GAMMA.reshape(4, 4)),
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=None, gamma=tensor("g", GAMMA.reshape(4, 4).T, np.float16)),
        [("gamma-layout", "major")],
    ),
    "both parameters transposed": (
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=(-2, -1), gamma=GAMMA.reshape(4, 4),
           beta=BETA.reshape(4, 4)),
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=(-2, -1), gamma=GAMMA.reshape(4, 4).T.copy(),
           beta=BETA.reshape(4, 4).T.copy()), [("gamma-layout", "major")],
    ),
    "a value a group given to neighbours, where groups are interleaved": (
        of(spec=INTERLEAVED, gamma=np.repeat(GAMMA[:4], 4), beta=np.tile(BETA[:4], 4)),
        of(spec=INTERLEAVED, scale_axes="group", shift_axes="group", gamma=GAMMA[:4], beta=BETA[:4]),
        [("gamma-layout", "major")],
    ),
    "axes, where one side does not say how groups are dealt": (
        of(spec=GROUP), of(spec=GROUP, group_order=UNKNOWN, axes=(1, 2)), [("axes", "major")]
    ),
    "axes, where one side leaves open what no groups need": (
        of(channel_axis=UNKNOWN, group_order=UNKNOWN), of(axes=(-2, -1)), [("axes", "major")]
    ),
    "a place of epsilon, where one side does not say its axes": (
        of(), of(axes=UNKNOWN, eps_at="sum"), [("eps-place", "major")]
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
    "c45_a_value_a_group_in_float16": (
        of(spec=GROUP, gamma=np.repeat(GAMMA[:4], 4), beta=np.repeat(BETA[:4], 4)),
        of(spec=GROUP, scale_axes="group", shift_axes="group", gamma=tensor("g", GAMMA[:4], np.float16),
           beta=tensor("b", BETA[:4], np.float16)),
    ),
    "c45_a_value_a_group_of_interleaved_ones": (
        of(spec=INTERLEAVED, gamma=np.tile(GAMMA[:4], 4), beta=np.tile(BETA[:4], 4)),
        of(spec=INTERLEAVED, scale_axes="group", shift_axes="group", gamma=GAMMA[:4], beta=BETA[:4]),
    ),
    "a symmetric gamma": (
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=None, gamma=np.add.outer(GAMMA[:4], GAMMA[:4])),
        of(axes=(-2, -1), scale_axes=(-2, -1), shift_axes=None,
           gamma=tensor("g", np.add.outer(GAMMA[:4], GAMMA[:4]), np.float16)),
    ),
    "the same NaN and infinities": (record(gamma=put(put(GAMMA, 2, np.inf), 3, np.nan)),) * 2,
    "n times epsilon in the sum, where one side does not say its axes": (
        of(), of(axes=UNKNOWN, eps=16e-5, eps_at="sum")
    ),
    "n times epsilon in the sum of a group": (of(spec=GROUP), of(spec=GROUP, eps=4 * 5 * 2 * 1e-5, eps_at="sum")),
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


FIELDS = ("axes", "channel_axis", "groups", "group_order", "centered", "spread", "eps", "eps_at", "ddof", "scale_axes",
          "shift_axes", "scale_offset", "statistics", "stats_dtype", "cast_before_scale", "variance_by",
          "round_each")  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("spec", [LAYER, RMS, GROUP, BATCH], ids=lambda spec: spec.kind)
def test_what_one_side_does_not_say_is_no_difference(spec, field):
    held = {"mean": MEAN, "variance": VARIANCE} if spec is BATCH else {"beta": None if spec is RMS else BETA}
    said, silent = record(spec=spec, **held), record(spec=replace(spec, **{field: UNKNOWN}), **held)
    assert found(said, silent) == found(silent, said) == []


# Of each code a difference, and what the finding says of A and of B.
VALUES = {
    "kind": ("c28_rms_for_layer", "layer", "rms"),
    "statistics": ("c106_input_for_stored_statistics", "stored", "input"),
    "groups": ("two groups for four", 4, 2),
    "group-order": ("mlx_interleaved", "blocked", "interleaved"),
    "axes": ("c36_tokens_and_features", [-1], [-2, -1]),
    "eps-lost": ("c17_epsilon_is_0", float(np.float32(1e-5)), 0.0),
    "eps-place": ("c27_outside_the_root", "variance", "deviation"),
    "eps-value": ("c01_1e-6_for_1e-5", float(np.float32(1e-5)), float(np.float32(1e-6))),
    "ddof": ("c83_n_minus_one", 0, 1),
    "gamma-layout": ("c41_a_norm_of_another_width", [16], [64]),
    "gamma-offset": ("c60_the_one_twice", float(np.mean(1.0 + GAMMA)), float(np.mean(2.0 + GAMMA))),
    "parameter-swapped": ("gamma and beta exchanged", "norm", "A's beta of the same norm"),
    "gamma-missing": ("gamma lost", [float(GAMMA.min()), float(GAMMA.max())], None),
    "beta-missing": ("c68_beta_lost", [float(BETA.min()), float(BETA.max())], None),
    "parameter-value": ("one beta", float(BETA[3]), float(BETA[3] + np.float32(2e-4))),
    "overflow": ("c90_squares_in_float16", "float32", "float16"),
    "cancellation": ("c88_moments_in_float32", "centered", "moments"),
    "variance-form": ("moments that lose little", "centered", "moments"),
    "precision": ("c100_statistics_in_bfloat16", "float32", "bfloat16"),
    "cast-order": ("c98_rounded_before_gamma", False, True),
    "placement": ("c72_before_and_after", "pre", "post"),
    "name-only": ("c28_rms_for_layer", "layer", "rms"),
}


def test_each_code_has_its_values():
    assert VALUES.keys() == set(CODES) - {"folded", "unpaired"}  # which have one side alone


def approximately(value):
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("code", VALUES)
def test_a_finding_holds_the_values_of_both_sides(code):
    name, a, b = VALUES[code]
    first, second = DIFFERENT[name][:2]
    for pair, expected in (((first, second), (a, b)), ((second, first), (b, a))):
        held = [f for f in findings(compared(*pair)) if f.code == code]
        if code == "parameter-swapped" and pair[0] is second:
            expected = a, b  # it names A's norm, and whose gamma B has
        assert [(f.numbers["a"], f.numbers["b"]) for f in held] == [tuple(map(approximately, expected))]


def test_a_damaged_value_is_counted_and_shown():
    """A NaN was counted as no difference, and the largest difference of the others shown, which was 0."""
    for value in (np.nan, np.inf):
        (finding,) = findings(compared(record(), record(gamma=put(GAMMA, 5, value))))
        assert finding.sentence == f"gamma[5] is {GAMMA[5]:.6g} in A and {value} in B; 1 of 16 values differ."
    (finding,) = findings(compared(record(), record(gamma=np.full(16, np.nan))))
    assert finding.sentence.endswith("16 of 16 values differ.")


@pytest.mark.parametrize("open_axes", [("scale_axes",), ("shift_axes",), ("scale_axes", "shift_axes")])
@pytest.mark.parametrize("lost", [("scale_axes",), ("shift_axes",)])
def test_a_parameter_that_is_held_counts_wherever_it_lies(open_axes, lost):
    """A state dict holds gamma and beta and does not say along which axes: losing them weighed nothing."""
    held, bare = of(**dict.fromkeys(open_axes, UNKNOWN)), of(**dict.fromkeys(lost))
    code = {"scale_axes": "gamma-missing", "shift_axes": "beta-missing"}[lost[0]]
    assert found(held, bare) == found(bare, held) == [(code, "major")]
    other = of(gamma=2 * GAMMA, **dict.fromkeys(open_axes, UNKNOWN))
    assert found(held, other) == [("parameter-value", "major")]


def test_who_does_not_clamp_is_said():
    a, b, _ = DIFFERENT["moments, clamped at 0 on one side"]
    for first, second, which in ((a, b, "A"), (b, a, "B")):
        (finding,) = findings(compared(first, second))
        assert finding.sentence.startswith("both take E[x²] − E[x]²")
        assert finding.sentence.endswith(f"{which} does not clamp it at 0.")


def test_a_kind_that_one_side_leaves_open_is_not_named():
    """A group norm whose file does not say its groups looks like a layer norm."""
    assert found(of(spec=GROUP), of(spec=GROUP, groups=UNKNOWN)) == []
    assert found(of(spec=GROUP), of(axes=("1:",), shift_axes=(1,), scale_axes=(1,))) != []


def test_c73_and_c70_a_norm_that_holds_anothers_gamma():
    """Two scales of one block were mixed up (renmada/t5-pegasus-pytorch 16, NVIDIA-NeMo 11951)."""
    first, second = record("h.0.ln_1"), record("h.0.ln_2", gamma=RANDOM.normal(1, 0.2, 16))
    wrong = record("h.0.ln_2")
    (finding,) = findings(compared(side(first, second), side(first, wrong)))
    assert (finding.code, finding.severity, finding.a) == ("parameter-swapped", "major", "h.0.ln_2")
    assert finding.sentence == "B's gamma is that of h.0.ln_1 in A."


def test_a_norm_that_holds_anothers_beta():
    first, second = record("h.0.ln_1"), record("h.0.ln_2", gamma=GAMMA[::-1].copy(), beta=2 * BETA)
    wrong = record("h.0.ln_2", gamma=GAMMA[::-1].copy())
    (finding,) = findings(compared(side(first, second), side(first, wrong)))
    assert (finding.code, finding.severity, finding.a) == ("parameter-swapped", "major", "h.0.ln_2")
    assert finding.sentence == "B's beta is that of h.0.ln_1 in A."
    own = record("h.0.ln_2", gamma=GAMMA[::-1].copy(), beta=3 * BETA)
    assert found(side(first, second), side(first, own)) == [("parameter-value", "major")]


def test_whose_values_they_are_is_told_by_all_of_them():
    """Norms are looked up by their first values, which others may share."""
    likeness = put(GAMMA, 12, 5.0)
    first, second = record("h.0.ln_1", gamma=likeness), record("h.0.ln_2", gamma=RANDOM.normal(1, 0.2, 16))
    wrong = record("h.0.ln_2", gamma=GAMMA)
    assert found(side(first, second), side(first, wrong)) == [("parameter-value", "major")]
    third = record("h.0.ln_3", gamma=GAMMA)
    (finding,) = findings(compared(side(first, second, third), side(first, wrong, third)))
    assert finding.sentence == "B's gamma is that of h.0.ln_3 in A."


def test_values_of_many_norms_are_read_a_few_times_each():
    """They were read again for each norm of the other side: 73 s for 400 norms."""
    reads = []

    def counted(name, values):
        made = tensor(name, values)
        return replace(made, load=lambda: reads.append(name) or made.values())

    count = 40
    sides = [
        side(*(record(f"n{k}", gamma=counted(f"{k}", RANDOM.normal(1, 0.2, 16)), beta=None) for k in range(count)))
        for _ in "ab"
    ]
    assert len(list(findings(compared(*sides)))) == count
    assert len(reads) <= 30 * count


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


def test_a_norm_that_the_other_side_could_not_identify_is_no_difference():
    """A LayerNorm of a Sequential, whose state dict calls it 1; B says that it is one."""
    first, member = record("h.0.ln_1"), record("1")
    unknown = Unidentified("1.weight, 1.bias", "its name is a number.")
    both = compared(side(first, unidentified=[unknown]), side(first, member))
    (finding,) = findings(both)
    assert (finding.code, finding.severity, finding.a, finding.b) == ("unpaired", "info", None, "1")
    assert "A has 1.weight, 1.bias, of which its file does not say" in finding.sentence


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
