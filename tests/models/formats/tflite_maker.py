# SPDX-License-Identifier: MIT
"""This file writes small TFLite models, field by field, with the flatbuffers package."""

import flatbuffers
import numpy as np

CODES = {
    "ADD": 0, "CONV_2D": 3, "DEQUANTIZE": 6, "FULLY_CONNECTED": 9, "L2_NORMALIZATION": 11, "MUL": 18, "RESHAPE": 22,
    "CUSTOM": 32, "TRANSPOSE": 39, "MEAN": 40, "SUB": 41, "DIV": 42, "SQUEEZE": 43, "MAXIMUM": 55, "EXPAND_DIMS": 70,
    "SUM": 74, "SQRT": 75, "RSQRT": 76, "SQUARE": 92, "SQUARED_DIFFERENCE": 99, "IF": 118, "WHILE": 119,
    "BATCH_MATMUL": 126, "STABLEHLO_COMPOSITE": 206, "FILL": 94,
}  # fmt: skip
TYPES = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int8": 9}
# The number of an operator's options in the schema's union.
UNION = {"ADD": 11, "CONV_2D": 1, "FULLY_CONNECTED": 8, "L2_NORMALIZATION": 12, "MUL": 21, "RESHAPE": 17, "MEAN": 27,
         "SUM": 27, "SUB": 28, "DIV": 29, "SQUEEZE": 30, "BATCH_MATMUL": 101, "IF": 92, "WHILE": 93}  # fmt: skip


class Subgraph:
    """Tensors by name, and operators over them."""

    def __init__(self):
        self.tensors, self.operators, self.inputs, self.outputs = {}, [], [], []

    def value(self, name, shape, dtype="float32", signature=None):
        self.tensors[name] = (shape, dtype, None, None, signature)
        return name

    def input(self, name, shape, dtype="float32", signature=None):
        self.inputs.append(self.value(name, shape, dtype, signature))
        return name

    def constant(self, name, array, quantization=None, shape=None):
        array = np.asarray(array)
        self.tensors[name] = (
            array.shape if shape is None else shape,
            array.dtype.name,
            array.tobytes(),
            quantization,
            None,
        )
        return name

    def operator(self, op, inputs, outputs, fields=None, shapes=None):
        """Add an operator; `fields` are those of its options, by number: (form, value)."""
        for output in outputs:
            if output not in self.tensors:
                self.value(output, shapes or self.tensors[inputs[0]][0])
        self.operators.append((op, inputs, outputs, fields or {}))
        return outputs[0]


def table(builder, fields):
    """Write one table: fields by number, each ("offset" | "i8" | "u8" | "i32" | "u32", value)."""
    builder.StartObject(max(fields, default=-1) + 1)
    write = {
        "offset": builder.PrependUOffsetTRelativeSlot, "i8": builder.PrependInt8Slot, "u8": builder.PrependUint8Slot,
        "i32": builder.PrependInt32Slot, "u32": builder.PrependUint32Slot,
    }  # fmt: skip
    for number, (form, value) in fields.items():
        write[form](number, value, 0)
    return builder.EndObject()


def vector(builder, offsets):
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def made(subgraphs, signatures=(), description="made by a test"):
    """Give the bytes of a model; composites have fields {"name", "subgraph", "attributes"}."""
    builder = flatbuffers.Builder(1024)
    builder.ForceDefaults(True)
    ops = list(dict.fromkeys(op for graph in subgraphs for op, *_ in graph.operators))
    buffers, graphs = [b""], []
    for graph in subgraphs:
        place = {name: i for i, name in enumerate(graph.tensors)} | {"": -1}
        tensors = []
        for name, (shape, dtype, data, quantization, signature) in graph.tensors.items():
            fields = {
                0: ("offset", ints(builder, shape)),
                1: ("i8", TYPES[dtype]),
                3: ("offset", builder.CreateString(name)),
            }
            fields[2] = ("u32", 0 if data is None else len(buffers))
            buffers += [] if data is None else [data]
            if quantization is not None:
                scale, zero, axis = quantization
                parts = {
                    2: ("offset", builder.CreateNumpyVector(np.asarray(scale, np.float32))),
                    3: ("offset", builder.CreateNumpyVector(np.asarray(zero, np.int64))),
                    6: ("i32", axis),
                }
                fields[4] = ("offset", table(builder, parts))
            if signature is not None:
                fields[7] = ("offset", ints(builder, signature))
            tensors.append(table(builder, fields))
        operators = [operator(builder, ops, place, *rest) for rest in graph.operators]
        fields = {
            0: ("offset", vector(builder, tensors)),
            1: ("offset", ints(builder, [place[n] for n in graph.inputs])),
            2: ("offset", ints(builder, [place[n] for n in graph.outputs])),
            3: ("offset", vector(builder, operators)),
        }
        graphs.append(table(builder, fields))
    codes = [code(builder, op) for op in ops]
    stored = [
        table(builder, {0: ("offset", builder.CreateByteVector(data))} if data else {}) for data in buffers
    ]  # fmt: skip
    signed = [
        table(builder, {2: ("offset", builder.CreateString(key)), 4: ("u32", index)}) for key, index in signatures
    ]  # fmt: skip
    model = {
        0: ("u32", 3),
        1: ("offset", vector(builder, codes)),
        2: ("offset", vector(builder, graphs)),
        3: ("offset", builder.CreateString(description)),
        4: ("offset", vector(builder, stored)),
        7: ("offset", vector(builder, signed)),
    }
    builder.Finish(table(builder, model), b"TFL3")
    return bytes(builder.Output())


def code(builder, op):
    number = CODES.get(op, 32)
    fields = {0: ("i8", min(number, 127)), 2: ("i32", 1), 3: ("i32", number)}
    if number == 32:
        fields[1] = ("offset", builder.CreateString(op))
    return table(builder, fields)


def operator(builder, ops, place, op, inputs, outputs, fields):
    parts = {
        0: ("u32", ops.index(op)),
        1: ("offset", ints(builder, [place[n] for n in inputs])),
        2: ("offset", ints(builder, [place[n] for n in outputs])),
    }
    if op == "STABLEHLO_COMPOSITE":
        options = {
            0: ("offset", builder.CreateString(fields["name"])),
            1: ("i32", fields["subgraph"]),
            2: ("offset", builder.CreateByteVector(fields["attributes"])),
        }
        parts |= {11: ("u8", 21), 12: ("offset", table(builder, options))}
    elif fields or op in UNION:
        options = {n: (form, ints(builder, v) if form == "offset" else v) for n, (form, v) in fields.items()}
        parts |= {3: ("u8", UNION[op]), 4: ("offset", table(builder, options))}
    return table(builder, parts)


def ints(builder, numbers):
    return builder.CreateNumpyVector(np.asarray(numbers, np.int32).reshape(-1))
