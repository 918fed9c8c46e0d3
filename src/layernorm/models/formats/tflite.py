# SPDX-License-Identifier: MIT
"""This file reads TFLite models as graphs in ONNX's words: SQUARED_DIFFERENCE and RSQRT become what they compute."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.formats.flatbuffer import Broken, Table, flexbuffer
from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.spec.errors import FileError
from layernorm.spec.files import opened

IDENTIFIER = b"TFL3"

# The operators in the order of their codes, from LiteRT's schema (version 3d, 2026).
OPERATORS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT
LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL
LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW
ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS
SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG
ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE
RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST
BITWISE_XOR RIGHT_SHIFT
""".split()  # noqa: SIM905 - a table of words
COMPOSITE = 206  # STABLEHLO_COMPOSITE; the codes between are StableHLO's, which no runtime runs
BY_CODE = dict(enumerate(OPERATORS)) | {COMPOSITE: "STABLEHLO_COMPOSITE"}

# Operators whose meaning is an ONNX operator's. Convolutions and pools keep their channels last.
MEANINGS = {
    "ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min", "POW": "Pow",
    "SQRT": "Sqrt", "NEG": "Neg", "ABS": "Abs", "EXP": "Exp", "LOG": "Log", "SIN": "Sin", "COS": "Cos", "SIGN": "Sign",
    "FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round", "RELU": "Relu", "LOGISTIC": "Sigmoid", "TANH": "Tanh",
    "SOFTMAX": "Softmax", "LOG_SOFTMAX": "LogSoftmax", "GELU": "Gelu", "HARD_SWISH": "HardSwish", "ELU": "Elu",
    "PRELU": "PRelu", "MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd", "RESHAPE": "Reshape", "SHAPE": "Shape", "BROADCAST_TO": "Expand", "TILE": "Tile",
    "SQUEEZE": "Squeeze", "EXPAND_DIMS": "Unsqueeze", "CONCATENATION": "Concat", "GATHER": "Gather", "CAST": "Cast",
    "SELECT": "Where", "SELECT_V2": "Where", "EQUAL": "Equal", "GREATER": "Greater", "LESS": "Less", "ADD_N": "Sum",
    "QUANTIZE": "Identity", "DEQUANTIZE": "Identity", "BATCH_MATMUL": "MatMul", "FULLY_CONNECTED": "Gemm",
    "CONV_2D": "Conv", "DEPTHWISE_CONV_2D": "Conv", "CONV_3D": "Conv", "TRANSPOSE_CONV": "ConvTranspose",
    "IF": "If", "WHILE": "Loop",
}  # fmt: skip
ONNX_NAMES = {*MEANINGS.values(), "Transpose", "Reciprocal"}
REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
# The version of ONNX's operator set in which every reduction takes its axes as an input.
VERSION = 18
# Which field of an operator's options is the activation that is fused into it, and which activations there are.
ACTIVATION_FIELD = {
    "ADD": 0, "SUB": 0, "MUL": 0, "DIV": 0, "FULLY_CONNECTED": 0, "CONCATENATION": 1, "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 4, "CONV_3D": 4, "TRANSPOSE_CONV": 3, "AVERAGE_POOL_2D": 5, "MAX_POOL_2D": 5, "L2_POOL_2D": 5,
}  # fmt: skip
ACTIVATIONS = {1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}

TYPES = ("float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64",
         "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4", "bfloat16", "int2", "uint4",
         "float8_e4m3fn", "float8_e5m2")  # fmt: skip
ONNX_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
              "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16}  # fmt: skip
DEEPEST = 16
# max(‖x‖, 1e-6), which LiteRT's kernel has as a constant
L2_FLOOR = np.float32(1e-6)


def recognizes(path: Path, head: bytes) -> bool:
    """Tell whether it is a FlatBuffer that says it is TFLite's, or is called so."""
    return head[4:8] == IDENTIFIER or path.suffix.lower() == ".tflite"


