# SPDX-License-Identifier: MIT
"""This file runs layer and RMS norms on the CPU: it says what the kernels can do, and hands them rows and threads."""

import math
import os
import threading
from typing import Any

import numba
import numpy as np

from layernorm.ops.backends import cpu_kernels as kernels
from layernorm.ops.layout import Array, Parameter
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.norm_spec import NormSpec

NAME = "cpu"

# dγ and dβ are sums over rows, cut in this many pieces whatever the number of threads: same bits always.
PIECES = 32
# Very wide rows are cut in fewer pieces, for each is a row of float64: 32 of a million columns took 1 GB.
PARTIAL_COLUMNS = 2**21
# Below this many bytes of x a second thread costs more than it saves.
PARALLEL_BYTES = 65536
CGROUP_LIMIT = "/sys/fs/cgroup/cpu.max"

_forked = False
_lock = threading.Lock()
# Known once the first parallel call has loaded it; "workqueue" aborts the process when two threads call at once.
_layer: str | None = None


def _after_fork() -> None:
    global _forked
    _forked = True  # GNU OpenMP kills a forked child at its first parallel region


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def refuses(spec: NormSpec, dtype: str) -> str | None:
    """Say why this backend cannot run a spec, in a few words; None if it can."""
    compute = DTYPES[dtype].compute
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return "NUMBA_DISABLE_JIT is set"
    if spec.statistics != "input":
        return f"statistics={spec.statistics!r} needs no reduction"
    if (spec.centered, spec.spread) not in ((True, "std"), (False, "rms"), (False, "l2")):
        return f"centered={spec.centered} with spread={spec.spread!r} is not written here"
    if spec.eps_at not in ("variance", "sum", "none"):
        return f"eps_at={spec.eps_at!r} is not written here"
    if spec.variance_by != "centered" and spec.spread == "std":
        return f"variance_by={spec.variance_by!r} asks for the error that the kernel avoids"
    if spec.round_each:
        return "round_each asks for the errors that the kernel avoids"
    if spec.stats_dtype not in ("float64", compute, *(["input"] if dtype == compute else [])):
        return f"stats_dtype={spec.stats_dtype!r} is narrower than the kernel's {compute}"
    return None


def forward(
    x: Array, spec: NormSpec, gamma: Parameter | None, beta: Parameter | None, out: Array, stats: Array | None
) -> None:
    """Normalize x: (rows, columns) into out; stats: (3, rows) of C receives m, δ and r.

    Columns of x and out are neighbours in memory; out may be x itself, and must not overlap it otherwise.
    """
    compute = np.dtype(DTYPES[x.dtype.name].compute)
    kind, narrow, x = _kind(x, same=out)
    target = np.empty(x.shape, x.dtype) if narrow else out
    scale, shift = _converted(gamma, spec.scale_offset, compute), _converted(beta, 0, compute)
    rows, columns = x.shape
    divisor, eps = _divisor(spec, columns)
    _run(
        kernels.forward_serial, kernels.forward_parallel, compute, x.nbytes if rows > 1 else 0, rows,
        *_where(x), *_where(target), kind, columns, rows, *_described(scale), *_described(shift),
        0 if stats is None else _address(stats), spec.centered, divisor, eps, bool(spec.cast_before_scale),
    )  # fmt: skip
    if narrow:
        out[...] = target


