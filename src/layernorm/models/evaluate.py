# SPDX-License-Identifier: MIT
"""This file runs the few operators that a norm is written with, on small arrays, every float promoted to float64.

Promotion is the point: in float32 an unbiased deviation passes for a biased one. A quantization is therefore read as
what it stands for, and a cast between floats as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.graph import Node
from layernorm.models.model_file import MOST_AXES, Tensor
from layernorm.spec.errors import FileError

Array = NDArray[Any]
Given = Sequence[Array | None]
Operation = Callable[[Node, Given], Any]

# 2 MB of float64: no array grows beyond it, whatever a file says. At 1 MB magika's first norm could not be tried: its
# graph fixes all of [batch, 512, 256] but the batch, and two of a batch are needed to see that a mean is not over it.
LARGEST = 2**18
# ONNX's numbers of the types; a format without them gives NumPy's names.
FLOATS = {
    1: "float32",
    10: "float16",
    11: "float64",
    16: "bfloat16",
    17: "float8",
    18: "float8",
    19: "float8",
    20: "float8",
}
BOOLEAN = 9

_FAILURES = (ArithmeticError, IndexError, KeyError, MemoryError, TypeError, ValueError, FileError)


def evaluate(nodes: Iterable[Node], values: dict[str, Array]) -> dict[str, Array]:
    """Run nodes in order and add their outputs to `values`.

    What cannot be computed (an operator not known here, shapes that do not fit, an array too large) stays absent, and
    so does what depends on it.
    """
    with np.errstate(all="ignore"):
        for node in nodes:
            if node.op not in OPERATIONS or any(name and name not in values for name in node.inputs):
                continue
            try:
                results = OPERATIONS[node.op](node, [values[name] if name else None for name in node.inputs])
                for name, result in zip(
                    node.outputs, results if isinstance(results, tuple) else (results,), strict=False
                ):
                    values[name] = promoted(result)
            except _FAILURES:
                continue
    return values


def promoted(values: Any) -> Array:
    """Give floats as float64 and integers as int64.

    Raises:
        ValueError: there are too many, or they are none.
    """
    array = np.asarray(values)
    if array.dtype.kind in "OSUc":
        raise ValueError("texts and complex numbers are nothing to try a norm on.")
    _allow(array.shape)
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    return array if array.dtype.kind == "b" else array.astype(np.float64, copy=False)


def cast_target(node: Node) -> str | None:
    """Give the float type that a Cast casts to; None where it is another operator, or casts to no float."""
    to = node.attributes.get("to") if node.op == "Cast" else None
    name = FLOATS.get(to) if isinstance(to, int) else to
    return name if isinstance(name, str) and "float" in name else None


def plain_number(node: Node, name: str, default: float) -> float:
    """Read a numeric attribute, whose absence means the default; NaN if it is no number."""
    said = node.attributes.get(name, default)
    return float(said) if isinstance(said, (int, float)) else math.nan


def is_usable(tensor: Tensor) -> bool:
    """Tell whether a constant can be computed with: numbers, not too many, along no more axes than arrays have."""
    numbers = tensor.dtype.startswith(("float", "bfloat", "int", "uint", "bool"))
    return numbers and len(tensor.shape) <= MOST_AXES and tensor.size <= LARGEST


def _allow(shape: Iterable[int]) -> None:
    lengths = [int(n) for n in shape]
    if len(lengths) > MOST_AXES or math.prod(lengths) > LARGEST:
        raise ValueError(f"an array of {len(lengths)} axes and {math.prod(lengths)} numbers is too large to try.")


def _said(node: Node, given: Given, place: int, name: str) -> Any:
    """Read what later operator sets pass as an input and earlier ones as an attribute."""
    if len(given) > place and given[place] is not None:
        return given[place]
    said = node.attributes.get(name)
    if isinstance(said, list) and len(said) > MOST_AXES:  # before each run makes an array of them
        raise ValueError(f"{name} lists {len(said)} axes, more than any array has.")
    return said


def _integers(said: Any) -> list[int]:
    """Read axes, or what there is one of for each axis."""
    numbers = np.asarray(said).reshape(-1)
    if numbers.size > MOST_AXES:
        raise ValueError(f"{numbers.size} axes are more than any array has.")
    return [int(n) for n in numbers]


def _whole(node: Node, name: str, default: int) -> int:
    return int(node.attributes.get(name, default))


def _elementwise(function: Callable[..., Any]) -> Operation:
    def run(node: Node, given: Given) -> Any:
        arrays = [a for a in given if a is not None]
        _allow(np.broadcast_shapes(*(a.shape for a in arrays)))
        return function(*arrays)

    return run


def _folded(function: Callable[[Array, Array], Any]) -> Operation:
    """Make an operator of any number of inputs from one of two."""

    def fold(*arrays: Array) -> Any:
        result = arrays[0]
        for array in arrays[1:]:
            result = function(result, array)
        return result

    return _elementwise(fold)


def _divide(a: Array, b: Array) -> Any:
    return a // b if a.dtype.kind == b.dtype.kind == "i" else a / b


def _reduction(function: Callable[[Array, tuple[int, ...]], Array]) -> Operation:
    def run(node: Node, given: Given) -> Any:
        x = _first(given)
        said = _said(node, given, 1, "axes")
        if said is None or np.asarray(said).size == 0:
            if node.attributes.get("noop_with_empty_axes"):
                return x
            said = range(x.ndim)
        axes = tuple(sorted({_axis(a, x.ndim) for a in _integers(said)}))
        result = function(x, axes)  # keeps the axes
        return (
            result
            if _whole(node, "keepdims", 1)
            else result.reshape([n for a, n in enumerate(result.shape) if a not in axes])
        )

    return run


def _first(given: Given) -> Array:
    if not given or given[0] is None:
        raise ValueError("the operator lacks its input.")
    return given[0]


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} of {ndim} axes.")
    return axis % ndim


def _total(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.sum(x, axis=axes, keepdims=True))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(_total(x, axes) / math.prod(x.shape[a] for a in axes))


def _averaged(node: Node, given: Given) -> Any:
    x = _first(given)
    return _mean(x, tuple(range(2, x.ndim)))


def _standardized(node: Node, given: Given, axes: tuple[int, ...]) -> Any:
    x, scale, shift = (promoted(a) for a in given[:3])
    along = [-1 if a == 1 else 1 for a in range(x.ndim)]
    deviation = x - _mean(x, axes)
    deviation = deviation / np.sqrt(_mean(deviation**2, axes) + plain_number(node, "epsilon", 1e-5))
    return deviation * scale.reshape(along) + shift.reshape(along)


def _instance(node: Node, given: Given) -> Any:
    return _standardized(node, given, tuple(range(2, _first(given).ndim)))


def _batch(node: Node, given: Given) -> Any:
    if not node.attributes.get("training_mode"):
        raise ValueError("stored statistics are not recognized, they are read.")
    return (_standardized(node, given, (0, *range(2, _first(given).ndim))),)


def _cast(node: Node, given: Given) -> Any:
    x = _first(given)
    if cast_target(node):
        return x.astype(np.float64)
    to = node.attributes.get("to")
    return x.astype(bool) if to in (BOOLEAN, "bool") else np.trunc(x).astype(np.int64)


def _cast_like(node: Node, given: Given) -> Any:
    like = given[1]
    return _first(given).astype(like.dtype) if like is not None else _first(given)


def _clip(node: Node, given: Given) -> Any:
    least, most = _said(node, given, 1, "min"), _said(node, given, 2, "max")
    x = _first(given) if least is None else np.maximum(_first(given), least)
    return x if most is None else np.minimum(x, most)


def _dequantized(node: Node, given: Given) -> Any:
    x = _first(given)
    if x.dtype.kind == "f":  # of a value that was quantized just before
        return x
    scale, zero = given[1], given[2] if len(given) > 2 else None
    if scale is None:
        raise ValueError("no scale.")
    if scale.size > 1:
        along = [-1 if a == _axis(_whole(node, "axis", 1), x.ndim) else 1 for a in range(x.ndim)]
        scale, zero = scale.reshape(along), zero.reshape(along) if zero is not None else None
    return (x - (0 if zero is None else zero)) * scale


def _reshape(node: Node, given: Given) -> Any:
    x = _first(given)
    target = _integers(_said(node, given, 1, "shape"))
    if not node.attributes.get("allowzero"):
        target = [x.shape[a] if n == 0 else n for a, n in enumerate(target)]
    return x.reshape(target)


def _flatten(node: Node, given: Given) -> Any:
    x, axis = _first(given), _whole(node, "axis", 1)
    axis = axis + _first(given).ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _squeeze(node: Node, given: Given) -> Any:
    said = _said(node, given, 1, "axes")
    return np.squeeze(_first(given), None if said is None else tuple(_integers(said)))


def _unsqueeze(node: Node, given: Given) -> Any:
    return np.expand_dims(_first(given), tuple(_integers(_said(node, given, 1, "axes"))))


def _transpose(node: Node, given: Given) -> Any:
    said = _said(node, given, 1, "perm")
    return np.transpose(_first(given), None if said is None else _integers(said))


def _expand(node: Node, given: Given) -> Any:
    x = _first(given)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_integers(given[1]))))  # a view, however large


def _tile(node: Node, given: Given) -> Any:
    x, times = _first(given), _integers(given[1])
    _allow([n * t for n, t in zip(x.shape, times, strict=True)])
    return np.tile(x, times)


def _filled(node: Node, given: Given) -> Any:
    shape = _integers(_first(given))
    _allow(shape)
    value = node.attributes.get("value", 0.0)
    value = value.values() if isinstance(value, Tensor) else value
    return np.full(shape, promoted(value).reshape(-1)[0])


def _range(node: Node, given: Given) -> Any:
    start, limit, step = (promoted(a).reshape(-1)[0] for a in given)
    if not step or (limit - start) / step > LARGEST:
        raise ValueError("an endless range.")
    return np.arange(start, limit, step)


def _gather(node: Node, given: Given) -> Any:
    x, index = _first(given), promoted(given[1])
    axis = _axis(_whole(node, "axis", 0), x.ndim)
    _allow([x.size // max(x.shape[axis], 1), index.size])
    return np.take(x, index, axis)


def _slice(node: Node, given: Given) -> Any:
    x = _first(given)
    starts, ends = _integers(_said(node, given, 1, "starts")), _integers(_said(node, given, 2, "ends"))
    axes, steps = _said(node, given, 3, "axes"), _said(node, given, 4, "steps")
    cut = [slice(None)] * x.ndim
    along = range(len(starts)) if axes is None else _integers(axes)
    for axis, start, end, step in zip(
        along, starts, ends, [1] * len(starts) if steps is None else _integers(steps), strict=True
    ):
        # below the first element, going backwards, is Python's None
        cut[_axis(axis, x.ndim)] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(cut)]


def _concat(node: Node, given: Given) -> Any:
    arrays = [a for a in given if a is not None]
    _allow([sum(a.size for a in arrays)])
    return np.concatenate(arrays, _whole(node, "axis", 0))


def _split(node: Node, given: Given) -> Any:
    x, axis = _first(given), _axis(_whole(node, "axis", 0), _first(given).ndim)
    said, parts = _said(node, given, 1, "split"), len(node.outputs)
    each = -(-x.shape[axis] // parts)
    lengths = [each] * (parts - 1) if said is None else _integers(said)[:-1]
    return tuple(np.split(x, np.cumsum(lengths), axis))


def _shape(node: Node, given: Given) -> Any:
    return np.array(_first(given).shape, np.int64)[_whole(node, "start", 0) : node.attributes.get("end")]


def _unchanged(node: Node, given: Given) -> Any:
    return (_first(given),)


OPERATIONS: Mapping[str, Operation] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "BatchNormalization": _batch,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _elementwise(np.ceil),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "DequantizeLinear": _dequantized,
    "Div": _elementwise(_divide),
    "Dropout": _unchanged,
    "Equal": _elementwise(np.equal),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _elementwise(np.floor),
    "Gather": _gather,
    "GlobalAveragePool": _averaged,
    "Greater": _elementwise(np.greater),
    "Identity": _unchanged,
    "InstanceNormalization": _instance,
    "Less": _elementwise(np.less),
    "Max": _folded(np.maximum),
    "Min": _folded(np.minimum),
    "Mod": _elementwise(np.mod),
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Pow": _elementwise(np.power),
    "QuantizeLinear": _unchanged,
    "Range": _range,
    "Reciprocal": _elementwise(lambda x: 1 / x),
    "ReduceL1": _reduction(lambda x, axes: _total(np.abs(x), axes)),
    "ReduceL2": _reduction(lambda x, axes: np.sqrt(_total(x * x, axes))),
    "ReduceMax": _reduction(lambda x, axes: np.asarray(np.max(x, axis=axes, keepdims=True))),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _reduction(lambda x, axes: np.asarray(np.min(x, axis=axes, keepdims=True))),
    "ReduceProd": _reduction(lambda x, axes: np.asarray(np.prod(x, axis=axes, keepdims=True))),
    "ReduceSum": _reduction(_total),
    "ReduceSumSquare": _reduction(lambda x, axes: _total(x * x, axes)),
    "Reshape": _reshape,
    "Rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "Shape": _shape,
    "Size": lambda node, given: np.array(_first(given).size, np.int64),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _elementwise(np.sqrt),
    "Square": _elementwise(np.square),
    "SquaredDifference": _elementwise(lambda a, b: (a - b) ** 2),
    "Squeeze": _squeeze,
    "Sub": _elementwise(np.subtract),
    "Sum": _folded(np.add),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(np.where),
}
