# SPDX-License-Identifier: MIT
"""This file inspects small ONNX files made to do harm: what is said of them is a sentence, soon, and no wrong fact."""

import math

import numpy as np
import onnx
import pytest
from drafts import Draft
from onnx import TensorProto, helper

import layernorm as ln
from layernorm.models import evaluate as evaluation
from layernorm.models import recognize as recognizing
from layernorm.spec.errors import FileError

GAMMA, BETA = np.linspace(0.5, 1.5, 8), np.linspace(-1, 1, 8)


class Norm:
    """A layer norm of loose operations in which each part can be replaced."""

    def __init__(self, shape=(2, 3, 8), opset=17):
        self.b = Draft(shape, opset=opset)
        self.x, self.two, self.eps, self.gamma = self.b.x, 2.0, [1e-5], GAMMA
        self.axes = {"axes": [-1]}
        self.also = ()

    def text(self, *shape):
        """Give a constant of texts."""
        name = f"text_{len(self.b.initializers)}"
        self.b.initializers.append(helper.make_tensor(name, TensorProto.STRING, shape, [b"a"] * math.prod(shape)))
        return name

    def output(self):
        b = self.b
        d = b("Sub", self.x, b("ReduceMean", self.x, *self.also, **self.axes))
        v = b("ReduceMean", b("Pow", d, self.two), axes=[-1]) if b.opset < 18 else b.mean(b("Pow", d, self.two))
        for eps in self.eps:
            v = b("Add", v, eps)
        return b("Add", b("Mul", b("Div", d, b("Sqrt", v)), self.gamma), BETA)

    def inspect(self, folder):
        path = folder / "hostile.onnx"
        onnx.save(self.b.model(self.output()), path)
        found = ln.inspect(path)
        return found.norms, found.unidentified


def text_as_epsilon(n):
    n.eps = [n.text()]


def text_as_gamma(n):
    n.gamma = n.text(8)


def text_as_exponent(n):
    n.two = n.text()


def text_as_axes(n):
    n.b.opset, n.axes, n.also = 18, {}, (n.text(1),)


def text_in_the_list_of_axes(n):
    n.axes = {"axes": ["a"]}


def a_million_axes(n):
    n.axes = {"axes": [-1] * 10**6}


def an_axis_past_all_integers(n):
    n.axes = {"axes": [2**62]}


def infinite_axes(n):
    n.b.opset, n.axes, n.also = 18, {}, (n.b.const(np.float32([np.inf])),)


def epsilon_that_is_a_list(n):
    n.x = n.b("InstanceNormalization", n.b.x, np.ones(3), np.zeros(3), epsilon=[1.0])
    n.eps = [n.text()]


def epsilon_that_is_a_text(n):
    n.x = n.b("InstanceNormalization", n.b.x, np.ones(3), np.zeros(3), epsilon="a")
    n.eps = [n.text()]


@pytest.mark.parametrize(
    "change",
    [text_as_epsilon, text_as_exponent, text_as_axes, text_in_the_list_of_axes, a_million_axes,
     an_axis_past_all_integers, infinite_axes, epsilon_that_is_a_list, epsilon_that_is_a_text],
)  # fmt: skip
def test_what_cannot_be_computed_leaves_the_norm_unidentified(change, tmp_path):
    hostile = Norm()
    change(hostile)
    norms, unidentified = hostile.inspect(tmp_path)
    assert norms == []
    assert "looks like a norm" in " ".join(one.why for one in unidentified)


@pytest.mark.parametrize("target", [[np.inf, 3, 8], [np.nan, 3, 8], [-np.inf, 3, 8]])
def test_a_shape_that_is_no_number_says_nothing_of_the_norm(target, tmp_path):
    """What comes out of the Reshape has no shape that is known, and over its last axis it is a norm all the same."""
    hostile = Norm()
    hostile.x = hostile.b("Reshape", hostile.b.x, hostile.b.const(np.float32(target)))
    (norm,), _ = hostile.inspect(tmp_path)
    assert norm.spec.axes == (-1,)
    assert norm.spec.eps == 1e-5


