# SPDX-License-Identifier: MIT
"""This file checks which norm is said to introduce a difference; what norms give is worked out here, by NumPy."""

from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_files import constants, model, save

import layernorm as ln
from layernorm.comparing.divergence import Tap, outcomes, replayed
from layernorm.comparing.replay import replay
from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes import inputs_for, run, seeded_inputs
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

GAMMA, BETA = np.linspace(0.5, 2, 48, dtype=np.float32), np.linspace(-1, 1, 48, dtype=np.float32)
LAYER = NormSpec(eps=1e-5, scale_axes=(-1,), shift_axes=(-1,), stats_dtype="float32")


class Pair(NamedTuple):
    a: NormRecord
    b: NormRecord
    rule: str = "name"


def tensor(values, name="w"):
    values = np.asarray(values)
    return Tensor(name, values.shape, values.dtype.name, lambda: values)


def record(name="n", spec=LAYER, scale=GAMMA, shift=BETA, **more):
    return NormRecord(
        name, "", "fused", spec, {}, scale=None if scale is None else tensor(scale),
        shift=None if shift is None else tensor(shift), **more,
    )  # fmt: skip


def layer(x, eps=1e-5, gamma=GAMMA, beta=BETA, axes=(-1,)):
    """The formula in float64, rounded once to x's type."""
    wide = x.astype(np.float64)
    deviation = wide - wide.mean(axes, keepdims=True)
    y = deviation / np.sqrt((deviation**2).mean(axes, keepdims=True) + eps) * gamma + beta
    return y.astype(x.dtype)


def rows(seed=0, shape=(2, 6, 48), offset=0.5, dtype=np.float32):
    return (offset + np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


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


# -- replay -----------------------------------------------------------------------------------------------


def channels(values, ndim):
    return values.reshape([-1 if a == 1 else 1 for a in range(ndim)])


IMAGE = rows(3, (2, 6, 5, 4))
SIX = np.linspace(0.5, 2, 6, dtype=np.float32)


def centred(x, axes, eps, ddof=0):
    wide = x.astype(np.float64)
    deviation = wide - wide.mean(axes, keepdims=True)
    return deviation / np.sqrt(wide.var(axes, keepdims=True, ddof=ddof) + eps)


def grouped(x, groups):
    return centred(x.reshape(2, groups, -1), (-1,), 1e-5).reshape(x.shape)


KINDS = {
    "rms with 1 + γ": (
        record(spec=NormSpec(centered=False, spread="rms", eps=1e-6, scale_axes=(-1,), scale_offset=1), shift=None),
        rows(), lambda x: x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * (1 + GAMMA),
    ),
    "l2": (
        record(spec=NormSpec(centered=False, spread="l2", eps=1e-6, eps_at="deviation_floor"), scale=None, shift=None),
        rows(), lambda x: x / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True),
    ),
    "instance": (
        record(spec=NormSpec(axes=("2:",), scale_axes=(1,), shift_axes=(1,)), scale=SIX, shift=SIX),
        IMAGE, lambda x: centred(x, (2, 3), 1e-5) * channels(SIX, 4) + channels(SIX, 4),
    ),
    "group": (
        record(
            spec=NormSpec(axes=("1:",), channel_axis=1, groups=3, group_order="blocked", scale_axes=(1,)),
            scale=SIX, shift=None,
        ),
        IMAGE, lambda x: grouped(x, 3) * channels(SIX, 4),
    ),
    "group with a γ each": (
        record(
            spec=NormSpec(axes=("1:",), channel_axis=1, groups=2, group_order="blocked", scale_axes="group"),
            scale=np.float32([2, 3]), shift=None,
        ),
        IMAGE, lambda x: grouped(x, 2) * channels(np.repeat([2.0, 3.0], 3), 4),
    ),
    "batch with stored statistics": (
        record(
            spec=NormSpec(axes=(0, "2:"), scale_axes=(1,), shift_axes=(1,), statistics="stored"), scale=SIX, shift=SIX,
            mean=tensor(SIX), variance=tensor(SIX[::-1]),
        ),
        IMAGE,
        lambda x: (x - channels(SIX, 4)) / np.sqrt(channels(SIX[::-1], 4) + 1e-5) * channels(SIX, 4) + channels(SIX, 4),
    ),
    "a parameter of shape (1, 48)": (record(scale=GAMMA[None], shift=BETA[None, None]), rows(), layer),
    "a parameter of shape (6, 1, 1)": (
        record(spec=NormSpec(axes=("2:",), scale_axes=(1,)), scale=SIX.reshape(6, 1, 1), shift=None),
        IMAGE, lambda x: centred(x, (2, 3), 1e-5) * channels(SIX, 4),
    ),
    "sample variance": (
        record(spec=NormSpec(ddof=1), scale=None, shift=None), rows(), lambda x: centred(x, (-1,), 1e-5, 1),
    ),
}  # fmt: skip


