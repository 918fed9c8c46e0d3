# SPDX-License-Identifier: MIT
"""This file runs layer and RMS norms on the CPU: it says what the kernels can do, and hands them rows and threads."""

import ctypes
import math
import os
import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name "bfloat16"
import numba
import numpy as np

from layernorm.ops.backends import array_objects as objects
from layernorm.ops.backends import cpu_kernels as kernels
from layernorm.ops.backends import lanes
from layernorm.ops.layout import Array, Layout, Parameter
from layernorm.spec.dtypes import DTYPES
from layernorm.spec.norm_spec import NormSpec

NAME = "cpu"

# dγ and dβ are sums over rows, cut in this many pieces whatever the number of threads: same bits always.
PIECES = 32
# Fewer where rows are few: putting 32 pieces together cost more than adding the 512 rows in them.
ROWS_A_PIECE = 64
# Very wide rows are cut in fewer pieces, for each is a row of float64: 32 of a million columns took 1 GB.
PARTIAL_COLUMNS = 2**21
# Below this many values of x a second thread costs more than it saves; below half as many, where a value costs twice
# as much: bfloat16 is rounded in integers, and sums of float64 carry what they lose.
PARALLEL_VALUES = 2**15
DEAR = ("bfloat16", "float64")
# From here on results are written past the caches, which could not keep them; a smaller one is sooner read from there.
PAST_CACHES_BYTES = 2**25
CGROUP_LIMIT = "/sys/fs/cgroup/cpu.max"

_forked = False
_lock = threading.Lock()
# The thread inside the lock: what a signal or a finalizer has it normalize there must not wait for itself.
_inside: int | None = None
# Known once the first parallel kernel has loaded it; "workqueue" aborts the process when two threads call at once.
_layer: str | None = None


def _after_fork() -> None:
    global _forked
    _forked = True  # GNU OpenMP kills a forked child at its first parallel region


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def refuses(spec: NormSpec, dtype: str) -> str | None:
    """Say why this backend cannot run a spec, in a few words; None if it can."""
    compute = DTYPES[dtype].compute
    if not _KNOWN:
        return f"NumPy {np.__version__} keeps its arrays in a way that is unknown here"
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


class Direct:
    """One norm of arrays of one shape and type, with all that a kernel is told of it worked out beforehand."""

    def __init__(self, spec: NormSpec, layout: Layout, dtype: np.dtype[Any]) -> None:
        name = dtype.name
        self.like = lanes.LIKE[name]
        self.forwards, self.taken = _forwards(spec, name)
        self.backwards = kernels.backward_serial[name], kernels.backward_parallel[name]
        self.rows, self.pieces = layout.rows, _pieces(layout.rows, layout.columns)
        self.work = _work(layout.rows * layout.columns, dtype)
        axes = len(layout.shape) if layout.is_trailing else 0
        self._told = _told(spec, dtype, layout.rows, layout.columns, axes, len(layout.normalized))
        self.told = _address(self._told)

    def forward(self, x: Array, gamma: object, beta: object, out: object, stats: Array | None) -> bool:
        """Normalize x into out if kernels can read these arrays as they are, and tell whether they could."""
        return _run(
            *self.forwards, self.work, self.rows, self.like, self.taken, self.told, id(x),
            0 if gamma is None else id(gamma), 0, 0 if beta is None else id(beta), 0, id(out),
            0 if stats is None else id(stats),
        )  # fmt: skip

    def backward(
        self, dy: object, x: Array, gamma: object, stats: Sequence[object], dx: Array,
        dgamma: Array | None, dbeta: Array,
    ) -> bool:  # fmt: skip
        """Write dx, dγ and dβ, the last two of the compute type, if kernels can read these arrays as they are."""
        return _run(
            *self.backwards, self.work, self.pieces, self.like, self.told, id(dy),
            id(x), 0 if gamma is None else id(gamma), 0, id(stats[0]), id(stats[1]), id(stats[2]), id(dx),
            0 if dgamma is None else id(dgamma), id(dbeta), self.pieces,
        )  # fmt: skip


def direct(spec: NormSpec, layout: Layout, dtype: np.dtype[Any]) -> Direct | None:
    """Give the short way for contiguous arrays; None where a kernel could not read them as they are."""
    plain = layout.is_trailing and layout.rows * layout.columns > 0 and not spec.scale_offset
    halves = dtype.name != "float16" or lanes.HALF_IN_HARDWARE
    # a spec without gamma or beta refuses one, which is for the long way to say
    carried = layout.scale_axes == layout.shift_axes == layout.normalized
    return Direct(spec, layout, dtype) if plain and halves and carried else None