def test_texts_as_the_shape_of_a_reshape(tmp_path):
    hostile = Norm()
    hostile.x = hostile.b("Reshape", hostile.b.x, hostile.text(3))
    (norm,), _ = hostile.inspect(tmp_path)
    assert norm.spec.axes == (-1,)


@pytest.mark.parametrize("value", ["a", [1.0]])
def test_a_bound_that_is_no_number_ends_the_norm_before_it(value, tmp_path):
    hostile = Norm(opset=6)
    y = hostile.output()
    onnx.save(hostile.b.model(hostile.b("Clip", y, min=value)), tmp_path / "clip.onnx")
    (norm,) = ln.inspect(tmp_path / "clip.onnx").norms
    assert norm.spec.eps == 1e-5


@pytest.mark.parametrize("count", [33, 65, 100])
def test_a_tensor_of_more_axes_than_arrays_have_is_refused(count, tmp_path):
    hostile = Norm()
    hostile.gamma = hostile.b.const(GAMMA)
    dims = hostile.b.initializers[-1].dims
    dims[:] = [1] * (count - 1) + [8]
    with pytest.raises(FileError, match=rf"tensor 'constant_0' has {count} axes, and 32 are read"):
        hostile.inspect(tmp_path)


@pytest.mark.parametrize("count", [33, 65, 100])
def test_an_input_of_more_axes_than_arrays_have_is_of_unknown_shape(count, tmp_path):
    (norm,), _ = Norm([1] * (count - 1) + [8]).inspect(tmp_path)
    assert norm.spec.axes == (-1,)


def test_an_order_of_more_axes_than_arrays_have(tmp_path):
    hostile = Norm(shape=None)
    hostile.x = hostile.b("Transpose", hostile.b.x, perm=list(range(10**5)))
    norms, unidentified = hostile.inspect(tmp_path)
    assert norms or unidentified


def test_two_hundred_numbers_that_may_be_epsilon(tmp_path, monkeypatch):
    """No norm adds so many; one is looked for among the first of them, in as many runs as one addition takes or two."""
    done = operations(monkeypatch, "Sqrt")
    hostile = Norm()
    hostile.eps = [1e-5 * (1 + i / 100) for i in range(200)]
    norms, unidentified = hostile.inspect(tmp_path)
    assert norms == []
    assert unidentified[0].why.startswith("looks like a norm")
    assert len(done) < 500


def stack(count, epsilon):
    """Write norms one after the other, with parameters of their own."""
    b = Draft((2, 3, 8))
    x = b.x
    for i in range(count):
        steps = Norm()
        steps.b, steps.x, steps.eps, steps.gamma = b, x, [epsilon(i)], b.const(GAMMA + i, f"gamma_{i}")
        x = steps.output()
    return b.model(x)


def operations(monkeypatch, op):
    """Count how often an operation is run."""
    done = []
    real = evaluation.OPERATIONS[op]

    def counting(*given):
        done.append(op)
        return real(*given)

    monkeypatch.setitem(evaluation.OPERATIONS, op, counting)
    return done


def test_norms_that_differ_in_their_epsilons_are_searched_for_once(tmp_path, monkeypatch):
    """The others take 7 runs each, 2 for the line and 5 for the proof."""
    done = operations(monkeypatch, "Sqrt")
    onnx.save(stack(20, lambda i: 1e-5 * (1 + i / 100)), tmp_path / "a.onnx")
    found = ln.inspect(tmp_path / "a.onnx")
    assert [round(norm.spec.eps, 12) for norm in found.norms] == [round(1e-5 * (1 + i / 100), 12) for i in range(20)]
    assert len(done) < 200 + 7 * 19