def backward(
    dy: Array, x: Array, spec: NormSpec, gamma: Parameter | None, stats: Array, dx: Array, sums: bool
) -> tuple[Array, Array] | None:
    """Write dx, and give dγ and dβ summed over all rows, each (columns,) float64, if `sums`.

    All three are (rows, columns) with columns that are neighbours in memory; dx overlaps neither of the others.
    """
    compute = np.dtype(DTYPES[x.dtype.name].compute)
    kind, narrow, x = _kind(x, same=None)
    dy = dy.astype(x.dtype, copy=False)
    target = np.empty(x.shape, x.dtype) if narrow else dx
    scale = _converted(gamma, spec.scale_offset, compute)
    rows, columns = x.shape
    divisor, _ = _divisor(spec, columns)
    pieces = min(rows, PIECES, max(4, PARTIAL_COLUMNS // columns))
    partial = np.zeros((pieces if sums else 0, 2 if compute.itemsize == 4 else 4, columns))
    _run(
        kernels.backward_serial, kernels.backward_parallel, compute, x.nbytes if rows > 1 else 0, pieces,
        *_where(dy), *_where(x), *_where(target), kind, columns, rows, *_described(scale), _address(stats),
        _address(partial) if sums else 0, pieces, spec.centered, divisor,
    )  # fmt: skip
    if narrow:
        dx[...] = target
    if not sums:
        return None
    dgamma, dbeta = kernels.add_pieces(partial)
    return dgamma, dbeta


def threads_for(size_in_bytes: int) -> int:
    """Say how many threads an array of this size is given."""
    return 1 if _forked or size_in_bytes < PARALLEL_BYTES else get_num_threads()


_threads: int | None = None


def get_num_threads() -> int:
    """Give the number of threads that kernels may use; by default what the affinity and the cgroup allow."""
    return _threads if _threads is not None else _allowed_threads()


def set_num_threads(threads: int) -> None:
    """Set the number of threads that kernels may use."""
    global _threads
    _threads = threads


def _allowed_threads() -> int:
    global _threads
    _threads = min(numba.config.NUMBA_NUM_THREADS, processors())  # type: ignore[attr-defined]
    return _threads


def processors() -> int:
    """Count the processors that this process may use: its affinity, and its container's share."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:  # a container's share, in microseconds of processor time a period
        with open(CGROUP_LIMIT) as file:  # noqa: PTH123 - pathlib costs 1 ms of import
            quota, period = file.read().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2, or "max": no limit
        return count


def _run(serial: Any, parallel: Any, compute: Any, size: int, most: int, *arguments: Any) -> None:
    global _layer
    threads = min(threads_for(size), most)
    zero = compute.type(0)
    if threads < 2 or _layer == "absent":
        serial(zero, *arguments, 1)
    elif _layer is None or _layer == "workqueue":
        with _lock:
            try:
                parallel(zero, *arguments, threads)
                _layer = numba.threading_layer()  # type: ignore[attr-defined]
            except ValueError:  # Numba found no threading layer to load
                _layer = "absent"
                serial(zero, *arguments, 1)
    else:
        parallel(zero, *arguments, threads)


def _kind(x: Array, same: Array | None) -> tuple[int, bool, Array]:
    """Say how a row is loaded, and whether NumPy must narrow the result; x may come back as float32."""
    name = x.dtype.name
    if name == "float16" and not kernels.HALF_IN_HARDWARE:
        return kernels.DIRECT, True, x.astype(np.float32)
    if name in ("float16", "bfloat16"):
        return (kernels.FLOAT16 if name == "float16" else kernels.BFLOAT16), False, x
    overwritten = same is not None and _address(same) == _address(x)
    return (kernels.TILED if overwritten else kernels.DIRECT), False, x


def _divisor(spec: NormSpec, columns: int) -> tuple[float, float]:
    """Write the denominator as √(Σ(…)² / divisor + eps)."""
    divisor = float({"std": columns - spec.ddof, "rms": columns, "l2": 1}[str(spec.spread)])  # type: ignore[operator]
    eps = 0.0 if spec.eps_at == "none" else float(spec.eps)  # type: ignore[arg-type]
    return divisor, eps / divisor if spec.eps_at == "sum" else eps


def _converted(parameter: Parameter | None, offset: Any, compute: Any) -> tuple[Array, Array | None] | None:
    if parameter is None:
        return None
    with np.errstate(over="ignore"):  # rows for which that matters are done by the reference
        values = parameter.values.astype(compute, copy=False)
    return np.ascontiguousarray(values + compute.type(offset) if offset else values), parameter.index


def _described(parameter: tuple[Array, Array | None] | None) -> tuple[int, int, int]:
    if parameter is None:
        return 0, 1, 0
    values, index = parameter
    return _address(values), len(values), 0 if index is None else _address(index)


def _where(rows: Array) -> tuple[int, int]:
    return _address(rows), rows.strides[0]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
