# SPDX-License-Identifier: MIT
"""This file holds the CPU kernels: layer and RMS norm of rows, forward and backward, compiled by Numba.

One source serves every stored type, in the words of `lanes.py`: eight numbers are read as C, the compute type, and
rounded when they are written. RMS norm is the same kernel with the mean held at 0. The scheme for a row:

1. In one pass and in float64, Σx and Σx²; and again as Σ(x − guess) and Σ(x − guess)², the guess being the mean, where
   that is far from zero. float64 rows, which have no digits to spare, begin with the mean of 32 values for a guess.
2. From these the mean, as m + δ (m is the mean rounded to C, δ what that missed), and the sum of squares about it.
3. r = 1 / √(Σ(x − mean)² / divisor + eps), in float64; the divisor is n − ddof.
4. y = ((x − m) − δ)·r·γ + β.

While a row is written a row to come is summed, so that memory and arithmetic both have work; and two rows lie between
where rows are short, so that the root of one is there when it is written.

Arrays are ids of their objects, 0 is one that is not there, `told` what array_objects.py lists, and a lower-case
row or gamma the address of its first number. A gamma or beta that is not there is LANES numbers read again and
again, for a mask of 0 keeps their address.
"""

import inspect
import math
import pkgutil
import zlib
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from layernorm.ops.backends.array_objects import (
    AXES,
    CAST,
    CENTERED,
    COLUMNS,
    COMPUTE_SIZE,
    DIVISOR,
    EPS,
    ITEMSIZE,
    NO_BETA,
    NO_GAMMA,
    PAST_CACHES,
    ROWS,
    about,
    address,
    can_differentiate,
    can_run,
    count,
    inlined,
    inner,
    step,
)  # fmt: skip
from layernorm.ops.backends.lanes import (
    LANES,
    LIKE,
    every,
    fence,
    finite,
    first,
    fma,
    if_any,
    less,
    load,
    load_first,
    narrow,
    number,
    put_number,
    rounded,
    size_of,
    store,
    store_first,
    swapped,
    total,
    wide,
    word,
)  # fmt: skip

# The mean of this many first values stands in for the mean while sums of float64 rows are taken; it need only be near.
PILOT = 32
# float64 values have no wider type to be added in: sums of this many are added with what each addition loses.
# Equal squares drift the same way at each addition; in blocks of 256, rows of one large value broke the bound.
BLOCK = 32
# Where mean² is below this many variances, plain sums of squares cancel no more than 10 of float64's 29 spare bits.
NEAR = 1024.0
# A variance of less than this much of eps makes x̂ so small that it may be subnormal where γ·x̂ is not: extreme, too.
TINY = 2.0**-200
# Rows of fewer columns are summed two ahead of the one that is written: at 128 the root takes as long as the sums.
SHORT = 2048


def _for_each(
    versions: Iterable[str] = LIKE, calls: str = "", **options: Any
) -> Callable[[Callable[..., Any]], dict[str, Callable[..., Any]]]:
    """Compile a function for each stored type as a function of its own, with a cache file of its own.

    Two processes that compile versions of one function at the same time write one file over the other's, and a third
    finds float32's code under float16's name. Numba's cache notices a change in this file alone, so the name bears a
    checksum of the others.
    """
    others = [pkgutil.get_data(__package__, name) or b"" for name in ("array_objects.py", "lanes.py")]
    version = zlib.crc32(b"".join(others))

    def compiled(function: Any, name: str) -> Callable[..., Any]:
        # one that `calls` another by its name means the version for its own type
        names = function.__globals__ | ({calls: function.__globals__[calls][name]} if calls else {})
        own = FunctionType(function.__code__, names, function.__name__)
        own.__qualname__ = f"{function.__name__}_{name}_{version:08x}"
        own.__doc__ = function.__doc__
        said = {"nogil": True, "error_model": "numpy", "fastmath": False, "no_cfunc_wrapper": True} | options
        try:
            return njit(cache=True, **said)(own)
        except RuntimeError:  # no folder can be written to: compile in memory
            return njit(**said)(own)

    return lambda function: {name: compiled(function, name) for name in versions}


