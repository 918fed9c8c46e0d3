# SPDX-License-Identifier: MIT
"""This file keeps count, mean and squared deviations of data that arrives in pieces, whatever the pieces."""

from __future__ import annotations  # so that help() prints ArrayLike, and not a screen of what it stands for

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from layernorm.ops.arrays import array_of
from layernorm.spec.errors import ArgumentError

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]  # hi + lo, an unevaluated sum that carries about 106 bits

BLOCK = 2**15  # elements; 70 ns each on (200 000, 10), where 2**13 and 2**17 take twice as long
LOWEST = -1000  # the exponent of a column of zeros: no other column has a smaller one


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Moments:
    """Count, mean and sum of squared deviations (M2) of each column; pieces merge in any order.

    For pieces a and b, with n = n_a + n_b and δ = mean_b - mean_a (Chan, Golub and LeVeque 1979):

        sum = sum_a + sum_b        M2 = M2_a + M2_b + δ² n_a n_b / n

    Both are pairs of float64, and each column carries a power of two. So for finite data, from subnormals to
    the largest float64, `mean` is within 1 ulp of `max(|mean|, std)` and `std()` within 2 ulp of itself,
    however the data were split and merged; M2 is zero exactly where all values are equal. `m2` and
    `variance()` overflow or underflow where the square does. NaN or infinity stays in its column: the mean
    is what plain summation gives, the rest is NaN.

    To begin with no data, merge onto the moments of no rows, `Moments.of(np.empty((0, columns)), axis=0)`.

    >>> whole = Moments.of([2, 4, 6, 8])
    >>> whole
    Moments(count=4, mean=5.0, std=2.23606797749979)
    >>> bool(Moments.of([2]).merge(Moments.of([4, 6, 8])).mean == whole.mean)
    True
    """

    _count: Array  # float64; like all the others it has the columns' shape, or is a scalar if no axis is left
    _sum: Pair  # Σ x / 2**exponent
    _squares: Pair  # Σ (x - mean)² / 4**exponent
    _exponent: Array

    def __init__(self, *state: Any) -> None:
        names = self.__dataclass_fields__
        if len(state) != len(names):
            raise ArgumentError("Moments are taken of data; write Moments.of(x, axis=0), or Moments.of([]) of none.")
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, x: ArrayLike, axis: int | Sequence[int] | None = None, *, where: ArrayLike | None = None) -> Moments:
        """Take the moments of x over some axes (None: all); the axes that are left are the columns.

        `where` has x's shape, and False for values to leave out. Integers beyond 2**53 round to float64.

        Raises:
            ArgumentError: an axis is out of range or repeated, there is none, or `where` has another shape.
            ArrayTypeError: x is masked, or holds anything but booleans, integers or floats of up to 64 bits.

        >>> Moments.of([[1.0, 10.0], [3.0, 10.0]], axis=0).mean
        array([ 2., 10.])
        """
        x = array_of(x, "x")
        chosen = np.broadcast_to(True, x.shape) if where is None else np.asarray(where, bool)
        if chosen.shape != x.shape:
            raise ArgumentError(
                f"where has shape {chosen.shape} but x has shape {x.shape}; pass one bool for each value."
            )
        axes = _axes(axis, x.ndim)
        n = math.prod(x.shape[a] for a in axes)
        columns = [size for a, size in enumerate(x.shape) if a not in axes]
        x, chosen = (np.moveaxis(a, axes, range(len(axes))).reshape([n, *columns]) for a in (x, chosen))
        step = max(16, BLOCK // max(1, math.prod(columns)))
        total = _of_block(x[:step], chosen[:step])
        for start in range(step, n, step):
            total = total.merge(_of_block(x[start : start + step], chosen[start : start + step]))
        return total

    @np.errstate(all="ignore")
    def merge(self, other: Moments) -> Moments:
        """Give the moments of both pieces together, to the bit the same as `other.merge(self)`.

        Raises:
            ArgumentError: the pieces have columns of different shapes.

        >>> Moments.of([1.0, 2.0]).merge(Moments.of([]))
        Moments(count=2, mean=1.5, std=0.5)
        """
        n_a, n_b = self._count, other._count
        if n_a.shape != n_b.shape:
            raise ArgumentError(
                f"moments of columns of shape {n_a.shape} and {n_b.shape} cannot be merged; "
                "reduce the same axes of both pieces."
            )
        exponent = np.maximum(self._exponent, other._exponent)
        (sum_a, squares_a), (sum_b, squares_b) = self._scaled_to(exponent), other._scaled_to(exponent)
        mean_a, mean_b = _over(sum_a, _divisor(n_a)), _over(sum_b, _divisor(n_b))
        delta = _plus(mean_b, (-mean_a[0], -mean_a[1]))
        between = _over(_times(_times(_times(delta, delta), (n_a, 0.0)), (n_b, 0.0)), _divisor(n_a + n_b))
        total = _finite_or(sum_a[0] + sum_b[0], _plus(sum_a, sum_b))
        return Moments(n_a + n_b, total, _plus(_plus(squares_a, squares_b), between), exponent)

    @property
    def count(self) -> Array:
        """How many values each column has seen, as integers."""
        return self._count.astype(np.int64)

    @property
    def mean(self) -> Array:
        """The mean of each column, NaN where there is no value."""
        return self.mean_pair[0]

    @property
    @np.errstate(all="ignore")
    def mean_pair(self) -> Pair:
        """The mean as hi + lo: `hi` is the mean rounded to float64, `lo` what the rounding lost.

        `(x - hi) - lo` is right at any offset; `x - hi` alone is wrong by up to half an ulp of the offset.
        """
        hi, lo = _finite_or(self._sum[0] / self._count, _over(self._sum, self._count))
        return np.ldexp(hi, self._exponent), np.ldexp(lo, self._exponent)

    @property
    def m2(self) -> Array:
        """The sum of squared deviations from the mean, of each column; 0 where there is no value."""
        return self._unscaled_square(self._squares[0])

    def variance(self, ddof: float = 0) -> Array:
        """Give M2 / (count - ddof), NaN where count is not above ddof."""
        return self._unscaled_square(self._scaled_variance(ddof))

    @np.errstate(all="ignore")
    def std(self, ddof: float = 0) -> Array:
        """Give the root of the variance, right even where the variance overflows or underflows."""
        return np.ldexp(np.sqrt(self._scaled_variance(ddof)), self._exponent)

    def __repr__(self) -> str:
        return f"Moments(count={self.count}, mean={self.mean}, std={self.std()})"

    def _scaled_to(self, exponent: Array) -> tuple[Pair, Pair]:
        """Give sum and M2 in units of another, no smaller, power of two."""
        by = np.ldexp(1.0, self._exponent - exponent)
        (s, s_lo), (q, q_lo) = self._sum, self._squares
        return (s * by, s_lo * by), (q * by * by, q_lo * by * by)

    @np.errstate(all="ignore")
    def _scaled_variance(self, ddof: float) -> Array:
        free = self._count - ddof
        return _over(self._squares, np.where(free > 0, free, np.nan)[()])[0]

    @np.errstate(all="ignore")
    def _unscaled_square(self, value: Any) -> Array:
        square: Array = np.ldexp(value, 2 * self._exponent)
        return square


@np.errstate(all="ignore")
def _of_block(x: Array, chosen: Array) -> Moments:
    """Take the moments of x: (rows, columns) in two passes over a block small enough for the cache."""
    x = np.where(chosen, x.astype(np.float64), 0.0)
    count = chosen.sum(axis=0, dtype=np.float64)
    largest = np.abs(x).max(axis=0, initial=0.0)
    known = np.isfinite(largest) & (largest > 0)
    # Within ±1000, for the power of two to be a float64 itself.
    exponent = np.where(known, np.frexp(largest)[1].clip(LOWEST, -LOWEST), LOWEST).astype(np.int32)[()]
    x *= np.ldexp(1.0, -exponent)
    total = _finite_or(x.sum(axis=0), _fold(x.copy(), np.zeros_like(x)))
    mean, mean_lo = _over(total, _divisor(count))
    deviation, lost = _two_sum(x, -mean)
    deviation, lost = _fast_two_sum(deviation, lost - mean_lo)
    deviation, lost = np.where(chosen, deviation, 0.0), np.where(chosen, lost, 0.0)
    squares = _fold(*_times((deviation, lost), (deviation, lost)))
    return Moments(count, total, squares, exponent)


def _fold(hi: Array, lo: Array) -> Pair:
    """Sum pairs over the first axis, half onto half and in place; log₂ n additions deep."""
    n = len(hi)
    while n > 1:
        half = n // 2
        hi[:half], lo[:half] = _plus((hi[:half], lo[:half]), (hi[n - half : n], lo[n - half : n]))
        n -= half
    return hi[:1].sum(axis=0), lo[:1].sum(axis=0)  # a new array: a view would keep the block alive


# The arithmetic of pairs: Joldes, Muller and Popescu (2017), algorithms 6, 10 and 15; each result is right to
# a few units of 2**-106.


def _plus(x: Any, y: Any) -> Pair:
    high, e = _two_sum(x[0], y[0])
    low, f = _two_sum(x[1], y[1])
    high, e = _fast_two_sum(high, e + low)
    return _fast_two_sum(high, e + f)


def _times(x: Any, y: Any) -> Pair:
    p, e = _two_prod(x[0], y[0])
    return _fast_two_sum(p, e + (x[0] * y[1] + x[1] * y[0]))


def _over(x: Any, n: Any) -> Pair:
    quotient = x[0] / n
    p, e = _two_prod(quotient, n)
    return _fast_two_sum(quotient, (((x[0] - p) - e) + x[1]) / n)


def _two_sum(a: Any, b: Any) -> Pair:
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _fast_two_sum(a: Any, b: Any) -> Pair:
    s = a + b
    return s, b - (s - a)


def _two_prod(a: Any, b: Any) -> Pair:
    p = a * b
    (a_hi, a_lo), (b_hi, b_lo) = _halves(a), _halves(b)
    return p, ((a_hi * b_hi - p) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


def _halves(a: Any) -> Pair:
    c = 134217729.0 * a  # Veltkamp's 2**27 + 1: products of such halves are exact
    high = c - (c - a)
    return high, a - high


def _finite_or(plain: Array, pair: Pair) -> Pair:
    """Put the plain result where the arithmetic of pairs has made NaN of an infinity."""
    known = np.isfinite(pair[0])
    return pair if known.all() else (np.where(known, pair[0], plain)[()], np.where(known, pair[1], 0.0)[()])


def _divisor(count: Any) -> Any:
    """Give the count, or 1 where there is nothing to divide."""
    return count + (count == 0)


def _axes(axis: int | Sequence[int] | None, ndim: int) -> list[int]:
    """Give axes counted from the front."""
    if axis is None:
        return list(range(ndim))  # none for a single number, which is one value
    given = [operator.index(a) for a in axis] if isinstance(axis, Sequence) else [operator.index(axis)]
    axes = [a + ndim if a < 0 else a for a in given]
    if not axes or len(set(axes)) < len(axes) or not all(0 <= a < ndim for a in axes):
        raise ArgumentError(
            f"axis {axis} does not fit x of {ndim} dimensions; pass distinct axes, {-ndim} to {ndim - 1}."
        )
    return axes
