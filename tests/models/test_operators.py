# SPDX-License-Identifier: MIT
"""This file tests norms that are one operator: against ONNX's own cases, ONNX Runtime, and the definitions' words."""

import dataclasses

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_files import X, constants, model, records
from test_onnx_node_cases import CASES, read

import layernorm as ln
from layernorm.models.graph import Graph, Node
from layernorm.models.norm_record import Evidence, NormRecord, Unidentified
from layernorm.models.operators import OPERATORS, record_of
from layernorm.spec.norm_spec import UNKNOWN, NormSpec
from layernorm.spec.variants import VARIANTS

FIELDS = {f.name for f in dataclasses.fields(NormSpec)} - {"assumed"}
ROUNDING = {"stats_dtype", "cast_before_scale", "variance_by", "round_each"}
W, B = np.linspace(0.5, 1.5, 4, dtype=np.float32), np.linspace(-1, 1, 4, dtype=np.float32)


def one(
    folder, op, inputs=("x", "w", "b"), outputs=("y",), *, opset=17, domain="", x=X, held=None, name="", **attributes
):
    """Read the record of a model of one node."""
    node = helper.make_node(op, list(inputs), list(outputs), name, domain=domain, **attributes)
    held = {"w": W, "b": B, "m": W, "v": W} if held is None else held
    proto = model([node], constants(**held), inputs=(x,), outputs=(helper.make_tensor_value_info("y", 1, None),),
                  opset=opset, domains=[domain] if domain else [])  # fmt: skip
    (record,) = records(folder, proto)
    return record