# Forward, RMS norm is compiled apart: it takes no mean off, and need not sum what it would be made of.
NORMS = [f"{norm}_{name}" for norm in ("layer", "rms") for name in LIKE]


def _by_type(stub: Any, of_narrow: Any, of_float64: Any, inlined: bool = False) -> None:
    """Have `stub` mean one function for float64 rows and another for narrower ones."""

    def choose(like: Any, *arguments: Any) -> Any:
        return of_float64 if like == types.float64 else of_narrow

    choose.__signature__ = inspect.signature(stub)  # type: ignore[attr-defined]
    # each copy of what is inlined is compiled again: sums, which stand in three places, took 0.8 s of a first call
    overload(stub, jit_options={"error_model": "numpy", "fastmath": False, "forceinline": inlined})(choose)


# -- one row: statistics ------------------------------------------------------------------------------------


@inner
def _add(sum_, lost, part):
    """Add a part to a sum, and to `lost` what that addition loses (Knuth's two-sum)."""
    both = sum_ + part
    kept = both - sum_
    return both, lost + ((sum_ - (both - kept)) + (part - kept))


def _sums(like, row, n, factor, guess):
    """Sum factor·x − guess and its square, in float64."""


def _plain_sums(like, row, n, factor, guess):
    """Do it for narrow numbers, whose squares are exact in float64."""
    by, off, plain, squares = every(factor), every(-guess), every(0.0), every(0.0)
    size, part = size_of(like), n % LANES
    for j in range(0, n - part, LANES):
        t = fma(wide(load(row + j * size, like)), by, off)
        plain, squares = plain + t, fma(t, t, squares)
    if part:
        t = first(fma(wide(load_first(row + (n - part) * size, part, like)), by, off), part)
        plain, squares = plain + t, fma(t, t, squares)
    return total(plain), total(squares)


@inner
def _total_exactly(sums, lost):
    """Add lanes with what each addition loses."""
    sums, lost = _add(sums, lost + swapped(lost, 4), swapped(sums, 4))
    sums, lost = _add(sums, lost + swapped(lost, 2), swapped(sums, 2))
    sums, lost = _add(sums, lost + swapped(lost, 1), swapped(sums, 1))
    return total(first(sums + lost, 1))


def _careful_sums(like, row, n, factor, guess):
    """Do it for float64 numbers, block by block."""
    by, off = every(factor), every(-guess)
    plain, plain_lost, squares, squares_lost = every(0.0), every(0.0), every(0.0), every(0.0)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        block, block_squares = every(0.0), every(0.0)
        for j in range(start, stop - LANES + 1, LANES):
            t = fma(load(row + 8 * j, like), by, off)
            block, block_squares = block + t, fma(t, t, block_squares)
        part = (stop - start) % LANES
        if part:
            t = first(fma(load_first(row + 8 * (stop - part), part, like), by, off), part)
            block, block_squares = block + t, fma(t, t, block_squares)
        plain, plain_lost = _add(plain, plain_lost, block)
        squares, squares_lost = _add(squares, squares_lost, block_squares)
    return _total_exactly(plain, plain_lost), _total_exactly(squares, squares_lost)


_by_type(_sums, _plain_sums, _careful_sums)


@inner
def _moments(like, row, n, factor, guess, plain, squares, limit, taken):
    """Give the mean as a guess and what it misses, and the sum of squares about the mean.

    Sums about a guess are given; where it misses the mean by more than a `limit` of variances they are taken again.
    """
    if taken is None:
        return 0.0, 0.0, squares
    per_value = 1.0 / n
    missed = plain * per_value
    about_mean = squares - missed * plain
    for _ in range(4):
        if not missed * plain > limit * about_mean:
            break
        guess += missed
        plain, squares = _sums(like, row, n, factor, guess)
        missed = plain * per_value
        about_mean = squares - missed * plain
        limit = 0.25 if limit > 0.25 else limit
    return guess, missed, 0.0 if about_mean < 0.0 else about_mean


