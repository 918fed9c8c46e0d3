# SPDX-License-Identifier: MIT
"""This file breaks a norm in one way after another, by formula, and asks which hypothesis explains what came out."""

from dataclasses import replace

import numpy as np
import pytest

from layernorm.comparing.hypotheses import Hypothesis, alternatives, tried
from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

RNG = np.random.default_rng(0)
ROWS, WIDTH = 6, 16
# rows of unlike spread and mean, so that no two hypotheses give the same
X = RNG.standard_normal((ROWS, WIDTH)) * np.geomspace(0.004, 2, ROWS)[:, None] + np.linspace(0.3, 1, ROWS)[:, None]
X = X.astype(np.float32)
GAMMA, BETA = RNG.normal(1, 0.3, (2, WIDTH)).astype(np.float32)
BETA -= 1
OTHER_GAMMA, OTHER_BETA = RNG.normal(1, 0.3, (2, WIDTH)).astype(np.float32)


def tensor(name, array):
    return None if array is None else Tensor(name, array.shape, array.dtype.name, lambda: array)


def record(name="n", gamma=GAMMA, beta=BETA, mean=None, variance=None, **spec):
    fields = {"axes": (-1,), "eps": 1e-6, "scale_axes": (-1,), "shift_axes": (-1,), "stats_dtype": UNKNOWN,
              "variance_by": UNKNOWN, "cast_before_scale": UNKNOWN, "round_each": UNKNOWN}  # fmt: skip
    return NormRecord(
        name, name, "fused", NormSpec(**(fields | spec)), {}, "float32", scale=tensor("w", gamma),
        shift=tensor("b", beta), mean=tensor("m", mean), variance=tensor("v", variance),
    )  # fmt: skip


def layer(x=X, eps=1e-6, gamma=GAMMA, beta=BETA, axes=-1, ddof=0):
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True, ddof=ddof) + eps) * gamma + beta


def rms(x=X, eps=1e-6, gamma=GAMMA, beta=BETA):
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * gamma + beta


def moments_in_float32():
    x = X.astype(np.float64)
    mean, square = (np.mean(v, -1, keepdims=True).astype(np.float32).astype(np.float64) for v in (x, x * x))
    return (x - mean) / np.sqrt(square - mean**2 + 1e-6) * GAMMA + BETA


def deviation():
    x = X.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6) * GAMMA + BETA


def in_half():
    x = X.astype(np.float16).astype(np.float64)
    mean = x.mean(-1, keepdims=True).astype(np.float16).astype(np.float64)
    square = np.mean((x - mean) ** 2, -1, keepdims=True).astype(np.float16).astype(np.float64)
    return (x - mean) / np.sqrt(square + float(np.float16(1e-6))) * GAMMA + BETA


def peak():
    x = X.astype(np.float64)
    return layer(x / np.abs(x).max(-1, keepdims=True))


