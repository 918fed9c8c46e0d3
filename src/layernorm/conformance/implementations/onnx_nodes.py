# SPDX-License-Identifier: MIT
"""This file wraps the ONNX operators LayerNormalization and RMSNormalization in the runtimes that run them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from layernorm.conformance.implementations.packages import needed, version
from layernorm.conformance.targets import Array, Norm, Target, told, without_beta
from layernorm.spec.errors import UnsupportedError
from layernorm.spec.variants import VARIANTS

ALL = ("float16", "float32", "float64")
# stash_type=1 puts the function body's statistics in float32, and OpenVINO's CPU plugin works out float64 in float32
NARROW = ("float16", "float32")
# A session takes a model and a number of threads, 0 for its own choice, and gives a function of feeds.
Runner = Callable[[Any, int], Callable[[dict[str, Array]], Array]]
OPSETS = {"layer": 17, "rms": 23}
OWN_DOMAIN = ("", "ai.onnx")
OPERATORS = {"layer": "LayerNormalization", "rms": "RMSNormalization"}


@dataclass(frozen=True)
class Node:
    """One norm node of ONNX's own domain: its operator, its opset, and its attributes as `onnx.helper` takes them."""

    operator: str
    opset: int
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, norm: Norm, eps: float) -> "Node":
        """Give the standard's own operator for a norm over the last axis."""
        return cls(OPERATORS[norm], OPSETS[norm], {"axis": -1, "epsilon": eps})

    def model(self, dtype: str, dims: int, shifted: bool) -> Any:
        """Make the model that holds this node alone, of x (dims axes), gamma (width,) and, if shifted, beta."""
        helper = needed("onnx.helper", "onnx")
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        names = ["x", "gamma", *(["beta"] if shifted else [])]
        shape = [*(f"axis{i}" for i in range(dims - 1)), "width"]
        inputs = [
            helper.make_tensor_value_info(name, element, shape if name == "x" else ["width"]) for name in names
        ]  # fmt: skip
        output = helper.make_tensor_value_info("y", element, shape)
        node = helper.make_node(self.operator, names, ["y"], **self.attributes)
        graph = helper.make_graph([node], "one_norm", inputs, [output])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def node_attributes(onnx: Any, node: Any, opset: int) -> dict[str, Any]:
    """Read the attributes of a norm node out of a file, which may hold anything.

    Raises:
        UnsupportedError: it is no node that ONNX defines; the sentence goes on from its name.
    """
    if node.domain not in OWN_DOMAIN:
        raise UnsupportedError(f"is of the domain {node.domain}; only those of ONNX's own domain are graded.")
    if not node.input:
        raise UnsupportedError("has no input; name a file whose norm has one.")
    since = {OPERATORS["rms"]: OPSETS["rms"]}.get(node.op_type, 1)
    if opset < since:
        raise UnsupportedError(f"stands in opset {opset}; ONNX has it from {since} on, so convert the file.")
    kinds = {"epsilon": onnx.AttributeProto.FLOAT, "axis": onnx.AttributeProto.INT}
    for a in node.attribute:
        if a.ref_attr_name or a.type != kinds.get(a.name, a.type):
            raise UnsupportedError(f"has an attribute {a.name} that is no number; write the number there.")
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if not 0 <= found.get("epsilon", 0) < math.inf:
        raise UnsupportedError(f"has epsilon={found['epsilon']}; only a finite one that is not negative is graded.")
    return found


def onnxruntime(norm: Norm, eps: float) -> Target:
    """Wrap the fused operator in ONNX Runtime."""
    return onnxruntime_node("onnxruntime", norm, eps, Node.of(norm, eps))


def onnxruntime_node(name: str, norm: Norm, eps: float, node: Node) -> Target:
    """Wrap any one node in ONNX Runtime."""
    _ = needed("onnx"), needed("onnxruntime")
    return _target(name, version("onnxruntime"), norm, eps, node, _onnxruntime_session)