def _statistics(like, row, n, sums, taken, divisor, eps):
    """Give mean, residue and r of a row times a factor, and whether the row can be written in C."""


def _narrow_statistics(like, row, n, sums, taken, divisor, eps):
    """Finish from the plain sums. What is outside has an x − m or r outside of C, or a square lost in float64."""
    mean, residue, about_mean = _moments(like, row, n, 1.0, 0.0, sums[0], sums[1], NEAR, taken)
    spread2 = about_mean * (1.0 / divisor)
    r = 1.0 / math.sqrt(spread2 + eps)
    usual = ((2.0**-180 < spread2 < 2.0**200 and spread2 * r * r > TINY) or spread2 == 0.0) and 2.0**-110 < r < 2.0**100
    return mean, residue, r, 1.0, usual


def _float64_statistics(like, row, n, sums, taken, divisor, eps):
    """Sum about a guess; and again, the row scaled by a power of two, where its squares would leave float64."""
    factor, root = 1.0, math.sqrt(eps)
    for attempt in range(2):
        guess = 0.0
        if taken is not None:
            for j in range(min(n, PILOT)):
                guess += number(row + 8 * j, like) * factor
            guess /= min(n, PILOT)
        plain, squares = _sums(like, row, n, factor, guess)
        mean, residue, about_mean = _moments(like, row, n, factor, guess, plain, squares, 1e-4, taken)
        spread2 = about_mean / divisor
        if attempt == 0 and 2.0**-900 < spread2 < 2.0**900 and spread2 > TINY * eps:
            return mean, residue, _reciprocal_root(spread2 + eps), 1.0, True
        if attempt == 0:
            factor = _scale_of(like, row, n)
            while root * factor > 2.0**500:  # of such an eps the row is far too small to show in the sum
                factor *= 0.5
    # √eps is scaled, not eps: its square can overflow when a subnormal row is scaled up
    floor = max(root * factor, 2.0**-1000) if eps > 0.0 else 0.0
    return mean, residue, 1.0 / math.hypot(math.sqrt(spread2), floor), factor, False


_by_type(_statistics, _narrow_statistics, _float64_statistics, inlined=True)


@inner
def _reciprocal_root(value):
    """Give 1/√value right to half an ulp and a little: root and division each add half of one to every x̂."""
    r = 1.0 / math.sqrt(value)
    if not 2.0**-500 < r < 2.0**500:
        return r
    near = value * r
    short = fma(-near, r, 1.0) - fma(value, r, -near) * r
    return r + 0.5 * r * short


@inner
def _scale_of(like, row, n):
    """Find the power of two that puts a row's largest magnitude near 1; 1 for rows that are not finite."""
    largest = 0.0
    for j in range(n):
        size = abs(number(row + 8 * j, like))
        if not size < math.inf:
            return 1.0
        largest = max(largest, size)
    return math.ldexp(1.0, min(max(-math.frexp(largest)[1], -1000), 1000))


@inner
def _pair(mean, residue, like):
    """Split a mean into the number of C nearest to it and the rest."""
    m = narrow(mean + residue, like)
    return m, narrow((mean - wide(m)) + residue, like)


def _save(like, row, n, saved, stride, mean, residue, r, taken, divisor, eps):
    """Write the mean, its residue and r for the backward pass, each `stride` bytes from the last."""


def _save_narrow(like, row, n, saved, stride, mean, residue, r, taken, divisor, eps):
    zero = narrow(0.0, like)
    m, missed = _pair(mean, residue, like)
    put_number(saved, m, zero)
    put_number(saved + stride, missed, zero)
    put_number(saved + 2 * stride, narrow(r, like), zero)


