# SPDX-License-Identifier: MIT
"""This file reads NumPy's array objects in compiled code, for asking Python for an address costs 1 µs.

A kernel is given the `id` of each array, 0 for one that is not there, and `told`: what it must know of the call, as
float64 at an address. It looks itself whether it can take the arrays as they are; if not, they are laid out first.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from layernorm.ops.backends.lanes import LANES, word

# Where the object keeps what a kernel must know, in bytes behind its head (PyArrayObject_fields in
# numpy/ndarraytypes.h, unchanged since 1.7; `cpu.py` looks whether it is so).
HEAD = object.__basicsize__
TYPE, DATA, NDIM, SHAPE, STRIDES, DTYPE, FLAGS = (HEAD + at for at in (-8, 0, 8, 16, 24, 40, 48))
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

# What a kernel is told of a call. The first five are about arrays as their caller has them; arrays that are laid out as
# rows already (AXES = 0) are taken as they are. The last two begin runs of LANES numbers of C, which stand for a gamma
# or beta that is not there and change no bit: 1 and −0.
(AXES, NORMALIZED, ARRAY_TYPE, STORAGE, COMPUTE, COLUMNS, ROWS, CENTERED, DIVISOR, EPS, CAST, ITEMSIZE,
 COMPUTE_SIZE, PAST_CACHES, NO_GAMMA) = range(15)  # fmt: skip
NO_BETA = NO_GAMMA + LANES
TOLD = NO_BETA + LANES

# fastmath=False must be said: left out, a function takes the flags of the first one that makes it compile.
# Only what Python calls is wrapped for it: 40 wrappers took longer than the code in them.
inner = njit(fastmath=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
# What runs once a row is put into its caller: a call took as long as 30 columns, and kept sums that nobody asked for.
inlined = njit(fastmath=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


# These three are intrinsics, and not functions, because compiling a function takes 50 ms.


@intrinsic
def about(typingctx, told, which):
    """Read what a kernel is told under a name."""
    return types.float64(told, which), lambda context, builder, signature, args: _told(builder, *args)


@intrinsic
def count(typingctx, told, which):
    """Read a whole number that a kernel is told."""

    def generate(context, builder, signature, args):
        return builder.fptosi(_told(builder, *args), ir.IntType(64))

    return types.int64(told, which), generate


@intrinsic
def address(typingctx, array):
    """Give where an array's numbers begin; 0 for one that is not there."""

    def generate(context, builder, signature, args):
        zero, word_type = ir.IntType(64)(0), ir.IntType(64).as_pointer()
        found, start = builder.icmp_signed("!=", args[0], zero), builder.block
        with builder.if_then(found):
            data = builder.load(builder.inttoptr(builder.add(args[0], ir.IntType(64)(DATA)), word_type))
            there = builder.block
        phi = builder.phi(ir.IntType(64))
        phi.add_incoming(zero, start)
        phi.add_incoming(data, there)
        return phi

    return types.int64(array), generate


def _told(builder, told, which):
    at = builder.add(told, builder.mul(which, ir.IntType(64)(8)))
    return builder.load(builder.inttoptr(at, ir.DoubleType().as_pointer()))


@inner
def step(array, told):
    """Give the bytes from one row to the next."""
    return count(told, COLUMNS) * count(told, ITEMSIZE) if about(told, AXES) else word(word(array + STRIDES))


@inner
def _has(array, told, dtype, flags, like, skipped, kept):
    """Tell whether an object is an ndarray of a type, with such flags and as many axes as `like`, less `skipped`.

    Each is as long as that of `like`, and from `kept` on 1.
    """
    if word(array + TYPE) != count(told, ARRAY_TYPE) or word(array + DTYPE) != count(told, dtype):
        return False
    axes = (word(like + NDIM) & 0xFFFFFFFF) - skipped
    if word(array + FLAGS) & flags != flags or word(array + NDIM) & 0xFFFFFFFF != axes:
        return False
    for a in range(axes):
        length = word(word(like + SHAPE) + 8 * (a + skipped)) if a < kept else 1
        if word(word(array + SHAPE) + 8 * a) != length:
            return False
    return True


@inner
def can_run(told, x, gamma, beta, out):
    """Tell whether a forward pass can take arrays as its caller has them: plain, of one shape, and apart."""
    axes, plain = count(told, AXES), C_CONTIGUOUS | ALIGNED
    if axes == 0:
        return True
    if word(x + NDIM) & 0xFFFFFFFF != axes or not _has(x, told, STORAGE, plain, x, 0, axes):
        return False
    if not _has(out, told, STORAGE, plain | WRITEABLE, x, 0, axes):
        return False
    for parameter in (gamma, beta):
        if parameter and not _has(parameter, told, COMPUTE, plain, x, axes - count(told, NORMALIZED), axes):
            return False
    begin, begin_x, size = address(out), address(x), count(told, ROWS) * count(told, COLUMNS) * count(told, ITEMSIZE)
    if begin != begin_x and begin < begin_x + size and begin_x < begin + size:
        return False
    size_of_parameter = count(told, COLUMNS) * count(told, COMPUTE_SIZE)
    for other in (address(gamma), address(beta)):
        if begin < other + size_of_parameter and other < begin + size:
            return False
    return True


@inner
def can_differentiate(told, dy, x, gamma, mean, residue, rstd):
    """Tell whether a backward pass can take arrays as its caller has them."""
    axes, plain = count(told, AXES), C_CONTIGUOUS | ALIGNED
    if axes == 0:
        return True
    if word(x + NDIM) & 0xFFFFFFFF != axes or not _has(x, told, STORAGE, plain, x, 0, axes):
        return False
    for statistic in (mean, residue, rstd):
        if not _has(statistic, told, COMPUTE, plain, x, 0, axes - count(told, NORMALIZED)):
            return False
    if gamma and not _has(gamma, told, COMPUTE, plain, x, axes - count(told, NORMALIZED), axes):
        return False
    return _has(dy, told, STORAGE, plain, x, 0, axes)