def forward(
    x: Array, spec: NormSpec, gamma: Parameter | None, beta: Parameter | None, out: Array, stats: Array | None
) -> None:
    """Normalize x: (rows, columns) into out; stats: (3, rows) of C receives m, δ and r.

    Columns of x and out are neighbours in memory; out may be x itself, and must not overlap it otherwise.
    """
    x, narrow = _half_by_numpy(x)
    target = np.empty(x.shape, x.dtype) if narrow else out
    compute, name = _COMPUTE[x.dtype], x.dtype.name
    scale, scale_index = _converted(gamma, spec.scale_offset, compute)
    shift, shift_index = _converted(beta, 0, compute)
    told = _told(spec, x.dtype, *x.shape)
    kernels_of, taken = _forwards(spec, name)
    _run(
        *kernels_of, _work(x.size, x.dtype), len(x), lanes.LIKE[name], taken, _address(told), id(x),
        *_ids(scale, scale_index, shift, shift_index, target, stats),
    )  # fmt: skip
    if narrow:
        out[...] = target


def backward(
    dy: Array, x: Array, spec: NormSpec, gamma: Parameter | None, stats: Array, dx: Array, sums: bool
) -> tuple[Array, Array] | None:
    """Write dx, and give dγ and dβ summed over all rows, each (columns,) float64, if `sums`.

    All three are (rows, columns) with columns that are neighbours in memory; dx overlaps neither of the others.
    """
    x, narrow = _half_by_numpy(x)
    dy = dy.astype(x.dtype, copy=False)
    target = np.empty(x.shape, x.dtype) if narrow else dx
    compute, name = _COMPUTE[x.dtype], x.dtype.name
    scale, index = _converted(gamma, spec.scale_offset, compute)
    rows, columns = x.shape
    told = _told(spec, x.dtype, rows, columns)
    pieces, whole, saved = _pieces(rows, columns), np.empty((2, columns)), tuple(stats)  # ids are of what is kept
    dgamma, dbeta = (whole[0], whole[1]) if sums else (None, None)
    _run(
        kernels.backward_serial[name], kernels.backward_parallel[name], _work(x.size, x.dtype), pieces,
        lanes.LIKE[name],
        _address(told), id(dy), id(x), *_ids(scale, index, *saved, target, dgamma, dbeta), pieces,
    )  # fmt: skip
    if narrow:
        dx[...] = target
    return None if dgamma is None or dbeta is None else (dgamma, dbeta)


def threads_for(x: Array) -> int:
    """Say how many threads an array of this size and type is given."""
    return _threads_for(_work(x.size, x.dtype))


def _threads_for(work: int) -> int:
    return 1 if _forked or work < PARALLEL_VALUES else get_num_threads()


def _work(values: int, dtype: np.dtype[Any]) -> int:
    return 2 * values if dtype.name in DEAR else values


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


def _run(serial: Any, parallel: Any, work: int, most: int, *arguments: Any) -> bool:
    global _inside
    threads = 1 if work < PARALLEL_VALUES else min(_threads_for(work), most)
    if threads > 1 and _inside != threading.get_ident() and (parallel.overloads or _has_layer(parallel, arguments)):
        if _layer != "workqueue":
            return parallel(*arguments, 0, threads)  # type: ignore[no-any-return]
        with _lock:
            _inside = threading.get_ident()
            try:
                return parallel(*arguments, 0, threads)  # type: ignore[no-any-return]
            finally:
                _inside = None
    if not serial.overloads:
        _compile(serial, arguments)
    return serial(*arguments, 0, 1)  # type: ignore[no-any-return]


def _has_layer(parallel: Any, arguments: tuple[Any, ...]) -> bool:
    """Compile a parallel kernel, which loads Numba's threading layer; tell whether there is one."""
    global _layer
    if _layer == "absent":
        return False
    try:
        _compile(parallel, arguments)
    except ValueError:  # Numba found none to load
        _layer = "absent"
        return False
    _layer = numba.threading_layer()  # type: ignore[attr-defined]
    return True


def _compile(kernel: Any, arguments: tuple[Any, ...]) -> None:
    """Compile a kernel, or load it from the cache, in a thread of its own, where no signal's handler runs.

    A handler that normalizes would else break into Numba half way through the same kernel, which it cannot bear:
    of twelve such interruptions seven failed, with "unsupported recursion" or "unresolved symbol", or hung.
    """
    types = tuple(numba.typeof(a) for a in (*arguments, 0, 1))  # type: ignore[no-untyped-call]
    failed: list[BaseException] = []

    def compiled() -> None:
        try:
            kernel.compile(types)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=compiled, name="layernorm-compile")
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had: at the interpreter's end, or beyond a limit
        kernel.compile(types)
        return
    thread.join()
    if failed:
        raise failed[0]


