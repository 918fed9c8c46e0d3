# SPDX-License-Identifier: MIT
"""This file runs TFLite models in LiteRT, every value kept so that those between can be read."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from importlib import metadata
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
    if importlib.util.find_spec("ai_edge_litert") is None:
        return "ai-edge-litert is not installed; pip install ai-edge-litert"
    return None if model.graph is not None else "it has no graph"


def run(model: ModelFile, norms: Sequence[NormRecord], inputs: Mapping[str, NDArray[Any]], optimized: bool) -> Run:
    """Run a model once; without `optimized` each operator is the plain reference kernel."""
    from ai_edge_litert import interpreter as litert

    resolver = (
        litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if optimized else litert.OpResolverType.BUILTIN_REF
    )
    try:
        # a delegate would take whole parts of the graph, and the values in them would be nowhere
        session = litert.Interpreter(
            model_path=model.path, experimental_op_resolver_type=resolver, experimental_preserve_all_tensors=True
        )
        for said in session.get_input_details():
            if said["name"] not in inputs:
                raise ValueError(f"there is no array for the input {said['name']!r}")
            if tuple(said["shape"]) != inputs[said["name"]].shape:
                session.resize_tensor_input(said["index"], inputs[said["name"]].shape)
        session.allocate_tensors()
        for said in session.get_input_details():
            session.set_tensor(said["index"], _stored(inputs[said["name"]], said))
        session.invoke()
    except Exception as fault:
        raise UnsupportedError(
            f"{model.path}: LiteRT refuses it: {' '.join(str(fault).split())}", model.path
        ) from fault
    details = {said["name"]: said for said in reversed(session.get_tensor_details())}  # of a name twice, the first
    taps: dict[str, Tap] = {}
    missing: dict[str, str] = {}
    for norm in norms:
        shown, activation = behind_activation(norm)
        ends = ends_of(shown, details)
        if not isinstance(ends, Ends):
            missing[norm.name] = ends
            continue
        (x, _), (y, step) = (_meant(session.get_tensor(details[end]["index"]), details[end]) for end in ends)
        taps[norm.name] = Tap(x, y, activation, output_step=step)
    # a kernel for integers rounds twice: the product by a scale, and the result
    steps = {name: 2 * scale for name, said in details.items() if (scale := float(said["quantization"][0]))}
    return Run(taps, missing, steps, f"ai-edge-litert {metadata.version('ai-edge-litert')}")


def _stored(value: NDArray[Any], said: Mapping[str, Any]) -> NDArray[Any]:
    """Give an input as the model holds it: floats for integers are quantized."""
    scale, zero = said["quantization"]
    wanted: np.dtype[Any] = np.dtype(said["dtype"])
    if scale and wanted.kind in "iu" and value.dtype.kind == "f":
        limits = np.iinfo(wanted)
        value = np.clip(np.rint(value / scale) + zero, limits.min, limits.max)
    return value.astype(wanted)


def _meant(value: NDArray[Any], said: Mapping[str, Any]) -> tuple[NDArray[Any], float]:
    """Give the numbers that a value stands for, and how far apart neighbouring ones are."""
    scale, zero = said["quantization"]
    if scale and value.dtype.kind in "iu":
        return ((value.astype(np.float32) - np.float32(zero)) * np.float32(scale)), float(scale)
    return np.array(value), 0.0
