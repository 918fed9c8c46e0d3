# SPDX-License-Identifier: MIT
"""This file runs the CPU kernels where something is missing: no cache folder, no OpenMP, no half conversions."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import layernorm as ln
from layernorm import functional

CALL = """
import concurrent.futures
import numpy as np, layernorm as ln
work = [np.random.default_rng(i).standard_normal((700, 128)).astype(np.float32) for i in range(8)]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda x: [ln.layer_norm(x) for _ in range(20)][-1], work))
from layernorm.ops.backends import cpu
print(cpu._layer, *(f"{y.sum(dtype=np.float64):.17g}" for y in found))
"""


def sums():
    work = [np.random.default_rng(i).standard_normal((700, 128)).astype(np.float32) for i in range(8)]
    return [f"{ln.layer_norm(x).sum(dtype=np.float64):.17g}" for x in work]


def run(code, python_path=None, **environment):
    base = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    path = {} if python_path is None else {"PYTHONPATH": str(python_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=base | environment | path, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_without_openmp_eight_threads_take_turns():
    layer, *found = run(CALL, NUMBA_THREADING_LAYER="workqueue")
    assert layer == "workqueue"
    assert found == sums()


def test_without_any_threading_layer_the_serial_kernels_run():
    # tbb is asked for and not installed, so Numba finds no layer at all
    pytest.importorskip("numba")
    if _has_tbb():
        pytest.skip("tbb is installed here")
    layer, *found = run(CALL, NUMBA_THREADING_LAYER="tbb")
    assert layer == "absent"
    assert found == sums()


def _has_tbb():
    probe = "from numba.np.ufunc import tbbpool"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def test_where_nothing_can_be_written_kernels_are_compiled_in_memory(tmp_path):
    package = tmp_path / "site" / "layernorm"
    shutil.copytree(Path(ln.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package / "ops" / "backends",):
        (folder / "__pycache__").write_text("a file where a folder is wanted; permissions do not stop root")
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    code = """
import layernorm as ln
from layernorm import functional
from layernorm.ops.backends import cpu_kernels
where = cpu_kernels.forward_serial["layer_float64"].stats.cache_path
print(ln.__file__, where, *ln.layer_norm([2.0, 4.0, 6.0, 8.0]).round(3))
"""
    where, cache, *found = run(code, package.parent, HOME=str(nowhere), XDG_CACHE_HOME=str(nowhere))
    assert where.startswith(str(tmp_path))
    assert cache == "None"
    assert found == ["-1.342", "-0.447", "0.447", "1.342"]


def test_a_read_only_package_falls_back_to_the_users_cache(tmp_path):
    package = tmp_path / "site" / "layernorm"
    shutil.copytree(Path(ln.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "ops" / "backends" / "__pycache__").write_text("a file where a folder is wanted")
    code = "import layernorm as ln; print(*ln.layer_norm([2.0, 4.0, 6.0, 8.0]).round(3))"
    found = run(code, package.parent, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert found == ["-1.342", "-0.447", "0.447", "1.342"]
    assert list((tmp_path / "cache").rglob("*.nbc"))


def test_without_half_conversions_numpy_makes_them(monkeypatch):
    from layernorm.ops.backends import lanes

    random = np.random.default_rng(0)
    x, dy = (random.standard_normal((64, 100)).astype(np.float16) for _ in range(2))
    y, stats = ln.layer_norm(x, return_stats=True)
    gradients = ln.layer_norm_backward(dy, x, stats)
    monkeypatch.setattr(lanes, "HALF_IN_HARDWARE", False)
    functional._prepared.cache_clear()  # what was prepared knows of the conversions
    assert functional._call("std", 1e-5, -1, None, x).direct is None
    other, other_stats = ln.layer_norm(x, return_stats=True)
    np.testing.assert_array_equal(other, y)
    for a, b in zip(ln.layer_norm_backward(dy, x, other_stats), gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    functional._prepared.cache_clear()


INTERRUPTED = """
import signal, time, numpy as np, layernorm as ln
ln.set_num_threads(2)
x, found = np.arange(2048.0 * 768, dtype=np.float32).reshape(2048, 768), []
signal.signal(signal.SIGALRM, lambda *_: found.append(ln.layer_norm(x)))
signal.setitimer(signal.ITIMER_REAL, {seconds})
y = ln.layer_norm(x)
while not found:
    time.sleep(0.01)