def test_a_replay_is_in_float64():
    x = rows(dtype=np.float16)
    made = replay(record(), x)
    assert np.abs(made.y - layer(x.astype(np.float64))).max() < 1e-14


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_replayed(kind):
    said, x, formula = KINDS[kind]
    y = np.asarray(formula(x)).astype(np.float32)
    (found,) = replayed([Pair(said, record())], {"n": Tap(x, y)})
    assert found.status == "agrees-on-replay" and found.error < 1e-6 and found.residual < 1
    (found,) = replayed([Pair(said, record())], {"n": Tap(x, y * np.float32(1.001))})
    assert found.status == "differs" and found.error > 1e-4


@pytest.mark.parametrize(
    "silent",
    [
        record(spec=replace(LAYER, eps=UNKNOWN)),
        record(spec=replace(LAYER, axes=UNKNOWN)),
        record(spec=replace(LAYER, eps=-1.0)),
        record(scale=None),
        record(scale=GAMMA[:5]),
        record(spec=NormSpec(axes=(0, "2:"), statistics="updated")),
        record(spec=NormSpec(axes=(0, "2:"), statistics="stored"), scale=None, shift=None),
        record(spec=NormSpec(axes=(7,)), scale=None, shift=None),
    ],
    ids=["eps", "axes", "negative eps", "no gamma", "short gamma", "updated", "no stored mean", "no such axis"],
)
def test_what_a_record_does_not_say_is_not_replayed(silent):
    x = rows()
    assert replayed([Pair(silent, record())], {"n": Tap(x, layer(x))})[0].status == "not-run"


def test_fields_that_only_say_where_to_round_may_be_unknown():
    open_ = replace(LAYER, stats_dtype=UNKNOWN, cast_before_scale=UNKNOWN, variance_by=UNKNOWN, round_each=UNKNOWN)
    x = rows()
    assert replayed([Pair(record(spec=open_), record())], {"n": Tap(x, layer(x))})[0].status == "agrees-on-replay"


@pytest.mark.parametrize("width", [1, 2, 48, 1000, 20000])
@pytest.mark.parametrize(
    ("form", "offset"),
    # at 1000, E[x²] − E[x]² has no digit left of a spread of 1, and may be negative
    [("left to right", 0), ("left to right", 3), ("left to right", 1000), ("pairwise", 0), ("pairwise", 3),
     ("pairwise", 1000), ("moments", 0), ("moments", 3)],
)  # fmt: skip
def test_no_honest_float32_norm_is_outside_the_bound(width, form, offset):
    """√n·u is no proof but a likelihood; over these draws the worst is to be well within it."""
    x = rows(width, (20, width), offset)
    total = (
        (lambda v: np.add.accumulate(v, -1)[..., -1:])
        if form == "left to right"
        else (lambda v: v.sum(-1, keepdims=True))
    )
    n, eps = np.float32(width), np.float32(1e-5)
    mean = total(x) / n
    deviation = x - mean
    variance = total(x * x) / n - mean * mean if form == "moments" else total(deviation * deviation) / n
    with np.errstate(all="ignore"):
        y = deviation / np.sqrt(variance + eps)
    assert y.dtype == np.float32
    spec = NormSpec(stats_dtype="float32", variance_by="moments" if form == "moments" else "centered")
    said = record(spec=spec, scale=None, shift=None)
    (found,) = replayed([Pair(said, said)], {"n": Tap(x, y)})
    assert found.status == "agrees-on-replay", found.residual


