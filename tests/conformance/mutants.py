# SPDX-License-Identifier: MIT
"""This file holds broken norms, each wrong in one way, with the property that must be the first to name it.

`norm` is right: float64 inside, one rounding at the end. A mutant replaces one of its parts, or wraps it. None is
made up: each is a mistake that some library or kernel has made, or that a kernel of this shape invites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import layernorm as ln
from layernorm.conformance.targets import Target

LAYER = ln.NormSpec(eps=1e-5, scale_axes=(-1,), shift_axes=(-1,))
RMS = ln.NormSpec(centered=False, spread="rms", eps=1e-6, scale_axes=(-1,))
GEMMA = ln.NormSpec(centered=False, spread="rms", eps=1e-6, scale_axes=(-1,), scale_offset=1)
BARE = ln.NormSpec(eps=0.0)
TYPES = ("float32", "float16", "bfloat16")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mutant:
    """A broken target, and the property that names what is broken; not every fault shows in the quick cases."""

    target: Target
    named_by: str
    quick: bool = True

    @property
    def name(self) -> str:
        return self.target.name


def mean_of(rows, spec):
    return rows.mean(axis=-1, keepdims=True) if spec.centered else np.zeros((*rows.shape[:-1], 1))


def var_of(rows, mean, spec):
    return ((rows - mean) ** 2).mean(axis=-1, keepdims=True)


def rstd_of(var, spec, width):
    return 1 / np.sqrt(var + spec.eps)


def xhat_of(rows, mean, rstd, spec):
    return (rows - mean) * rstd


def affine_of(xhat, gamma, beta, spec, dtype):
    y = xhat if gamma is None else xhat * (spec.scale_offset + wide(gamma))
    return y if beta is None else y + wide(beta)


def checked(x, parameter):
    if x.ndim == 0:
        raise ValueError("x has no axes")
    if parameter is not None and parameter.shape != x.shape[-1:]:
        raise ValueError(f"{parameter.shape} does not fit {x.shape}")


def norm(
    x, gamma=None, beta=None, *, spec=LAYER, check=checked, wide_of=lambda x: wide(x), mean=mean_of, var=var_of,
    rstd=rstd_of, xhat=xhat_of, affine=affine_of, narrow=lambda y, dtype: y.astype(dtype),
):  # fmt: skip
    check(x, gamma)
    check(x, beta)
    if x.size == 0:
        return x.copy()
    rows = wide_of(x)
    m = mean(rows, spec)
    r = rstd(var(rows, m, spec), spec, x.shape[-1])
    return narrow(affine(xhat(rows, m, r, spec), gamma, beta, spec, x.dtype), x.dtype)


def gradients(
    dy, x, gamma=None, *, spec=LAYER, mean=mean_of, slope=lambda dy, scale: dy * scale, projected=True, centered=None,
    add=lambda terms: terms.sum(axis=0), xhat=lambda rows, mean, rstd: (rows - mean) * rstd,
):  # fmt: skip
    if dy.shape != x.shape:
        raise ValueError("dy does not fit x")
    rows, dy = (wide(a).reshape(-1, x.shape[-1]) for a in (x, dy))
    m = mean(rows, spec)
    r = rstd_of(var_of(rows, m, spec), spec, x.shape[-1])
    h = (rows - m) * r
    g = slope(dy, 1.0 if gamma is None else spec.scale_offset + wide(gamma))
    dx = g
    if spec.centered if centered is None else centered:
        dx = dx - g.mean(axis=-1, keepdims=True)
    if projected:
        dx = dx - h * (g * h).mean(axis=-1, keepdims=True)
    parameters = [add(terms) if len(terms) else terms.sum(axis=0) for terms in (dy * xhat(rows, m, r), dy)]
    like = x.dtype if gamma is None else gamma.dtype
    dgamma, dbeta = (total.astype(like) for total in parameters)
    return (dx * r).astype(x.dtype).reshape(x.shape), None if gamma is None else dgamma, dbeta


def wide(a):
    # in C order, because NumPy adds in the order of memory and `layout` would be the first to notice
    return a.astype(np.float64, order="C")


def through(dtype):
    """A cast to a narrow type and back, which loses digits."""
    return lambda a: np.asarray(a).astype(dtype).astype(np.float64)


def target_of(name, spec=LAYER, dtypes=TYPES, backward=None, before=None, in_place=None, set_threads=None, **parts):
    def forward(x, gamma=None, beta=None):
        return norm(x, gamma, beta, spec=spec, **parts)

    if backward is not None:
        inner = backward

        def backward(dy, x, gamma=None):
            return inner(dy, x, gamma)

    return Target(
        name, None, spec, forward, backward, dtypes, in_place=in_place, set_threads=set_threads,
    )  # fmt: skip


def exact(spec=LAYER, dtypes=TYPES):
    """The unbroken one, with everything that a target can have."""

    def in_place(x):
        x[...] = norm(x, spec=spec)

    return target_of(
        "exact", spec, dtypes, lambda dy, x, gamma=None: gradients(dy, x, gamma, spec=spec), in_place=in_place,
        set_threads=lambda number: None,
    )  # fmt: skip


MUTANTS: list[Mutant] = []


def mutant(name, named_by, **parts):
    MUTANTS.append(Mutant(target_of(name, **parts), named_by))


def whole(name, named_by, spec=LAYER, dtypes=TYPES, quick=True, **more):
    """Add a mutant whose forward function is the decorated one: f(x, gamma, beta, right) with the right norm."""

    def add(function):
        def right(x, gamma=None, beta=None, **parts):
            return norm(x, gamma, beta, spec=spec, **parts)

        def forward(x, gamma=None, beta=None):
            return function(x, gamma, beta, right)

        MUTANTS.append(Mutant(Target(name, None, spec, forward, dtypes=dtypes, **more), named_by, quick))
        return function

    return add


def backward(name, named_by, spec=LAYER, dtypes=TYPES, **parts):
    mutant(
        name, named_by, spec=spec, dtypes=dtypes,
        backward=lambda dy, x, gamma=None: gradients(dy, x, gamma, spec=spec, **parts),
    )  # fmt: skip


def spoilt(name, named_by, dtypes=TYPES):
    """Add a mutant whose backward function is the decorated one: f(dy, x, gamma)."""

    def add(function):
        mutant(name, named_by, dtypes=dtypes, backward=function)
        return function

    return add


# What comes back

mutant("output stays in float64", "output", narrow=lambda y, dtype: y)
mutant("16-bit input comes back as float32", "output", narrow=lambda y, dtype: y.astype(np.float32))


@whole("x is normalized where it is", "output")
def _over_x(x, gamma, beta, right):
    x[...] = right(x, gamma, beta)
    return x


@whole("three axes come back as two", "output")
def _flat(x, gamma, beta, right):
    y = right(x, gamma, beta)
    return y.reshape(-1, x.shape[-1]) if x.ndim > 2 else y


@spoilt("dx is in float64", "output")
def _wide_dx(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    return wide(dx), *others


@spoilt("dgamma is of x's type", "output", dtypes=("float16",))
def _narrow_dgamma(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    return dx, *(a if a is None else a.astype(x.dtype) for a in others)


@spoilt("dgamma and dbeta are in bfloat16", "output", dtypes=("float32",))
def _bfloat16_dgamma(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    return dx, *(a if a is None else a.astype("bfloat16") for a in others)


@spoilt("dx is written over dy", "output")
def _over_dy(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    dy[...] = dx
    return dy, *others


@spoilt("the backward pass takes the mean off where x is", "output")
def _x_centered(dy, x, gamma):
    found = gradients(dy, x, gamma)
    x -= mean_of(wide(x), LAYER).astype(x.dtype)
    return found


@spoilt("no gradients of three axes", "output")
def _two_axes_only(dy, x, gamma):
    if x.ndim > 2:
        raise ValueError("too many axes")
    return gradients(dy, x, gamma)


# Columns


@whole("the last block is not written", "columns")
def _unwritten(x, gamma, beta, right):
    y = right(x, gamma, beta)
    if x.ndim and x.shape[-1] > 256 and x.shape[-1] % 256:
        y[..., -(x.shape[-1] % 256) :] = 0
    return y


def without_last_block(rows):
    width = rows.shape[-1]
    return rows[..., : width - width % 64] if width > 64 else rows


mutant("the last block is missing from the sums", "columns",
       mean=lambda rows, spec: mean_of(without_last_block(rows), spec),
       var=lambda rows, mean, spec: var_of(without_last_block(rows), mean, spec))  # fmt: skip
mutant("the first column is missing from the variance", "columns",
       var=lambda rows, mean, spec: var_of(rows[..., 1:] if rows.shape[-1] > 1 else rows, mean, spec))  # fmt: skip
mutant("the first column is missing from the mean", "columns",
       mean=lambda rows, spec: mean_of(rows[..., 1:] if rows.shape[-1] > 1 else rows, spec))  # fmt: skip


def unscaled_tail(rows, mean, rstd, spec):
    y = (rows - mean) * rstd
    tail = rows.shape[-1] % 8
    if tail and rows.shape[-1] > 8:
        y[..., -tail:] = (rows - mean)[..., -tail:]
    return y


mutant("what is left of vectors of 8 is not scaled", "columns", xhat=unscaled_tail)


def padded_var(rows, mean, spec):
    # a masked block reads zeros past the end, and zero minus the mean is no zero
    missing = -rows.shape[-1] % 32
    return (((rows - mean) ** 2).sum(axis=-1, keepdims=True) + missing * mean**2) / rows.shape[-1]


mutant("the padding of the last block counts in the variance", "centering", var=padded_var)

# Axes


def over(axes):
    def mean(rows, spec):
        return rows.mean(axis=axes(rows), keepdims=True)

    def var(rows, mean, spec):
        return ((rows - mean) ** 2).mean(axis=axes(rows), keepdims=True)

    return {"mean": mean, "var": var}


mutant("statistics over the last two axes", "axes", **over(lambda rows: (-2, -1)))
mutant("statistics over all axes", "axes", **over(lambda rows: None))
mutant("statistics over all axes but the first", "axes", **over(lambda rows: tuple(range(1, rows.ndim)) or None))
mutant("statistics over the axis before the last", "axes", **over(lambda rows: -2))


def misaligned(xhat, gamma, beta, spec, dtype):
    if xhat.ndim > 2:
        gamma, beta = (None if p is None else np.roll(p, 1) for p in (gamma, beta))
    return affine_of(xhat, gamma, beta, spec, dtype)


mutant("of three axes, gamma and beta are one column off", "axes", affine=misaligned)


@spoilt("of three axes, only the first two-dimensional slice has gradients", "axes")
def _first_slice(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    if x.ndim > 2:
        dx[1:] = 0
    return dx, *others


# Order of summation

THREADS = [1]
CHANCE = np.random.default_rng(0)


def set_threads(number):
    THREADS[0] = number


def in_parts(squares, parts):
    """A float32 sum in so many parts, one after the other: the order shows in the last digits."""
    total = np.zeros((*squares.shape[:-1], 1), np.float32)
    for part in np.array_split(squares.astype(np.float32), parts, axis=-1):
        total += part.sum(axis=-1, keepdims=True)
    return wide(total)


def var_in_parts(parts):
    return lambda rows, mean, spec: in_parts((rows - mean) ** 2, parts(rows)) / rows.shape[-1]


mutant(
    "each thread adds up its own part",
    "determinism",
    set_threads=set_threads,
    var=var_in_parts(lambda rows: THREADS[0]),
)
mutant("atomic additions in any order", "determinism", var=var_in_parts(lambda rows: CHANCE.integers(1, 50)))


def shuffled(terms):
    return wide(np.add.accumulate(CHANCE.permutation(terms).astype(np.float32), axis=0)[-1])


backward("dgamma and dbeta by atomic additions", "determinism", add=shuffled)
mutant("each thread adds up its own dgamma", "determinism", set_threads=set_threads,
       backward=lambda dy, x, gamma=None: gradients(
           dy, x, gamma, add=lambda terms: in_parts(terms.T, THREADS[0])[..., 0]))  # fmt: skip
mutant("the order of summation depends on the number of rows", "rows", var=var_in_parts(lambda rows: 1 + len(rows) % 7))


def by_pairs(rows, mean, spec):
    var = var_of(rows, mean, spec)
    if rows.ndim == 2:  # the odd row out takes another path
        var[-1:] = in_parts((rows[-1:] - mean[-1:]) ** 2, 5) / rows.shape[-1] if len(rows) % 2 else var[-1:]
    return var


mutant("rows are done in pairs, the one left over in another way", "rows", var=by_pairs)


def mean_of_previous(rows, spec):
    return np.roll(mean_of(rows, spec), 1)


mutant("each row has the mean of the row before", "rows", mean=mean_of_previous)
mutant("one largest value scales the whole batch", "rows",
       var=lambda rows, mean, spec: wide(np.float32(var_of(rows / np.abs(rows).max(), mean / np.abs(rows).max(), spec)))
       * np.abs(rows).max() ** 2)  # fmt: skip


def only(rows):
    def first(x, gamma, beta, right):
        y = right(x, gamma, beta)
        y[rows:] = 0
        return y

    return first


whole("rows from 2048 on are not written", "rows")(only(2048))
whole("rows from 65536 on are not written", "rows", dtypes=("float32",), quick=False)(only(65536))


def leaking(rows, mean, rstd, spec):
    return (rows - mean) * rstd + 0 * rows.sum()


mutant("a mask by multiplication lets NaN through", "neighbours", xhat=leaking)


@spoilt("a mask by multiplication lets NaN through into dx", "neighbours")
def _leaking_dx(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    return dx + (0 * wide(x).sum()).astype(x.dtype), *others


@spoilt("a mask by multiplication lets NaN of dy through into dx", "neighbours")
def _leaking_dy(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    return dx + (0 * wide(dy).sum()).astype(x.dtype), *others


# Memory


def memory_of(x):
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root


def as_contiguous(x):
    if x.flags.c_contiguous or x.size == 0:
        return x
    root = memory_of(x)
    flat = root.ravel(order="K").view(np.uint8)
    start = x.ctypes.data - root.ctypes.data
    taken = flat[(start + np.arange(x.nbytes)) % len(flat)]  # never outside the array, unlike the real thing
    return taken.view(x.dtype).reshape(x.shape)


@whole("strides are not looked at", "layout")
def _contiguous(x, gamma, beta, right):
    return right(as_contiguous(x), gamma, beta)


mutant("strides of x are not looked at in the backward pass", "layout",
       backward=lambda dy, x, gamma=None: gradients(dy, as_contiguous(x), gamma))  # fmt: skip
mutant("strides of dy are not looked at", "layout",
       backward=lambda dy, x, gamma=None: gradients(as_contiguous(dy), x, gamma))  # fmt: skip


@whole("negative strides are taken for positive", "layout")
def _forwards(x, gamma, beta, right):
    return right(x[tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)], gamma, beta)


@whole("strided rows are added in another order", "layout")
def _strided_sum(x, gamma, beta, right):
    if x.flags.c_contiguous:
        return right(x, gamma, beta)
    return right(x, gamma, beta, var=var_in_parts(lambda rows: 5))


# Definition

mutant("RMS norm for layer norm", "centering", mean=lambda rows, spec: np.zeros((*rows.shape[:-1], 1)))
mutant("layer norm for RMS norm", "centering", spec=RMS, mean=lambda rows, spec: rows.mean(axis=-1, keepdims=True))
mutant("the mean is taken off, but the denominator is the root mean square of x", "centering",
       var=lambda rows, mean, spec: (rows**2).mean(axis=-1, keepdims=True))  # fmt: skip
mutant("divides by d − 1", "spread", var=lambda rows, mean, spec: _sample(rows, mean))
mutant("divides by d − 1 in RMS norm", "spread", spec=RMS, var=lambda rows, mean, spec: _sample(rows, mean))
mutant("mean absolute deviation for standard deviation", "spread",
       var=lambda rows, mean, spec: np.abs(rows - mean).mean(axis=-1, keepdims=True) ** 2)  # fmt: skip
mutant("divides by the length of the row, not its root mean square", "spread", spec=RMS,
       var=lambda rows, mean, spec: (rows**2).sum(axis=-1, keepdims=True))  # fmt: skip


def _sample(rows, mean):
    return ((rows - mean) ** 2).sum(axis=-1, keepdims=True) / max(rows.shape[-1] - 1, 1)


def shifted_first(xhat, gamma, beta, spec, dtype):
    y = xhat if beta is None else xhat + wide(beta)
    return y if gamma is None else y * wide(gamma)


def both_or_none(xhat, gamma, beta, spec, dtype):
    return xhat if gamma is None or beta is None else affine_of(xhat, gamma, beta, spec, dtype)


def scaled_by(scale):
    return lambda xhat, gamma, beta, spec, dtype: affine_of(
        xhat if gamma is None else xhat * scale(wide(gamma)), None, beta, spec, dtype
    )


mutant("beta is dropped", "affine", affine=lambda xhat, gamma, beta, *rest: affine_of(xhat, gamma, None, *rest))
mutant("beta is inside the product", "affine", affine=shifted_first)
mutant("gamma runs backwards", "affine", affine=scaled_by(lambda gamma: gamma[::-1]))
mutant("gamma is applied twice", "affine", affine=scaled_by(lambda gamma: gamma**2))
mutant("1 + gamma where gamma is meant", "affine", affine=scaled_by(lambda gamma: 1 + gamma))
mutant("gamma and beta only together", "affine", affine=both_or_none)
mutant("gamma where 1 + gamma is meant", "affine", spec=GEMMA, affine=scaled_by(lambda gamma: gamma))
mutant("2 + gamma where 1 + gamma is meant", "affine", spec=GEMMA, affine=scaled_by(lambda gamma: 2 + gamma))

# Epsilon


def eps_as(change):
    return lambda var, spec, width: 1 / np.sqrt(var + change(spec.eps, width))


mutant("eps outside the root", "epsilon", rstd=lambda var, spec, width: 1 / (np.sqrt(var) + spec.eps))
mutant("eps on the sum", "epsilon", rstd=eps_as(lambda eps, width: eps / width))
mutant("eps as a floor", "epsilon", rstd=lambda var, spec, width: 1 / np.sqrt(np.maximum(var, spec.eps)))
mutant("eps forgotten", "epsilon", rstd=eps_as(lambda eps, width: 0))
mutant("eps added twice", "epsilon", rstd=eps_as(lambda eps, width: 2 * eps))
mutant("ten times eps", "epsilon", rstd=eps_as(lambda eps, width: 10 * eps))
mutant("another default: 1e-5 for 1e-6", "epsilon", spec=RMS, rstd=eps_as(lambda eps, width: 1e-5))
mutant("a floor under an eps of 0", "epsilon", spec=BARE, rstd=eps_as(lambda eps, width: 1e-12))
mutant("1e-6 held in float16", "epsilon", spec=RMS, rstd=eps_as(lambda eps, width: float(np.float16(eps))))
mutant("1e-5 held in bfloat16", "epsilon-digits", rstd=eps_as(lambda eps, width: float(ml_dtypes.bfloat16(eps))))
mutant("eps held in float32, for float64", "epsilon-digits", dtypes=("float64",),
       rstd=eps_as(lambda eps, width: float(np.float32(eps))))  # fmt: skip


@whole("rescaled by the largest value, and eps is not", "epsilon")
def _rescaled(x, gamma, beta, right):
    peak = np.abs(wide(x)).max(axis=-1, keepdims=True, initial=0)
    return right(x, gamma, beta, wide_of=lambda x: wide(x) / np.where(peak == 0, 1, peak))


# Precision

for kinds in (TYPES, ("float32",), ("float64",)):
    mutant(f"statistics of {', '.join(kinds)} in bfloat16", "exact", dtypes=kinds,
           var=lambda *a: through("bfloat16")(var_of(*a)),
           mean=lambda *a: through("bfloat16")(mean_of(*a)))  # fmt: skip
mutant("statistics in float16", "rounding", dtypes=("float16",), var=lambda *a: through("float16")(var_of(*a)),
       mean=lambda *a: through("float16")(mean_of(*a)))  # fmt: skip
mutant("1/σ in the input's type", "rounding", dtypes=("bfloat16",), rstd=lambda *a: through("bfloat16")(rstd_of(*a)))
mutant("an approximate reciprocal root of 12 bits", "exact", rstd=lambda *a: rstd_of(*a) * (1 + 2.0**-12))


def chained(rows, mean, spec):
    squares = ((rows - mean) ** 2).astype(np.float32)
    return wide(np.add.accumulate(squares, axis=-1)[..., -1:]) / rows.shape[-1]


mutant("one long chain of float32 additions", "exact", dtypes=("float32",), var=chained)
mutant("float64 rows computed in float32", "exact", dtypes=("float64",), wide_of=lambda x: wide(x.astype(np.float32)))


def rounded_first(xhat, gamma, beta, spec, dtype):
    return affine_of(through(dtype)(xhat), gamma, beta, spec, dtype)


def rounded_between(xhat, gamma, beta, spec, dtype):
    return affine_of(through(dtype)(affine_of(xhat, gamma, None, spec, dtype)), None, beta, spec, dtype)


def cut_off(y, dtype):
    if dtype != ml_dtypes.bfloat16:
        return y.astype(dtype)
    return (y.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)


mutant("rounded before gamma", "rounding", affine=rounded_first)
mutant("rounded before beta", "rounding", affine=rounded_between)
mutant("bfloat16 by cutting off", "rounding", narrow=cut_off)

# Far from zero


def moments(clamp, dtype):
    def var(rows, mean, spec):
        rows = rows.astype(dtype)
        first, second = (np.mean(a, axis=-1, keepdims=True, dtype=dtype) for a in (rows, rows * rows))
        found = second - first * first
        return wide(np.maximum(found, 0) if clamp else found)

    return var


mutant("E[x²] − E[x]² in float32", "offset", var=moments(False, np.float32))
mutant("E[x²] − E[x]² in float32, not below 0", "offset", var=moments(True, np.float32))
mutant("E[x²] − E[x]² in float64", "offset", var=moments(False, np.float64))
mutant("x·r − m·r in float32", "offset", xhat=lambda rows, mean, rstd, spec:
       wide(rows.astype(np.float32) * rstd.astype(np.float32) - (mean * rstd).astype(np.float32)))  # fmt: skip
mutant("the mean is one float32", "offset", mean=lambda *a: through(np.float32)(mean_of(*a)))

# Size


def squares_in(dtype):
    return lambda rows, mean, spec: wide((rows - mean).astype(dtype) ** 2).mean(axis=-1, keepdims=True)


def overflowing_at(limit):
    def var(rows, mean, spec):
        found = var_of(rows, mean, spec)
        return np.where(np.abs(rows - mean).max(axis=-1, keepdims=True) >= limit, np.inf, found)

    return var


mutant("float32 squares overflow", "scale", dtypes=("float32", "bfloat16"), var=squares_in(np.float32))
mutant("float16 squares overflow", "scale", dtypes=("float16",), var=overflowing_at(256))
mutant("float32 squares of tiny rows vanish, with an eps of 0", "scale", spec=BARE, dtypes=("float32",),
       var=squares_in(np.float32))  # fmt: skip
mutant("large rows are rescaled, and eps is inflated", "scale", spec=ln.NormSpec(eps=1e-3), dtypes=("float32",),
       rstd=lambda var, spec, width: 1 / np.sqrt(var + spec.eps * np.where(var > 1e12, var, 1)))  # fmt: skip

# Rows unlike normal ones


def pilot(rows, mean, spec):
    """Sums about the mean of the first 32 columns, in float32, corrected but never repeated."""
    peak = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), 1e-300)
    moved = ((rows - rows[..., :32].mean(axis=-1, keepdims=True)) / peak).astype(np.float32)
    off = moved.mean(axis=-1, keepdims=True)
    return wide((moved * moved).mean(axis=-1, keepdims=True) - off * off) * peak**2


mutant("the mean of the first columns is trusted", "patterns", dtypes=("float32",), var=pilot)
mutant("x̂ is clipped at 20", "patterns", xhat=lambda *a: np.clip(xhat_of(*a), -20, 20))


def steps(rows, spec):
    return np.sum(rows * (1 / rows.shape[-1]), axis=-1, keepdims=True)


mutant("the mean by products with 1/d leaves a rest in constant rows", "constant", mean=steps)
mutant("rows without spread are not divided", "constant",
       rstd=lambda var, *rest: np.where(var == 0, np.nan, rstd_of(var, *rest)))  # fmt: skip
mutant("rows without spread come out as zero, without beta", "constant",
       affine=lambda xhat, gamma, beta, *rest: np.where((xhat == 0).all(axis=-1, keepdims=True), 0,
                                                        affine_of(xhat, gamma, beta, *rest)))  # fmt: skip


def summed_in(dtype):
    return lambda rows, spec: mean_of(rows, spec) + 0 * wide(rows.astype(dtype).sum(axis=-1, keepdims=True))


mutant("the float32 sum overflows", "finite", dtypes=("float32",), mean=summed_in(np.float32))


def flushed(a):
    a = a.astype(np.float32)
    return wide(np.where(np.abs(a) < 2.0**-126, np.float32(0), a))


mutant("subnormal numbers are taken for zero", "subnormal", dtypes=("float32",), wide_of=flushed)
mutant("subnormal answers become zero", "subnormal", dtypes=("float32",),
       narrow=lambda y, dtype: flushed(y).astype(dtype))  # fmt: skip

# What is not a number

mutant("NaN is replaced by zero", "nonfinite", wide_of=lambda x: np.nan_to_num(wide(x), posinf=np.inf, neginf=-np.inf))
mutant(
    "infinity is clipped",
    "nonfinite",
    wide_of=lambda x: np.clip(wide(x), *float(ml_dtypes.finfo(x.dtype).max) * np.array([-1, 1])),
)
mutant("NaN is left out of the mean", "nonfinite", mean=lambda rows, spec: np.nanmean(rows, axis=-1, keepdims=True),
       var=lambda rows, mean, spec: np.nanmean((rows - mean) ** 2, axis=-1, keepdims=True))  # fmt: skip

# Nothing, or one thing


@whole("no rows crash", "empty")
def _empty_crash(x, gamma, beta, right):
    if x.size == 0:
        raise ZeroDivisionError("division by zero")
    return right(x, gamma, beta)


@whole("no rows come back with one axis less", "empty")
def _empty_shape(x, gamma, beta, right):
    return (
        np.concatenate([right(row, gamma, beta)[None] for row in x]) if x.size else np.empty((0, x.shape[-1]), x.dtype)
    )


@whole("one column is NaN", "empty")
def _one_column(x, gamma, beta, right):
    y = right(x, gamma, beta)
    return y * np.nan if x.ndim and x.shape[-1] == 1 else y


@spoilt("no rows crash the backward pass", "empty")
def _empty_backward(dy, x, gamma):
    if x.size == 0:
        raise ZeroDivisionError("division by zero")
    return gradients(dy, x, gamma)


@spoilt("dgamma of no rows is NaN", "empty")
def _empty_dgamma(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    return dx, *(a if a is None or x.size else a * np.nan for a in others)


def overwriting(x):
    x -= mean_of(wide(x), LAYER).astype(x.dtype)
    x[...] = norm(x)


mutant("in place, the second pass reads the first one's answer", "in-place", in_place=overwriting)
mutant("in place, nothing is written", "in-place", in_place=lambda x: None)

# Gradients

backward("one float32 mean is saved for the backward pass", "input-gradient", dtypes=("float32",),
         mean=lambda *a: through(np.float32)(mean_of(*a)))  # fmt: skip
backward("dx without the mean of g", "input-gradient", centered=False)
backward("dx of RMS norm with the mean of g", "input-gradient", spec=RMS, centered=True)
backward("dx without the projection on x̂", "input-gradient", projected=False)
backward("dx without gamma", "input-gradient", slope=lambda dy, scale: dy)


@spoilt("dx is 0 where squares overflow", "input-gradient", dtypes=("float32",))
def _overflown_dx(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    dx[np.abs(x) > 1e19] = 0
    return dx, *others


def last_block(width):
    return slice(width - width % 256, width) if width > 256 else slice(0, 0)


@spoilt("the last block of dx is not written", "input-gradient")
def _unwritten_dx(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    dx[..., last_block(x.shape[-1])] = 0
    return dx, *others


@spoilt("the last block of dgamma and dbeta is not written", "parameter-gradients")
def _unwritten_dgamma(dy, x, gamma):
    dx, *others = gradients(dy, x, gamma)
    for a in others:
        if a is not None:
            a[last_block(x.shape[-1])] = 0
    return dx, *others


def chained_in(dtype):
    return lambda terms: wide(np.add.accumulate(terms.astype(dtype), axis=0)[-1])


backward("dgamma and dbeta added up in bfloat16", "parameter-gradients", add=chained_in("bfloat16"))
backward("dgamma and dbeta added up in float16", "parameter-gradients", add=chained_in("float16"))
backward("dgamma without the mean taken off", "parameter-gradients", xhat=lambda rows, mean, rstd: rows * rstd)
backward("dgamma and dbeta averaged over the rows", "parameter-gradients", add=lambda terms: terms.mean(axis=0))
mutant("dgamma and dbeta exchanged", "parameter-gradients",
       backward=lambda dy, x, gamma=None: (lambda dx, a, b: (dx, b, a))(*gradients(dy, x, gamma)))  # fmt: skip


def nan_where_constant(dy, x, gamma=None):
    dx, dgamma, dbeta = gradients(dy, x, gamma)
    return np.where((x == x[..., :1]).all(axis=-1, keepdims=True), np.asarray(np.nan, x.dtype), dx), dgamma, dbeta


def one_column(dy, x, gamma=None):
    dx, dgamma, dbeta = gradients(dy, x, gamma)
    return dx, dbeta if x.shape[-1] == 1 and gamma is not None else dgamma, dbeta


mutant("the gradient of a constant row is 0/0", "constant-gradients", backward=nan_where_constant)
mutant("dgamma of one column is dbeta", "constant-gradients", backward=one_column)

# Wrong calls


def shapes_broadcast(x, parameter):
    if x.ndim == 0:
        raise ValueError("x has no axes")
    if parameter is not None:
        np.broadcast_to(parameter, x.shape)


mutant("gamma of one value is broadcast", "wrong-calls", check=shapes_broadcast)


@whole("x without axes is taken for a row", "wrong-calls")
def _no_axes(x, gamma, beta, right):
    return right(np.atleast_1d(x), gamma, beta).reshape(x.shape)
