# SPDX-License-Identifier: MIT
"""This file runs ONNX and TFLite models in OpenVINO, held to the precision of the file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes.tap import Run, Tap
from layernorm.runtimes.values import Ends, behind_activation, ends_of
from layernorm.spec.errors import UnsupportedError


def refuses(model: ModelFile) -> str | None:
    """Say why this runtime does not run a model; None if it may."""
    if importlib.util.find_spec("openvino") is None:
        return "openvino is not installed; pip install openvino"
    return None if model.graph is not None else "it has no graph"


def run(model: ModelFile, norms: Sequence[NormRecord], inputs: Mapping[str, NDArray[Any]], optimized: bool) -> Run:
    """Run a model once with the values to be read among its results; OpenVINO always rewrites the graph."""
    import openvino

    try:
        core = openvino.Core()
        read = core.read_model(model.path)
        outputs = {name: out for op in read.get_ops() for out in op.outputs() for name in out.get_names()}
        ends, missing, activations = _ends(norms, outputs)
        wanted = sorted({name for pair in ends.values() for name in pair} - inputs.keys())
        for name in wanted:
            read.add_outputs(outputs[name])
        read.reshape({name: value.shape for name, value in inputs.items()})
        # left alone, it computes float32 models in bfloat16 on processors that have it: a false difference of 3e-2
        compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = compiled(dict(inputs))
        values = {name: np.array(results[compiled.output(name)]) for name in wanted}
    except Exception as fault:
        raise UnsupportedError(
            f"{model.path}: OpenVINO refuses it: {' '.join(str(fault).split())}", model.path
        ) from fault
    taps = {}
    for name, pair in ends.items():
        x, y = (values[end] if end in values else inputs[end] for end in pair)
        taps[name] = Tap(x, y, activations[name])
    return Run(taps, missing, runtime=f"openvino {openvino.__version__}")


def _ends(
    norms: Sequence[NormRecord], outputs: Mapping[str, Any]
) -> tuple[dict[str, Ends], dict[str, str], dict[str, str]]:
    ends: dict[str, Ends] = {}
    missing: dict[str, str] = {}
    activations: dict[str, str] = {}
    for norm in norms:
        shown, activations[norm.name] = behind_activation(norm)
        found = ends_of(shown, outputs)
        if isinstance(found, Ends):
            ends[norm.name] = found
        else:
            missing[norm.name] = found
    return ends, missing, activations
