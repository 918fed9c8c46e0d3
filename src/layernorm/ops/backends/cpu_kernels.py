# SPDX-License-Identifier: MIT
"""This file holds the CPU kernels: layer and RMS norm of rows, forward and backward, compiled by Numba.

One kernel serves every storage type. A row whose values are C, the compute type, is read in place; any other
(16-bit, or about to be overwritten) is first copied to a contiguous tile of C. RMS norm is the same kernel with
the mean held at 0. The scheme for a row:

1. In one pass and in float64, Σ(x − guess) and Σ(x − guess)², the guess being the mean of the first 32 values.
2. From these the mean, as m + δ (m is the mean rounded to C, δ what that missed), and the sum of squares about it.
3. r = 1 / √(Σ(x − mean)² / divisor + eps), in float64; the divisor is n − ddof.
4. y = ((x − m) − δ)·r·γ + β.

Everything that a kernel calls stands in this file: Numba's cache does not notice a change in another. Arrays come
as addresses, which are cheaper to pass than arrays and which any framework has; 0 stands for one that is not there.
"""

import math
import platform
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, prange, types
from numba.extending import intrinsic

# The mean of this many first values stands in for the mean while sums are taken; it need only be near.
PILOT = 32
# float64 values have no wider type to be added in: sums of this many are added with what each addition loses.
# Equal squares drift the same way at each addition; in blocks of 256, rows of one large value broke the bound.
BLOCK = 32
# LLVM aborts the process when it must convert float16 on an x86 without F16C: there the conversions are not
# emitted, no row is ever said to be FLOAT16, and NumPy converts the array before and after. What counts is the
# processor that Numba is told to compile for.
_FEATURES = numba.config.CPU_FEATURES or ("" if numba.config.CPU_NAME else binding.get_host_cpu_features().flatten())
HALF_IN_HARDWARE = platform.machine() not in ("x86_64", "AMD64", "i686") or "+f16c" in _FEATURES

DIRECT, FLOAT16, BFLOAT16, TILED = range(4)


