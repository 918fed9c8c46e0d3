# SPDX-License-Identifier: MIT
"""This file is the vocabulary in which the CPU kernels are written: eight numbers at a time, in vector registers.

LLVM makes a loop over single numbers into one over vectors only if it finds that it may, and then adds in an order of
its own. Written in lanes, a kernel is compiled to vectors surely and in half the time, a sum has one order on every
processor, and no flag that allows reordering is needed anywhere. LLVM splits or pairs eight lanes to what the
processor has.

Numbers are stored as float16, bfloat16, float32 or float64 and computed with in C: float64 for the last, float32 for
the others. `like`, a zero of the stored type, tells Numba which; it does not know the 16-bit ones, and takes them for
integers. Addresses are integers: cheaper to pass than arrays, and any framework has them.
"""

import operator
import platform
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 8
LIKE = {"float16": np.uint16(0), "bfloat16": np.int16(0), "float32": np.float32(0), "float64": np.float64(0)}
# LLVM aborts the process when it must convert float16 on an x86 without F16C: there the conversions are not
# emitted, no kernel for float16 is called, and NumPy converts the array before and after. What counts is the processor
# that Numba is told to compile for.
_FEATURES = numba.config.CPU_FEATURES or ("" if numba.config.CPU_NAME else binding.get_host_cpu_features().flatten())
HALF_IN_HARDWARE = platform.machine() not in ("x86_64", "AMD64", "i686") or "+f16c" in _FEATURES

_BIT, _SHORT, _WORD, _LONG = (ir.IntType(bits) for bits in (1, 16, 32, 64))
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_STORED = {types.uint16: _SHORT, types.int16: _SHORT, types.float32: _FLOAT, types.float64: _DOUBLE}