def test_stored_statistics_may_be_applied_as_one_product_and_one_sum():
    """y = a·x + b with a = γ/√(σ² + ε) and b = β − m·a, as runtimes do: some ulp of x·a off, which may be large."""
    mean, variance = np.float32(rows(5, (6,), 300)), np.float32(np.abs(rows(6, (6,))))
    x = rows(4, (4, 6, 5, 5)) + channels(mean, 4)
    a = SIX / np.sqrt(variance + np.float32(1e-5))
    y = x * channels(a, 4) + channels(SIX - mean * a, 4)
    assert y.dtype == np.float32
    spec = NormSpec(axes=(0, "2:"), scale_axes=(1,), shift_axes=(1,), statistics="stored", stats_dtype="float32")
    said = record(spec=spec, scale=SIX, shift=SIX, mean=tensor(mean), variance=tensor(variance))
    (found,) = replayed([Pair(said, said)], {"n": Tap(x, y)})
    assert found.status == "agrees-on-replay" and found.error > 1e-6
    (found,) = replayed([Pair(said, said)], {"n": Tap(x, y + np.float32(1e-3) * np.abs(y))})
    assert found.status == "differs"


def test_sums_of_like_values_round_to_one_side():
    x = np.full((8, 4096), 3.1, np.float32) + np.float32(0.3) * rows(7, (8, 4096), 0)
    n = np.float32(4096)
    total = lambda v: np.add.accumulate(v, -1)[..., -1:]  # noqa: E731
    mean = total(x) / n
    y = (x - mean) / np.sqrt(total(x * x) / n - mean * mean + np.float32(1e-5))
    spec = NormSpec(stats_dtype="float32", variance_by="moments")
    said = record(spec=spec, scale=None, shift=None)
    (found,) = replayed([Pair(said, said)], {"n": Tap(x, y)})
    assert found.status == "agrees-on-replay" and found.error > 1e-5


# -- with a runtime ---------------------------------------------------------------------------------------