def _save_float64(like, row, n, saved, stride, mean, residue, r, taken, divisor, eps):
    """Take the moments once more, with about twice float64's digits and number by number.

    dγ is held to |dy·x̂|, however small x̂ is, so what is saved for the backward pass must be better than y needs.
    """
    m, missed = _pair(mean, residue, like)
    if 2.0**-450 < r < 2.0**450:
        plain, plain_lost, squares, squares_lost = 0.0, 0.0, 0.0, 0.0
        for j in range(n):
            t, lost = _add(number(row + 8 * j, like), 0.0, -m)
            square = t * t
            plain, plain_lost = _add(plain, plain_lost + lost, t)
            squares, squares_lost = _add(squares, squares_lost + (fma(t, t, -square) + 2.0 * t * lost), square)
        plain, about_mean, missed = plain + plain_lost, squares + squares_lost, 0.0
        if taken is not None:
            missed = plain / n
            about_mean -= missed * plain
        r = _reciprocal_root(about_mean / divisor + eps)
    put_number(saved, m, like)
    put_number(saved + stride, missed, like)
    put_number(saved + 2 * stride, r, like)


_by_type(_save, _save_narrow, _save_float64)


# -- one row: forward ---------------------------------------------------------------------------------------


@inner
def _shifted(xhat, gamma, beta, early, like):
    """Give x̂·γ + β; `early` rounds before γ, too."""
    return rounded(xhat, like) * gamma + beta if early else fma(xhat, gamma, beta)


@inner
def _write(like, x, y, n, m, residue, r, gamma, gamma_mask, beta, beta_mask, early, past_caches):
    """Write ((x − m) − δ)·r·γ + β; the mean goes in two steps, for this order keeps the digits.

    It is None for RMS norm.
    """
    zero, size, part = narrow(0.0, like), size_of(like), n % LANES
    m, residue, r = every(m), every(residue), every(r)
    for j in range(0, n - part, LANES):
        xhat = less(less(load(x + j * size, like), m), residue) * r
        at = j * size_of(zero)
        g, b = load(gamma + (at & gamma_mask), zero), load(beta + (at & beta_mask), zero)
        store(y + j * size, _shifted(xhat, g, b, early, like), like, past_caches)
    if part:
        j = n - part
        xhat = less(less(load_first(x + j * size, part, like), m), residue) * r
        at = j * size_of(zero)
        g, b = load_first(gamma + (at & gamma_mask), part, zero), load_first(beta + (at & beta_mask), part, zero)
        store_first(y + j * size, part, _shifted(xhat, g, b, early, like), like)


@inlined
def _write_and_sum(like, x, y, n, m, residue, r, gamma, gamma_mask, beta, beta_mask, past_caches, ahead):
    """Write a row and give the sums of another: `_write` and `_plain_sums` in one loop."""
    zero, size, part = narrow(0.0, like), size_of(like), n % LANES
    m, residue, r = every(m), every(residue), every(r)
    plain, squares = every(0.0), every(0.0)
    for j in range(0, n - part, LANES):
        t = wide(load(ahead + j * size, like))
        plain, squares = plain + t, fma(t, t, squares)
        xhat = less(less(load(x + j * size, like), m), residue) * r
        at = j * size_of(zero)
        g, b = load(gamma + (at & gamma_mask), zero), load(beta + (at & beta_mask), zero)
        store(y + j * size, fma(xhat, g, b), like, past_caches)
    if part:
        j = n - part
        t = wide(load_first(ahead + j * size, part, like))
        plain, squares = plain + t, fma(t, t, squares)
        xhat = less(less(load_first(x + j * size, part, like), m), residue) * r
        at = j * size_of(zero)
        g, b = load_first(gamma + (at & gamma_mask), part, zero), load_first(beta + (at & beta_mask), part, zero)
        store_first(y + j * size, part, fma(xhat, g, b), like)
    return total(plain), total(squares)


