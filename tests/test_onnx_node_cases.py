# SPDX-License-Identifier: MIT
"""This file runs the normalization cases of ONNX's own test suite: a NormSpec is read from each node, and run."""

import collections
import importlib
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as node_cases

import layernorm as ln
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import NormSpec

# the files of the suite that hold them, by the operator's name
FILES = {
    "LayerNormalization": "layernormalization",
    "RMSNormalization": "rmsnormalization",
    "GroupNormalization": "groupnormalization",
    "InstanceNormalization": "instance_normalization",
    "BatchNormalization": "batch_normalization",
    "MeanVarianceNormalization": "meanvariancenormalization",
}
COUNTS = {"LayerNormalization": 19, "RMSNormalization": 19, "GroupNormalization": 2, "InstanceNormalization": 2,
          "BatchNormalization": 4, "MeanVarianceNormalization": 1}  # fmt: skip


def collected():
    """Give the cases of one node; the suite has each again as the nodes of a function body, "expanded"."""
    for name in FILES.values():
        importlib.import_module(f"onnx.backend.test.case.node.{name}")
    # making the cases of every other operator too takes 10 s
    with mock.patch.object(node_cases, "import_recursive"):
        cases = node_cases.collect_testcases()
    return [case for case in cases if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in FILES]


CASES = collected()


def attributes(node):
    """Give a node's attributes, the operator's defaults where it is silent."""
    schema = onnx.defs.get_schema(node.op_type)
    silent = {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return silent | {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def read(node):
    """Read the spec of a node; `axis` begins a run of last axes."""
    said = attributes(node)
    eps = float(f"{said.get('epsilon', 0):.7g}")  # stored as a float32
    match node.op_type:
        case "LayerNormalization" | "RMSNormalization":
            axes = (f"{said['axis']}:",)
            centered = node.op_type == "LayerNormalization"
            return NormSpec(
                axes=axes, centered=centered, spread="std" if centered else "rms", eps=eps, scale_axes=axes,
                shift_axes=axes if len(node.input) == 3 else None, stats_dtype="float32", cast_before_scale=True,
            )  # fmt: skip
        case "GroupNormalization":
            return NormSpec(
                axes=("1:",), channel_axis=1, groups=said["num_groups"], group_order="blocked", eps=eps,
                scale_axes=(1,), shift_axes=(1,), stats_dtype="float32", cast_before_scale=True,
            )  # fmt: skip
        case "InstanceNormalization":
            return NormSpec(axes=("2:",), eps=eps, scale_axes=(1,), shift_axes=(1,))
        case "BatchNormalization":
            statistics = "input" if said["training_mode"] else "stored"
            return NormSpec(axes=(0, "2:"), eps=eps, scale_axes=(1,), shift_axes=(1,), statistics=statistics)
    return NormSpec(axes=tuple(said["axes"]), eps=1e-9, eps_at="deviation", variance_by="moments")


def outputs(node, x, gamma=None, beta=None, mean=None, var=None):
    """Compute all that a node gives."""
    spec = read(node)
    stored = {"mean": mean, "var": var} if spec.statistics == "stored" else {}
    y, stats = ln.normalize(x, spec, gamma, beta, **stored, return_stats=True)
    batch_mean = stats.mean.astype(np.float64) + stats.residue
    batch_var = stats.rstd.astype(np.float64) ** -2 - spec.eps
    if node.op_type == "LayerNormalization":
        return y, batch_mean, stats.rstd
    if len(node.output) == 3:  # momentum is the weight of the old
        old = attributes(node)["momentum"]
        return y, *(old * a + (1 - old) * b.ravel() for a, b in ((mean, batch_mean), (var, batch_var)))
    return (y,)


def test_the_suite_has_all_47_cases():
    assert collections.Counter(case.model.graph.node[0].op_type for case in CASES) == COUNTS
    assert len({case.name for case in CASES}) == 47


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_the_suite(case):
    # the suite allows rtol=1e-3, atol=1e-7; its answers are float32 steps on values near 1, so 1e-6 is 8 ulp of 1
    assert (case.rtol, case.atol) == (1e-3, 1e-7)
    ((inputs, expected),) = case.data_sets
    given = outputs(case.model.graph.node[0], *inputs)
    assert len(given) == len(expected)
    for ours, theirs in zip(given, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=case.rtol, atol=case.atol)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_case_can_fail():
    case = next(case for case in CASES if case.name == "test_layer_normalization_3d_axis1_epsilon")
    ((inputs, expected),) = case.data_sets
    node = case.model.graph.node[0]
    wrong = onnx.helper.make_node("LayerNormalization", node.input, node.output, axis=1, epsilon=0.101)
    assert not np.allclose(outputs(wrong, *inputs)[0], expected[0], rtol=case.rtol, atol=case.atol)
    wrong = onnx.helper.make_node("LayerNormalization", node.input, node.output, axis=2, epsilon=0.1)
    with pytest.raises(ArgumentError, match=r"gamma has shape \(3, 5\)"):
        outputs(wrong, *inputs)