def shaped(*shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info("x", dtype, shape)


# -- ONNX's own cases ----------------------------------------------------------------------------------------


def without_rounding(spec):
    return dataclasses.replace(spec, **{name: getattr(NormSpec(), name) for name in ROUNDING})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_onnx_has_the_spec_that_its_attributes_say(tmp_path, case):
    (record,) = records(tmp_path, case.model)
    node = case.model.graph.node[0]
    expected = read(node)
    assert isinstance(record, NormRecord), record
    assert set(record.evidence) == FIELDS
    assert {name for name in FIELDS if getattr(record.spec, name) is UNKNOWN} <= ROUNDING
    assert without_rounding(record.spec) == without_rounding(expected)
    assert all(
        (found.source == "unknown") == (getattr(record.spec, name) is UNKNOWN)
        for name, found in record.evidence.items()
    )
    said = {a.name for a in node.attribute}
    for field, attribute in (("eps", "epsilon"), ("groups", "num_groups"), ("statistics", "training_mode")):
        assert (record.evidence[field].source == "attribute") == (attribute in said)
    if "Layer" in node.op_type or "RMS" in node.op_type or "Group" in node.op_type:
        assert record.spec.stats_dtype == "float32"
    assert (record.form, record.dtype, record.where) == ("fused", "float32", f"graph/node[0] {node.op_type}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_onnx_is_computed_by_its_spec(tmp_path, case):
    (record,) = records(tmp_path, case.model)
    ((inputs, expected),) = case.data_sets
    spec = record.spec.assume(read(case.model.graph.node[0]))
    x, gamma, beta, mean, var = (*inputs, *[None] * (5 - len(inputs)))
    kept = {"mean": mean, "var": var} if spec.statistics == "stored" else {}
    given = ln.normalize(x, spec, gamma, beta, **kept)
    np.testing.assert_allclose(given, expected[0], rtol=1e-5, atol=1e-6)
    if isinstance(record.size, int):
        shared = np.prod([x.shape[a] for a in record.spec.resolve(x.ndim).axes])
        assert record.size == shared // (spec.groups or 1)
    else:
        assert spec.statistics == "stored"


# -- versions and domains ------------------------------------------------------------------------------------

FIVE = ("x", "w", "b", "m", "v")
STORED, INPUT = {"statistics": "stored"}, {"statistics": "input"}
VERSIONS = [
    ("LayerNormalization", 17, {}, {"eps": 1e-5, "stats_dtype": "float32", "axes": (-1,)}, "fused"),
    ("LayerNormalization", 21, {"axis": 1}, {"axes": ("1:",), "scale_axes": (-1,)}, "fused"),
    ("LayerNormalization", 17, {"axis": -2}, {"axes": (-2, -1), "shift_axes": (-1,)}, "fused"),
    ("LayerNormalization", 17, {"stash_type": 11}, {"stats_dtype": "float64", "cast_before_scale": True}, "fused"),
    ("LayerNormalization", 17, {"stash_type": 10}, {"stats_dtype": "float16", "round_each": UNKNOWN}, "fused"),
    ("LayerNormalization", 17, {"stash_type": 7}, {"stats_dtype": UNKNOWN}, "fused"),
    ("LayerNormalization", 13, {"epsilon": 1e-12}, {"eps": 1e-12, "cast_before_scale": UNKNOWN}, "contrib"),
    ("SimplifiedLayerNormalization", 17, {}, {"eps": 1e-5, "spread": "rms", "centered": False}, "contrib"),
    ("RMSNormalization", 23, {"epsilon": 1e-6}, {"eps": 1e-6, "spread": "rms", "shift_axes": None}, "fused"),
    (
        "GroupNormalization",
        18,
        {"num_groups": 4},
        {"scale_axes": "group", "stats_dtype": UNKNOWN, "groups": 4},
        "fused",
    ),
    (
        "GroupNormalization",
        21,
        {"num_groups": 2},
        {"scale_axes": (1,), "stats_dtype": "float32", "channel_axis": 1},
        "fused",
    ),
    ("InstanceNormalization", 1, {"epsilon": 0.0}, {"axes": ("2:",), "eps": 0.0, "stats_dtype": UNKNOWN}, "fused"),
    ("InstanceNormalization", 22, {}, {"eps": 1e-5, "scale_axes": (1,)}, "fused"),
    ("BatchNormalization", 1, {"is_test": 1}, STORED, "fused"),
    ("BatchNormalization", 6, {}, {"statistics": UNKNOWN, "axes": (0, "2:")}, "fused"),
    ("BatchNormalization", 6, {"is_test": 1, "spatial": 0}, {"axes": (0,), "scale_axes": ("1:",), **STORED}, "fused"),
    ("BatchNormalization", 7, {}, STORED, "fused"),
    ("BatchNormalization", 8, {"spatial": 0}, {"axes": (0,), "shift_axes": ("1:",)}, "fused"),
    ("BatchNormalization", 9, {"epsilon": 1e-3}, {"eps": 1e-3, "stats_dtype": "float32", **STORED}, "fused"),
    ("BatchNormalization", 14, {}, STORED, "fused"),
    ("BatchNormalization", 14, {"training_mode": 1}, {"stats_dtype": UNKNOWN, **INPUT}, "fused"),
    (
        "BatchNormalization",
        15,
        {"training_mode": 1},
        {"stats_dtype": "float32", "variance_by": UNKNOWN, **INPUT},
        "fused",
    ),
    ("MeanVarianceNormalization", 1, {}, {"axes": (0, "2:"), "eps": 1e-9, "eps_at": "deviation"}, "fused"),
    ("MeanVarianceNormalization", 1, {"across_channels": 1}, {"axes": ("0:",)}, "fused"),
    ("MeanVarianceNormalization", 9, {"axes": [2, 3]}, {"axes": (2, 3), "scale_axes": None}, "fused"),
    ("MeanVarianceNormalization", 13, {}, {"axes": (0, 2, 3), "cast_before_scale": False}, "fused"),
    ("LpNormalization", 1, {}, {"spread": "l2", "axes": (-1,), "eps_at": "deviation_floor"}, "fused"),
    ("LpNormalization", 22, {"axis": 1, "p": 2}, {"axes": (1,), "centered": False}, "fused"),
]
FOUR_AXES = shaped(2, 4, 5, 4)


@pytest.mark.parametrize(("op", "opset", "said", "expected", "form"), VERSIONS, ids=lambda p: str(p)[:40])
def test_each_version_of_each_operator(tmp_path, op, opset, said, expected, form):
    takes = [role.rstrip("?") for role in OPERATORS[op].inputs.split()]
    inputs = FIVE[: len(takes)]
    record = one(tmp_path, op, inputs, opset=opset, x=FOUR_AXES, **said)
    assert isinstance(record, NormRecord), record
    assert {name: getattr(record.spec, name) for name in expected} == expected
    assert record.form == form
    assert set(record.evidence) == FIELDS
    assert [tensor is not None for tensor in (record.scale, record.shift, record.mean, record.variance)] == [
        name in inputs for name in FIVE[1:]
    ]


@pytest.mark.parametrize("opset", [1, 7, 9])
def test_a_batch_norm_that_gives_running_statistics_is_in_training(tmp_path, opset):
    record = one(tmp_path, "BatchNormalization", FIVE, ("y", "m2", "v2", "m3", "v3"), opset=opset, x=FOUR_AXES)
    assert (record.spec.statistics, record.evidence["statistics"].source) == ("input", "structure")
    assert record.spec.kind == "batch"


@pytest.mark.parametrize(("opset", "statistics"), [(6, "stored"), (9, "input")])
def test_is_test_counts_only_where_the_operator_has_it(tmp_path, opset, statistics):
    record = one(tmp_path, "BatchNormalization", FIVE, ("y", "m2", "v2"), opset=opset, x=FOUR_AXES, is_test=1)
    assert record.spec.statistics == statistics


@pytest.mark.parametrize(
    "variant",
    [
        "onnx-layer",
        "onnx-rms",
        "onnx-group",
        "onnx-group-18",
        "onnx-instance",
        "onnx-batch",
        "onnx-batch-training",
        "onnx-mvn",
        "onnx-lp",
    ],
)
def test_the_variants_table_says_the_same(tmp_path, variant):
    op, opset, said = {
        "onnx-layer": ("LayerNormalization", 17, {}),
        "onnx-rms": ("RMSNormalization", 23, {}),
        "onnx-group": ("GroupNormalization", 21, {"num_groups": 32}),
        "onnx-group-18": ("GroupNormalization", 18, {"num_groups": 32}),
        "onnx-instance": ("InstanceNormalization", 22, {}),
        "onnx-batch": ("BatchNormalization", 15, {}),
        "onnx-batch-training": ("BatchNormalization", 15, {"training_mode": 1}),
        "onnx-mvn": ("MeanVarianceNormalization", 13, {}),
        "onnx-lp": ("LpNormalization", 22, {}),
    }[variant]
    inputs = FIVE[: len(OPERATORS[op].inputs.split())]
    held = {name: np.ones(32, np.float32) for name in FIVE[1:]}
    record = one(tmp_path, op, inputs, opset=opset, held=held, x=shaped(2, 32, 5, 32), **said)
    assert set(record.spec.unknown()) <= ROUNDING
    # that row rounds as the body of the function does, which no runtime need run
    said, row = record.spec.assume(VARIANTS[variant]), VARIANTS[variant]
    if variant == "onnx-mvn":
        said, row = without_rounding(said), without_rounding(row)
    assert said == row


def test_float32_statistics_of_float32_leave_nothing_to_cast(tmp_path):
    assert one(tmp_path, "LayerNormalization").spec.cast_before_scale is UNKNOWN
    half = one(tmp_path, "LayerNormalization", x=shaped(2, 4, dtype=TensorProto.FLOAT16))
    assert (half.spec.cast_before_scale, half.dtype) == (True, "float16")
    assert half.evidence["cast_before_scale"] == Evidence("convention", "LayerNormalization of ONNX, version 17")


def test_evidence_says_what_was_absent(tmp_path):
    record = one(tmp_path, "LayerNormalization", ("x", "w"), axis=-1)
    assert record.evidence["axes"] == Evidence("attribute", "axis")
    assert record.evidence["eps"] == Evidence("default", "epsilon is absent; LayerNormalization of ONNX, version 17")
    assert record.evidence["shift_axes"] == Evidence("structure", "no input shift")
    assert record.spec.shift_axes is None


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        ("SkipLayerNormalization", ("x", "x", "w", "b"), {"eps": 1e-12, "shift_axes": (-1,), "stats_dtype": UNKNOWN}),
        ("SkipLayerNormalization", ("x", "x", "w", "", "b"), {"shift_axes": None}),
        ("SkipSimplifiedLayerNormalization", ("x", "x", "w", "b"), {"spread": "rms", "shift_axes": None, "eps": 1e-12}),
        ("EmbedLayerNormalization", ("i", "", "w", "w", "", "w", "b"), {"eps": 1e-12, "spread": "std"}),
        ("SimplifiedLayerNormalization", ("x", "w"), {"eps": 1e-5, "stats_dtype": "float32"}),
    ],
)
def test_the_runtimes_own_operators_in_either_domain(tmp_path, op, inputs, expected, domain):
    record = one(tmp_path, op, inputs, domain=domain)
    assert isinstance(record, NormRecord), record
    assert {name: getattr(record.spec, name) for name in expected} == expected
    assert (record.form, record.size, record.scale.name) == ("contrib", 4, "w")
    assert {"cast_before_scale", "variance_by"} & set(record.spec.unknown())