@inner
def _write_extreme(like, x, y, n, factor, mean, residue, r, gamma, gamma_mask, beta, beta_mask, early):
    """Write a row near the ends of its type in float64: rare, so number by number."""
    zero, size = narrow(0.0, like), size_of(like)
    for j in range(n):
        near = (wide(number(x + j * size, like)) * factor - mean) - residue
        value = near * r
        if early:
            value = wide(rounded(narrow(value, like), like))
        at = j * size_of(zero)
        g, b = wide(number(gamma + (at & gamma_mask), zero)), wide(number(beta + (at & beta_mask), zero))
        if not early and abs(value) < 2.0**-900:  # γ first, or x̂ would be rounded as a subnormal
            value, g = near * g, r
        put_number(y + j * size, narrow(fma(value, g, b), like), like)


@inner
def _parameter(array, index, told, missing):
    """Give the address of a gamma or beta, that of its indices, and a mask of offsets: 0 reads the same lanes again."""
    if array == 0:
        return told + 8 * missing, 0, 0
    return address(array), address(index), -1


@inner
def _of_row(parameter, indices, i, row_bytes):
    """Find the gamma or beta of a row."""
    return parameter + (word(indices + 8 * i) * row_bytes if indices else 0)


@_for_each(NORMS)
def forward_serial(like, taken, told, x, gamma, gamma_index, beta, beta_index, out, stats, thread, threads):
    """Normalize one thread's run of rows, or give False if these arrays must be laid out first.

    `taken` is None for RMS norm, which takes no mean off, and else any number.
    """
    if not can_run(told, x, gamma, beta, out):
        return False
    n, rows = count(told, COLUMNS), count(told, ROWS)
    divisor, eps = about(told, DIVISOR), about(told, EPS)
    early, narrow_rows = about(told, CAST) != 0.0, count(told, ITEMSIZE) < 8
    x, x_step, y, y_step = address(x), step(x, told), address(out), step(out, told)
    past_caches = about(told, PAST_CACHES) != 0.0 and (y | y_step) % 16 == 0
    scales, which_scale, scale_mask = _parameter(gamma, gamma_index, told, NO_GAMMA)
    shifts, which_shift, shift_mask = _parameter(beta, beta_index, told, NO_BETA)
    saved, compute_size = address(stats), count(told, COMPUTE_SIZE)
    lo, hi, between = thread * rows // threads, (thread + 1) * rows // threads, 2 if n < SHORT else 1
    now = after = last = (0.0, 0.0, 0.0, 1.0, False)
    for i in range(lo - between, hi):
        row, to, next_row = x + i * x_step, y + i * y_step, x + (i + between) * x_step
        is_next, sums = i + between < hi, (0.0, 0.0)
        summed = False
        if i >= lo:
            mean, residue, r, factor, usual = now
            gamma_row = _of_row(scales, which_scale, i, n * compute_size)
            beta_row = _of_row(shifts, which_shift, i, n * compute_size)
            if stats:  # before x is written over
                _save(like, row, n, saved + i * compute_size, rows * compute_size, mean / factor, residue / factor,
                      r * factor, taken, divisor, eps)  # fmt: skip
            if usual:
                m, missed = _pair(mean, residue, like)
                m, missed = if_any(taken, m), if_any(taken, missed)
                if is_next and narrow_rows and not early:
                    summed = True
                    sums = _write_and_sum(like, row, to, n, m, missed, narrow(r, like), gamma_row, scale_mask,
                                          beta_row, shift_mask, past_caches, next_row)  # fmt: skip
                else:
                    _write(like, row, to, n, m, missed, narrow(r, like), gamma_row, scale_mask, beta_row, shift_mask,
                           early, past_caches)  # fmt: skip
            else:
                _write_extreme(like, row, to, n, factor, mean, residue, r, gamma_row, scale_mask, beta_row, shift_mask,
                               early)  # fmt: skip
        if is_next:
            if narrow_rows and not summed:  # float64 rows are summed about a guess, below
                sums = _sums(like, next_row, n, 1.0, 0.0)
            last = _statistics(like, next_row, n, sums, taken, divisor, eps)
        now, after = (after, last) if between == 2 else (last, last)
    if past_caches:
        fence()
    return True


