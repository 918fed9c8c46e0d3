# SPDX-License-Identifier: MIT
"""This file holds the short way, on which a kernel reads the caller's arrays itself, to the long one."""

import numpy as np
import pytest

import layernorm as ln
from layernorm import functional
from layernorm.ops.backends import cpu
from layernorm.spec.errors import ArgumentError


@pytest.fixture
def runs(monkeypatch):
    """Count which way calls go."""
    counts = {"short": 0, "long": 0}
    plain = cpu._run

    def counted(serial, parallel, size, most, *arguments):
        done = plain(serial, parallel, size, most, *arguments)
        at = next(a for a in arguments[1:] if isinstance(a, int))  # forward kernels are told what to take off first
        told = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * 1).from_address(at))
        counts["short" if done and told[0] else "long" if done else "refused"] = (
            counts.get("short" if done and told[0] else "long" if done else "refused", 0) + 1
        )
        return done

    monkeypatch.setattr(cpu, "_run", counted)
    return counts


def arrays(dtype="float32", shape=(5, 3, 48)):
    random = np.random.default_rng(3)
    x = random.standard_normal(shape).astype(dtype)
    gamma, beta = (random.standard_normal(shape[-1]).astype(np.float32) for _ in range(2))
    return x, gamma, beta


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_contiguous_arrays_go_the_short_way_and_give_the_same_bits(dtype, runs):
    import ml_dtypes  # noqa: F401

    x, gamma, beta = arrays(dtype)
    y, stats = ln.layer_norm(x, gamma, beta, return_stats=True)
    assert runs == {"short": 1, "long": 0}
    spread = np.zeros((5, 3, 96), x.dtype)[:, :, ::2]
    spread[...] = x
    other, other_stats = ln.layer_norm(spread, gamma, beta, return_stats=True)
    assert runs["long"] == 1
    np.testing.assert_array_equal(y.view(np.uint8), other.view(np.uint8))
    for a, b in zip(stats, other_stats, strict=True):
        np.testing.assert_array_equal(a, b)
    dy = x[::-1].copy()
    found, again = (ln.layer_norm_backward(dy, each, stats, gamma) for each in (x, spread))
    assert runs["short"] == 2
    for a, b in zip(found, again, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_what_the_kernel_cannot_read_is_laid_out(runs):
    x, gamma, beta = arrays()
    expected = ln.layer_norm(x, gamma, beta)

    class Own(np.ndarray):
        pass

    shared = np.zeros(x.size + 1, np.float32)
    overlapping = shared[:-1].reshape(x.shape)
    overlapping[...] = x
    cases = {
        "a subclass": (x, gamma.view(Own), beta, None),
        "a list": (x, list(map(float, gamma)), beta, None),
        "float64 parameters": (x, gamma.astype(np.float64), beta, None),
        "a gamma with x's axes": (x, gamma.reshape(1, 1, -1), beta, None),
        "an output that overlaps x": (overlapping, gamma, beta, shared[1:].reshape(x.shape)),
    }
    for name, (given, scale, shift, out) in cases.items():
        before = runs["long"]
        y = ln.layer_norm(given, scale, shift, out=out)
        assert runs["long"] == before + 1, name
        np.testing.assert_array_equal(y, expected, err_msg=name)


def test_an_output_may_be_x_and_may_stand_beside_the_parameters(runs):
    x, gamma, beta = arrays()
    expected = ln.layer_norm(x, gamma, beta)
    room = np.zeros(x.size + 2 * gamma.size, np.float32)
    beside, scale, shift = room[: x.size].reshape(x.shape), room[x.size : x.size + 48], room[-48:]
    scale[...], shift[...] = gamma, beta
    assert ln.layer_norm(x, scale, shift, out=beside) is beside
    np.testing.assert_array_equal(beside, expected)
    own = x.copy()
    ln.layer_norm(own, gamma, beta, out=own)
    np.testing.assert_array_equal(own, expected)
    assert runs["long"] == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gamma": np.ones(47, np.float32)}, "gamma has shape"),
        ({"beta": np.ones((48, 1), np.float32)}, "beta has shape"),
        ({"out": np.empty((5, 3, 47), np.float32)}, "out has shape"),
        ({"out": np.empty((15, 48), np.float32)}, "out has shape"),
        ({"out": np.empty((5, 3, 48), np.float64)}, "out has type"),
        ({"out": [0.0]}, "out is a list"),
    ],
)
def test_wrong_arrays_are_refused_as_on_the_long_way(change, sentence, runs):
    x, gamma, beta = arrays()
    given = {"gamma": gamma, "beta": beta} | change
    with pytest.raises(ArgumentError, match=sentence):
        ln.layer_norm(x, **given)
    assert runs["short"] == runs["long"] == 0


def test_what_the_spec_has_not_is_refused_and_not_passed_over(runs):
    x, gamma, beta = arrays()
    mean = np.zeros((5, 3), np.float32)
    with pytest.raises(ArgumentError, match="for stored statistics"):
        ln.normalize(x, ln.NormSpec(scale_axes=(-1,), shift_axes=(-1,)), gamma, beta, mean=mean, var=mean + 1)
    for bare, given in (({"scale_axes": None}, {"gamma": gamma}), ({"shift_axes": None}, {"beta": beta})):
        spec = ln.NormSpec(**({"scale_axes": (-1,), "shift_axes": (-1,)} | bare))
        with pytest.raises(ArgumentError, match="but the spec has none"):
            ln.normalize(x, spec, **given)
    assert runs["short"] == runs["long"] == 0


def test_a_read_only_output_is_refused():
    x, gamma, beta = arrays()
    out = np.empty_like(x)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="out is read-only"):
        ln.layer_norm(x, gamma, beta, out=out)


def test_statistics_of_another_shape_are_refused():
    x, gamma, beta = arrays()
    _, stats = ln.layer_norm(x, gamma, beta, return_stats=True)
    with pytest.raises(ArgumentError, match="statistics of shape"):
        ln.layer_norm_backward(x, x, ln.Stats(*(s.reshape(15, 1) for s in stats)), gamma)


def test_what_was_prepared_is_found_again_and_types_are_kept_apart():
    x, *_ = arrays()
    functional._prepared.cache_clear()
    for axis in (-1, [-1], (-1,), np.int64(-1)):
        ln.layer_norm(x, axis=axis)
    assert functional._prepared.cache_info().currsize == 3  # a list cannot be looked up
    ln.layer_norm(x, eps=1)
    with pytest.raises(ArgumentError, match="eps=True is not a number"):
        ln.layer_norm(x, eps=True)
    with pytest.raises(ArgumentError, match=r"axis=\[\] names no axis"):
        ln.layer_norm(x, axis=[])


def test_an_array_object_of_another_kind_turns_the_kernels_off(monkeypatch):
    monkeypatch.setattr(cpu, "_KNOWN", False)
    refusal = cpu.refuses(ln.NormSpec(), "float32")
    assert refusal is not None
    assert refusal.endswith("keeps its arrays in a way that is unknown here")
    monkeypatch.undo()
    assert cpu._array_objects_are_known()
    monkeypatch.setattr(cpu.objects, "DATA", cpu.objects.DATA + 8)
    assert not cpu._array_objects_are_known()