def test_the_runtimes_domain_is_the_runtimes_at_any_version():
    node = Node("LayerNormalization", ("x", "w"), ("y",), domain="com.microsoft", version=20)
    record = record_of(Graph([node], {}, {"x": ("float16", (2, 4))}, ("y",)), node)
    assert (record.form, record.spec.cast_before_scale, record.size, record.scale) == ("contrib", UNKNOWN, 4, None)


@pytest.mark.parametrize(("last", "axis"), [({}, -1), ({"channels_last": 1}, -1), ({"channels_last": 0}, 1)])
@pytest.mark.parametrize("op", ["GroupNorm", "SkipGroupNorm"])
def test_the_runtimes_group_norm(tmp_path, op, last, axis):
    inputs = ("x", "w", "b", "x") if op == "SkipGroupNorm" else ("x", "w", "b")
    record = one(tmp_path, op, inputs, domain="com.microsoft", groups=2, activation=0, x=FOUR_AXES, **last)
    assert (record.spec.channel_axis, record.spec.scale_axes, record.spec.groups) == (axis, (axis,), 2)
    assert (record.size, record.output, record.dtype) == (2 * 4 * 5, "y", "float32")
    assert record.input == ("" if op == "SkipGroupNorm" else "x")
    fused = one(tmp_path, op, inputs, domain="com.microsoft", groups=2, activation=1, x=FOUR_AXES, **last)
    assert (fused.output, fused.spec) == ("", record.spec)