@_for_each(NORMS, parallel=True, calls="forward_serial")
def forward_parallel(like, taken, told, x, gamma, gamma_index, beta, beta_index, out, stats, thread, threads):
    """Normalize all rows, an equal run of them a thread."""
    if not can_run(told, x, gamma, beta, out):
        return False
    for t in prange(threads):
        forward_serial(like, taken, told, x, gamma, gamma_index, beta, beta_index, out, stats, t, threads)
    return True


# -- one row: backward --------------------------------------------------------------------------------------


def _project(like, x, dy, n, gamma, dgamma, dbeta, m, residue, r, spare):
    """Sum g = γ·dy and g·(x − mean) over columns of a row, and add to dγ and dβ; gamma and sums are float64.

    dγ is held to |dy·x̂|, so a narrow x − mean must be exact but for float64's rounding. Sums have room for whole lanes.
    """


def _project_narrow(like, x, dy, n, gamma, dgamma, dbeta, m, residue, r, spare):
    size, part = size_of(like), n % LANES
    mean, r = every(wide(m) + wide(residue)), every(wide(r))
    plain, along = every(0.0), every(0.0)
    for j in range(0, n - part, LANES):
        d, g = wide(load(dy + j * size, like)), load(gamma + 8 * j, 0.0)
        towards = d * (wide(load(x + j * size, like)) - mean)
        plain, along = fma(g, d, plain), fma(g, towards, along)
        store(dgamma + 8 * j, fma(towards, r, load(dgamma + 8 * j, 0.0)), 0.0, False)
        store(dbeta + 8 * j, load(dbeta + 8 * j, 0.0) + d, 0.0, False)
    if part:
        j = n - part
        d, g = wide(load_first(dy + j * size, part, like)), load(gamma + 8 * j, 0.0)
        towards = d * (wide(load_first(x + j * size, part, like)) - mean)
        plain, along = fma(g, d, plain), fma(g, towards, along)
        store(dgamma + 8 * j, fma(towards, r, load(dgamma + 8 * j, 0.0)), 0.0, False)
        store(dbeta + 8 * j, load(dbeta + 8 * j, 0.0) + d, 0.0, False)
    return total(plain), total(along)


def _project_float64(like, x, dy, n, gamma, dgamma, dbeta, m, residue, r, spare):
    """Do it where there is no wider type: carry along what each step loses, `spare` bytes behind each sum."""
    means, residues, rs = every(-m), every(-residue), every(r)
    plain, plain_lost, along, along_lost = every(0.0), every(0.0), every(0.0), every(0.0)
    for j in range(0, n, LANES):
        part = min(LANES, n - j)
        if part == LANES:
            d, value = load(dy + 8 * j, like), load(x + 8 * j, like)
        else:
            d, value = load_first(dy + 8 * j, part, like), load_first(x + 8 * j, part, like)
        near, lost = _add(value, every(0.0), means)
        near, lost = _add(near, lost, residues)
        g = load(gamma + 8 * j, 0.0) * d
        plain, plain_lost = _add(plain, plain_lost, g)
        along, along_lost = _add(along, along_lost, g * near)
        xhat = near * rs
        lost = fma(near, rs, every(0.0) - xhat) + lost * rs
        part_of_sum = d * xhat
        lost = fma(d, xhat, every(0.0) - part_of_sum) + lost * d
        at = dgamma + 8 * j
        new, new_lost = _add(load(at, 0.0), load(at + spare, 0.0) + lost, part_of_sum)
        store(at, new, 0.0, False)
        store(at + spare, new_lost, 0.0, False)
        at = dbeta + 8 * j
        new, new_lost = _add(load(at, 0.0), load(at + spare, 0.0), d)
        store(at, new, 0.0, False)
        store(at + spare, new_lost, 0.0, False)
    return total(plain + plain_lost), total(along + along_lost)


_by_type(_project, _project_narrow, _project_float64, inlined=True)


