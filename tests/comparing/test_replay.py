# SPDX-License-Identifier: MIT
"""This file replays records of every kind, and holds honest implementations to the bound and dishonest ones not."""

from dataclasses import replace

import numpy as np
import pytest
from norm_taps import BETA, GAMMA, LAYER, Pair, layer, record, rows, tensor

from layernorm.comparing.divergence import Tap, replayed
from layernorm.comparing.replay import replay
from layernorm.spec.norm_spec import UNKNOWN, NormSpec


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
