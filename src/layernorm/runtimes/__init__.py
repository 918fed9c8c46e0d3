# SPDX-License-Identifier: MIT
"""This package runs models and taps their norms: one file a runtime, each with `refuses(model)` and `run(…)`.

Which runtime runs a model follows from its format. Nothing in a file is executed but the operations of its graph: what
could only be run by unpickling it is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import NormRecord
from layernorm.runtimes.inputs import inputs_for, seeded_inputs
from layernorm.runtimes.quantized import coarseness, step_of, steps_in
from layernorm.runtimes.tap import Run, Tap
from layernorm.spec.errors import UnsupportedError

__all__ = ["RUNTIMES", "Run", "Tap", "can_run", "inputs_for", "run", "seeded_inputs", "taps_of"]

# Which runtimes may run a format, the best first; OpenVINO reads TFLite files, too.
RUNTIMES: dict[str, tuple[str, ...]] = {
    "onnx": ("onnxruntime", "openvino"),
    "tflite": ("litert", "openvino"),
    "pytorch": ("torch",),
    "pt2": ("torch_export",),
}
_WITHOUT_GRAPH = {
    "safetensors": "a safetensors file holds weights and no graph",
    "gguf": "a GGUF file holds weights and no graph",
    "card": "a norm card holds no graph",
    "keras": "a Keras file is not run here, for its layers may hold Python code; export it to ONNX or TFLite",
}


def can_run(model: ModelFile) -> str | None:
    """Say in a few words why a model cannot be run here; None if there is a runtime for it.

    The runtime may yet refuse it when it is run, with words of its own.

    >>> can_run(ModelFile("m.safetensors", "safetensors", {}))
    'a safetensors file holds weights and no graph'
    """
    _, why = _chosen(model)
    return why


def run(
    model: ModelFile,
    norms: Sequence[NormRecord],
    inputs: Mapping[str, NDArray[Any]],
    optimized: bool = True,
    runtime: str | None = None,
) -> Run:
    """Run a model once and read the input and the output of each of its norms.

    Args:
        model: the model; nothing in it is changed, whether a file or a live module.
        norms: its records, from `identify`.
        inputs: an array for each of the model's inputs, by name, as `seeded_inputs` or `inputs_for` give them.
        optimized: whether the runtime may rewrite the graph first, fusing loose operations into one; values that are
            read are still computed. PyTorch has no such choice.
        runtime: one of `RUNTIMES` for this format; None for the first that is installed.

    Raises:
        UnsupportedError: no runtime runs this, or the runtime refuses it; its own reason is in the sentence.
    """
    name, why = (runtime, None) if runtime is not None else _chosen(model)
    if name is None:
        raise UnsupportedError(f"{model.path} cannot be run: {why}.", model.path)
    module = importlib.import_module(f"layernorm.runtimes.{name}")
    if why := module.refuses(model):
        raise UnsupportedError(f"{model.path} cannot be run: {why}.", model.path)
    done: Run = module.run(model, norms, inputs, optimized)
    steps = {**steps_in(model.graph), **done.steps}
    taps = {
        norm.name: _with_steps(done.taps[norm.name], norm, model, steps) for norm in norms if norm.name in done.taps
    }
    return replace(done, taps=taps)


def taps_of(
    model: ModelFile, norms: Sequence[NormRecord], inputs: Mapping[str, NDArray[Any]], optimized: bool = True
) -> dict[str, Tap]:
    """Give the taps of a run by the norms' names; one that cannot be tapped is absent, and `run` says why."""
    return dict(run(model, norms, inputs, optimized).taps)


def _chosen(model: ModelFile) -> tuple[str | None, str | None]:
    """Name the first runtime that takes a model, or say what the first one wants."""
    why = _WITHOUT_GRAPH.get(model.format)
    for name in RUNTIMES.get(model.format, ()):
        refusal = importlib.import_module(f"layernorm.runtimes.{name}").refuses(model)
        if refusal is None:
            return name, None
        why = why or refusal
    return None, why or f"nothing here runs the format {model.format}"


def _with_steps(tap: Tap, norm: NormRecord, model: ModelFile, steps: Mapping[str, float]) -> Tap:
    return tap._replace(
        scale_step=step_of(norm.scale, model), shift_step=step_of(norm.shift, model),
        coarse=coarseness(norm, model, tap.input, steps),
    )  # fmt: skip
