# SPDX-License-Identifier: MIT
"""This file is the truth that norms are graded against: double-double arithmetic, about 30 correct digits.

It shares no line with the kernels and the reference, so they cannot be wrong together, and it is vectorised because
mpmath would take minutes for one row of 65 536.

A double-double is an unevaluated sum hi + lo of two float64, where hi is that sum rounded to float64. It all
rests on one fact: the rounding error of a float64 addition or multiplication is itself a float64, and a few
more operations find it (`two_sum`, `two_prod`). Carrying that error along gives 106 bits instead of 53.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name "bfloat16"
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Significant bits, and the exponent of the smallest subnormal.
FORMATS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}
NOISE: dict[str, Any] = {
    "over": "ignore",
    "invalid": "ignore",
    "divide": "ignore",
}  # a row with an infinity is NaN, quietly


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Knuth: s + e = a + b exactly, whichever is the larger."""
    s = a + b
    from_b = s - a
    return s, (a - (s - from_b)) + (b - from_b)


def fast_two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker: the same for |a| >= |b|, in three operations instead of six."""
    s = a + b
    return s, b - (s - a)


def split(a: Array) -> tuple[Array, Array]:
    """Veltkamp: a = high + low with at most 26 bits each, so that products of halves are exact."""
    c = 134217729.0 * a  # 2**27 + 1
    high = c - (c - a)
    return high, a - high


def two_prod(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker: p + e = a·b exactly (NumPy has no fused multiply-add, which would need one line)."""
    p = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@dataclass(frozen=True, eq=False)