def test_an_epsilon_that_no_longer_counts_is_found_out(tmp_path):
    """Two numbers are added: in the first norm the second counts for nothing, in the second norm it does."""
    b = Draft((2, 3, 8))
    x = b.x
    for pair in ([1e-5, 1e-30], [1e-5, 1e-4]):
        steps = Norm()
        steps.b, steps.x, steps.eps = b, x, pair
        x = steps.output()
    onnx.save(b.model(x), tmp_path / "a.onnx")
    found = ln.inspect(tmp_path / "a.onnx")
    assert [norm.spec.eps for norm in found.norms] == [1e-5]
    assert len(found.unidentified) == 1


def test_what_is_not_tried_for_want_of_time_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(recognizing, "MOST_SPENT", 200)
    b = Draft((2, 3, 8))
    x = b.x
    for i in range(8):  # no two alike
        steps = Norm()
        steps.b, steps.x, steps.gamma = b, x, b.const(GAMMA.reshape((1,) * (i % 3) + (8,)))
        steps.two = b.const(np.full((1,) * (i // 3), 2.0))
        x = steps.output()
    onnx.save(b.model(x), tmp_path / "a.onnx")
    found = ln.inspect(tmp_path / "a.onnx")
    assert 0 < len(found.norms) < 8
    assert len(found.norms) + len(found.unidentified) == 8
    assert "trying those before it took all the time" in found.unidentified[-1].why


def test_a_layer_norm_over_two_values(tmp_path):
    """Each normalized value is −1 or 1, whatever x is: a line through four of the same sign says nothing."""
    b = Draft(("B", 4, 2), opset=13)
    d = b("Sub", b.x, b.mean(b.x))
    v = b("Add", b.mean(b("Pow", d, 2.0)), 1e-5)
    gamma, beta = b.const(np.array([0.5, 1.5]), "norm.weight"), b.const(np.array([-1.0, 1.0]), "norm.bias")
    onnx.save(b.model(b("Add", b("Mul", b("Div", d, b("Sqrt", v)), gamma), beta)), tmp_path / "two.onnx")
    (norm,) = ln.inspect(tmp_path / "two.onnx").norms
    assert (norm.spec.kind, norm.spec.axes, norm.spec.eps, norm.size) == ("layer", (-1,), 1e-5, 2)
    assert (norm.scale.name, norm.shift.name) == ("norm.weight", "norm.bias")


@pytest.mark.parametrize("fused", [True, False])
def test_norms_that_share_their_gamma_are_called_by_their_nodes(fused, tmp_path):
    b = Draft((2, 3, 8))
    gamma, x = b.const(GAMMA, "norm.weight"), b.x
    for name in ("first", "second", "third"):
        before = len(b.nodes)
        if fused:
            x = b("LayerNormalization", x, gamma)
        else:
            d = b("Sub", x, b.mean(x))
            x = b("Mul", b("Div", d, b("Sqrt", b("Add", b.mean(b("Pow", d, 2.0)), 1e-5))), gamma)
        for node in b.nodes[before:]:
            node.name = f"/net/{name}/{node.op_type}"
    onnx.save(b.model(x), tmp_path / "shared.onnx")
    names = [norm.name for norm in ln.inspect(tmp_path / "shared.onnx").norms]
    end = "/LayerNormalization" if fused else ""
    assert names == ["norm", *(f"{'/' if fused else ''}net/{name}{end}" for name in ("second", "third"))]


def test_a_folder_whose_model_is_a_link_to_a_device(tmp_path):
    (tmp_path / "model.onnx").symlink_to("/dev/zero")
    with pytest.raises(FileError, match="it is a device, a pipe or a folder"):
        ln.inspect(tmp_path)


def test_a_product_that_goes_nowhere(tmp_path):
    """The one reader of the norm has no output; a damaged TFLite file ended in a traceback."""
    n = Norm()
    model = n.b.model(n.output())
    product = next(node for node in model.graph.node if node.op_type == "Mul")
    del product.output[:], model.graph.node[-1:], model.graph.output[:]
    onnx.save(model, tmp_path / "hostile.onnx")
    (record,) = ln.inspect(tmp_path / "hostile.onnx").norms
    assert record.spec.kind == "layer"