@inlined
def _slopes(like, x, dy, dx, n, gamma, gamma_mask, m, residue, r, mean, along, past_caches):
    """Write ((g − mean(g)) − x̂·along)·r."""
    zero, size, part = narrow(0.0, like), size_of(like), n % LANES
    m, residue, r, mean, along = every(m), every(residue), every(r), every(-mean), every(-along)
    for j in range(0, n - part, LANES):
        xhat = ((load(x + j * size, like) - m) - residue) * r
        g = fma(load(dy + j * size, like), load(gamma + (j * size_of(zero) & gamma_mask), zero), mean)
        store(dx + j * size, fma(along, xhat, g) * r, like, past_caches)
    if part:
        j = n - part
        xhat = ((load_first(x + j * size, part, like) - m) - residue) * r
        scale = load_first(gamma + (j * size_of(zero) & gamma_mask), part, zero)
        g = fma(load_first(dy + j * size, part, like), scale, mean)
        store_first(dx + j * size, part, fma(along, xhat, g) * r, like)


@inner
def _extreme_slopes(like, x, dy, dx, n, gamma, gamma_mask, m, residue, r, centered, divisor):
    """Do a row that overflows on the way, in float64 and a quarter of its size."""
    zero, size = narrow(0.0, like), size_of(like)
    m, residue, r = 0.25 * wide(m), 0.25 * wide(residue), 4.0 * wide(r)
    mean, along = 0.0, 0.0
    for j in range(n):
        g = wide(number(dy + j * size, like)) * wide(number(gamma + (j * size_of(zero) & gamma_mask), zero))
        mean += g / n
        along += g / divisor * (((0.25 * wide(number(x + j * size, like)) - m) - residue) * r)
    mean = mean if centered else 0.0
    for j in range(n):
        g = wide(number(dy + j * size, like)) * wide(number(gamma + (j * size_of(zero) & gamma_mask), zero))
        xhat = ((0.25 * wide(number(x + j * size, like)) - m) - residue) * r
        put_number(dx + j * size, narrow(((g - mean) - xhat * along) * (0.25 * r), like), like)


@inner
def _widen_gamma(gamma, gamma_mask, n, gammas, zero):
    """Copy a gamma as float64, so that no row converts it again."""
    for j in range(0, n, LANES):
        part = load_first(gamma + (j * size_of(zero) & gamma_mask), min(LANES, n - j), zero)
        store(gammas + 8 * j, wide(part), 0.0, False)


@inner
def _padded(n):
    return (n + LANES - 1) // LANES * LANES


@inner
def _backward_piece(like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums, gammas, lo, hi):
    """Differentiate rows lo to hi; sums: (2 or 4, padded columns) float64 receives dγ, dβ, and what they lost."""
    n, zero, size = count(told, COLUMNS), narrow(0.0, like), count(told, ITEMSIZE)
    centered, divisor = about(told, CENTERED) != 0.0, about(told, DIVISOR)
    x, x_step, dy, dy_step = address(x), step(x, told), address(dy), step(dy, told)
    dx, dx_step = address(dx), step(dx, told)
    past_caches = about(told, PAST_CACHES) != 0.0 and (dx | dx_step) % 16 == 0
    scales, which, scale_mask = _parameter(gamma, gamma_index, told, NO_GAMMA)
    means, residues, rstds, compute_size = address(mean), address(residue), address(rstd), count(told, COMPUTE_SIZE)
    length, per_value, per_divisor, widened = 8 * _padded(n), 1.0 / n, 1.0 / divisor, -1
    for j in range(0, (4 if size == 8 else 2) * length, 8 * LANES):
        store(sums + j, every(0.0), 0.0, False)
    for i in range(lo, hi):
        scale = _of_row(scales, which, i, n * compute_size)
        if scale != widened:
            widened = scale
            _widen_gamma(scale, scale_mask, n, gammas, zero)
        row, slope, to = x + i * x_step, dy + i * dy_step, dx + i * dx_step
        m, missed = number(means + i * compute_size, zero), number(residues + i * compute_size, zero)
        r = number(rstds + i * compute_size, zero)
        plain, along = _project(like, row, slope, n, gammas, sums, sums + length, m, missed, r, 2 * length)
        usual = 2.0**-500 < r < 2.0**500 if size == 8 else 2.0**-60 < r < 2.0**24
        plain = narrow(plain * per_value if centered else 0.0, like)
        along = narrow(along * wide(r) * per_divisor, like)
        if usual and abs(plain) < math.inf and abs(along) < math.inf:
            _slopes(like, row, slope, to, n, scale, scale_mask, m, missed, r, plain, along, past_caches)
        else:
            _extreme_slopes(like, row, slope, to, n, scale, scale_mask, m, missed, r, centered, divisor)
    if past_caches:
        fence()


