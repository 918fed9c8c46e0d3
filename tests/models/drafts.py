# SPDX-License-Identifier: MIT
"""This file writes small ONNX models operation by operation, and turns a ModelProto into the recognizer's Graph."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from layernorm.models.graph import Graph, Node
from layernorm.models.model_file import Tensor


class Draft:
    """A model under construction: calling it adds an operation and gives the name of its output."""

    def __init__(self, shape=("B", 4, 8), dtype=np.float32, opset=17):
        self.nodes, self.initializers, self.inputs, self.values = [], [], [], []
        self.dtype, self.opset = np.dtype(dtype), opset
        self.x = self.input("x", shape)

    def input(self, name, shape, dtype=None):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def const(self, value, name=None, dtype=None):
        name = name or f"constant_{len(self.initializers)}"
        array = np.asarray(value)
        if dtype is not None or array.dtype.kind == "f":
            array = array.astype(dtype or self.dtype)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, op, *inputs, name=None, **attributes):
        inputs = [i if isinstance(i, str) else self.const(i) for i in inputs]
        outputs = [f"{op}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))
        return outputs[0]

    def mean(self, x, axes=(-1,), keepdims=1):
        if self.opset >= 18:
            return self("ReduceMean", x, np.array(axes, np.int64), keepdims=keepdims)
        return self("ReduceMean", x, axes=list(axes), keepdims=keepdims)

    def sum(self, x, axes=(-1,)):
        return self("ReduceSum", x, np.array(axes, np.int64), keepdims=1)

    def model(self, *outputs):
        graph = helper.make_graph(
            self.nodes, "g", self.inputs, [helper.make_empty_tensor_value_info(o) for o in outputs],
            self.initializers, value_info=self.values,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def graph(self, *outputs):
        return graph_of(self.model(*outputs))


def graph_of(model):
    """Give a model as a Graph; functions must have been inlined."""
    return _graph(model.graph, None, {o.domain: o.version for o in model.opset_import}.get("", 0), "graph")


def _graph(proto, parent, version, where):
    graph = Graph([], {}, {}, tuple(o.name for o in proto.output), parent=parent)
    for value in proto.input:
        graph.inputs[value.name] = _about(value)
    for value in proto.value_info:
        graph.values[value.name] = _about(value)
    for tensor in proto.initializer:
        graph.constants[tensor.name] = tensor_of(tensor, tensor.name)
    for index, node in enumerate(proto.node):
        said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            (value,) = said.values()
            tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))
            graph.constants[node.output[0]] = tensor_of(tensor, node.output[0])
            continue
        here = f"{where}/node[{index}]"
        plain = {n: _plain(v) for n, v in said.items() if not isinstance(v, onnx.GraphProto)}
        made = Node(node.op_type, tuple(node.input), tuple(node.output), plain, node.name, node.domain, here, version)
        made.graphs = tuple(
            _graph(v, graph, version, f"{here}/{n}") for n, v in said.items() if isinstance(v, onnx.GraphProto)
        )
        graph.nodes.append(made)
    return graph


def tensor_of(proto, name):
    dtype = helper.tensor_dtype_to_np_dtype(proto.data_type)
    return Tensor(name, tuple(proto.dims), dtype.name, lambda: numpy_helper.to_array(proto))


def _plain(value):
    if isinstance(value, TensorProto):
        return tensor_of(value, "")
    return value.decode() if isinstance(value, bytes) else list(value) if not isinstance(value, (int, float)) else value


def _about(value):
    kind = value.type.tensor_type
    dims = tuple(d.dim_value or None for d in kind.shape.dim) if kind.HasField("shape") else None
    return helper.tensor_dtype_to_np_dtype(kind.elem_type).name, dims