def ran(proto, **inputs):
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("LayerNormalization", ("x", "w", "b")),
        ("SimplifiedLayerNormalization", ("x", "w")),
        ("SkipLayerNormalization", ("x", "skip", "w", "b", "bias")),
        ("SkipSimplifiedLayerNormalization", ("x", "skip", "w", "bias")),
    ],
)
def test_onnx_runtime_computes_the_spec_that_is_read(tmp_path, op, inputs):
    domain, size = ("com.microsoft", 1e-6) if op.startswith("Skip") else ("", 3e-3)  # of the root of epsilon
    x = (np.linspace(-1, 2, 24).reshape(2, 3, 4) ** 2 * size).astype(np.float32)
    skip, bias = x[:, ::-1].copy(), np.float32([size, 0, -size, 0])
    node = helper.make_node(op, list(inputs), ["y"], domain=domain)
    proto = model(
        [node],
        constants(w=W, b=B, bias=bias),
        inputs=(X, helper.make_tensor_value_info("skip", 1, ["n", 3, 4])),
        opset=17,
        domains=["com.microsoft"],
    )
    (record,) = records(tmp_path, proto)
    (y,) = ran(proto, x=x, skip=skip)
    total = x + skip + bias if domain else x
    spec = record.spec.assume(VARIANTS["onnx-layer"])
    np.testing.assert_allclose(ln.normalize(total, spec, W, B if spec.shift_axes else None), y, rtol=2e-5, atol=1e-6)
    wrong = dataclasses.replace(spec, eps=spec.eps * 1.1)
    assert not np.allclose(ln.normalize(total, wrong, W, B if spec.shift_axes else None), y, rtol=2e-5, atol=1e-6)


