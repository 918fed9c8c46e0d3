# SPDX-License-Identifier: MIT
"""This file makes small ONNX files for tests."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from layernorm.models.formats import read_model
from layernorm.models.operators import record_of

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 4])


def constants(**arrays):
    """Give initializers of these names, `__` standing for a dot."""
    return [numpy_helper.from_array(np.asarray(a), name.replace("__", ".")) for name, a in arrays.items()]


def model(nodes, initializers=(), *, inputs=(X,), outputs=(Y,), opset=17, functions=(), domains=(), **more):
    """Give a model that was checked by nobody."""
    graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), list(initializers), **more)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def save(folder, proto, name="model.onnx"):
    path = folder / name
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return path


def written_again(graph, opset=17):
    """Give a model of the nodes that were read; bodies are left out."""
    nodes = [
        helper.make_node(n.op, list(n.inputs), list(n.outputs), domain=n.domain, name=n.name, **n.attributes)
        for n in graph.nodes
    ]
    values = [numpy_helper.from_array(t.values(), name) for name, t in graph.constants.items()]
    inputs = [
        helper.make_tensor_value_info(name, getattr(TensorProto, {"float32": "FLOAT"}[dtype]), shape)
        for name, (dtype, shape) in graph.inputs.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in graph.outputs]
    return model(nodes, values, inputs=inputs, outputs=outputs, opset=opset)


def beside(location, shape=(4,), **said):
    """Give a model whose weight is in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **said}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model([helper.make_node("Mul", ["x", "w"], ["y"])], [tensor])


def records(folder, proto):
    """Read the norms of a model, each from its node."""
    graph = read_model(save(folder, proto)).graph
    return [record for g, node in graph.walk() if (record := record_of(g, node)) is not None]
