# SPDX-License-Identifier: MIT
"""This file explains norms whose runtime does something else than their file says."""

import numpy as np
import pytest

from layernorm.comparing.compared import Compared, Side
from layernorm.comparing.divergence import Tap, outcomes
from layernorm.comparing.explaining import explained
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.norm_record import Found, NormRecord
from layernorm.spec.norm_spec import NormSpec

LAYER = NormSpec(scale_axes=(-1,), shift_axes=(-1,), eps=1e-12, stats_dtype="float32")
RANDOM = np.random.default_rng(5)
GAMMA, BETA = RANDOM.normal(1, 0.3, 24), RANDOM.normal(0, 0.5, 24)
OTHER = RANDOM.normal(1, 0.3, 24)


def tensor(name, values):
    held = values.astype(np.float32)
    return Tensor(name, held.shape, "float32", lambda: held)


def side(name):
    norms = [
        NormRecord(f"norm{k}", f"node[{k}]", "fused", LAYER, {}, "float32", 24, scale=tensor("g", gamma),
                   shift=tensor("b", BETA))
        for k, gamma in enumerate((GAMMA, OTHER))
    ]  # fmt: skip
    return Side(ModelFile(f"{name}.onnx", "onnx", {}), Found(norms, [], []))


def layer(x, gamma=GAMMA, beta=BETA, eps=1e-12, ddof=0, axis=-1):
    """Write the formula out by hand, in float64."""
    d = x - x.mean(axis, keepdims=True)
    return gamma * d / np.sqrt((d**2).sum(axis, keepdims=True) / (d.shape[-1] - ddof) + eps) + beta


def ran(does, x):
    """Run two models of the same file, of which B's first norm does something else."""
    compared = Compared(side("a"), side("b"))
    first = x.astype(np.float32)
    wide = first.astype(np.float64)
    gamma, beta = GAMMA.astype(np.float32).astype(float), BETA.astype(np.float32).astype(float)
    other = OTHER.astype(np.float32).astype(float)
    a = {"norm0": Tap(first, layer(wide, gamma, beta).astype(np.float32))}
    b = {"norm0": Tap(first, does(wide, gamma, beta, other).astype(np.float32))}
    for taps in (a, b):
        taps["norm1"] = Tap(first, layer(wide, other, beta).astype(np.float32))
    found = outcomes(compared.pairing.pairs, a, b)
    return found, list(explained(compared, found, {"a": a, "b": b}))


X = 0.01 * RANDOM.normal(0, 1, (6, 5, 24)) + 0.003

DOES = {
    "c01_another_epsilon": (lambda x, g, b, o: layer(x, g, b, 1e-5), "eps-value", "epsilon 1e-05"),
    "c83_a_sample_variance": (lambda x, g, b, o: layer(x, g, b, ddof=1), "ddof", "n − 1"),
    "c36_other_axes": (
        lambda x, g, b, o: g * (x - x.mean((1, 2), keepdims=True)) / x.std((1, 2), keepdims=True) + b,
        "axes", "axes (-2, -1)",
    ),
    "an_rms_norm": (lambda x, g, b, o: g * x / np.sqrt((x**2).mean(-1, keepdims=True)) + b, "kind", "an RMS norm"),
    "c60_the_one_twice": (lambda x, g, b, o: layer(x, 1 + g, b), "gamma-offset", "1 + gamma"),
    "c112_beta_left_out": (lambda x, g, b, o: layer(x, g, 0), "beta-missing", "no beta"),
    "c73_a_neighbours_gamma": (lambda x, g, b, o: layer(x, o, b), "parameter-swapped", "norm1"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOES)
def test_what_a_runtime_does_instead_is_named(name):
    does, code, words = DOES[name]
    found, said = ran(does, X)
    assert [outcome.status for outcome in found] == ["introduces", "equal"]
    (finding,) = said
    assert (finding.code, finding.severity, finding.a, finding.b) == (code, "major", "norm0", "norm0")
    assert words in finding.sentence
    assert finding.numbers["residual"] <= 1 < finding.numbers["as the file says"]


def test_a_norm_that_does_what_its_file_says_needs_no_explanation():
    found, said = ran(lambda x, g, b, o: layer(x, g, b), X)
    assert [outcome.status for outcome in found] == ["equal", "equal"]
    assert said == []


def test_what_nothing_explains_is_not_explained():
    found, said = ran(lambda x, g, b, o: layer(x, g, b) + 0.1 * RANDOM.standard_normal(x.shape), X)
    assert found[0].status == "introduces"
    assert said == []


def test_a_tap_that_is_of_no_number_here_is_passed_over():
    compared = Compared(side("a"), side("b"))
    tap = Tap(X.astype(np.float32), X.astype(np.int8))
    found, _ = ran(DOES["an_rms_norm"][0], X)
    assert list(explained(compared, found, {"a": {"norm0": tap}, "b": {"norm0": tap}})) == []