class Lanes(types.Type):  # type: ignore[misc]
    """LANES numbers of float32 or float64."""

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(name=f"Lanes({of})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, ir.VectorType(_STORED[lanes.of], LANES))


def _elementwise(operation: Any, instruction: str) -> None:
    @type_callable(operation)
    def typed(context: Any) -> Callable[..., Any]:
        return lambda a, b: a if isinstance(a, Lanes) and a == b else None

    @lower_builtin(operation, Lanes, Lanes)
    def lowered(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args)


_elementwise(operator.add, "fadd")
_elementwise(operator.sub, "fsub")
_elementwise(operator.mul, "fmul")


def _compute(like: Any) -> Any:
    return types.float64 if like == types.float64 else types.float32


# -- in LLVM's own terms, for one number and for lanes ------------------------------------------------------


def _with(element: Any, value: Any) -> Any:
    """Give the type that has `element` where `value` has its own."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _constant(element: Any, number: Any, value: Any) -> Any:
    kind = _with(element, value)
    return ir.Constant(kind, [number] * kind.count if kind is not element else number)


def _call(builder: Any, name: str, result: Any, args: Any) -> Any:
    function = ir.FunctionType(result, [a.type for a in args])
    return builder.call(builder.module.declare_intrinsic(name, (), function), args)


def _suffix(kind: Any) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    return {_FLOAT: "f32", _DOUBLE: "f64", _SHORT: "i16"}[kind]


def _widened(builder: Any, value: Any, like: Any) -> Any:
    """Make C of what is stored."""
    if like == types.uint16:
        if not HALF_IN_HARDWARE:
            return _constant(_FLOAT, 0.0, value)
        return builder.fpext(builder.bitcast(value, _with(ir.HalfType(), value)), _with(_FLOAT, value))
    if like == types.int16:
        word = builder.zext(value, _with(_WORD, value))
        return builder.bitcast(builder.shl(word, _constant(_WORD, 16, value)), _with(_FLOAT, value))
    return value


def _narrowed(builder: Any, value: Any, like: Any) -> Any:
    """Round C to what is stored: to nearest, ties to even; a quiet NaN stays one."""
    if like == types.uint16:
        if not HALF_IN_HARDWARE:
            return _constant(_SHORT, 0, value)
        return builder.bitcast(builder.fptrunc(value, _with(ir.HalfType(), value)), _with(_SHORT, value))
    if like == types.int16:
        bits = builder.bitcast(value, _with(_WORD, value))
        odd = builder.and_(builder.lshr(bits, _constant(_WORD, 16, value)), _constant(_WORD, 1, value))
        # a NaN is cut off, for it could carry into the sign; arithmetic gives quiet ones, marked in the upper half
        is_number = builder.sext(builder.fcmp_ordered("ord", value, value), _with(_WORD, value))
        up = builder.and_(builder.add(odd, _constant(_WORD, 0x7FFF, value)), is_number)
        rounded = builder.lshr(builder.add(bits, up), _constant(_WORD, 16, value))
        return builder.trunc(rounded, _with(_SHORT, value))
    return value


def _pointer(builder: Any, address: Any, element: Any, lanes: bool) -> Any:
    return builder.inttoptr(address, (ir.VectorType(element, LANES) if lanes else element).as_pointer())


def _bytes(element: Any) -> int:
    return {_SHORT: 2, _FLOAT: 4, _DOUBLE: 8}[element]


def _before(builder: Any, count: Any) -> Any:
    """Give a mask of the lanes before the one numbered `count`."""
    numbers = ir.Constant(ir.VectorType(_LONG, LANES), list(range(LANES)))
    return builder.icmp_signed("<", numbers, _splat(builder, count))


def _splat(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined), value, _WORD(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES))


def _part(builder: Any, value: Any, numbers: Any) -> Any:
    return builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(_WORD, len(numbers)), list(numbers)))


# -- reading and writing ------------------------------------------------------------------------------------


@intrinsic
def word(typingctx: Any, address: Any) -> Any:
    """Read eight bytes of memory as an integer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _LONG.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def number(typingctx: Any, address: Any, like: Any) -> Any:
    """Read one number as C."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _widened(builder, builder.load(_pointer(builder, args[0], _STORED[like], False)), like)

    return _compute(like)(address, like), generate


@intrinsic
def put_number(typingctx: Any, address: Any, value: Any, like: Any) -> Any:
    """Write one number of C, rounded to the stored type."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(_narrowed(builder, args[1], like), _pointer(builder, args[0], _STORED[like], False))

    return types.void(address, _compute(like), like), generate


@intrinsic
def load(typingctx: Any, address: Any, like: Any) -> Any:
    """Read LANES numbers as C."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _STORED[like]
        return _widened(builder, builder.load(_pointer(builder, args[0], element, True), align=_bytes(element)), like)

    return Lanes(_compute(like))(address, like), generate


@intrinsic
def load_first(typingctx: Any, address: Any, count: Any, like: Any) -> Any:
    """Read `count` numbers, fewer than LANES, as C; the lanes that remain are 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _STORED[like]
        pointer, zeros = _pointer(builder, args[0], element, True), ir.Constant(ir.VectorType(element, LANES), None)
        given = [pointer, _WORD(_bytes(element)), _before(builder, args[1]), zeros]
        name = f"llvm.masked.load.{_suffix(zeros.type)}.p0"
        return _widened(builder, _call(builder, name, zeros.type, given), like)

    return Lanes(_compute(like))(address, count, like), generate


@intrinsic
def store(typingctx: Any, address: Any, value: Any, like: Any, past_caches: Any) -> Any:
    """Write LANES numbers of C, rounded; `past_caches` writes whole lines to memory, at addresses divisible by 16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _STORED[like]
        rounded, size = _narrowed(builder, args[1], like), _bytes(element)
        with builder.if_else(args[3]) as (streamed, plain):
            with streamed:
                mark = builder.module.add_metadata([_WORD(1)])
                for start in range(0, LANES, 16 // size):
                    piece = _part(builder, rounded, range(start, start + 16 // size))
                    address = builder.add(args[0], _LONG(start * size))
                    kept = builder.store(piece, builder.inttoptr(address, piece.type.as_pointer()), align=16)
                    kept.set_metadata("nontemporal", mark)
            with plain:
                builder.store(rounded, _pointer(builder, args[0], element, True), align=size)

    return types.void(address, Lanes(_compute(like)), like, types.boolean), generate


@intrinsic
def store_first(typingctx: Any, address: Any, count: Any, value: Any, like: Any) -> Any:
    """Write the first `count` lanes of C, rounded."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _STORED[like]
        rounded = _narrowed(builder, args[2], like)
        given = [rounded, _pointer(builder, args[0], element, True), _WORD(_bytes(element)), _before(builder, args[1])]
        _call(builder, f"llvm.masked.store.{_suffix(rounded.type)}.p0", ir.VoidType(), given)

    return types.void(address, count, Lanes(_compute(like)), like), generate


@intrinsic
def fence(typingctx: Any) -> Any:
    """Wait until what was written past the caches can be seen by other processors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")

    return types.void(), generate


@intrinsic
def size_of(typingctx: Any, like: Any) -> Any:
    """Give the bytes of one stored number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _LONG(_bytes(_STORED[like]))

    return types.int64(like), generate


# -- between registers --------------------------------------------------------------------------------------


@intrinsic
def every(typingctx: Any, value: Any) -> Any:
    """Put one number in every lane; None stays None."""
    if isinstance(value, types.NoneType):
        return value(value), lambda context, builder, signature, args: args[0]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return Lanes(value)(value), generate


@intrinsic
def less(typingctx: Any, lanes: Any, taken: Any) -> Any:
    """Take lanes off lanes; None takes nothing off."""
    if isinstance(taken, types.NoneType):
        return lanes(lanes, taken), lambda context, builder, signature, args: args[0]
    return lanes(lanes, taken), lambda context, builder, signature, args: builder.fsub(*args)


@intrinsic
def if_any(typingctx: Any, taken: Any, value: Any) -> Any:
    """Give a value, or None where nothing is taken off."""
    chosen = 0 if isinstance(taken, types.NoneType) else 1
    return (taken, value)[chosen](taken, value), lambda context, builder, signature, args: args[chosen]


@intrinsic
def first(typingctx: Any, lanes: Any, count: Any) -> Any:
    """Keep the first `count` lanes and make the others 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(_before(builder, args[1]), args[0], ir.Constant(args[0].type, None))

    return lanes(lanes, count), generate


@intrinsic
def finite(typingctx: Any, lanes: Any) -> Any:
    """Keep what is finite and make NaN and infinity 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = builder.fsub(args[0], args[0])  # 0 for what is finite, else NaN
        return builder.select(builder.fcmp_ordered("ord", nothing, nothing), args[0], ir.Constant(args[0].type, None))

    return lanes(lanes), generate


@intrinsic
def total(typingctx: Any, lanes: Any) -> Any:
    """Add all lanes: halves, then halves of the sum."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole, count = args[0], LANES
        while count > 1:
            count //= 2
            parts = _part(builder, whole, range(count)), _part(builder, whole, range(count, 2 * count))
            whole = builder.fadd(*parts)
        return builder.extract_element(whole, _WORD(0))

    return lanes.of(lanes), generate


@intrinsic
def swapped(typingctx: Any, lanes: Any, by: Any) -> Any:
    """Move every lane 4, 2 or 1 places, by the number of the literal: those past the end come first."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _part(builder, args[0], [(k + by.literal_value) % LANES for k in range(LANES)])

    if not isinstance(by, types.IntegerLiteral):
        return None
    return lanes(lanes, by), generate


@intrinsic
def wide(typingctx: Any, value: Any) -> Any:
    """Make float64 of C, one number or lanes."""
    lanes = isinstance(value, Lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _with(_DOUBLE, args[0])
        return args[0] if args[0].type == kind else builder.fpext(args[0], kind)

    return (Lanes(types.float64) if lanes else types.float64)(value), generate


@intrinsic
def narrow(typingctx: Any, value: Any, like: Any) -> Any:
    """Round float64 to C, one number or lanes."""
    lanes, compute = isinstance(value, Lanes), _compute(like)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _with(_STORED[compute], args[0])
        return args[0] if args[0].type == kind else builder.fptrunc(args[0], kind)

    return (Lanes(compute) if lanes else compute)(value, like), generate


@intrinsic
def rounded(typingctx: Any, value: Any, like: Any) -> Any:
    """Round C to the stored type and make C of that again."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _widened(builder, _narrowed(builder, args[0], like), like)

    return value(value, like), generate


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Multiply and add with one rounding, so that γ·x̂ + β overflows only where the result does."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call(builder, f"llvm.fma.{_suffix(args[0].type)}", args[0].type, args)

    return a(a, b, c) if a == b == c else None, generate