def expanded(norm: Norm, eps: float) -> Target:
    """Wrap the operator's function body, its loose nodes, in ONNX Runtime without fusing them again."""
    _ = needed("onnxruntime")
    inliner = needed("onnx.inliner", "onnx")

    def session(model: Any, threads: int) -> Callable[[dict[str, Array]], Array]:
        loose = inliner.inline_selected_functions(
            model, [("", OPERATORS[norm])], exclude=False, inline_schema_functions=True
        )
        return _onnxruntime_session(loose, threads, fuse=False)

    return _target(
        "onnxruntime-expanded", version("onnxruntime"), norm, eps, Node.of(norm, eps), session, NARROW
    )  # fmt: skip


def reference(norm: Norm, eps: float) -> Target:
    """Wrap the `onnx` package's own evaluator, written in NumPy."""
    evaluator = needed("onnx.reference", "onnx").ReferenceEvaluator

    def session(model: Any, threads: int) -> Callable[[dict[str, Array]], Array]:
        made = evaluator(model)
        return lambda feeds: np.asarray(made.run(None, feeds)[0])

    return _target("onnx-reference", version("onnx"), norm, eps, Node.of(norm, eps), session, threaded=False)


def openvino(norm: Norm, eps: float) -> Target:
    """Wrap the operator in OpenVINO's CPU plugin, held to the input's own precision."""
    _ = needed("onnx")
    core = needed("openvino").Core()

    def session(model: Any, threads: int) -> Callable[[dict[str, Array]], Array]:
        read = core.read_model(model.SerializeToString(), b"")
        said = {"INFERENCE_NUM_THREADS": threads} if threads else {}
        # left alone it computes float32 models in bfloat16 on processors that have it
        made = core.compile_model(read, "CPU", said | {"EXECUTION_MODE_HINT": "ACCURACY"})
        return lambda feeds: np.array(made(feeds)[0])

    return _target("openvino", version("openvino"), norm, eps, Node.of(norm, eps), session, NARROW)


def _onnxruntime_session(model: Any, threads: int, fuse: bool = True) -> Callable[[dict[str, Array]], Array]:
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what it refuses, it raises
    options.intra_op_num_threads = threads
    if not fuse:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: np.asarray(made.run(None, feeds)[0])


def _target(
    name: str,
    said: str | None,
    norm: Norm,
    eps: float,
    node: Node,
    session: Runner,
    among: tuple[str, ...] = ALL,
    threaded: bool = True,
) -> Target:
    """Wrap a node; a session is kept for every type and number of axes, since making one takes milliseconds."""
    made: dict[tuple[str, int, bool, int], Callable[[dict[str, Array]], Array]] = {}
    threads = [0]

    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        without_beta(name, norm, beta)
        key = (x.dtype.name, x.ndim, beta is not None, threads[0])
        if key not in made:
            made[key] = session(node.model(x.dtype.name, x.ndim, beta is not None), threads[0])
        # the operator has one type for all three, and always a gamma
        feeds = {"x": x, "gamma": np.ones(x.shape[-1]) if gamma is None else gamma}
        feeds |= {} if beta is None else {"beta": beta}
        with np.errstate(all="ignore"):
            return made[key]({n: np.ascontiguousarray(a.astype(x.dtype)) for n, a in feeds.items()})

    refused = "it answers in another type"

    def runs(dtype: str) -> bool:
        nonlocal refused
        try:
            return forward(np.zeros((2, 4), dtype)).dtype == dtype
        except Exception as fault:  # each runtime has its own way to say that it has no such kernel
            refused = told(fault)
            return False

    def set_threads(count: int) -> None:
        threads[0] = count

    # the attribute is a float32, and in float64 the difference to the decimal shows
    spec = replace(VARIANTS[f"onnx-{norm}"], eps=float(np.float32(eps)))
    dtypes = tuple(d for d in among if runs(d))
    if not dtypes:
        raise UnsupportedError(f"{name} runs in none of {', '.join(among)} ({refused}); name one that runs.", name)
    return Target(
        name, said, spec, forward, None, dtypes, None, set_threads if threaded else None, takes_views=False,
        checks_calls=False,
    )  # fmt: skip