FAULTS = {
    "sound": (layer, ""),
    "epsilon of another framework": (lambda: layer(eps=1e-3), "eps-value"),
    "epsilon of a neighbour": (lambda: layer(eps=3e-5), "eps-value"),
    "openvino 28996: activations divided by 8": (lambda: layer(X / 8.0), "eps-value"),
    "coremltools 2821: epsilon times the peak squared": (peak, "eps-value"),
    "no epsilon": (lambda: layer(eps=0), "eps-lost"),
    "epsilon outside the root": (deviation, "eps-place"),
    "token and feature axes together": (lambda: layer(axes=(0, 1)), "axes"),
    "an RMS norm": (rms, "kind"),
    "llm-foundry 371: multiplied by the root": (
        lambda: (X - X.astype(float).mean(-1, keepdims=True)) * np.sqrt(X.astype(float).var(-1, keepdims=True) + 1e-6)
        * GAMMA + BETA, "kind"),
    "1 + gamma": (lambda: layer(gamma=1.0 + GAMMA), "gamma-offset"),
    "gamma - 1": (lambda: layer(gamma=GAMMA - 1.0), "gamma-offset"),
    "no gamma": (lambda: layer(gamma=1.0), "gamma-missing"),
    "no beta": (lambda: layer(beta=0.0), "beta-missing"),
    "gamma and beta exchanged": (lambda: layer(gamma=BETA, beta=GAMMA), "parameter-swapped"),
    "diffusers 10198: halves exchanged": (
        lambda: layer(gamma=np.roll(GAMMA, 8), beta=np.roll(BETA, 8)), "parameter-swapped"),
    "a neighbour's parameters": (lambda: layer(gamma=OTHER_GAMMA, beta=OTHER_BETA), "parameter-swapped"),
    "sample variance": (lambda: layer(ddof=1), "ddof"),
    "moments": (moments_in_float32, "cancellation"),
    "statistics in float16": (in_half, "precision"),
    "tflite's fused activation": (lambda: np.maximum(layer(), 0), "folded"),
    "a SiLU after it": (lambda: layer() / (1 + np.exp(-layer())), "folded"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_the_first_that_fits(fault):
    broken, code = FAULTS[fault]
    y = broken().astype(np.float32)
    other = record("other", OTHER_GAMMA, OTHER_BETA, eps=3e-5)
    found = tried(X, y, alternatives(record(), record("partner"), [other]))
    fits = [t.hypothesis for t in found if t.fits]
    assert fits, [(t.hypothesis.words, t.residual) for t in found[:3]]
    assert fits[0].code == code, [(t.hypothesis.words, t.residual) for t in found[:5]]
    if code:
        assert "" not in {h.code for h in fits}
    # what else fits is the same fault in other words, or the rounding of a float32
    alike = {
        "no epsilon": {"eps-value", "eps-place"},
        "moments": {"precision"},
        "statistics in float16": {"cancellation"},
    }
    rounding = {"precision", "cancellation", "cast-order"} if code == "" else set()
    assert {h.code for h in fits} <= {code} | alike.get(fault, set()) | rounding
    assert all(h.words for h in fits)


def test_gamma_along_the_wrong_axis_of_a_square():
    x = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    y = layer(x, gamma=GAMMA[:, None]).astype(np.float32)
    fits = [t.hypothesis.code for t in tried(x, y, alternatives(record())) if t.fits]
    assert set(fits) == {"gamma-layout"}


def test_groups_dealt_the_other_way():
    x = (
        np.random.default_rng(1).standard_normal((3, 8, 5)).astype(np.float32)
        * np.arange(1, 9, dtype=np.float32)[:, None]
    )
    wide = x.astype(np.float64).reshape(3, 4, 2, 5)
    y = (wide - wide.mean((1, 3), keepdims=True)) / np.sqrt(wide.var((1, 3), keepdims=True) + 1e-6)
    own = record(gamma=None, beta=None, scale_axes=None, shift_axes=None, axes=("1:",), channel_axis=1, groups=2,
                 group_order="blocked")  # fmt: skip
    fits = [t.hypothesis.code for t in tried(x, y.reshape(x.shape).astype(np.float32), alternatives(own)) if t.fits]
    assert fits[0] == "group-order"


def test_stored_statistics_and_the_inputs_own():
    x = np.random.default_rng(1).standard_normal((4, 5, 7)).astype(np.float32)
    mean, variance = RNG.normal(0, 1, 5), RNG.uniform(0.5, 2, 5)
    own = record(gamma=None, beta=None, scale_axes=None, shift_axes=None, axes=(0, "2:"), statistics="stored",
                 mean=mean, variance=variance)  # fmt: skip
    m, v = mean[:, None], variance[:, None]
    stored = ((x - m) / np.sqrt(v + 1e-6)).astype(np.float32)
    assert tried(x, stored, alternatives(own))[0].hypothesis.code == ""
    wide = x.astype(np.float64)
    fresh = (wide - wide.mean((0, 2), keepdims=True)) / np.sqrt(wide.var((0, 2), keepdims=True) + 1e-6)
    fits = [t.hypothesis.code for t in tried(x, fresh.astype(np.float32), alternatives(own)) if t.fits]
    assert fits[0] == "statistics"


def test_a_norm_that_overflows_in_float16_is_told_by_its_infinities():
    x = np.zeros((2, 768), np.float16)
    x[:, 0] = 795
    x[:, 1:] = np.random.default_rng(0).standard_normal((2, 767)).astype(np.float16)
    own = record(gamma=None, beta=None, scale_axes=None, shift_axes=None)
    y = np.zeros_like(x)  # onnxruntime 31626: the square overflows, the quotient is 0 and what is left is beta
    found = tried(x, y, alternatives(own))
    assert found[0].fits
    assert found[0].hypothesis.spec.stats_dtype == "float16"
    assert not any(t.fits for t in found if t.hypothesis.code == "")


def test_what_cannot_be_worked_out_is_left_out():
    wrong = [Hypothesis("five axes", "axes", NormSpec(axes=(-5,))),
             Hypothesis("another width", "", NormSpec(scale_axes=(-1,)), np.ones(5))]  # fmt: skip
    assert tried(X, X, wrong) == []
    own = record()
    assert alternatives(own)[0].code == ""
    assert len({(h.code, h.words) for h in alternatives(own)}) == len(alternatives(own)) > 60


def test_unknown_fields_come_from_the_partner():
    own = record(eps=UNKNOWN, centered=UNKNOWN)
    first = alternatives(own, record(eps=1e-3))[0]
    assert (first.spec.eps, first.spec.centered, first.spec.stats_dtype) == (1e-3, True, "float64")


def test_a_hypothesis_that_rounds_is_worked_out_as_the_definition_does():
    from layernorm.functional import normalize

    spec = replace(NormSpec(), stats_dtype="bfloat16", round_each=True, scale_axes=(-1,), shift_axes=(-1,))
    y = normalize(X, spec, GAMMA, BETA, backend="reference")
    assert tried(X, y, [Hypothesis("so", "", spec, GAMMA, BETA)])[0].fits
