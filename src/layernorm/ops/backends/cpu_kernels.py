# SPDX-License-Identifier: MIT
"""This file holds the CPU kernels: layer and RMS norm of rows, forward and backward, compiled by Numba.

One source serves every stored type: `_widen` and `_narrow` stand wherever a number is read or written, and do
nothing for C, the compute type. RMS norm is the same kernel with the mean held at 0. The scheme for a row:

1. In one pass and in float64, Σx and Σx²; and again as Σ(x − guess) and Σ(x − guess)², the guess being the mean, where
   that is far from zero. float64 rows, which have no digits to spare, begin with the mean of 32 values for a guess.
2. From these the mean, as m + δ (m is the mean rounded to C, δ what that missed), and the sum of squares about it.
3. r = 1 / √(Σ(x − mean)² / divisor + eps), in float64; the divisor is n − ddof.
4. y = ((x − m) − δ)·r·γ + β.

Everything that a kernel calls stands in this file: Numba's cache does not notice a change in another. Arrays come as
the ids of their objects, out of which the kernel reads what it must know; 0 stands for one that is not there.
"""

import math
import platform
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload

# The mean of this many first values stands in for the mean while sums are taken; it need only be near.
PILOT = 32
# float64 values have no wider type to be added in: sums of this many are added with what each addition loses.
# Equal squares drift the same way at each addition; in blocks of 256, rows of one large value broke the bound.
BLOCK = 32
# Of float32 products this many are added in their own type, in lanes, before the sum goes on in float64.
WIDE = 1024
# LLVM aborts the process when it must convert float16 on an x86 without F16C: there the conversions are not
# emitted, no kernel for float16 is called, and NumPy converts the array before and after. What counts is the processor
# that Numba is told to compile for.
_FEATURES = numba.config.CPU_FEATURES or ("" if numba.config.CPU_NAME else binding.get_host_cpu_features().flatten())
HALF_IN_HARDWARE = platform.machine() not in ("x86_64", "AMD64", "i686") or "+f16c" in _FEATURES

HALF, BFLOAT = types.uint16, types.int16
# Where mean² is below this many variances, plain sums of squares cancel no more than 10 of float64's 29 spare bits.
NEAR = 1024.0


# Sums may be reordered into lanes. The steps from x to y may not: (x − m) − δ is not x − (m + δ).
# fastmath=False must be said: left out, a function takes the flags of the first one that makes it compile.
# Only what Python calls is cached and wrapped for it: 40 small files and wrappers took longer than the code in them.
_INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_sums = njit(fastmath={"reassoc", "contract", "nsz"}, **_INNER)
_exact = njit(fastmath=False, **_INNER)


# A zero of each stored type tells Numba which; it does not know the 16-bit ones, and takes them for integers.
LIKE = {"float16": np.uint16(0), "bfloat16": np.int16(0), "float32": np.float32(0), "float64": np.float64(0)}


def _for_each_type(**options: Any) -> Callable[[Callable[..., Any]], dict[str, Callable[..., Any]]]:
    """Compile a function for each stored type as a function of its own, with a cache file of its own.

    Two processes that compile versions of one function at the same time write one file over the other's, and a third
    finds float32's code under float16's name.
    """

    def compiled(function: Any, name: str) -> Callable[..., Any]:
        own = FunctionType(function.__code__, function.__globals__, function.__name__)
        own.__qualname__ = f"{function.__name__}_{name}"
        own.__doc__ = function.__doc__
        said = {"nogil": True, "error_model": "numpy", "fastmath": False, "no_cfunc_wrapper": True} | options
        try:
            return njit(cache=True, **said)(own)
        except RuntimeError:  # no folder can be written to: compile in memory
            return njit(**said)(own)

    return lambda function: {name: compiled(function, name) for name in LIKE}