def read(path: Path) -> ModelFile:
    """Read a model's first graph; its weights stay where they are until they are asked for.

    Raises:
        FileError: it is no TFLite model, is cut off, or lies about itself.
    """
    with opened(path) as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[4:8] != IDENTIFIER:
        raise FileError(f"{path}: it does not begin as a TFLite file does; fetch the file again.", str(path))
    try:
        return _Model(path, data).read()
    except Broken as error:
        raise FileError(f"{path}: {error}; the file is cut off or damaged, fetch it again.", str(path)) from None


class _Model:
    """The parts that all graphs of a file share."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data = path, data
        root = Table.root(data)
        self.codes = [_name_of(code) for code in root.tables(1)]
        self.subgraphs = list(root.tables(2))
        self.buffers = [self._place(buffer) for buffer in root.tables(4)]
        self.signatures = list(root.tables(7))
        self.description = root.text(3)
        self.composites: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        # what a graph calls is written out; a small file that calls much is not written out without end
        self.room = 10_000 + len(data) // 8

    def read(self) -> ModelFile:
        if not self.subgraphs:
            raise Broken("it holds no graph")
        graph = Graph([], {}, {}, ())
        _Writer(self, graph, 0).whole()
        for signature in self.signatures:
            if (index := signature.integer(4, "<I")) > 0:
                self.notes.append(
                    f"signature {signature.text(2)!r} runs graph {index} of the file, and only graph 0 is read; "
                    "it may hold more norms, or the same ones over again."
                )
        said = {"description": self.description, "composites": self.composites}
        return ModelFile(str(self.path), "tflite", dict(graph.constants), said, graph, (), tuple(self.notes))

    def _place(self, buffer: Table) -> tuple[int, int]:
        """Find a buffer's bytes, which lie after the FlatBuffer where that would be over 2 GB."""
        start, size = buffer.span(0)
        offset = buffer.integer(1, "<Q")
        if size == 0 and offset > 1:
            start, size = offset, buffer.integer(2, "<Q")
            if start + size > len(self.data):
                raise Broken(f"a buffer lies at bytes {start} to {start + size}, and the file has {len(self.data)}")
        return start, size

    def spend(self, count: int) -> None:
        """Count what is written out."""
        self.room -= count
        if self.room < 0:
            raise Broken("its graphs call each other more often than a file of this size can mean")


