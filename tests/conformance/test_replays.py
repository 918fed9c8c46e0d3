# SPDX-License-Identifier: MIT
"""This file holds this package to the numbers of public reports, and the replays to seeing what was reported."""

import numpy as np
import pytest

from layernorm.conformance.known import known, of_function
from layernorm.conformance.replays import REPLAYS
from layernorm.spec.norm_spec import NormSpec

BY_NAME = {replay.name: replay for replay in REPLAYS}


@pytest.mark.parametrize("name", BY_NAME)
def test_this_package_does_none_of_it(name):
    replay = BY_NAME[name]
    assert replay.refuses(known("layernorm", replay.norm, replay.eps)) is None
    assert replay.still(known("layernorm", replay.norm, replay.eps)) is False
    assert np.isfinite(replay.right().hi).all()
    assert replay.link.startswith("https://github.com/")


def blunder(x, gamma=None, beta=None):
    """Everything that was ever reported, in one: moments in the array's own type, n − 1, eps gone, half the rows."""
    mean = x.mean(-1, keepdims=True)
    var = ((x * x).mean(-1, keepdims=True) - mean * mean) * x.dtype.type(x.shape[-1]) / x.dtype.type(x.shape[-1] - 1)
    y = (x - mean) / np.sqrt(var)
    return np.concatenate([y[:65536], 0 * y[65536:]])


@pytest.mark.parametrize("name", [r.name for r in REPLAYS if r.of == "y" and r.norm == "layer"])
def test_a_norm_with_every_fault_is_seen_by_every_replay(name):
    replay = BY_NAME[name]
    faulty = of_function(blunder, NormSpec(eps=replay.eps), dtypes=("float16", "bfloat16", "float32"))
    assert replay.still(faulty) is True


def inflating(x, gamma=None, beta=None):
    peak = np.abs(x).max()
    return x / (peak * np.sqrt(((x / peak) ** 2).mean(-1, keepdims=True) + x.dtype.type(1e-5)))


def rounding_first(x, gamma=None, beta=None):
    wide = x.astype(np.float64)
    xhat = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return (xhat.astype(x.dtype) * gamma).astype(x.dtype)


@pytest.mark.parametrize(
    ("name", "fault", "seen"),
    [("apple/coremltools#2821", inflating, 62.61), ("huggingface/transformers#29402", rounding_first, None)],
)
def test_an_rms_norm_with_the_fault_is_seen(name, fault, seen):
    replay = BY_NAME[name]
    spec = NormSpec(centered=False, spread="rms", eps=replay.eps)
    assert replay.still(of_function(fault, spec, dtypes=("float16", "float32"))) is True
    if seen is not None:
        assert fault(replay.x()).max() == pytest.approx(seen, abs=0.005)
        assert replay.right().hi.max() == pytest.approx(63.86, abs=0.005)


def test_rounding_before_gamma_changes_as_many_elements_as_was_reported():
    replay = BY_NAME["huggingface/transformers#29402"]
    right = replay.right().to_float().astype(np.float16)
    assert np.mean(rounding_first(replay.x(), replay.gamma()) != right) == pytest.approx(0.27, abs=0.03)


def test_what_cannot_be_asked_is_none():
    half = BY_NAME["pytorch/pytorch#41527"]
    assert half.refuses(of_function(blunder, NormSpec(eps=1e-12))) == "it does not take float16"
    assert half.still(of_function(blunder, NormSpec(eps=1e-12))) is None
    assert "is no layer norm with eps=1e-12" in half.refuses(known("layernorm"))
    assert BY_NAME["tracel-ai/burn#1992"].refuses(known("numpy")) == "it gives no gradients"
