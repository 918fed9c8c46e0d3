# SPDX-License-Identifier: MIT
"""This file holds large results to NumPy's promises, whatever pages they are given."""

import gc
import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import layernorm as ln
from layernorm.ops import memory

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="NumPy allocates where there is no MADV_FREE")


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch):
    """Begin and end each test with no pages kept."""
    gc.collect()
    monkeypatch.setattr(memory, "_waiting", {})


def start(array):
    return array.__array_interface__["data"][0]


def waiting():
    return sum(size * len(blocks) for size, blocks in memory._waiting.items())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_a_large_array_is_like_one_of_numpy(dtype):
    dtype = np.dtype(dtype)
    array = memory.empty((3, memory.LARGE // dtype.itemsize + 1), dtype)
    assert array.shape == (3, memory.LARGE // dtype.itemsize + 1)
    assert array.dtype == dtype
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    array[...] = 1
    assert (array == 1).all()


def test_pages_come_back_when_the_last_view_is_gone_and_not_before():
    array = memory.empty((memory.LARGE,), np.dtype(np.uint8))
    at, view = start(array), array[5:].reshape(-1, 1)[::2]
    del array
    gc.collect()
    assert waiting() == 0
    other = memory.empty((memory.LARGE,), np.dtype(np.uint8))
    assert start(other) != at
    del view
    gc.collect()
    assert waiting() > 0
    assert start(memory.empty((memory.LARGE,), np.dtype(np.uint8))) == at


def test_results_that_are_held_keep_their_values():
    x = np.random.default_rng(0).standard_normal((2**14, 600)).astype(np.float32)
    results = [ln.layer_norm(x * k) for k in (1, 2, 3)]
    first = results[0].copy()
    del results[1]
    gc.collect()
    again = ln.layer_norm(x)
    np.testing.assert_array_equal(results[0], first)
    np.testing.assert_array_equal(again, first)
    assert len({start(r) for r in (*results, again)}) == 3


def test_a_small_array_is_numpys_own():
    assert memory.empty((memory.LARGE - 1,), np.dtype(np.uint8)).flags.owndata


def test_no_more_than_a_bound_waits(monkeypatch):
    monkeypatch.setattr(memory, "KEPT", 3 * memory.LARGE)
    arrays = [memory.empty((memory.LARGE + k * 2**22,), np.dtype(np.uint8)) for k in range(5)]
    arrays.append(memory.empty((4 * memory.LARGE,), np.dtype(np.uint8)))
    while arrays:
        arrays.pop()
        gc.collect()
        assert waiting() <= memory.KEPT
    assert waiting() > 0


def test_what_cannot_be_had_is_numpys_error():
    with pytest.raises(MemoryError, match="Unable to allocate"):
        memory.empty((2**60,), np.dtype(np.uint8))


def test_a_system_that_refuses_advice_is_not_asked_to_keep_pages(monkeypatch, capfd):
    class Refusing(mmap.mmap):
        def madvise(self, *advice):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(memory.mmap, "mmap", Refusing)
    y = ln.layer_norm(np.ones((2**14, 600), np.float32))
    assert (y == 0).all()
    del y
    gc.collect()
    assert waiting() == 0
    assert capfd.readouterr().err == ""


def test_pages_that_wait_are_given_up_before_memory_is_said_to_lack(monkeypatch):
    memory.empty((memory.LARGE,), np.dtype(np.uint8))
    gc.collect()
    assert waiting() > 0
    plain = mmap.mmap

    def full(*arguments, **options):
        if waiting():
            raise OSError(12, "Cannot allocate memory")
        return plain(*arguments, **options)

    monkeypatch.setattr(memory.mmap, "mmap", full)
    assert not memory.empty((2 * memory.LARGE,), np.dtype(np.uint8)).flags.owndata


def test_threads_are_lent_different_pages():
    def held(k):
        array = memory.empty((memory.LARGE,), np.dtype(np.uint8))
        array[::4096] = k
        assert (array[::4096] == k).all()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(held, range(40)))


def test_a_result_that_lives_until_the_end_says_nothing():
    code = "import numpy as np, layernorm as ln; y = ln.layer_norm(np.ones((4096, 2048), 'f4')); print(y.shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("(4096, 2048)\n", "")
