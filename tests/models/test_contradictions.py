# SPDX-License-Identifier: MIT
"""This file puts configurations beside tensors that refute them, and beside those that do not."""

import numpy as np
import pytest

from layernorm.models.identify import identify
from layernorm.models.model_file import ModelFile, Tensor
from layernorm.spec.norm_spec import UNKNOWN

BLOCKS = [f"model.layers.{i}.input_layernorm" for i in range(3)]
WITH_BETA = [f"{name}.{leaf}" for name in BLOCKS for leaf in ("weight", "bias")]
WITHOUT = [f"{name}.weight" for name in BLOCKS]


def found(names, config, width=16):
    tensors = {n: Tensor(n, (width,), "float32", lambda: np.ones(width, np.float32)) for n in names}
    return identify(ModelFile("m", "safetensors", tensors, config))


# configuration, tensors, what is said of it
CASES = {
    "an RMS norm with beta": (
        {"model_type": "llama", "rms_norm_eps": 1e-6}, WITH_BETA,
        ("the configuration says llama, whose norms are RMS norms without beta, but model.layers.0.input_layernorm and "
         "2 more have beta: the tensors are believed, and epsilon is left open; see that it is this model's.")
    ),
    "an RMS norm": ({"model_type": "llama", "rms_norm_eps": 1e-6}, WITHOUT, None),
    "a layer norm without beta": (
        {"model_type": "gpt_neox", "layer_norm_eps": 1e-5}, WITHOUT[:1],
        ("the configuration says gpt_neox, whose norms take a mean off and have beta, but "
         "model.layers.0.input_layernorm has no beta, as an RMS norm would; see that it is this model's.")
    ),
    "a layer norm": ({"model_type": "gpt_neox", "layer_norm_eps": 1e-5}, WITH_BETA, None),
    "a layer norm that never has beta": ({"model_type": "cohere"}, WITHOUT, None),
    "a norm of queries": ({"model_type": "stablelm"}, [*WITH_BETA, "layers.0.self_attn.q_layernorm.weight"], None),
    "another width": (
        {"model_type": "llama", "hidden_size": 32}, WITHOUT,
        ("the configuration says hidden_size 32, but no norm is over that many values: they have 16; see that it is "
         "this model's.")
    ),
    "its width": ({"model_type": "llama", "hidden_size": 16}, WITHOUT, None),
    "another width of a part": (
        {"model_type": "x", "text_config": {"model_type": "llama", "hidden_size": 8}}, WITHOUT,
        ("the configuration says hidden_size 8, but no norm is over that many values: they have 16; see that it is "
         "this model's.")
    ),
    "a width that is none": ({"hidden_size": "wide"}, WITHOUT, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_the_tensors_refute_is_said_with_both_values(name):
    config, names, said = CASES[name]
    assert [item.why for item in found(names, config).unidentified] == ([] if said is None else [said])


def test_tensors_are_believed_and_the_epsilon_of_another_model_is_not():
    norm = found(WITH_BETA, {"model_type": "llama", "rms_norm_eps": 1e-6}).norms[0]
    assert (norm.spec.kind, norm.spec.eps, norm.spec.stats_dtype) == ("layer", UNKNOWN, UNKNOWN)