def _forwards(spec: NormSpec, dtype: str) -> tuple[tuple[Any, Any], float | None]:
    """Find a spec's two forward kernels, and what they are told to take off: for RMS norm nothing."""
    version = f"{'layer' if spec.centered else 'rms'}_{dtype}"
    return (kernels.forward_serial[version], kernels.forward_parallel[version]), 0.0 if spec.centered else None


def _pieces(rows: int, columns: int) -> int:
    """Say in how many pieces of rows dγ and dβ are added up, which depends on the shape alone."""
    if rows * columns < PARALLEL_VALUES:
        return 1
    return min(rows, PIECES, max(4, rows // ROWS_A_PIECE), max(4, PARTIAL_COLUMNS // columns))


def _told(spec: NormSpec, dtype: np.dtype[Any], rows: int, columns: int, axes: int = 0, normalized: int = 0) -> Array:
    """Write down what a kernel is told: the denominator is √(Σ(…)² / divisor + eps)."""
    divisor = float({"std": columns - spec.ddof, "rms": columns, "l2": 1}[str(spec.spread)])  # type: ignore[operator]
    eps = 0.0 if spec.eps_at == "none" else float(spec.eps)  # type: ignore[arg-type]
    compute = _COMPUTE[dtype]
    told = np.zeros(objects.TOLD)
    for where, value in {
        objects.AXES: axes, objects.NORMALIZED: normalized, objects.ARRAY_TYPE: id(np.ndarray),
        objects.STORAGE: id(_TYPES[dtype]), objects.COMPUTE: id(compute), objects.COLUMNS: columns,
        objects.ROWS: rows, objects.CENTERED: bool(spec.centered), objects.DIVISOR: divisor,
        objects.EPS: eps / divisor if spec.eps_at == "sum" else eps, objects.CAST: bool(spec.cast_before_scale),
        objects.ITEMSIZE: dtype.itemsize, objects.COMPUTE_SIZE: compute.itemsize,
        objects.PAST_CACHES: rows * columns * dtype.itemsize >= PAST_CACHES_BYTES,
    }.items():  # fmt: skip
        told[where] = value
    told[objects.NO_GAMMA : objects.NO_BETA].view(compute)[:] = 1
    told[objects.NO_BETA :].view(compute)[:] = -0.0
    return told


# arrays of a type mostly share one object for it; one that does not is laid out like any other that is unusual
_TYPES = {np.dtype(name): np.dtype(name) for name in DTYPES}
_COMPUTE = {np.dtype(name): np.dtype(t.compute) for name, t in DTYPES.items()}


def _half_by_numpy(x: Array) -> tuple[Array, bool]:
    """Widen float16 where the processor cannot, and tell whether NumPy must narrow the result."""
    narrow = x.dtype == np.float16 and not lanes.HALF_IN_HARDWARE
    return (x.astype(np.float32) if narrow else x), narrow


def _converted(parameter: Parameter | None, offset: Any, compute: Any) -> tuple[Array | None, Array | None]:
    if parameter is None:
        return None, None
    with np.errstate(over="ignore"):  # rows for which that matters are done by the reference
        values = parameter.values.astype(compute, copy=False)
    return np.ascontiguousarray(values + compute.type(offset) if offset else values), parameter.index


def _ids(*arrays: Array | None) -> tuple[int, ...]:
    return tuple(0 if a is None else id(a) for a in arrays)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _array_objects_are_known() -> bool:
    """Look whether NumPy's array object is laid out as the kernels read it."""
    a = np.zeros((3, 5), np.float32)[:, ::-1]

    def at(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    start = id(a)
    shape, strides = at(start + objects.SHAPE), at(start + objects.STRIDES)
    return (
        at(start + objects.TYPE) == id(np.ndarray)
        and at(start + objects.DATA) == _address(a)
        and at(start + objects.NDIM) & 0xFFFFFFFF == 2
        and (at(shape), at(shape + 8)) == a.shape
        and (at(strides), at(strides + 8)) == a.strides
        and at(start + objects.DTYPE) == id(a.dtype)
        and at(start + objects.FLAGS) & 0xFFFFFFFF == a.flags.num
    )


_KNOWN = _array_objects_are_known()