class DD:
    """hi + lo, two float64 arrays; each operation is right to 2**-103 or so of its result.

    For magnitudes from 1e-140 to 1e140. Above 2**996 `split` overflows; a product below 2**-969 loses the low
    half of its error term, though never more than a few times 2**-1074.

    >>> third = DD.of(1.0) / 3.0
    >>> float(third.hi), float(third.lo)
    (0.3333333333333333, 1.850371707708594e-17)
    """

    hi: Array
    lo: Array

    __array_ufunc__ = None  # array * DD must come to DD.__rmul__, not go element by element

    @staticmethod
    def of(value: Any) -> DD:
        """Take an array or a number as it is, with nothing in the low half."""
        if isinstance(value, DD):
            return value
        hi = np.asarray(value).astype(np.float64)
        return DD(hi, np.zeros_like(hi))

    def __add__(self, other: Any) -> DD:
        # Joldes, Muller and Popescu's accurate sum. The shorter one that adds both low parts at once loses
        # everything when the high parts cancel, and cancelling is what centering does.
        other = DD.of(other)
        s, e = two_sum(self.hi, other.hi)
        t, f = two_sum(self.lo, other.lo)
        s, e = fast_two_sum(s, e + t)
        return DD(*fast_two_sum(s, e + f))

    def __mul__(self, other: Any) -> DD:
        other = DD.of(other)
        p, e = two_prod(self.hi, other.hi)
        cross = self.hi * other.lo + (self.lo * other.hi + self.lo * other.lo)
        return DD(*fast_two_sum(p, e + cross))

    def __truediv__(self, other: Any) -> DD:
        # Long division in base 2**53: the second digit is a float64 quotient of what the first one leaves.
        # A third took the worst error seen from 2**-103.6 to 2**-104.9, and was not worth its time.
        other = DD.of(other)
        first = self.hi / other.hi
        return DD(*fast_two_sum(first, (self - other * first).hi / other.hi))

    def sqrt(self) -> DD:
        """Give the square root."""
        # One Newton step from the float64 root: the correction is 2**-53 of it, so float64 will do.
        root = np.sqrt(self.hi)
        left = (self - DD(*two_prod(root, root))).hi
        return DD(*fast_two_sum(root, left / np.where(root == 0, 1.0, 2.0 * root)))

    def sum(self, axis: int = -1, keepdims: bool = True) -> DD:
        """Add along an axis."""
        # By halves: log2(n) roundings on the way to each term instead of n, and whole arrays at a time.
        if self.hi.shape[axis] == 0:
            return DD.of(self.hi.sum(axis=axis, keepdims=keepdims))
        terms = DD(np.moveaxis(self.hi, axis, 0), np.moveaxis(self.lo, axis, 0))
        while (n := len(terms.hi)) > 1:
            pairs, odd = terms[: n // 2] + terms[n // 2 : n - n % 2], terms[n - n % 2 :]
            terms = DD(np.concatenate([pairs.hi, odd.hi]), np.concatenate([pairs.lo, odd.lo]))
        if keepdims:
            return DD(np.moveaxis(terms.hi, 0, axis), np.moveaxis(terms.lo, 0, axis))
        return terms[0]

    def ldexp(self, power: Any) -> DD:
        """Multiply by 2**power, exactly."""
        hi = np.ldexp(self.hi, power)
        return DD(hi, np.where(np.isinf(hi), 0.0, np.ldexp(self.lo, power)))  # infinity, not ∞ − ∞

    def to_float(self) -> Array:
        """Round to float64."""
        return np.asarray(self.hi + self.lo)

    def __neg__(self) -> DD:
        return DD(-self.hi, -self.lo)

    def __abs__(self) -> DD:
        sign = np.where(self.hi < 0, -1.0, 1.0)
        return DD(self.hi * sign, self.lo * sign)

    def __sub__(self, other: Any) -> DD:
        return self + -DD.of(other)

    def __rsub__(self, other: Any) -> DD:
        return DD.of(other) - self

    def __rtruediv__(self, other: Any) -> DD:
        return DD.of(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, key: Any) -> DD:
        return DD(self.hi[key], self.lo[key])


@dataclass(frozen=True, eq=False)
class Exact:
    """What a forward pass should have given. Shapes: (rows, columns), and (rows, 1) for the last three."""

    y: DD
    xhat: DD
    rho: Array
    mean: DD
    rstd: DD


@np.errstate(**NOISE)
def forward(
    x: Array, gamma: Any = None, beta: Any = None, eps: float = 1e-5, centered: bool = True, ddof: int = 0
) -> Exact:
    """y = γ·x̂ + β with x̂ = (x − mean)/√(var + eps) by rows; x: (rows, columns) of any float type.

    Right for every finite row, float64's largest and its subnormals too: to 2**-90 of |γ·x̂| + |γ|·ρ + |β|, or
    to 2**-1073 where y is that small. γ and β: zero, or magnitudes from 1e-140 to 1e140. `rstd` is infinite
    where 1/σ exceeds float64. A constant row with eps = 0 is NaN, and so is one that holds NaN or infinity.
    """
    row = _standardize(x, eps, centered, ddof)
    xhat = row.xhat.ldexp(row.lift)
    # Before the lift, because γ·x̂ may be an ordinary number where x̂ is subnormal.
    y = xhat if gamma is None else (row.xhat * gamma).ldexp(row.lift)
    return Exact(y if beta is None else y + beta, xhat, row.rho, row.mean, row.r.ldexp(-row.power))


@np.errstate(**NOISE)
def backward(
    dy: Array, x: Array, gamma: Any = None, eps: float = 1e-5, centered: bool = True
) -> tuple[DD, DD, DD, Array, Array]:
    """dx, dgamma, dbeta as DD, and the scales of the two sums: Σ|dy·x̂| and Σ|dy| by column.

    With g = γ·dy: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), without mean(g) if not centered. Right for every
    finite x, to 2**-90 of √columns·rstd·max|g|. dy and γ·dy: zero, or magnitudes from 1e-140 to 1e140.
    """
    row = _standardize(x, eps, centered, 0)
    slope = DD.of(dy)
    g = slope if gamma is None else slope * gamma
    columns = float(slope.hi.shape[1])
    inner = g - (row.xhat * ((g * row.xhat).sum() / columns)).ldexp(2 * row.lift)
    if centered:
        inner = inner - g.sum() / columns
    # 1/σ of a subnormal row is beyond float64 where dx may still be finite, so its power of two comes last.
    dx = (inner * row.r).ldexp(-row.power)
    part = (slope * row.xhat).ldexp(row.lift)
    dgamma, dbeta = part.sum(axis=0, keepdims=False), slope.sum(axis=0, keepdims=False)
    return dx, dgamma, dbeta, np.abs(part.hi).sum(axis=0), np.abs(slope.hi).sum(axis=0)


@dataclass(frozen=True, eq=False)
class _Standardized:
    """x̂ is xhat·2**lift and 1/√(var + eps) is r·2**-power: the DDs near 1, the powers of any size."""

    xhat: DD
    lift: Array
    rho: Array
    mean: DD
    r: DD
    power: Array


def _standardize(x: Array, eps: float, centered: bool, ddof: int) -> _Standardized:
    x = np.asarray(x).astype(np.float64)
    rows, columns = x.shape
    # Bring the row's peak into [0.5, 1), exactly: what falls below 2**-1074 then is nothing beside the peak.
    peak = np.frexp(np.max(np.abs(x), axis=1, keepdims=True))[1]
    x = np.ldexp(x, -peak)
    if centered:
        # x − x[0] is exact as a double-double, so errors are relative to the spread, however far the row is
        # from zero, and a constant row has a spread of exactly zero.
        first = x[:, :1]
        moved = DD(*two_sum(x, -first))
        shift = moved.sum() / float(columns)
        deviation, mean = moved - shift, (shift + first).ldexp(peak)
    else:
        deviation, mean = DD.of(x), DD.of(np.zeros((rows, 1)))
    var = (deviation * deviation).sum() / float(columns - ddof)
    # var + eps in units of 4**power, so that the larger of them is near 1 and neither overflows; the smaller
    # may vanish, as it should. A row of zero spread takes eps' own unit: in its peak's, eps might vanish too.
    unit = np.frexp(eps)[1] // 2 if eps else -1100
    power = np.where(var.hi == 0, unit, np.maximum(peak, unit))
    lift = peak - power
    total = var.ldexp(2 * lift) + np.ldexp(float(eps), -2 * power)
    r = 1.0 / total.sqrt()  # of zero: NaN, by way of 0·∞ in the division
    rho = np.ldexp(np.sqrt(var.hi) * r.hi, lift)
    return _Standardized(deviation * r, lift, rho, mean, r, power)


def forward_bound(exact: Exact, gamma: Any, beta: Any, dtype: npt.DTypeLike) -> Array:
    """The error promised to every element: 4u·(|γ·x̂| + |γ|·ρ + |β|) and one smallest subnormal.

    u is half an ulp of 1 in the compute type. The three terms are the three ways in which rounding enters:
      |γ·x̂|  the factor r, and the products by r and by γ, are each off by some u of the result;
      |γ|·ρ  the mean is off by a share of u·σ, of which r makes u·σ/√(σ² + ε) = u·ρ in every x̂, zero or not;
      |β|    the last addition rounds γ·x̂ + β, and |γ·x̂ + β| <= |γ·x̂| + |β|.
    The subnormal is for results too small to have u. Four, where 2.7 is the worst seen, leaves room for
    other orders of summation.
    """
    name = np.dtype(dtype).name
    compute = "float64" if name == "float64" else "float32"
    bits, lowest = FORMATS[compute]
    gamma = np.abs(DD.of(1.0 if gamma is None else gamma).hi)
    beta = np.abs(DD.of(0.0 if beta is None else beta).hi)
    terms = gamma * np.abs(exact.xhat.hi) + gamma * exact.rho + beta
    bound = np.asarray(4 * 2.0**-bits * terms + np.ldexp(1.0, lowest))
    if name == compute:
        return bound
    # A 16-bit output is that float32 rounded once more: half an ulp where the float32 may lie, which close to
    # the top of a binade is the wider spacing of the next one.
    return np.asarray(bound + ulp(np.abs(exact.y.hi) + bound, name) / 2)


@np.errstate(**NOISE)
def error(y: Array, exact_value: DD) -> Array:
    """|y − exact| in float64; NaN, which no bound admits, where either is not finite."""
    return abs(DD.of(y) - exact_value).to_float()


def ulp(value: Any, dtype: npt.DTypeLike) -> Array:
    """The spacing of `dtype` at |value|, which is its smallest subnormal near zero; no ceiling at the top."""
    bits, lowest = FORMATS[np.dtype(dtype).name]
    value = np.abs(np.asarray(value).astype(np.float64))
    return np.ldexp(1.0, np.where(value == 0, lowest, np.maximum(np.frexp(value)[1] - bits, lowest)))