print(np.array_equal(y, found[0]))
"""


# a first call compiles for about four seconds: these fall in different parts of it
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such signals on this system")
@pytest.mark.parametrize("seconds", [0.5, 0.9, 1.7])
def test_a_call_from_a_signal_while_kernels_are_compiled_gives_the_same(tmp_path, seconds):
    assert run(INTERRUPTED.format(seconds=seconds), NUMBA_CACHE_DIR=str(tmp_path)) == ["True"]


BITS = """
import zlib, numpy as np, layernorm as ln, ml_dtypes
for dtype in (np.float32, np.float64, ml_dtypes.bfloat16, np.float16):
    for d in (7, 128, 1003):
        random = np.random.default_rng(d)
        x, dy = ((random.standard_normal((37, d)) + k).astype(dtype) for k in (300, 0))
        gamma, beta = (random.standard_normal(d).astype(np.float32) for _ in range(2))
        y, stats = ln.layer_norm(x, gamma, beta, return_stats=True)
        arrays = y, *stats, *ln.layer_norm_backward(dy, x, stats, gamma), ln.rms_norm(x, gamma)
        print(*(zlib.crc32(np.ascontiguousarray(a).view(np.uint8)) for a in arrays))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the plainest processor is named for x86-64")
def test_bits_do_not_depend_on_the_vectors_of_the_processor(tmp_path):
    plain = run(BITS, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(tmp_path))
    assert plain == run(BITS)


@pytest.mark.parametrize("step", [1, 3, 8])
def test_every_float16_and_bfloat16_is_converted_as_ieee_says(step):
    from layernorm.ops.backends import lanes

    load, load_first, number = lanes.load, lanes.load_first, lanes.number
    store, store_first, put_number = lanes.store, lanes.store_first, lanes.put_number

    @numba.njit
    def convert(numbers, like, to, like_to, n):
        """Convert one number at a time, three lanes, or eight."""
        for j in range(0, n, step):
            at, at_to = numbers + j * lanes.size_of(like), to + j * lanes.size_of(like_to)
            if step == 1:
                put_number(at_to, number(at, like), like_to)
            elif step == 8:
                store(at_to, load(at, like), like_to, False)
            else:
                store_first(at_to, step, load_first(at, step, like), like_to)

    def converted(numbers, kind):
        padded = np.resize(numbers, (numbers.size + 23) // 24 * 24)
        to = np.zeros(padded.size, kind)
        convert(padded.ctypes.data, padded.dtype.type(0), to.ctypes.data, to.dtype.type(0), to.size)
        return to[: numbers.size]

    for name, kind in (("float16", np.uint16), ("bfloat16", np.int16)):
        patterns = np.arange(65536, dtype=np.uint16).view(kind)
        wide = converted(patterns, np.float32)
        np.testing.assert_array_equal(wide, patterns.view(name).astype(np.float32))
        # between neighbours: just below, at, and just above the middle, and the values themselves
        finite = wide[np.isfinite(wide)]
        with np.errstate(over="ignore"):
            middle = (finite.astype(np.float64) + np.nextafter(finite.astype(name), np.array(np.inf, name)).astype(
                np.float64)) / 2  # fmt: skip
            tests = np.concatenate([middle, finite]).astype(np.float32)
            tests = np.concatenate([np.nextafter(tests, -np.float32(np.inf)), tests, np.nextafter(tests, np.float32(
                np.inf)), [np.nan, np.inf, -np.inf]]).astype(np.float32)  # fmt: skip
            expected = tests.astype(name)
        found = converted(tests, kind)
        np.testing.assert_array_equal(found.view(name).astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("quota", ["max 100000", "100000 100000", "150000 100000", "nonsense"])
def test_the_share_of_a_container_is_honoured(quota, monkeypatch, tmp_path):
    from layernorm.ops.backends import cpu

    file = tmp_path / "cpu.max"
    file.write_text(quota)
    monkeypatch.setattr(cpu, "CGROUP_LIMIT", str(file))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert cpu.processors() == {"max": 6, "100000": 1, "150000": 2, "nonsense": 6}[quota.split()[0]]