# -- what cannot be identified -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs", "said", "why"),
    [
        ("LayerNormalization", ("x",), {}, "LayerNormalization lacks its input 1, the scale."),
        ("LayerNormalization", ("x", ""), {}, "LayerNormalization lacks its input 1, the scale."),
        ("LayerNormalization", ("x", "w", "b", "m"), {}, "LayerNormalization has 4 inputs, and takes 3 at most."),
        (
            "LayerNormalization",
            ("x", "w"),
            {"axis": "last"},
            "LayerNormalization has axis='last', which is no integer.",
        ),
        (
            "LayerNormalization",
            ("x", "w"),
            {"epsilon": "no"},
            "LayerNormalization has epsilon='no', which is no number.",
        ),
        (
            "LayerNormalization",
            ("x", "w"),
            {"axis": 1000},
            "LayerNormalization has axis=1000, and no array has so many axes.",
        ),
        (
            "LayerNormalization",
            ("x", "w"),
            {"opset": 0},
            "the file imports no version of ONNX's operators, so LayerNormalization may be any of several.",
        ),
        (
            "RMSNormalization",
            ("x", "w"),
            {},
            "RMSNormalization is an operator of ONNX since version 23, and the file says 17.",
        ),
        ("GroupNormalization", ("x", "w", "b"), {"opset": 21}, "GroupNormalization lacks its attribute num_groups."),
        (
            "GroupNormalization",
            ("x", "w", "b"),
            {"opset": 21, "num_groups": 3},
            "GroupNormalization has num_groups=3, which does not divide 4 channels.",
        ),
        (
            "GroupNormalization",
            ("x", "w", "b"),
            {"opset": 18, "num_groups": 2},
            "GroupNormalization of ONNX, version 18 takes as many values of each, not num_groups 2, scale 4, shift 4.",
        ),
        (
            "InstanceNormalization",
            ("x", "w", "three"),
            {},
            "InstanceNormalization of ONNX, version 17 takes as many values of each, not channels 4, scale 4, shift 3.",
        ),
        ("BatchNormalization", ("x", "w", "b", "m"), {}, "BatchNormalization lacks its input 4, the variance."),
        (
            "LpNormalization",
            ("x",),
            {"p": 1},
            "LpNormalization has p=1: its length is not the root of the sum of squares.",
        ),
        (
            "MeanVarianceNormalization",
            ("x",),
            {"axes": [1, 1]},
            "axes=(1, 1) names an axis twice; name each once, with at most one open run.",
        ),
        (
            "MeanVarianceNormalization",
            ("x",),
            {"axes": 2},
            'axes=2 is not a sequence of axes; write it as a tuple, say (-1,) or ("2:",).',
        ),
        (
            "MeanVarianceNormalization",
            ("x",),
            {"opset": 1, "normalize_variance": 0},
            "MeanVarianceNormalization has normalize_variance=0: it takes off the mean and divides by nothing.",
        ),
        (
            "FancyNorm",
            ("x",),
            {"domain": "my.own"},
            "my.own.FancyNorm is called a norm and is no operator whose definition is known here.",
        ),
        (
            "LayerNormalization",
            ("x", "w"),
            {"domain": "my.own"},
            "my.own.LayerNormalization is called a norm and is no operator whose definition is known here.",
        ),
        (
            "BatchNormalization",
            FIVE,
            {"domain": "com.microsoft"},
            "com.microsoft.BatchNormalization is called a norm and is no operator whose definition is known here.",
        ),
    ],
)
def test_what_cannot_be_told_is_said(tmp_path, op, inputs, said, why):
    held = {"w": W, "b": B, "m": W, "v": W, "three": W[:3]}
    assert one(tmp_path, op, inputs, x=FOUR_AXES, held=held, **said) == Unidentified(f"graph/node[0] {op}", why)


@pytest.mark.parametrize("said", [{"axis": 7}, {"axis": -5}])
def test_an_axis_beyond_the_input_is_said(tmp_path, said):
    assert "4 axes" in one(tmp_path, "LayerNormalization", x=FOUR_AXES, **said).why


def test_what_a_file_says_of_values_between_refuses_nothing(tmp_path):
    lies = helper.make_tensor_value_info("h", TensorProto.FLOAT, [7, 7])
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "w", "b"], ["y"], axis=2),
    ]
    proto = model(nodes, constants(w=W, b=B), value_info=[lies])
    (record,) = records(tmp_path, proto)
    assert (record.spec.axes, record.size) == (("2:",), UNKNOWN)


def test_other_operators_are_no_norms(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("LRN", ["h"], ["y"], size=3)]
    assert records(tmp_path, model(nodes)) == []


# -- where it stands in the file -----------------------------------------------------------------------------