def _compile(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(cache=True, nogil=True, error_model="numpy", **options)(function)
        except RuntimeError:  # no folder can be written to: compile in memory
            return njit(nogil=True, error_model="numpy", **options)(function)

    return decorate


# Sums may be reordered into lanes. The steps from x to y may not: (x − m) − δ is not x − (m + δ).
# fastmath=False must be said: left out, a function takes the flags of the first one that makes it compile.
_sums = _compile(fastmath={"reassoc", "contract", "nsz"})
_exact = _compile(fastmath=False)


@intrinsic
def _pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """Make a typed pointer of an address: cheaper to pass than an array, and any framework has one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


@intrinsic
def _fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Multiply and add with one rounding, so that γ·x̂ + β overflows only where the result does."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), generate


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


# -- one row: reading and writing ---------------------------------------------------------------------------


@_exact
def _load(address, kind, d, tile, zero):
    """Give the row at `address` as a contiguous row of C: in place where it is one, else in `tile`."""
    if kind == FLOAT16:
        half = numba.carray(_pointer(address, np.uint16(0)), (d,))
        for j in range(d):
            tile[j] = _widen_half(half[j])
        return tile
    if kind == BFLOAT16:
        half = numba.carray(_pointer(address, np.uint16(0)), (d,))
        bits = tile.view(np.uint32)
        for j in range(d):
            bits[j] = np.uint32(half[j]) << np.uint32(16)
        return tile
    row = numba.carray(_pointer(address, zero), (d,))
    if kind == TILED:
        for j in range(d):
            tile[j] = row[j]
        return tile
    return row


@_exact
def _narrow_bfloat(bits):
    """Round the bits of a float32 to those of a bfloat16: nearest, ties to even; NaN stays NaN."""
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@_exact
def _store(tile, kind, address):
    """Round a tile to 16 bits at `address`."""
    half = numba.carray(_pointer(address, np.uint16(0)), (tile.size,))
    if kind == FLOAT16:
        for j in range(tile.size):
            half[j] = _narrow_half(np.float32(tile[j]))
    else:
        bits = tile.view(np.uint32)
        for j in range(tile.size):
            half[j] = _narrow_bfloat(bits[j])


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


@_exact
def _pilot(row):
    """Give a first guess of the mean, from the first values of the row."""
    guess = 0.0
    for j in range(min(row.size, PILOT)):
        guess += np.float64(row[j])
    return guess / min(row.size, PILOT)


@_sums
def _sums_of_block(row, guess):
    plain, squares = 0.0, 0.0
    for j in range(row.size):
        t = _less(np.float64(row[j]), guess, 0.0)
        plain += t
        squares += t * t
    return plain, squares


@_sums
def _squares_of_block(row):
    squares = 0.0
    for j in range(row.size):
        squares += np.float64(row[j]) * np.float64(row[j])
    return squares


@_exact
def _sums_about(row, guess, centered):
    """Sum x − guess and its square. Narrow values need no blocks: their squares are exact in float64."""
    block = row.size if row.itemsize == 4 else BLOCK
    plain, plain_lost, squares, squares_lost = 0.0, 0.0, 0.0, 0.0
    for start in range(0, row.size, block):
        part = row[start : start + block]
        sums = _sums_of_block(part, guess) if centered else (0.0, _squares_of_block(part))
        plain, plain_lost = _add(plain, plain_lost, sums[0])
        squares, squares_lost = _add(squares, squares_lost, sums[1])
    return plain + plain_lost, squares + squares_lost


@_exact
def _moments(row, centered):
    """Give the mean as a guess and what it misses, and the sum of squares about the mean, all in float64."""
    if not centered:
        return 0.0, 0.0, _sums_about(row, 0.0, False)[1]
    guess = _pilot(row)
    for _ in range(4):
        plain, squares = _sums_about(row, guess, True)
        missed = plain / row.size
        about_mean = squares - missed * plain
        # A guess that is off (in rows that rise, say) costs digits, of which narrow rows have some to spare.
        if not missed * plain > (0.25 if row.itemsize == 4 else 1e-4) * about_mean:
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
        t, lost = _add(np.float64(row[j]), 0.0, -m)
        square = t * t
        plain, plain_lost = _add(plain, plain_lost + lost, t)
        squares, squares_lost = _add(squares, squares_lost + (_fma(t, t, -square) + 2.0 * t * lost), square)
    if not centered:
        return 0.0, squares + squares_lost
    plain += plain_lost
    return plain / row.size, (squares + squares_lost) - plain / row.size * plain


# -- one row: forward ---------------------------------------------------------------------------------------


@_exact
def _scale(row, y, m, residue, r, gamma, beta):
    """Write ((x − m) − δ)·r·γ + β; a gamma or beta of size 0 is not there."""
    if gamma.size and beta.size:
        for j in range(row.size):
            y[j] = _fma(_less(row[j], m, residue) * r, gamma[j], beta[j])
    elif gamma.size:
        for j in range(row.size):
            y[j] = _less(row[j], m, residue) * r * gamma[j]
    elif beta.size:
        for j in range(row.size):
            y[j] = _less(row[j], m, residue) * r + beta[j]
    else:
        for j in range(row.size):
            y[j] = _less(row[j], m, residue) * r


@_exact
def _power_of_two(row):
    """Find k such that row / 2^k has its largest magnitude near 1; 0 for rows that are not finite."""
    largest = 0.0
    for j in range(row.size):
        size = abs(row[j])
        if not size < math.inf:
            return 0
        largest = max(largest, size)
    return min(max(math.frexp(largest)[1], -1000), 1000)


@_exact
def _scaled_copy(row, k):
    """Copy a row to float64 and divide it by 2^k."""
    wide = np.empty(row.size, np.float64)
    for j in range(row.size):
        wide[j] = math.ldexp(np.float64(row[j]), -k)
    return wide


@_exact
def _extreme(row, y, gamma, beta, centered, divisor, eps):
    """Do a row near the ends of its type, scaled by a power of two and in float64: rare, so slow."""
    k = _power_of_two(row)
    wide = _scaled_copy(row, k)
    mean, residue, about_mean = _moments(wide, centered)
    # √eps is scaled, not eps: its square can overflow when a subnormal row is scaled up
    floor = max(math.ldexp(math.sqrt(eps), -k), 2.0**-1000) if eps > 0.0 else 0.0
    r = 1.0 / math.hypot(math.sqrt(about_mean / divisor), floor)
    for j in range(row.size):
        value = _less(wide[j], mean, residue) * r
        scale = np.float64(gamma[j]) if gamma.size else 1.0
        shift = np.float64(beta[j]) if beta.size else -0.0
        y[j] = _fma(value, scale, shift)
    return math.ldexp(mean, k), math.ldexp(residue, k), math.ldexp(r, -k)


@_exact
def _forward_row(row, y, gamma, beta, centered, divisor, eps):
    """Normalize one row of C and give its statistics in float64: mean, residue and r."""
    mean, residue, about_mean = _moments(row, centered)
    spread2 = about_mean / divisor
    r = _reciprocal_root(spread2 + eps)
    # Outside, x − m or r leaves C, or float64's squares lose digits. A narrow constant row has no square to lose.
    if row.itemsize == 4:
        usual = (2.0**-180 < spread2 < 2.0**200 or spread2 == 0.0) and 2.0**-110 < r < 2.0**100
    else:
        usual = 2.0**-900 < spread2 < 2.0**900
    if not usual:
        return _extreme(row, y, gamma, beta, centered, divisor, eps)
    m, missed = _pair(row, mean, residue)
    _scale(row, y, m, missed, row.dtype.type(r), gamma, beta)
    return mean, residue, r


@_exact
def _pair(row, mean, residue):
    """Split a mean into the number of row's type nearest to it and the rest."""
    m = row.dtype.type(mean + residue)
    return m, row.dtype.type((mean - np.float64(m)) + residue)


@_exact
def _parameter(address, distinct, d, zero):
    """Give the array at `address`, or one of no columns where there is none."""
    return numba.carray(_pointer(address, zero), (distinct, d if address else 0))


@_exact
def _index(address, rows):
    return numba.carray(_pointer(address, np.int64(0)), (rows if address else 0,))


@_exact
def _forward_rows(zero, x, x_step, y, y_step, kind, d, rows, gamma, gammas, gamma_index, beta, betas, beta_index,
                  stats, centered, divisor, eps, cast, lo, hi):  # fmt: skip
    sixteen = kind in (FLOAT16, BFLOAT16)
    tile = np.full(d if kind != DIRECT else 0, zero)
    narrow = np.full(d if sixteen else 0, zero)
    scales, shifts = _parameter(gamma, gammas, d, zero), _parameter(beta, betas, d, zero)
    which_scale, which_shift = _index(gamma_index, rows), _index(beta_index, rows)
    saved = numba.carray(_pointer(stats, zero), (3, rows))
    for i in range(lo, hi):
        row = _load(x + i * x_step, kind, d, tile, zero)
        scale = scales[which_scale[i] if which_scale.size else 0]
        shift = shifts[which_shift[i] if which_shift.size else 0]
        out = narrow if sixteen else numba.carray(_pointer(y + i * y_step, zero), (d,))
        # one call, for each one is compiled anew: three of them took twice as long
        early = cast and sixteen
        m, residue, r = _forward_row(
            row, out, scale[:0] if early else scale, shift[:0] if early else shift, centered, divisor, eps
        )
        if sixteen:
            _store(out, kind, y + i * y_step)
        if early:
            rounded = _load(y + i * y_step, kind, d, tile, zero)
            _scale(rounded, out, zero, zero, tile.dtype.type(1), scale, shift)
            _store(out, kind, y + i * y_step)
        if stats:
            saved[0, i], saved[1, i] = _pair(tile, m, residue)
            saved[2, i] = r
            if tile.itemsize == 8 and 2.0**-450 < r < 2.0**450:
                saved[1, i], about_mean = _moments_twice(row, saved[0, i], centered)
                saved[2, i] = _reciprocal_root(about_mean / divisor + eps)


# -- one row: backward --------------------------------------------------------------------------------------


@_sums
def _projections_of_block(row, dy, gamma, m, residue, r):
    """Sum g and g·x̂ over a block, g = γ·dy."""
    plain, along = row.dtype.type(0), row.dtype.type(0)
    if gamma.size:
        for j in range(row.size):
            g = dy[j] * gamma[j]
            plain += g
            along += g * (_less(row[j], m, residue) * r)
    else:
        for j in range(row.size):
            plain += dy[j]
            along += dy[j] * (_less(row[j], m, residue) * r)
    return plain, along


@_exact
def _slopes(row, dy, dx, gamma, m, residue, r, mean, along):
    """Write ((g − mean(g)) − x̂·along)·r."""
    if gamma.size:
        for j in range(row.size):
            dx[j] = ((dy[j] * gamma[j] - mean) - (_less(row[j], m, residue) * r) * along) * r
    else:
        for j in range(row.size):
            dx[j] = ((dy[j] - mean) - (_less(row[j], m, residue) * r) * along) * r


@_exact
def _extreme_slopes(row, dy, dx, gamma, m, residue, r, centered, divisor):
    """Do a row that overflows on the way, in float64 and a quarter of its size."""
    d = row.size
    m, residue, r = 0.25 * np.float64(m), 0.25 * np.float64(residue), 4.0 * np.float64(r)
    mean, along = 0.0, 0.0
    for j in range(d):
        g = np.float64(dy[j]) * (np.float64(gamma[j]) if gamma.size else 1.0)
        mean += g / d
        along += g / divisor * (_less(0.25 * np.float64(row[j]), m, residue) * r)
    mean = mean if centered else 0.0
    for j in range(d):
        g = np.float64(dy[j]) * (np.float64(gamma[j]) if gamma.size else 1.0)
        xhat = _less(0.25 * np.float64(row[j]), m, residue) * r
        dx[j] = ((g - mean) - xhat * along) * (0.25 * r)


@_exact
def _backward_row(row, dy, dx, gamma, m, residue, r, centered, divisor):
    d = row.size
    mean, along = 0.0, 0.0
    for start in range(0, d, BLOCK):
        stop = min(start + BLOCK, d)
        part, part_along = _projections_of_block(row[start:stop], dy[start:stop], gamma[start:stop], m, residue, r)
        mean += np.float64(part)
        along += np.float64(part_along)
    usual = 2.0**-100 < r < 2.0**24 if row.itemsize == 4 else 2.0**-1000 < r < 2.0**500
    if not (usual and abs(mean) < math.inf and abs(along) < math.inf):
        _extreme_slopes(row, dy, dx, gamma, m, residue, r, centered, divisor)
        return
    mean = mean / d if centered else 0.0
    _slopes(row, dy, dx, gamma, m, residue, r, row.dtype.type(mean), row.dtype.type(along / divisor))


@_exact
def _add_gradients(row, dy, m, residue, r, sums):
    """Add one row to dγ and dβ in float64, where a narrow (x − m) − δ is exact: the bound is relative to |dy·x̂|."""
    m, residue, r = np.float64(m), np.float64(residue), np.float64(r)
    dgamma, dbeta = sums[0], sums[1]
    if row.itemsize == 4:
        for j in range(row.size):
            dgamma[j] += np.float64(dy[j]) * (_less(np.float64(row[j]), m, residue) * r)
            dbeta[j] += np.float64(dy[j])
    else:  # no wider type: carry along what each step loses
        dgamma_lost, dbeta_lost = sums[2], sums[3]
        for j in range(row.size):
            near, lost = _add(row[j], 0.0, -m)
            near, lost = _add(near, lost, -residue)
            xhat = near * r
            lost = _fma(near, r, -xhat) + lost * r
            part = dy[j] * xhat
            lost = _fma(dy[j], xhat, -part) + lost * dy[j]
            dgamma[j], dgamma_lost[j] = _add(dgamma[j], dgamma_lost[j] + lost, part)
            dbeta[j], dbeta_lost[j] = _add(dbeta[j], dbeta_lost[j], dy[j])


@_exact
def _backward_rows(zero, dy, dy_step, x, x_step, dx, dx_step, kind, d, rows, gamma, gammas, gamma_index, stats,
                   partial, pieces, centered, divisor, first, last):  # fmt: skip
    sixteen = kind in (FLOAT16, BFLOAT16)
    x_tile, dy_tile = np.full(d if kind != DIRECT else 0, zero), np.full(d if kind != DIRECT else 0, zero)
    narrow = np.full(d if sixteen else 0, zero)
    scales, which_scale = _parameter(gamma, gammas, d, zero), _index(gamma_index, rows)
    saved = numba.carray(_pointer(stats, zero), (3, rows))
    sums = numba.carray(_pointer(partial, 0.0), (pieces, 2 if narrow.itemsize == 4 else 4, d if partial else 0))
    for piece in range(first, last):
        for i in range(piece * rows // pieces, (piece + 1) * rows // pieces):
            row = _load(x + i * x_step, kind, d, x_tile, zero)
            slope = _load(dy + i * dy_step, kind, d, dy_tile, zero)
            scale = scales[which_scale[i] if which_scale.size else 0]
            m, residue, r = saved[0, i], saved[1, i], saved[2, i]
            if partial:
                _add_gradients(row, slope, m, residue, r, sums[piece])
            if sixteen:
                _backward_row(row, slope, narrow, scale, m, residue, r, centered, divisor)
                _store(narrow, kind, dx + i * dx_step)
            else:
                out = numba.carray(_pointer(dx + i * dx_step, zero), (d,))
                _backward_row(row, slope, out, scale, m, residue, r, centered, divisor)


@_exact
def add_pieces(partial):
    """Add the pieces of dγ and dβ in order; partial: (pieces, 2 or 4, columns), sums and then what they lost."""
    sums = np.zeros((2, partial.shape[2]))
    lost = np.zeros((2, partial.shape[2]))
    for piece in range(len(partial)):
        for which in range(2):
            for j in range(sums.shape[1]):
                if partial.shape[1] == 4:
                    lost[which, j] += partial[piece, 2 + which, j]
                sums[which, j], lost[which, j] = _add(sums[which, j], lost[which, j], partial[piece, which, j])
    for which in range(2):
        for j in range(sums.shape[1]):
            if abs(lost[which, j]) < math.inf:  # beside an infinite sum it is NaN
                sums[which, j] += lost[which, j]
    return sums


# -- all rows, on one thread or several ---------------------------------------------------------------------


@_exact
def forward_serial(zero, x, x_step, y, y_step, kind, d, rows, gamma, gammas, gamma_index, beta, betas, beta_index,
                    stats, centered, divisor, eps, cast, threads):  # fmt: skip
    """Normalize all rows on the calling thread; `threads` is there for one signature."""
    _forward_rows(zero, x, x_step, y, y_step, kind, d, rows, gamma, gammas, gamma_index, beta, betas, beta_index,
                  stats, centered, divisor, eps, cast, 0, rows)  # fmt: skip


@_compile(parallel=True, fastmath=False)
def forward_parallel(zero, x, x_step, y, y_step, kind, d, rows, gamma, gammas, gamma_index, beta, betas, beta_index,
                      stats, centered, divisor, eps, cast, threads):  # fmt: skip
    """Normalize all rows, an equal run of them a thread."""
    for t in prange(threads):
        _forward_rows(zero, x, x_step, y, y_step, kind, d, rows, gamma, gammas, gamma_index, beta, betas,
                      beta_index, stats, centered, divisor, eps, cast, t * rows // threads,
                      (t + 1) * rows // threads)  # fmt: skip


@_exact
def backward_serial(zero, dy, dy_step, x, x_step, dx, dx_step, kind, d, rows, gamma, gammas, gamma_index, stats,
                     partial, pieces, centered, divisor, threads):  # fmt: skip
    """Differentiate all rows on the calling thread; `threads` is there for one signature."""
    _backward_rows(zero, dy, dy_step, x, x_step, dx, dx_step, kind, d, rows, gamma, gammas, gamma_index, stats,
                   partial, pieces, centered, divisor, 0, pieces)  # fmt: skip


@_compile(parallel=True, fastmath=False)
def backward_parallel(zero, dy, dy_step, x, x_step, dx, dx_step, kind, d, rows, gamma, gammas, gamma_index, stats,
                       partial, pieces, centered, divisor, threads):  # fmt: skip
    """Differentiate all rows, an equal run of pieces a thread."""
    for t in prange(threads):
        _backward_rows(zero, dy, dy_step, x, x_step, dx, dx_step, kind, d, rows, gamma, gammas, gamma_index,
                       stats, partial, pieces, centered, divisor, t * pieces // threads,
                       (t + 1) * pieces // threads)  # fmt: skip
