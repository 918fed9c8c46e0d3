# SPDX-License-Identifier: MIT
"""This file tests the names that norms are given."""

import numpy as np
import pytest
from onnx import helper
from onnx_files import constants, model, records

from layernorm.models.names import name_of, unique_names

W, B = np.linspace(0.5, 1.5, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)


@pytest.mark.parametrize(
    ("parameters", "node", "expected"),
    [
        (["h.0.ln_1.weight", "h.0.ln_1.bias"], "n", "h.0.ln_1"),
        (["layers.3.input_layernorm.weight"], "n", "layers.3.input_layernorm"),
        (["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], "n", "bn"),
        (["bert/LayerNorm/gamma:0", "bert/LayerNorm/beta:0"], "n", "bert/LayerNorm"),
        (["a.norm.weight_quantized", "a.norm.bias"], "n", "a.norm"),
        (["ln1_gamma", "ln1_beta"], "n", "ln1"),
        (["model/ln/batchnorm/mul/ReadVariableOp:0", "model/ln/batchnorm/ReadVariableOp:0"], "n", "model/ln/batchnorm"),
        (["onnx::Mul_12", "onnx::Add_13"], "/h/LayerNormalization", "/h/LayerNormalization"),
        (["/block/Constant_1_output_0", "/block/Constant_2_output_0"], "n", "n"),
        (["w", "b"], "", "layer@graph/node[0]"),
        ([], "", "layer@graph/node[0]"),
        (["a.weight", "b.bias"], "n", "n"),
    ],
)
def test_norms_have_the_files_own_names(parameters, node, expected):
    assert name_of(parameters, node, "layer@graph/node[0]") == expected


def test_each_name_is_had_once(tmp_path):
    nodes = [helper.make_node("LayerNormalization", [a, "ln.weight", "ln.bias"], [b]) for a, b in ("xh", "hg", "gy")]
    found = unique_names(records(tmp_path, model(nodes, constants(ln__weight=W, ln__bias=B))))
    assert [r.name for r in found] == ["ln", "ln#2", "ln#3"]