def test_a_norm_in_a_function_and_in_a_body(tmp_path):
    norm = helper.make_node("LayerNormalization", ["a", "w", "b"], ["r"], "ln", epsilon=1e-12)
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("com.f", "Norm", ["a", "w", "b"], ["r"], [norm], imports)
    result = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [helper.make_node("LayerNormalization", ["h", "ln__weight", "b"], ["s"])], "g", [], [result]
    )
    nodes = [
        helper.make_node("Norm", ["x", "ln__weight", "b"], ["h"], "call", domain="com.f"),
        helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
    ]
    held = [*constants(b=B, flag=np.array(True)), *constants(w=W)]
    held[-1].name = "ln__weight"
    first, *rest = records(tmp_path, model(nodes, held, functions=[function], domains=["com.f"]))
    assert (first.form, first.spec.eps, first.where) == (
        "function",
        1e-12,
        "graph/node[0]/Norm/node[0] LayerNormalization",
    )
    np.testing.assert_array_equal(first.scale.values(), W)
    assert [(r.form, r.size, r.input) for r in rest] == [("fused", 4, "h")] * 2
    np.testing.assert_array_equal(rest[1].shift.values(), B)


def test_a_quantized_scale_is_read_as_its_numbers(tmp_path):
    numbers = np.int8([1, -2, 3, 100])
    nodes = [
        helper.make_node("DequantizeLinear", ["ln__weight_quantized", "s"], ["w"]),
        helper.make_node("LayerNormalization", ["x", "w"], ["y"], epsilon=1e-12),
    ]
    held = [*constants(s=np.float32(0.5)), *constants(q=numbers)]
    held[-1].name = "ln.weight_quantized"
    nodes[0].input[0] = "ln.weight_quantized"
    (record,) = records(tmp_path, model(nodes, held))
    assert (record.name, record.spec.eps, record.size, record.dtype) == ("ln", 1e-12, 4, "float32")
    np.testing.assert_array_equal(record.scale.values(), numbers * np.float32(0.5))


@pytest.mark.parametrize(
    ("scale", "axis", "expected"),
    [
        ((4,), -1, (-1,)),
        ((3, 4), -2, (-2, -1)),
        ((4,), -2, (-1,)),
        ((3, 1), -2, (-2,)),
        ((1, 1, 4), 1, (-1,)),
        ((1,), -1, (-1,)),
        ((3, 4), 1, ("1:",)),
        ((1,), 1, ("1:",)),
    ],
)
def test_a_scale_lies_along_the_axes_it_is_broadcast_to(tmp_path, scale, axis, expected):
    record = one(
        tmp_path, "LayerNormalization", ("x", "w"), held={"w": np.ones(scale, np.float32)}, axis=axis, x=shaped(2, 3, 4)
    )
    assert record.spec.scale_axes == expected
    assert record.size == (4 if axis == -1 else 12)


def test_an_axis_of_one_is_carried_by_a_scale_of_one(tmp_path):
    held = {"w": np.ones((3, 1), np.float32)}
    record = one(tmp_path, "LayerNormalization", ("x", "w"), held=held, axis=-2, x=shaped(2, 3, 1))
    assert (record.spec.scale_axes, record.size) == ((-2, -1), 3)


@pytest.mark.parametrize(
    ("op", "domain", "opset", "said", "dtype"),
    [
        ("LayerNormalization", "", 17, {}, "float32"),
        ("RMSNormalization", "", 23, {}, "unknown"),
        ("SimplifiedLayerNormalization", "", 17, {}, "unknown"),
        ("BatchNormalization", "", 14, {}, "float32"),
        ("BatchNormalization", "", 15, {}, "unknown"),
        ("GroupNorm", "com.microsoft", 17, {"groups": 2, "activation": 0}, "unknown"),
    ],
)
def test_the_type_of_a_value_between_is_its_scales_where_these_may_not_differ(tmp_path, op, domain, opset, said, dtype):
    inputs = ["h", *FIVE[1:]][: len(OPERATORS[op].inputs.split())]
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node(op, inputs, ["g"], domain=domain, **said),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    proto = model(nodes, constants(w=W, b=B, m=W, v=W), opset=opset, domains=["com.microsoft"])
    (record,) = records(tmp_path, proto)
    assert record.dtype == dtype