@intrinsic
def _pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """Make a typed pointer of an address: cheaper to pass than an array, and any framework has one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


# Where NumPy's array object keeps what a kernel must know, in bytes behind the object's head (PyArrayObject_fields in
# numpy/ndarraytypes.h, unchanged since 1.7; `cpu.py` looks whether it is so). Asking Python for an address costs 1 µs.
HEAD = object.__basicsize__
TYPE, DATA, NDIM, SHAPE, STRIDES, DTYPE, FLAGS = (HEAD + at for at in (-8, 0, 8, 16, 24, 40, 48))
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

# What a kernel is told of a call, as float64: the first three are about arrays as their caller has them, which it
# checks; arrays that are laid out as rows already (`AXES` = 0) are taken as they are.
(AXES, NORMALIZED, ARRAY_TYPE, STORAGE, COMPUTE, COLUMNS, ROWS, CENTERED, DIVISOR, EPS, CAST, ITEMSIZE,
 COMPUTE_SIZE) = range(13)  # fmt: skip


@intrinsic
def _fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Multiply and add with one rounding, so that γ·x̂ + β overflows only where the result does."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), generate


@intrinsic
def _widen_bfloat(typingctx: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(args[0], word), word(16)), ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic
def _narrow_bfloat(typingctx: Any, value: Any) -> Any:
    """Round a float32 to the bits of a bfloat16, ties to even; NaN stays NaN. Numba's own integers are 64 bits wide."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(args[0], word)
        upper = builder.lshr(bits, word(16))
        up = builder.add(word(0x7FFF), builder.and_(upper, word(1)))
        rounded = builder.lshr(builder.add(bits, up), word(16))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(is_nan, builder.or_(upper, word(0x40)), rounded), ir.IntType(16))

    return types.int16(types.float32), generate