class _Writer:
    """Writes one graph of the file into a `Graph`, and what it calls after it."""

    def __init__(
        self,
        model: _Model,
        graph: Graph,
        index: int,
        bound: dict[int, str] | None = None,
        prefix: str = "",
        function: str = "",
        depth: int = 0,
    ) -> None:
        if depth > DEEPEST:
            raise Broken(f"a graph calls itself, or graphs call each other over {DEEPEST} deep")
        if not 0 <= index < len(model.subgraphs):
            raise Broken(f"it calls graph {index}, and has {len(model.subgraphs)}")
        self.model, self.graph, self.table = model, graph, model.subgraphs[index]
        self.prefix, self.function, self.depth = prefix, function, depth
        self.names: list[str] = []
        self.known: list[tuple[str, tuple[int | None, ...] | None]] = []
        self.bound = bound or {}
        self.starts, self.ends = [int(i) for i in self.table.numbers(1)], [int(i) for i in self.table.numbers(2)]

    def write(self) -> None:
        """Write the nodes."""
        self._tensors()
        for position, operator in enumerate(self.table.tables(3)):
            self.model.spend(1)
            self._operator(position, operator)

    def whole(self) -> None:
        """Write a graph that stands for itself, with what it starts from and ends in."""
        self.write()
        inputs = [i for i in self.starts if i not in self.bound and 0 <= i < len(self.known)]
        self.graph.inputs = {self._name(i): self.known[i] for i in inputs}
        self.graph.outputs = tuple(self._name(i) for i in self.ends)

    def _name(self, index: int) -> str:
        if index == -1:
            return ""
        if not 0 <= index < len(self.names):
            raise Broken(f"an operator names tensor {index}, and its graph has {len(self.names)}")
        return self.names[index]

    def _tensors(self) -> None:
        taken: set[str] = set()
        for index, table in enumerate(self.table.tables(0)):
            self.model.spend(1)
            own = self.prefix + (table.text(3) or f"tensor[{index}]")
            name = own if own not in taken else f"{own}#{index}"
            taken.add(name)
            signature = table.numbers(7)
            lengths = (signature if len(signature) else table.numbers(0)).tolist()
            if len(lengths) > 32:
                raise Broken(f"tensor {name!r} has {len(lengths)} axes")
            code = table.integer(1, "<b")
            dtype = TYPES[code] if 0 <= code < len(TYPES) else "unknown"
            shape = tuple(None if n < 0 else n for n in lengths)
            self.known.append((dtype, shape))
            buffer = table.integer(2, "<I")
            if buffer >= len(self.model.buffers) > 0:
                raise Broken(f"tensor {name!r} lies in buffer {buffer}, and there are {len(self.model.buffers)}")
            size = self.model.buffers[buffer][1] if self.model.buffers else 0
            if index in self.bound:
                name = self.bound[index]
            elif size and not table.integer(5, "<B"):
                self.graph.constants[name] = self._constant(name, tuple(n or 0 for n in lengths), dtype, buffer, table)
            else:
                self.graph.values[name] = dtype, shape
            self.names.append(name)

    def _constant(self, name: str, shape: tuple[int, ...], dtype: str, buffer: int, table: Table) -> Tensor:
        """Give the numbers that a constant stands for: quantized ones are taken back to what they mean."""
        load = _loader(self.model, name, shape, dtype, buffer)
        quantization = table.table(4)
        scale = quantization.numbers(2, "<f4") if quantization is not None else np.empty(0)
        if quantization is None or not len(scale) or quantization.integer(4, "<B") or "int" not in dtype:
            return Tensor(name, shape, dtype, load)
        zero, axis = quantization.numbers(3, "<i8"), quantization.integer(6)

        def dequantized() -> NDArray[Any]:
            along = [1] * len(shape)
            if len(scale) > 1:
                if not 0 <= axis < len(shape) or shape[axis] != len(scale) or len(zero) not in (0, 1, len(scale)):
                    raise self._lies(name, f"has {len(scale)} scales along axis {axis} of {shape}")
                along[axis] = len(scale)
            base = zero.reshape(along if len(zero) > 1 else [1] * len(shape)) if len(zero) else 0
            return np.asarray((load() - base) * scale.reshape(along), np.float32)

        return Tensor(name, shape, "float32", dequantized)

    def _lies(self, name: str, what: str) -> FileError:
        path = str(self.model.path)
        return FileError(f"{path}: tensor {name!r} {what}; the file is damaged, fetch it again.", path)

    def _operator(self, position: int, table: Table) -> None:
        code = table.integer(0, "<I")
        if code >= len(self.model.codes):
            raise Broken(f"operator {position} has code {code}, and there are {len(self.model.codes)}")
        op = self.model.codes[code]
        inputs = tuple(self._name(int(i)) for i in table.numbers(1))
        outputs = tuple(self._name(int(i)) for i in table.numbers(2))
        where = f"{self.prefix}operator[{position}]"
        options = table.table(4)
        if op == "STABLEHLO_COMPOSITE":
            self._composite(where, table.table(12), inputs, outputs)
            return
        activation = options.integer(ACTIVATION_FIELD[op], "<b") if options and op in ACTIVATION_FIELD else 0
        if not activation or not outputs:
            self._write_operator(op, inputs, outputs, options, where, {})
            return
        # the value before the activation is nowhere in the file: who compares it with another model's must compute it
        fused = ACTIVATIONS.get(activation, f"activation {activation}")
        before = f"{outputs[0]} before {fused}"
        self.graph.values[before] = self.graph.about(outputs[0])
        self._write_operator(op, inputs, (before, *outputs[1:]), options, where, {"fused_activation": fused})
        self._node(MEANINGS.get(fused, fused), (before,), outputs[:1], f"{where}/{fused}", {"fused_into": op})

    def _node(
        self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], where: str, attributes: dict[str, Any],
        graphs: tuple[Graph, ...] = (), function: str = "",
    ) -> None:  # fmt: skip
        domain = "" if op in ONNX_NAMES else "tflite"
        function = function or self.function
        self.graph.nodes.append(Node(op, inputs, outputs, attributes, "", domain, where, VERSION, function, graphs))

    def _write_operator(
        self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], options: Table | None, where: str,
        said: dict[str, Any],
    ) -> None:  # fmt: skip
        written = _WRITTEN_OUT.get(op)
        if written is not None and outputs and inputs:
            written(self, inputs, outputs, where)
            return
        meaning = MEANINGS.get(op, op)
        graphs: tuple[Graph, ...] = ()
        if op in REDUCTIONS and len(inputs) == 2:
            inputs = (inputs[0], self._flat(inputs[1]))
            said["keepdims"] = int(bool(options and options.integer(0, "<B")))
        elif op == "TRANSPOSE":
            if (order := self._integers(inputs[1:2])) is not None:
                meaning, inputs, said["perm"] = "Transpose", inputs[:1], order
        elif op == "SQUEEZE" and options and len(axes := options.numbers(0)):
            inputs = (*inputs[:1], self._made(f"{where}/axes", axes.astype(np.int64)))
        elif op == "RESHAPE" and len(inputs) == 1 and options:
            inputs = (*inputs, self._made(f"{where}/shape", options.numbers(0).astype(np.int64)))
        elif op == "EXPAND_DIMS" and len(inputs) == 2:
            inputs = (inputs[0], self._flat(inputs[1]))
        elif op in ("CONCATENATION", "GATHER"):
            said["axis"] = options.integer(0) if options else 0
        elif op in ("SOFTMAX", "LOG_SOFTMAX"):
            said["axis"] = -1
        elif op == "CAST" and outputs:
            said["to"] = ONNX_TYPES.get(self.graph.about(outputs[0])[0], 0)
        elif op == "FULLY_CONNECTED":
            said["transB"] = 1
        elif op in ("IF", "WHILE") and options:
            graphs = tuple(self._body(op, options.integer(field), inputs, f"{where}/{field}/") for field in (0, 1))
            inputs = inputs[:1] if op == "IF" else inputs
        self._node(meaning, inputs, outputs, where, said, graphs)

    def _made(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant that the file has in another place than among its tensors."""
        self.graph.constants[name] = Tensor(name, value.shape, value.dtype.name, lambda: value)
        return name

    def _flat(self, name: str) -> str:
        """Give axes as the list that ONNX wants, where the file has a single number."""
        found = self.graph.constant(name)
        if found is None or found.shape != ():
            return name
        flat = f"{name}/list"
        self.graph.constants[flat] = replace(found, name=flat, shape=(1,), load=lambda: found.values().reshape(1))
        return flat

    def _integers(self, names: tuple[str, ...]) -> list[int] | None:
        found = self.graph.constant(names[0]) if names else None
        return None if found is None or found.size > 64 else [int(n) for n in found.values().ravel()]

    def _square(self, inputs: tuple[str, ...], outputs: tuple[str, ...], where: str) -> None:
        self._node("Mul", (inputs[0], inputs[0]), outputs, where, {})

    def _squared_difference(self, inputs: tuple[str, ...], outputs: tuple[str, ...], where: str) -> None:
        difference = self._between(outputs[0], "difference")
        self._node("Sub", inputs, (difference,), f"{where}/Sub", {})
        self._node("Mul", (difference, difference), outputs, where, {})

    def _rsqrt(self, inputs: tuple[str, ...], outputs: tuple[str, ...], where: str) -> None:
        root = self._between(outputs[0], "root")
        self._node("Sqrt", inputs, (root,), f"{where}/Sqrt", {})
        self._node("Reciprocal", (root,), outputs, where, {})

    def _l2_normalization(self, inputs: tuple[str, ...], outputs: tuple[str, ...], where: str) -> None:
        square, total, root, length = (self._between(outputs[0], what) for what in ("square", "sum", "root", "length"))
        last, floor = self._made(f"{where}/axes", np.array([-1])), self._made(f"{where}/floor", np.asarray(L2_FLOOR))
        op = "L2_NORMALIZATION"
        self._node("Mul", (inputs[0], inputs[0]), (square,), f"{where}/Mul", {}, function=op)
        self._node("ReduceSum", (square, last), (total,), f"{where}/ReduceSum", {"keepdims": 1}, function=op)
        self._node("Sqrt", (total,), (root,), f"{where}/Sqrt", {}, function=op)
        self._node("Max", (root, floor), (length,), f"{where}/Max", {}, function=op)
        self._node("Div", (inputs[0], length), outputs, where, {}, function=op)

    def _between(self, name: str, what: str) -> str:
        self.graph.values[f"{name}/{what}"] = self.graph.about(name)[0], None
        return f"{name}/{what}"

    def _body(self, op: str, index: int, inputs: tuple[str, ...], prefix: str) -> Graph:
        """Read a branch, which sees the values that it is given, or a loop's part, which starts from its own."""
        body = Graph([], {}, {}, (), parent=self.graph)
        writer = _Writer(self.model, body, index, None, prefix, self.function, self.depth + 1)
        if op == "IF":
            writer.bound = dict(zip(writer.starts, inputs[1:], strict=False))
        writer.whole()
        return body

    def _composite(self, where: str, options: Table | None, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Write out what a composite stands for; a runtime may run it by its name and attributes alone."""
        if options is None:
            raise Broken(f"{where} does not say what it is composed of")
        name, index = options.text(0), options.integer(1)
        start, size = options.span(2)
        attributes = flexbuffer(self.model.data[start : start + size]) if size else {}
        said = attributes if isinstance(attributes, dict) else {}
        self.model.composites[where] = {"name": name, "attributes": said}
        if not 0 <= index < len(self.model.subgraphs):
            self._node(name, inputs, outputs, where, said)
            return
        writer = _Writer(self.model, self.graph, index, None, f"{where}/", name, self.depth + 1)
        bound = dict(zip(writer.starts, inputs, strict=False))
        same = [(out, end) for out, end in zip(outputs, writer.ends, strict=False) if end in bound]
        bound |= {end: out for out, end in zip(outputs, writer.ends, strict=False) if end not in bound}
        writer.bound = bound
        writer.write()
        for out, end in same:
            self._node("Identity", (bound[end],), (out,), f"{where}/{out}", {})


_Writing = Callable[[_Writer, tuple[str, ...], tuple[str, ...], str], None]
_WRITTEN_OUT: dict[str, _Writing] = {
    "SQUARE": _Writer._square,
    "SQUARED_DIFFERENCE": _Writer._squared_difference,
    "RSQRT": _Writer._rsqrt,
    "L2_NORMALIZATION": _Writer._l2_normalization,
}


def _name_of(code: Table) -> str:
    """Name an operator; the first field is where codes stood before there were over 127."""
    number = max(code.integer(0, "<b"), code.integer(3))
    name = BY_CODE.get(number, f"OPERATOR_{number}")
    return code.text(1) or name if name == "CUSTOM" else name


def _loader(model: _Model, name: str, shape: tuple[int, ...], dtype: str, buffer: int) -> Callable[[], NDArray[Any]]:
    def load() -> NDArray[Any]:
        start, size = model.buffers[buffer]
        count, path = int(np.prod(shape, dtype=object)), str(model.path)
        if dtype in ("int4", "uint4"):
            packed = np.frombuffer(model.data, np.uint8, size, start)
            nibbles = np.stack([packed & 15, packed >> 4], axis=-1).ravel()[:count].astype(np.int8)
            array = (nibbles ^ 8) - 8 if dtype == "int4" else nibbles
        else:
            try:
                kind = np.dtype(_extended(dtype))
            except TypeError:
                raise FileError(f"{path}: tensor {name!r} is of {dtype}, which is not read here.", path) from None
            array = np.frombuffer(model.data, kind, size // kind.itemsize, start)
        if array.size != count:
            raise FileError(
                f"{path}: tensor {name!r} is of shape {shape} and {dtype}, which its {size} bytes are not; fetch "
                "the file again.", path,
            )  # fmt: skip
        return array.reshape(shape)

    return load


def _extended(dtype: str) -> Any:
    if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return getattr(ml_dtypes, dtype)
    return dtype