def chain(eps=1e-5, fused=True, dtype=np.float32, opset=17):
    """Three norms with a matrix product between; the second has the epsilon that is asked for."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    numbers = {"w": np.random.default_rng(1).standard_normal((4, 4)).astype(dtype), "two": np.array(2, dtype)}
    nodes, value = [], "x"
    for i, e in enumerate((1e-5, eps, 1e-5)):
        numbers |= {
            f"n{i}__weight": np.linspace(0.5, 2, 4).astype(dtype),
            f"n{i}__bias": np.linspace(-1, 1, 4).astype(dtype),
        }
        affine, out = [f"n{i}.weight", f"n{i}.bias"], f"n{i}_out"
        if fused:
            nodes.append(helper.make_node("LayerNormalization", [value, *affine], [out], epsilon=e))
        else:
            numbers[f"e{i}"] = np.array(e, dtype)
            m, d, q, v, s, r, z, g = (f"{name}{i}" for name in "mdqvsrzg")
            nodes += [
                helper.make_node("ReduceMean", [value], [m], axes=[-1]), helper.make_node("Sub", [value, m], [d]),
                helper.make_node("Pow", [d, "two"], [q]), helper.make_node("ReduceMean", [q], [v], axes=[-1]),
                helper.make_node("Add", [v, f"e{i}"], [s]), helper.make_node("Sqrt", [s], [r]),
                helper.make_node("Div", [d, r], [z]), helper.make_node("Mul", [z, affine[0]], [g]),
                helper.make_node("Add", [g, affine[1]], [out]),
            ]  # fmt: skip
        value = f"h{i}" if i < 2 else "y"
        nodes.append(helper.make_node("MatMul", [out, "w"], [value]))
    ends = [helper.make_tensor_value_info(n, kind, ["n", 3, 4]) for n in "xy"]
    if opset >= 18:
        numbers["last"] = np.array([-1])
        for node in nodes:
            if node.op_type == "ReduceMean":
                del node.attribute[:]
                node.input.append("last")
    return model(nodes, constants(**numbers), inputs=ends[:1], outputs=ends[1:], opset=opset)


def compared(tmp_path, a, b, optimized=(True, True)):
    seen = [ln.inspect(save(tmp_path, proto, f"{i}.onnx")) for i, proto in enumerate((a, b))]
    inputs = seeded_inputs(seen[0].model)
    taps = [run(s.model, s.norms, inputs, o).taps for s, o in zip(seen, optimized, strict=True)]
    return outcomes([Pair(x, y) for x, y in zip(seen[0].norms, seen[1].norms, strict=True)], *taps)


@pytest.mark.parametrize("optimized", [(False, False), (True, True), (False, True)])
def test_fused_and_loose_are_no_difference(tmp_path, optimized):
    found = compared(tmp_path, chain(), chain(fused=False), optimized)
    assert {o.status for o in found} <= {"equal", "propagates"}
    assert max(o.error for o in found) < 1e-5


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_the_norm_with_another_epsilon_introduces_and_the_next_propagates(tmp_path, optimized, fused, dtype):
    found = compared(tmp_path, chain(dtype=dtype), chain(eps=0.3, fused=fused, dtype=dtype), (optimized, optimized))
    assert [o.status for o in found][1:] == ["introduces", "propagates"]
    assert found[0].status in ("equal", "propagates")


def test_float16_in_either_form_is_no_difference(tmp_path):
    found = compared(tmp_path, chain(dtype=np.float16), chain(fused=False, dtype=np.float16), (False, False))
    assert "introduces" not in {o.status for o in found}


@pytest.mark.parametrize("fused", [False, True])
def test_a_conversion_to_float16_introduces_nothing(tmp_path, fused):
    seen = [
        ln.inspect(save(tmp_path, chain(fused=fused, dtype=dtype), f"{dtype.__name__}.onnx"))
        for dtype in (np.float32, np.float16)
    ]
    inputs = seeded_inputs(seen[0].model)
    taps = [run(s.model, s.norms, inputs_for(s.model, inputs), optimized=False).taps for s in seen]
    pairs = [Pair(x, y) for x, y in zip(seen[0].norms, seen[1].norms, strict=True)]
    found = outcomes(pairs, *taps)
    assert "introduces" not in {o.status for o in found}
    assert 1e-5 < max(o.error for o in found) < 1e-2
    assert {o.status for o in replayed(pairs, taps[1], "b")} == {"agrees-on-replay"}


def quantized(wrong=False):
    """The fused chain with values and parameters in eight bits: Q and DQ before and after each norm."""
    proto = chain()
    numbers, nodes = {}, []

    def pair(name, out, step):
        numbers[f"{out}_step"], numbers[f"{out}_zero"] = np.float32(step), np.int8(0)
        more = [f"{out}_step", f"{out}_zero"]
        nodes.extend(
            [
                helper.make_node("QuantizeLinear", [name, *more], [f"{out}_q"]),
                helper.make_node("DequantizeLinear", [f"{out}_q", *more], [out]),
            ]
        )

    for node in proto.graph.node:
        if node.op_type == "LayerNormalization":
            pair(node.input[0], f"{node.output[0]}_in", 0.08)
            weight = next(t for t in proto.graph.initializer if t.name == node.input[1])
            values = np.frombuffer(weight.raw_data, np.float32)
            step = 2 / 127
            numbers[f"{weight.name}_int8".replace(".", "__")] = np.rint(values / step).astype(np.int8)
            if wrong and "n1" in weight.name:
                numbers[f"{weight.name}_int8".replace(".", "__")] = np.rint(values[::-1] / step).astype(np.int8)
            numbers[f"{weight.name}_step".replace(".", "__")] = np.float32(step)
            nodes.append(
                helper.make_node(
                    "DequantizeLinear", [f"{weight.name}_int8", f"{weight.name}_step"], [f"{weight.name}_f"]
                )
            )
            out = node.output[0]
            nodes.append(
                helper.make_node(
                    "LayerNormalization",
                    [f"{out}_in", f"{weight.name}_f", node.input[2]],
                    [f"{out}_norm"],
                    epsilon=1e-5,
                )
            )
            pair(f"{out}_norm", out, 0.03)
        else:
            nodes.append(node)
    kept = [t for t in proto.graph.initializer if not t.name.endswith("weight")]
    return model(nodes, [*kept, *constants(**numbers)])


@pytest.mark.parametrize("optimized", [False, True])
def test_eight_bits_with_their_scale_introduce_nothing(tmp_path, optimized):
    found = compared(tmp_path, chain(), quantized(), (optimized, optimized))
    assert [o.status for o in found] == ["propagates"] * 3
    assert 1e-3 < max(o.error for o in found) < 0.3


def rounded_each(proto, inputs, bits=8):
    """The chain of loose operations with every result rounded to integers, of a scale that its values have."""
    names = [node.output[0] for node in proto.graph.node]
    wide = onnx.ModelProto.FromString(proto.SerializeToString())
    wide.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n != "y")
    seen = dict(zip(names, onnxruntime.InferenceSession(wide.SerializeToString()).run(names, inputs), strict=True))
    nodes, numbers, kind = [], {}, np.int8 if bits == 8 else np.int16
    for node in proto.graph.node:
        out = node.output[0]
        step = np.abs(seen[out]).max() / np.iinfo(kind).max
        numbers |= {f"{out}_step": np.float32(step), f"{out}_zero": kind(0)}
        more = [f"{out}_step", f"{out}_zero"]
        nodes += [
            helper.make_node(
                node.op_type, node.input, [f"{out}_f"],
                **{a.name: helper.get_attribute_value(a) for a in node.attribute},
            ),
            helper.make_node("QuantizeLinear", [f"{out}_f", *more], [f"{out}_q"]),
            helper.make_node("DequantizeLinear", [f"{out}_q", *more], [out]),
        ]  # fmt: skip
    return model(nodes, [*proto.graph.initializer, *constants(**numbers)], opset=21)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("optimized", [False, True])
def test_integers_inside_a_norm_introduce_nothing(tmp_path, bits, optimized):
    a = chain(fused=False, opset=21)
    inputs = seeded_inputs(ln.inspect(save(tmp_path, a)).model)
    found = compared(tmp_path, a, rounded_each(a, inputs, bits), (optimized, optimized))
    assert "introduces" not in {o.status for o in found}, found
    assert max(o.error for o in found) > 1e-5


def gamma_reversed():
    wrong = chain(fused=False, opset=21)
    weight = next(t for t in wrong.graph.initializer if t.name == "n1.weight")
    weight.raw_data = np.frombuffer(weight.raw_data, np.float32)[::-1].tobytes()
    return wrong


@pytest.mark.parametrize(
    ("bits", "wrong"),
    [(8, gamma_reversed), (16, gamma_reversed), (16, lambda: chain(eps=0.01, fused=False, opset=21))],
    ids=["8 gamma", "16 gamma", "16 epsilon"],
)
def test_a_fault_among_integers_inside_a_norm_is_found(tmp_path, bits, wrong):
    a = chain(fused=False, opset=21)
    inputs = seeded_inputs(ln.inspect(save(tmp_path, a)).model)
    found = compared(tmp_path, a, rounded_each(wrong(), inputs, bits))
    assert [o.status == "introduces" for o in found] == [False, True, False]


def test_a_fault_among_eight_bits_is_found(tmp_path):
    found = compared(tmp_path, chain(), quantized(wrong=True))
    assert [o.status for o in found] == ["propagates", "introduces", "propagates"]
