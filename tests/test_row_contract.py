# SPDX-License-Identifier: MIT
"""This file proves that a row is its own: its bits depend on its numbers and on nothing around them."""

import concurrent.futures
import os
import subprocess
import sys

import numpy as np
import pytest

import layernorm as ln

DTYPES = ("float16", "bfloat16", "float32", "float64")
WIDTHS = (1, 2, 7, 8, 17, 31, 64, 100, 768, 1025, 5000)
NORMS = {"layer": ln.layer_norm, "rms": ln.rms_norm}
BACKWARD = {"layer": ln.layer_norm_backward, "rms": ln.rms_norm_backward}


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(bits(a), bits(b))


@pytest.fixture
def threads():
    before = ln.get_num_threads()
    yield ln.set_num_threads
    ln.set_num_threads(before)


@pytest.fixture(params=NORMS)
def norm(request):
    return NORMS[request.param]


def rows(width, dtype, count=37):
    random = np.random.default_rng(width)
    return (3 + random.standard_normal((count, width)) * 10.0 ** random.integers(-3, 3, (count, 1))).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_alone_or_in_a_batch_and_in_any_order(norm, width, dtype):
    x = rows(width, dtype)
    y = norm(x)
    alone = np.concatenate([norm(row[None]) for row in x])
    order = np.random.default_rng(0).permutation(len(x))
    assert same_bits(y, alone)
    assert same_bits(y[order], norm(x[order]))
    assert same_bits(y[5:9], norm(x[5:9]))
    assert same_bits(y[0], norm(x[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(norm, dtype, bad):
    x = rows(100, dtype)
    y = norm(x)
    spoilt = x.copy()
    spoilt[::3, 50] = bad
    found = norm(spoilt)
    kept = np.arange(len(x)) % 3 != 0
    assert same_bits(found[kept], y[kept])
    assert np.isnan(found[::3].astype(np.float64)).any(axis=1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_any_number_of_threads(norm, width, dtype, threads):
    x = np.tile(rows(width, dtype), (2 + 40_000 // (37 * width), 1))
    gamma = np.linspace(-1, 2, width).astype(np.float32)
    found = []
    for number in (1, 2, 3, 8):
        threads(number)
        found.append(norm(x, gamma, beta=gamma))
    assert all(same_bits(found[0], other) for other in found[1:])


def laid_out(x):
    """The same numbers in other places in memory."""
    count, width = x.shape
    spaced = np.zeros((count, 2 * width + 3), x.dtype)[:, 1 : 2 * width + 1 : 2]
    cut = np.zeros((count, width + 5), x.dtype)[:, 2 : width + 2]
    backwards = np.zeros((count, width), x.dtype)[::-1, ::-1]
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)  # not aligned
    broad = np.zeros((3, width, count), x.dtype)[1].T
    for place in (spaced, cut, backwards, shifted, broad, np.zeros_like(x, order="F")):
        place[...] = x
        yield place
    if x.dtype.name != "bfloat16":  # ml_dtypes knows only the native order
        yield x.astype(x.dtype.newbyteorder(">"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_any_memory_layout(norm, width, dtype):
    x = rows(width, dtype)
    y = norm(x)
    for place in laid_out(x):
        assert same_bits(y, norm(place))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_out_of_any_layout_and_x_itself(norm, width, dtype):
    x = rows(width, dtype)
    y = norm(x)
    for place in laid_out(x):
        assert norm(x, out=place) is place
        assert same_bits(y, place.astype(x.dtype))
    for place in laid_out(x):
        assert norm(place, out=place) is place
        assert same_bits(y, place.astype(x.dtype))


def test_out_that_overlaps_x_gives_the_result_as_if_it_did_not(norm):
    for shift in (-900, -1, 1, 3, 100, 900):
        memory = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
        x, out = memory[1000:3000].reshape(20, 100), memory[1000 + shift : 3000 + shift].reshape(20, 100)
        y = norm(x.copy())
        outside = np.ones(4000, bool)
        outside[1000 + shift : 3000 + shift] = False
        before = memory[outside].copy()
        norm(x, out=out)
        assert same_bits(y, out)
        assert same_bits(before, memory[outside])


def test_out_that_overlaps_gamma_gives_the_result_as_if_it_did_not(norm):
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    gamma = np.linspace(1, 2, 64).astype(np.float32)
    y = norm(x, gamma.copy(), beta=gamma.copy())
    norm(x, gamma, beta=gamma, out=gamma[None])
    assert same_bits(y[0], gamma)


@pytest.mark.parametrize("shape", [(4, 6, 8), (2, 3, 4, 5)])
@pytest.mark.parametrize("axis", [-1, 0, 1, (0, 1), (-1, 0), (1, 2), None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_axis_is_the_last_axis_moved(norm, shape, axis, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    axes = sorted(a % x.ndim for a in (range(x.ndim) if axis is None else np.atleast_1d(axis)))
    gamma = np.random.default_rng(1).standard_normal([shape[a] for a in axes]).astype(np.float32)
    moved = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    flat = moved.reshape(*moved.shape[: x.ndim - len(axes)], -1)
    expected = np.moveaxis(norm(flat, gamma.ravel()).reshape(moved.shape), range(x.ndim - len(axes), x.ndim), axes)
    assert same_bits(norm(x, gamma, axis=axis), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 5, 32, 33, 1000])
@pytest.mark.parametrize("kind", NORMS)
def test_gradients_have_the_same_bits_on_any_number_of_threads(kind, count, dtype, threads):
    x = rows(96, dtype, count)
    dy = rows(96, dtype, count)[::-1]
    gamma = np.linspace(-1, 2, 96)  # float64, so that its gradient shows the last bit of the sums
    _, stats = NORMS[kind](x, gamma, return_stats=True)
    found = []
    for number in (1, 2, 3, 7):
        threads(number)
        found.append(BACKWARD[kind](dy, x, stats, gamma))
    for other in found[1:]:
        assert all(same_bits(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1024, 1001])
@pytest.mark.parametrize("kind", NORMS)
def test_results_written_past_the_caches_have_the_same_bits(kind, width, dtype):
    from layernorm.ops.backends import cpu

    some, slope = rows(width, dtype), rows(width, dtype)[::-1].copy()
    count = cpu.PAST_CACHES_BYTES // (width * some.itemsize) + 5
    y, stats = NORMS[kind](some, return_stats=True)
    dx = BACKWARD[kind](slope, some, stats)[0]
    x, dy = np.resize(some, (count, width)), np.resize(slope, (count, width))
    found, saved = NORMS[kind](x, return_stats=True)
    assert same_bits(found, np.resize(y, x.shape))
    assert same_bits(BACKWARD[kind](dy, x, saved)[0], np.resize(dx, x.shape))
    shifted = np.empty(count * width + 1, x.dtype)[1:].reshape(x.shape)  # where no whole line can be written at once
    NORMS[kind](x, out=shifted)
    assert same_bits(shifted, found)
    NORMS[kind](x, out=x)
    assert same_bits(x, found)


def test_a_row_whose_parameters_need_float64_changes_no_other(norm):
    x = np.random.default_rng(0).standard_normal((3, 3, 64)).astype(np.float32)
    gamma = np.random.default_rng(1).standard_normal((3, 1, 64))
    y = norm(x, gamma)
    for size in (1e-41, 1e300):
        spoilt = gamma.copy()
        spoilt[1] *= size
        assert same_bits(norm(x, spoilt)[[0, 2]], y[[0, 2]])


def test_eight_threads_at_once_get_their_own_results(norm):
    work = [np.random.default_rng(i).standard_normal((300 + i, 256)).astype(np.float32) for i in range(8)]
    expected = [norm(x) for x in work]

    def call(i):
        return all(same_bits(norm(work[i]), expected[i]) for _ in range(40))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))


FORK = """
import os, sys, numpy as np, layernorm as ln
from layernorm.ops.backends import cpu
norm = getattr(ln, sys.argv[1])
ln.set_num_threads(2)
x = np.random.default_rng(0).standard_normal((4096, 256)).astype(np.float32)
y = norm(x)
print(cpu._layer is not None)
sys.stdout.flush()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(norm(x), y) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_a_forked_child_works_after_a_parallel_call(name):
    # in a process of its own: frameworks that other tests loaded into this one forbid forking it
    done = subprocess.run([sys.executable, "-c", FORK, name], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0"]