@inner
def _add_pieces(told, sums, pieces, dgamma, dbeta, like):
    """Add the pieces of dγ and dβ in order, and write them in C, or in float64 for arrays that were laid out."""
    n, zero, laid_out = count(told, COLUMNS), narrow(0.0, like), about(told, AXES) == 0.0
    size, length = 8 if laid_out else count(told, COMPUTE_SIZE), 8 * _padded(n)
    carried = count(told, COMPUTE_SIZE) == 8
    piece_step = length * (4 if carried else 2)
    for which in range(2):
        to = address(dgamma if which == 0 else dbeta)
        if to == 0:
            continue
        for j in range(0, n, LANES):
            at = sums + which * length + 8 * j
            whole, lost, part = every(0.0), every(0.0), min(LANES, n - j)
            for piece in range(pieces):
                if carried:
                    lost = lost + load(at + piece * piece_step + 2 * length, 0.0)
                    whole, lost = _add(whole, lost, load(at + piece * piece_step, 0.0))
                else:
                    whole = whole + load(at + piece * piece_step, 0.0)
            whole = whole + finite(lost)  # beside an infinite sum it is NaN
            if laid_out:
                store_first(to + size * j, part, whole, 0.0)
            else:
                store_first(to + size * j, part, narrow(whole, like), zero)


# -- all rows, on one thread or several ---------------------------------------------------------------------


@inner
def _room(told, pieces, threads):
    """Make room for dγ and dβ by pieces, and for gamma in float64 by threads."""
    length = _padded(count(told, COLUMNS))
    return np.empty(pieces * length * (4 if count(told, COMPUTE_SIZE) == 8 else 2)), np.empty(threads * length)


@inner
def _backward_pieces(like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums, gammas, pieces, t, threads):
    """Do one thread's run of pieces."""
    length, rows = 8 * _padded(count(told, COLUMNS)), count(told, ROWS)
    gammas = gammas.ctypes.data + t * length
    for piece in range(t * pieces // threads, (t + 1) * pieces // threads):
        to = sums.ctypes.data + piece * length * (4 if count(told, COMPUTE_SIZE) == 8 else 2)
        _backward_piece(like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, to, gammas,
                        piece * rows // pieces, (piece + 1) * rows // pieces)  # fmt: skip


@_for_each()
def backward_serial(
    like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, dgamma, dbeta, pieces, thread, threads
):  # fmt: skip
    """Differentiate all rows on the calling thread, or give False if these arrays must be laid out first."""
    if not can_differentiate(told, dy, x, gamma, mean, residue, rstd):
        return False
    sums, gammas = _room(told, pieces, threads)
    _backward_pieces(like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums, gammas, pieces, 0, 1)
    _add_pieces(told, sums.ctypes.data, pieces, dgamma, dbeta, like)
    return True


@_for_each(parallel=True)
def backward_parallel(
    like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, dgamma, dbeta, pieces, thread, threads
):  # fmt: skip
    """Differentiate all rows, an equal run of pieces a thread."""
    if not can_differentiate(told, dy, x, gamma, mean, residue, rstd):
        return False
    sums, gammas = _room(told, pieces, threads)
    for t in prange(threads):
        _backward_pieces(like, told, dy, x, gamma, gamma_index, mean, residue, rstd, dx, sums, gammas, pieces, t,
                         threads)  # fmt: skip
    _add_pieces(told, sums.ctypes.data, pieces, dgamma, dbeta, like)
    return True
