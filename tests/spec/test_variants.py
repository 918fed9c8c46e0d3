# SPDX-License-Identifier: MIT
"""This file checks every row of the table of named norms: that it says its source, what it is, and that it runs."""

import collections
import dataclasses

import numpy as np
import pytest
import well_behaved

import layernorm as ln
from layernorm.spec.variants import ROWS, VARIANTS, Variant

# what the words of a name do not say; a name without any of them is a layer norm's
KINDS = {
    "rms": {"llama", "llama1", "qwen2", "glm4", "mamba", "t5", "olmo2", "gemma", "ort-simplified-layer"},
    "l2": {"pytorch-normalize", "keras-unit", "onnx-lp"},
    "instance": {"openvino-mvn", "openvino-mvn-2", "caffe-mvn"},
    "batch": {"onnx-mvn"},
    "other": {"keras-rms-scaling"},
}


def kind_by_name(name):
    """Say what a name promises."""
    told = [kind for kind, names in KINDS.items() if name in names]
    words = [word for word in name.split("-") if word in ("layer", "rms", "group", "instance", "batch", "l2")]
    return [*told, *words, "layer"][0]


def straight(x, spec, gamma, beta, mean, var):
    """Compute a spec from its words in float64, on an array that fits its axes, without any of the package's layout."""
    x = np.asarray(x, np.float64)
    shape = x.shape
    axes = spec.resolve(x.ndim).axes
    if spec.groups is not None:
        c = spec.channel_axis % x.ndim
        deal = (spec.groups, -1) if spec.group_order == "blocked" else (-1, spec.groups)
        x = x.reshape(*shape[:c], *deal, *shape[c + 1 :])
        inside = c + 1 if spec.group_order == "blocked" else c
        axes = tuple({inside} | {a + 1 if a > c else a for a in axes if a != c})
    if spec.statistics == "input":
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    elif spec.statistics == "stored":
        mean, var = np.expand_dims(mean, axes).astype(np.float64), np.expand_dims(var, axes).astype(np.float64)
    else:
        mean = 0.75 * np.expand_dims(mean.astype(np.float64), axes) + 0.25 * x.mean(axes, keepdims=True)
        var = 0.75 * np.expand_dims(var.astype(np.float64), axes) + 0.25 * x.var(axes, keepdims=True)
    total = np.sum(x * x, axes, keepdims=True)
    square = {"std": var, "rms": np.mean(x * x, axes, keepdims=True), "l2": total}[spec.spread]
    root = np.sqrt(square)
    denominator = {
        "variance": np.sqrt(square + spec.eps),
        "sum": np.sqrt(square + spec.eps),  # of a length; no row has it beside another spread
        "deviation": root + spec.eps,
        "variance_floor": np.sqrt(np.maximum(square, spec.eps)),
        "deviation_floor": np.maximum(root, spec.eps),
        "none": root,
    }[spec.eps_at]
    y = ((x - mean if spec.centered else x) / denominator).reshape(shape)
    y = y if gamma is None else y * (spec.scale_offset + gamma.astype(np.float64))
    return y if beta is None else y + beta.astype(np.float64)


def test_names_are_distinct_and_the_mapping_is_read_only():
    assert len({row.name for row in ROWS}) == len(ROWS) == len(VARIANTS)
    assert list(VARIANTS) == [row.name for row in ROWS]
    with pytest.raises(TypeError):
        VARIANTS["mine"] = VARIANTS["layer"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ROWS[0].source = "hearsay"


def test_every_kind_of_norm_has_rows():
    kinds = collections.Counter(row.spec.kind for row in ROWS)
    assert set(kinds) == {"layer", "rms", "group", "instance", "batch", "l2", "other"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_its_source_and_is_fully_known(row):
    assert isinstance(row, Variant)
    assert len(row.source) > 10
    assert row.note == row.note.strip()
    assert row.spec.unknown() == ()
    assert row.spec.assumed == frozenset()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_of_the_kind_that_its_name_says(row):
    assert row.spec.kind == kind_by_name(row.name)


@pytest.mark.parametrize("shape", [well_behaved.SHAPE, (3, 32, 5, 32)], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_runs_and_computes_its_words(name, shape):
    spec = VARIANTS[name]
    given = well_behaved.example(spec, shape)
    extra = {"update": 0.25} if spec.statistics == "updated" else {}
    y = ln.normalize(given.x, spec, given.gamma, given.beta, mean=given.mean, var=given.var, **extra)
    assert y.shape == given.x.shape
    assert y.dtype == np.float32
    with np.errstate(invalid="ignore"):  # an all-zero row of the bare definition is 0/0
        words = straight(given.x, spec, given.wide_gamma, given.wide_beta, given.mean, given.var)
    # a narrower eps or a rounded step is within what another float32 implementation is allowed
    assert well_behaved.worst(words.astype(np.float32), y, well_behaved.allowed(spec, given, y)) <= 1


def test_the_comparison_can_fail():
    spec = VARIANTS["gemma"]
    given = well_behaved.example(spec)
    y = ln.normalize(given.x, spec, given.gamma)
    words = straight(given.x, dataclasses.replace(spec, eps=1.05e-6), given.wide_gamma, None, None, None)
    assert well_behaved.worst(words.astype(np.float32), y, well_behaved.allowed(spec, given, y)) > 1


def test_a_name_stands_for_its_spec_wherever_a_spec_is_taken():
    bert, x = VARIANTS["bert"], np.array([[1.0, 2.0, 4.0]])
    assert bert.same_as("bert", (2, 8))
    assert not bert.same_as("layer", (2, 8))
    assert dataclasses.replace(bert, eps=ln.UNKNOWN).assume("bert") == bert
    assert (ln.normalize(x, "bert") == ln.normalize(x, bert)).all()
    assert ln.plan(x, "bert") == ln.plan(x, bert)
    ours, theirs = (ln.normalize_backward(x, x, spec) for spec in ("bert", bert))
    assert (ours[0] == theirs[0]).all()
