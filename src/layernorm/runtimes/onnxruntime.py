# SPDX-License-Identifier: MIT
"""This file runs ONNX models in ONNX Runtime, the values to be read made outputs of a copy in memory."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes.tap import Run, Tap
from layernorm.runtimes.values import Ends, ends_of
from layernorm.spec.errors import MissingExtraError, UnsupportedError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# Nodes that normalize a sum that they take themselves: which of their outputs, left out as a rule, is that sum.
SUMS = {
    "SkipLayerNormalization": 3, "SkipSimplifiedLayerNormalization": 3, "EmbedLayerNormalization": 2,
    "SkipGroupNorm": 1,
}  # fmt: skip
# Weights beside the model are found from here, though the runtime is given the copy and no path. So no copy of them
# is made, however many gigabytes they have, and there is no file to clean up.
_FOLDER = "session.model_external_initializers_file_folder_path"
_BFLOAT16, _FLOAT = 16, 1
# Seconds after which a run is given up: a Loop may turn for ever. Models of 7e9 parameters take some 60 on two cores.
LONGEST = 600.0
# And after which it has heard that it is given up: it looks after each operator.
TO_STOP = 5.0


def refuses(model: ModelFile) -> str | None:
    """Say why this runtime does not run a model; None if it may."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed; pip install {package}"
    return None if model.graph is not None else "it has no graph"


def run(model: ModelFile, norms: Sequence[NormRecord], inputs: Mapping[str, NDArray[Any]], optimized: bool) -> Run:
    """Run a model once with every norm's input and output among its outputs."""
    # else importing it leaves a file with an identifier in the temporary folder, for reports to its makers
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    proto = read(model)
    ends, missing = tapped(proto, model, norms)
    fed = {value.name for value in proto.graph.input}
    wanted = sorted({name for pair in ends.values() for name in pair} - fed)
    narrow = _widened(proto, model, wanted)
    values = dict(zip(wanted, _results(onnxruntime, proto, model, wanted, inputs, optimized), strict=True))
    values = {name: _narrowed(value) if name in narrow else value for name, value in values.items()}
    taps = {}
    for name, pair in ends.items():
        x, y = (values[end] if end in values else inputs.get(end) for end in pair)
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            taps[name] = Tap(x, y)
        else:
            missing[name] = "what goes in or comes out is no tensor"
    said = f"onnxruntime {onnxruntime.__version__}, graph optimization {'on' if optimized else 'off'}"
    return Run(taps, missing, runtime=said)


def read(model: ModelFile) -> ModelProto:
    """Read a model as it is in the file, without the weights beside it."""
    import onnx

    return onnx.load(model.path, load_external_data=False)


def tapped(proto: ModelProto, model: ModelFile, norms: Sequence[NormRecord]) -> tuple[dict[str, Ends], dict[str, str]]:
    """Say for each norm which two values to read, or why they cannot be; sums inside nodes are made outputs of them."""
    makers = {name: node for node in proto.graph.node for name in node.output if name}
    top = {*makers, *(value.name for value in proto.graph.input), *(t.name for t in proto.graph.initializer)}
    ends: dict[str, Ends] = {}
    missing: dict[str, str] = {}
    for norm in norms:
        maker = makers.get(norm.output)
        summed = _with_sum(maker) if maker is not None and not norm.input else None
        found = Ends(summed, norm.output) if summed else ends_of(norm, top)
        if isinstance(found, Ends):
            ends[norm.name] = found
        else:
            missing[norm.name] = found
    return ends, missing


def _with_sum(node: NodeProto) -> str | None:
    """Name the sum that a node normalizes, making it an output of the node where it is none."""
    place = SUMS.get(node.op_type)
    if place is None:
        return None
    while len(node.output) <= place:
        node.output.append("")
    node.output[place] = node.output[place] or f"{node.output[0]} before its norm"
    return str(node.output[place])


def _widened(proto: ModelProto, model: ModelFile, wanted: list[str]) -> set[str]:
    """Add a cast to float32 behind each bfloat16 value, which the runtime cannot give to NumPy; say which those are."""
    import onnx

    graph = proto.graph
    already = {value.name for value in graph.output}
    narrow = {name for name in wanted if model.graph is not None and model.graph.about(name)[0] == "bfloat16"}
    for name in wanted:
        if name in narrow:
            graph.node.append(onnx.helper.make_node("Cast", [name], [_wide(name)], to=_FLOAT))
            graph.output.append(onnx.ValueInfoProto(name=_wide(name)))
        elif name not in already:
            graph.output.append(onnx.ValueInfoProto(name=name))  # its type the runtime finds out for itself
    return narrow


def _wide(name: str) -> str:
    return f"{name} as float32"


def _narrowed(value: Any) -> NDArray[Any]:
    import ml_dtypes

    return np.asarray(value).astype(ml_dtypes.bfloat16)


def _results(
    onnxruntime: Any, proto: ModelProto, model: ModelFile, wanted: list[str], inputs: Mapping[str, NDArray[Any]],
    optimized: bool,
) -> Iterator[Any]:  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses, it raises
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(_FOLDER, str(Path(model.path).absolute().parent))
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    offered = {value.name for value in proto.graph.output}
    names = [name if name in offered else _wide(name) for name in wanted]
    try:
        limits = onnxruntime.RunOptions()
        limits.log_severity_level = 4
        run_all = partial(_run, onnxruntime, proto.SerializeToString(), options, limits, names, dict(inputs))
        return iter(_within(LONGEST, run_all, limits))
    except (MissingExtraError, KeyboardInterrupt):
        raise
    except Exception as fault:  # its classes have no common ancestor but this
        raise UnsupportedError(f"{model.path}: ONNX Runtime refuses it: {_told(fault)}", model.path) from fault


def _run(
    onnxruntime: Any, written: bytes, options: Any, limits: Any, names: list[str], inputs: dict[str, NDArray[Any]]
) -> list[Any]:
    session = onnxruntime.InferenceSession(written, options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(names, inputs, limits) if names else []
    return results


def _within(seconds: float, work: Callable[[], list[Any]], limits: Any) -> list[Any]:
    """Do work in a thread of its own: a key pressed to stop it is heard here, and no run outlasts its time."""
    results: list[list[Any]] = []
    faults: list[BaseException] = []
    ended = threading.Event()

    def working() -> None:
        try:
            results.append(work())
        except BaseException as fault:  # it is raised below, in the thread that asked
            faults.append(fault)

        ended.set()

    threading.Thread(target=working, daemon=True).start()
    try:
        # no join: one that a key stops takes the thread for ended (Python 3.11)
        in_time = ended.wait(seconds)
    finally:
        limits.terminate = True
        ended.wait(TO_STOP)  # a run that goes on when Python ends would abort the process
    if not in_time:
        raise TimeoutError(f"it did not end within {seconds:g} seconds")
    if faults:
        raise faults[0]
    return results[0]


def _told(fault: Exception) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__