@intrinsic
def _widen_half(typingctx: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not HALF_IN_HARDWARE:
            return ir.Constant(ir.FloatType(), 0.0)
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _narrow_half(typingctx: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not HALF_IN_HARDWARE:
            return ir.Constant(ir.IntType(16), 0)
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _read(typingctx: Any, address: Any) -> Any:
    """Read eight bytes of memory as an integer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


# -- array objects ------------------------------------------------------------------------------------------


@_exact
def _is_plain(array, told, dtype):
    """Tell whether an object is an ndarray of a type, aligned and contiguous."""
    if _read(array + TYPE) != np.int64(told[ARRAY_TYPE]) or _read(array + DTYPE) != np.int64(dtype):
        return False
    return _read(array + FLAGS) & (C_CONTIGUOUS | ALIGNED) == C_CONTIGUOUS | ALIGNED


@_exact
def _same_axes(array, like, skipped, ndim):
    """Tell whether an array has the axes of another, the first `skipped` of them left out."""
    if (_read(array + NDIM) & 0xFFFFFFFF) != ndim - skipped:
        return False
    for a in range(ndim - skipped):
        if _read(_read(array + SHAPE) + 8 * a) != _read(_read(like + SHAPE) + 8 * (a + skipped)):
            return False
    return True


@_exact
def _meet(a, a_bytes, b, b_bytes):
    return a < b + b_bytes and b < a + a_bytes


@_exact
def _step(array, told):
    """Give the bytes from one row to the next."""
    if told[AXES] == 0.0:
        return _read(_read(array + STRIDES))
    return np.int64(told[COLUMNS]) * np.int64(told[ITEMSIZE])


@_exact
def _address(array):
    return _read(array + DATA) if array else 0


@_exact
def _can_read(told, x, parameter):
    """Tell whether a gamma or beta is as a kernel reads it: the compute type, and x's normalized axes."""
    if parameter == 0:
        return True
    ndim = np.int64(told[AXES])
    skipped = ndim - np.int64(told[NORMALIZED])
    return _is_plain(parameter, told, told[COMPUTE]) and _same_axes(parameter, x, skipped, ndim)


@_exact
def _can_run(told, x, gamma, beta, out):
    """Tell whether a forward pass can take arrays as its caller has them: plain, of one shape, and apart."""
    ndim = np.int64(told[AXES])
    if ndim == 0:
        return True
    if not (_is_plain(x, told, told[STORAGE]) and _is_plain(out, told, told[STORAGE])):
        return False
    if _read(out + FLAGS) & WRITEABLE == 0:
        return False
    if not (_same_axes(out, x, np.int64(0), ndim) and _can_read(told, x, gamma) and _can_read(told, x, beta)):
        return False
    size = np.int64(told[ROWS] * told[COLUMNS] * told[ITEMSIZE])
    wide = np.int64(told[COLUMNS] * told[COMPUTE_SIZE])
    at = _address(out)
    if at != _address(x) and _meet(at, size, _address(x), size):
        return False
    return not (_meet(at, size, _address(gamma), wide) or _meet(at, size, _address(beta), wide))


@_exact
def _is_statistic(told, array, x):
    """Tell whether an array holds one number of C for each of x's rows, the normalized axes kept as 1."""
    ndim = np.int64(told[AXES])
    if not (_is_plain(array, told, told[COMPUTE]) and (_read(array + NDIM) & 0xFFFFFFFF) == ndim):
        return False
    for a in range(ndim):
        length = _read(_read(x + SHAPE) + 8 * a) if a < ndim - np.int64(told[NORMALIZED]) else 1
        if _read(_read(array + SHAPE) + 8 * a) != length:
            return False
    return True


@_exact
def _can_differentiate(told, dy, x, gamma, mean, residue, rstd):
    """Tell whether a backward pass can take arrays as its caller has them."""
    ndim = np.int64(told[AXES])
    if ndim == 0:
        return True
    if not (
        _is_plain(x, told, told[STORAGE])
        and _is_plain(dy, told, told[STORAGE])
        and _same_axes(dy, x, np.int64(0), ndim)
    ):
        return False
    saved = _is_statistic(told, mean, x) and _is_statistic(told, residue, x) and _is_statistic(told, rstd, x)
    return saved and _can_read(told, x, gamma)


# -- one row: reading and writing ---------------------------------------------------------------------------


def _widen(value):
    """Give a stored number in C."""


@overload(_widen, inline="always")
def _(value):
    if value == HALF:
        return lambda value: _widen_half(value)
    if value == BFLOAT:
        return lambda value: _widen_bfloat(value)
    return lambda value: value


def _narrow(value, like):
    """Round a number in C to the type that `like` has: to nearest, ties to even."""


@overload(_narrow, inline="always")
def _(value, like):
    if like == HALF:
        return lambda value, like: _narrow_half(value)
    if like == BFLOAT:
        return lambda value, like: _narrow_bfloat(value)
    return lambda value, like: value


@_exact
def _array(address, d, like):
    return numba.carray(_pointer(address, like), (d,))


@_exact
def _row_at(address, d, tile):
    """Give the row at `address`, in place; or a copy of it in `tile`, if that has room."""
    row = _array(address, d, tile.dtype.type(0))
    for j in range(tile.size):
        tile[j] = row[j]
    return tile if tile.size else row


# -- one row: statistics ------------------------------------------------------------------------------------


@_exact
def _less(x, m, residue):
    """Take the mean off in two steps; in sums as in the writing pass this order is what keeps the digits."""
    return (x - m) - residue


@_exact
def _add(total, lost, part):
    """Add a part to a total, and to `lost` what that addition loses (Knuth's two-sum)."""
    both = total + part
    kept = both - total
    return both, lost + ((total - (both - kept)) + (part - kept))


@_sums
def _sums_of_block(row, guess):
    plain, squares = 0.0, 0.0
    for j in range(row.size):
        t = _less(np.float64(_widen(row[j])), guess, 0.0)
        plain += t
        squares += t * t
    return plain, squares


@_sums
def _plain_sums(row):
    plain, squares = 0.0, 0.0
    for j in range(row.size):
        t = np.float64(_widen(row[j]))
        plain += t
        squares += t * t
    return plain, squares


@_exact
def _sums_about(row, guess):
    """Sum x − guess and its square. Narrow values need no blocks: their squares are exact in float64."""
    if row.itemsize < 8:
        return _sums_of_block(row, guess)
    plain, plain_lost, squares, squares_lost = 0.0, 0.0, 0.0, 0.0
    for start in range(0, row.size, BLOCK):
        sums = _sums_of_block(row[start : start + BLOCK], guess)
        plain, plain_lost = _add(plain, plain_lost, sums[0])
        squares, squares_lost = _add(squares, squares_lost, sums[1])
    return plain + plain_lost, squares + squares_lost


@_exact
def _moments(row, centered):
    """Give the mean as a guess and what it misses, and the sum of squares about the mean, all in float64."""
    if row.itemsize < 8:
        # Values near zero need no guess, and it costs a sixth of the time. Far from it squares cancel.
        plain, squares = _plain_sums(row)
        if not centered:
            return 0.0, 0.0, squares
        mean = plain / row.size
        about_mean = squares - mean * plain
        if mean * plain < NEAR * about_mean:
            return mean, 0.0, about_mean
        guess = mean
    else:
        if not centered:
            return 0.0, 0.0, _sums_about(row, 0.0)[1]
        guess = 0.0
        for j in range(min(row.size, PILOT)):
            guess += np.float64(_widen(row[j]))
        guess /= min(row.size, PILOT)
    for _ in range(4):
        plain, squares = _sums_about(row, guess)
        missed = plain / row.size
        about_mean = squares - missed * plain
        # A guess that is off (in rows that rise, say) costs digits, of which narrow rows have some to spare.
        if not missed * plain > (0.25 if row.itemsize < 8 else 1e-4) * about_mean:
            break
        guess += missed
    return guess, missed, max(about_mean, 0.0) if about_mean == about_mean else about_mean


@_exact
def _reciprocal_root(value):
    """Give 1/√value right to half an ulp and a little: root and division each add half of one to every x̂."""
    r = 1.0 / math.sqrt(value)
    if not 2.0**-500 < r < 2.0**500:
        return r
    near = value * r
    short = _fma(-near, r, 1.0) - _fma(value, r, -near) * r
    return r + 0.5 * r * short


@_exact
def _moments_twice(row, m, centered):
    """Give the mean of x − m and the squares about the mean with about twice float64's digits, one by one.

    dγ is held to |dy·x̂|, however small x̂ is, so what is saved for the backward pass must be better than y needs.
    """
    plain, plain_lost, squares, squares_lost = 0.0, 0.0, 0.0, 0.0
    for j in range(row.size):
        t, lost = _add(np.float64(_widen(row[j])), 0.0, -m)
        square = t * t
        plain, plain_lost = _add(plain, plain_lost + lost, t)
        squares, squares_lost = _add(squares, squares_lost + (_fma(t, t, -square) + 2.0 * t * lost), square)
    if not centered:
        return 0.0, squares + squares_lost
    plain += plain_lost
    return plain / row.size, (squares + squares_lost) - plain / row.size * plain


# -- one row: forward ---------------------------------------------------------------------------------------


@_exact
def _scale(row, y, m, residue, r, gamma, beta, early):
    """Write ((x − m) − δ)·r·γ + β; `early` rounds before γ, too."""
    like = y.dtype.type(0)
    if early:
        for j in range(row.size):
            y[j] = _narrow(_widen(_narrow(_less(_widen(row[j]), m, residue) * r, like)) * gamma[j] + beta[j], like)
    else:
        for j in range(row.size):
            y[j] = _narrow(_fma(_less(_widen(row[j]), m, residue) * r, gamma[j], beta[j]), like)


@_exact
def _power_of_two(row):
    """Find k such that row / 2^k has its largest magnitude near 1; 0 for rows that are not finite."""
    largest = 0.0
    for j in range(row.size):
        size = abs(np.float64(_widen(row[j])))
        if not size < math.inf:
            return 0
        largest = max(largest, size)
    return min(max(math.frexp(largest)[1], -1000), 1000)


@_exact
def _scaled_copy(row, k):
    """Copy a row to float64 and divide it by 2^k."""
    wide = np.empty(row.size, np.float64)
    for j in range(row.size):
        wide[j] = math.ldexp(np.float64(_widen(row[j])), -k)
    return wide


@_exact
def _extreme(row, y, zero, gamma, beta, early, centered, divisor, eps):
    """Do a row near the ends of its type, scaled by a power of two and in float64: rare, so slow."""
    k = _power_of_two(row)
    wide = _scaled_copy(row, k)
    mean, residue, about_mean = _moments(wide, centered)
    # √eps is scaled, not eps: its square can overflow when a subnormal row is scaled up
    floor = max(math.ldexp(math.sqrt(eps), -k), 2.0**-1000) if eps > 0.0 else 0.0
    r = 1.0 / math.hypot(math.sqrt(about_mean / divisor), floor)
    like, to_c = y.dtype.type(0), type(zero)
    for j in range(row.size):
        value = _less(wide[j], mean, residue) * r
        value = np.float64(_widen(_narrow(to_c(value), like))) if early else value
        y[j] = _narrow(to_c(_fma(value, np.float64(gamma[j]), np.float64(beta[j]))), like)
    return math.ldexp(mean, k), math.ldexp(residue, k), math.ldexp(r, -k)


@_exact
def _forward_row(row, y, zero, gamma, beta, early, centered, divisor, eps):
    """Normalize one row and give its statistics in float64: mean, residue and r."""
    mean, residue, about_mean = _moments(row, centered)
    # 1 / divisor is the same for all rows, so the compiler takes it out of the loop over them
    spread2 = about_mean * (1.0 / divisor) if row.itemsize < 8 else about_mean / divisor
    r = 1.0 / math.sqrt(spread2 + eps) if row.itemsize < 8 else _reciprocal_root(spread2 + eps)
    # Outside, x − m or r leaves C, or float64's squares lose digits. A narrow constant row has no square to lose.
    if row.itemsize < 8:
        usual = (2.0**-180 < spread2 < 2.0**200 or spread2 == 0.0) and 2.0**-110 < r < 2.0**100
    else:
        usual = 2.0**-900 < spread2 < 2.0**900
    if not usual:
        return _extreme(row, y, zero, gamma, beta, early, centered, divisor, eps)
    m, missed = _pair(zero, mean, residue)
    _scale(row, y, m, missed, type(zero)(r), gamma, beta, early)
    return mean, residue, r


@_exact
def _pair(zero, mean, residue):
    """Split a mean into the number of C nearest to it and the rest."""
    m = type(zero)(mean + residue)
    return m, type(zero)((mean - np.float64(m)) + residue)


@_exact
def _parameter(array, index, d, missing):
    """Give a gamma or beta as (distinct, columns); where there is none, one that changes no bit."""
    shape = (_read(_read(array + SHAPE)) if index else 1, d if array else 0)
    given = numba.carray(_pointer(_address(array), missing), shape)
    none = np.empty((1, 0 if array else d), given.dtype)
    none[:] = missing
    return given if array else none


@_exact
def _index(array, rows):
    return numba.carray(_pointer(_address(array), np.int64(0)), (rows if array else 0,))


@_exact
def _forward_rows(like, told, x, gamma, gamma_index, beta, beta_index, out, stats, lo, hi):
    zero = _widen(like)
    d, rows = np.int64(told[COLUMNS]), np.int64(told[ROWS])
    centered, divisor, eps, early = told[CENTERED] != 0.0, told[DIVISOR], told[EPS], told[CAST] != 0.0
    x_step, y_step, x, y = _step(x, told), _step(out, told), _address(x), _address(out)
    tile = np.empty(d if x == y else 0, _array(0, 0, like).dtype)  # in place, what is written must not be read again
    scales, shifts = _parameter(gamma, gamma_index, d, type(zero)(1)), _parameter(beta, beta_index, d, -zero)
    which_scale, which_shift = _index(gamma_index, rows), _index(beta_index, rows)
    saved = numba.carray(_pointer(_address(stats), zero), (3, rows))
    for i in range(lo, hi):
        row = _row_at(x + i * x_step, d, tile)
        to = _array(y + i * y_step, d, like)
        scale = scales[which_scale[i] if which_scale.size else 0]
        shift = shifts[which_shift[i] if which_shift.size else 0]
        m, residue, r = _forward_row(row, to, zero, scale, shift, early, centered, divisor, eps)
        if stats:
            saved[0, i], saved[1, i] = _pair(zero, m, residue)
            saved[2, i] = r
            if row.itemsize == 8 and 2.0**-450 < r < 2.0**450:
                saved[1, i], about_mean = _moments_twice(row, saved[0, i], centered)
                saved[2, i] = _reciprocal_root(about_mean / divisor + eps)


# -- one row: backward --------------------------------------------------------------------------------------


@_sums
def _projections_of_block(row, dy, gamma, zero, m, residue):
    """Sum g and g·(x − mean) over a block, g = γ·dy."""
    plain, along = zero, zero
    for j in range(row.size):
        g = _widen(dy[j]) * gamma[j]
        plain += g
        along += g * _less(_widen(row[j]), m, residue)
    return plain, along


@_exact
def _slopes(row, dy, dx, gamma, m, residue, r, mean, along):
    """Write ((g − mean(g)) − x̂·along)·r."""
    like = dx.dtype.type(0)
    for j in range(row.size):
        xhat = _less(_widen(row[j]), m, residue) * r
        dx[j] = _narrow(_fma(-along, xhat, _fma(_widen(dy[j]), gamma[j], -mean)) * r, like)


@_exact
def _extreme_slopes(row, dy, dx, zero, gamma, m, residue, r, centered, divisor):
    """Do a row that overflows on the way, in float64 and a quarter of its size."""
    d, like, to_c = row.size, dx.dtype.type(0), type(zero)
    m, residue, r = 0.25 * np.float64(m), 0.25 * np.float64(residue), 4.0 * np.float64(r)
    mean, along = 0.0, 0.0
    for j in range(d):
        g = np.float64(_widen(dy[j])) * np.float64(gamma[j])
        mean += g / d
        along += g / divisor * (_less(0.25 * np.float64(_widen(row[j])), m, residue) * r)
    mean = mean if centered else 0.0
    for j in range(d):
        g = np.float64(_widen(dy[j])) * np.float64(gamma[j])
        xhat = _less(0.25 * np.float64(_widen(row[j])), m, residue) * r
        dx[j] = _narrow(to_c(((g - mean) - xhat * along) * (0.25 * r)), like)


@_exact
def _backward_row(row, dy, dx, zero, gamma, m, residue, r, centered, divisor):
    """Write the gradient to one row, of which the statistics are given."""
    d = row.size
    mean, along = 0.0, 0.0
    block = BLOCK if row.itemsize == 8 else WIDE
    for start in range(0, d, block):
        stop = min(start + block, d)
        part, part_along = _projections_of_block(row[start:stop], dy[start:stop], gamma[start:stop], zero, m, residue)
        mean += np.float64(part)
        along += np.float64(part_along)
    along *= np.float64(r)
    usual = 2.0**-500 < r < 2.0**500 if row.itemsize == 8 else 2.0**-60 < r < 2.0**24
    if not (usual and abs(mean) < math.inf and abs(along) < math.inf):
        _extreme_slopes(row, dy, dx, zero, gamma, m, residue, r, centered, divisor)
        return
    mean = mean / d if centered else 0.0
    _slopes(row, dy, dx, gamma, m, residue, r, type(zero)(mean), type(zero)(along / divisor))


@_exact
def _add_gradients(row, dy, m, residue, r, sums):
    """Add one row to dγ and dβ in float64, where a narrow (x − m) − δ is exact: the bound is relative to |dy·x̂|."""
    dgamma, dbeta = sums[0], sums[1]
    if row.itemsize < 8:
        m, residue, r = np.float64(m), np.float64(residue), np.float64(r)
        for j in range(row.size):
            g = np.float64(_widen(dy[j]))
            dgamma[j] = _fma(g, _less(np.float64(_widen(row[j])), m, residue) * r, dgamma[j])
            dbeta[j] += g
        return
    dgamma_lost, dbeta_lost = sums[2], sums[3]  # no wider type: carry along what each step loses
    for j in range(row.size):
        g = np.float64(_widen(dy[j]))
        near, lost = _add(np.float64(_widen(row[j])), 0.0, -np.float64(m))
        near, lost = _add(near, lost, -np.float64(residue))
        xhat = near * r
        lost = _fma(near, np.float64(r), -xhat) + lost * r
        part = g * xhat
        lost = _fma(g, xhat, -part) + lost * g
        dgamma[j], dgamma_lost[j] = _add(dgamma[j], dgamma_lost[j] + lost, part)
        dbeta[j], dbeta_lost[j] = _add(dbeta[j], dbeta_lost[j], g)


@_exact
def _add_four(like, x, x_step, dy, dy_step, d, means, residues, rstds, dgamma, dbeta):
    """Add four narrow rows to dγ and dβ: the sums are read and written once, and not four times.

    One loop for each, because LLVM vectorizes none that would need more than eight tests of which arrays overlap.
    """
    a, b = _array(x, d, like), _array(x + x_step, d, like)
    c, e = _array(x + 2 * x_step, d, like), _array(x + 3 * x_step, d, like)
    p, q = _array(dy, d, like), _array(dy + dy_step, d, like)
    s, t = _array(dy + 2 * dy_step, d, like), _array(dy + 3 * dy_step, d, like)
    m0, m1, m2, m3 = np.float64(means[0]), np.float64(means[1]), np.float64(means[2]), np.float64(means[3])
    e0, e1, e2, e3 = (
        np.float64(residues[0]), np.float64(residues[1]), np.float64(residues[2]), np.float64(residues[3])
    )  # fmt: skip
    r0, r1, r2, r3 = np.float64(rstds[0]), np.float64(rstds[1]), np.float64(rstds[2]), np.float64(rstds[3])
    for j in range(d):
        total = dgamma[j]
        total = _fma(np.float64(_widen(p[j])), _less(np.float64(_widen(a[j])), m0, e0) * r0, total)
        total = _fma(np.float64(_widen(q[j])), _less(np.float64(_widen(b[j])), m1, e1) * r1, total)
        total = _fma(np.float64(_widen(s[j])), _less(np.float64(_widen(c[j])), m2, e2) * r2, total)
        dgamma[j] = _fma(np.float64(_widen(t[j])), _less(np.float64(_widen(e[j])), m3, e3) * r3, total)
    for j in range(d):  # a sum of two float32 is off by u of them, half of what is allowed
        dbeta[j] += np.float64(_widen(p[j]) + _widen(q[j])) + np.float64(_widen(s[j]) + _widen(t[j]))


@_exact
def _backward_rows(like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums, first, last):
    zero = _widen(like)
    d, rows = np.int64(told[COLUMNS]), np.int64(told[ROWS])
    centered, divisor = told[CENTERED] != 0.0, told[DIVISOR]
    x_step, dy_step, dx_step = _step(x, told), _step(dy, told), _step(dx, told)
    x, dy, dx = _address(x), _address(dy), _address(dx)
    scales, which_scale = _parameter(gamma, gamma_index, d, type(zero)(1)), _index(gamma_index, rows)
    means, residues = _array(_address(mean), rows, zero), _array(_address(residue), rows, zero)
    rstds = _array(_address(rstd), rows, zero)
    pieces = len(sums)
    for piece in range(first, last):
        sums[piece] = 0.0
        lo, hi = piece * rows // pieces, (piece + 1) * rows // pieces
        for i in range(lo, hi):
            row, slope = _array(x + i * x_step, d, like), _array(dy + i * dy_step, d, like)
            scale = scales[which_scale[i] if which_scale.size else 0]
            to = _array(dx + i * dx_step, d, like)
            _backward_row(row, slope, to, zero, scale, means[i], residues[i], rstds[i], centered, divisor)
            done = i - lo + 1
            if sums.shape[2] == 0:
                continue
            if row.itemsize < 8 and done % 4 == 0:
                _add_four(like, x + (i - 3) * x_step, x_step, dy + (i - 3) * dy_step, dy_step, d, means[i - 3 :],
                          residues[i - 3 :], rstds[i - 3 :], sums[piece, 0], sums[piece, 1])  # fmt: skip
            elif row.itemsize == 8 or hi - i <= (hi - lo) % 4:
                _add_gradients(row, slope, means[i], residues[i], rstds[i], sums[piece])


@_exact
def _partial_sums(told, pieces, dbeta):
    """Make room for dγ and dβ by pieces: (pieces, 2 or 4, columns), sums and then what they lost."""
    return np.empty((pieces, 4 if told[COMPUTE_SIZE] == 8.0 else 2, np.int64(told[COLUMNS]) if dbeta else 0))


@_exact
def _add_pieces(told, sums, dgamma, dbeta, zero):
    """Add the pieces of dγ and dβ in order, and write them in C, or in float64 for arrays that were laid out."""
    whole = sums[0]
    for piece in range(1, len(sums)):
        part = sums[piece]
        for which in range(2):
            if len(whole) == 2:
                for j in range(whole.shape[1]):
                    whole[which, j] += part[which, j]
            else:
                for j in range(whole.shape[1]):
                    lost = whole[which + 2, j] + part[which + 2, j]
                    whole[which, j], whole[which + 2, j] = _add(whole[which, j], lost, part[which, j])
    if len(whole) == 4:
        for which in range(2):
            for j in range(whole.shape[1]):
                if abs(whole[which + 2, j]) < math.inf:  # beside an infinite sum it is NaN
                    whole[which, j] += whole[which + 2, j]
    for which, to in ((0, dgamma), (1, dbeta)):
        if to and told[AXES] == 0.0:
            _array(_address(to), whole.shape[1], 0.0)[:] = whole[which]
        elif to:
            rounded = _array(_address(to), whole.shape[1], zero)
            for j in range(whole.shape[1]):
                rounded[j] = whole[which, j]


# -- all rows, on one thread or several ---------------------------------------------------------------------
# `like` is a zero of the type that is stored, `told` the address of what AXES and the rest name; arrays are their ids,
# and 0 is one that is not there.


@_exact
def _told(address):
    return numba.carray(_pointer(address, 0.0), (13,))


@_for_each_type()
def forward_serial(like, told, x, gamma, gamma_index, beta, beta_index, out, stats, threads):
    """Normalize all rows on the calling thread, or give False if these arrays must be laid out first."""
    told = _told(told)
    if not _can_run(told, x, gamma, beta, out):
        return False
    _forward_rows(like, told, x, gamma, gamma_index, beta, beta_index, out, stats, 0, np.int64(told[ROWS]))
    return True


@_for_each_type(parallel=True)
def forward_parallel(like, told, x, gamma, gamma_index, beta, beta_index, out, stats, threads):
    """Normalize all rows, an equal run of them a thread."""
    about = _told(told)
    if not _can_run(about, x, gamma, beta, out):
        return False
    rows = np.int64(about[ROWS])
    for t in prange(threads):
        _forward_rows(like, _told(told), x, gamma, gamma_index, beta, beta_index, out, stats, t * rows // threads,
                      (t + 1) * rows // threads)  # fmt: skip
    return True


@_for_each_type()
def backward_serial(
    like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, dgamma, dbeta, pieces, threads
):  # fmt: skip
    """Differentiate all rows on the calling thread, or give False if these arrays must be laid out first."""
    about = _told(told)
    if not _can_differentiate(about, dy, x, gamma, mean, residue, rstd):
        return False
    sums = _partial_sums(about, pieces, dbeta)
    _backward_rows(like, about, dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums, 0, pieces)
    _add_pieces(about, sums, dgamma, dbeta, _widen(like))
    return True


@_for_each_type(parallel=True)
def backward_parallel(
    like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, dgamma, dbeta, pieces, threads
):  # fmt: skip
    """Differentiate all rows, an equal run of pieces a thread."""
    about = _told(told)
    if not _can_differentiate(about, dy, x, gamma, mean, residue, rstd):
        return False
    sums = _partial_sums(about, pieces, dbeta)
    for t in prange(threads):
        _backward_rows(like, _told(told), dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums,
                       t * pieces // threads, (t + 1) * pieces // threads)  # fmt: skip
    _add_pieces(about, sums, dgamma, dbeta, _widen(like))
    return True
