# SPDX-License-Identifier: MIT
"""This file shows every wrong call and the one sentence that it gets; none writes anywhere."""

import numpy as np
import pytest

import layernorm as ln
from layernorm.spec.errors import ArgumentError, ArrayTypeError, NotFoundError, SpecError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SQUARE = np.zeros((2, 5, 5), np.float32)
THREE = "pass a scalar, an array of shape"

WRONG_ARGUMENTS = {
    "no axes": (lambda: ln.layer_norm(3.0), "x has no axes (shape ()), so there is nothing to average over; "
                "pass a 1-D array or more."),
    "axis too large": (lambda: ln.layer_norm(X, axis=3), "axis=3 is out of range for x of shape (2, 3, 4); use -3 to 2."),
    "axis too small": (lambda: ln.layer_norm(X, axis=(0, -4)),
                       "axis=(0, -4) is out of range for x of shape (2, 3, 4); use -3 to 2."),
    "axis twice": (lambda: ln.rms_norm(X, axis=(1, -2)), "axis=(1, -2) names an axis of shape (2, 3, 4) twice; "
                   "name each once."),
    "axis empty": (lambda: ln.rms_norm(X, axis=()), "axis=() names no axis; name at least one, or pass None for all."),
    "axis a float": (lambda: ln.layer_norm(X, axis=1.0), "axis=1.0 is not an axis; pass an int, a tuple of ints, or "
                     "None for all."),
    "scale_axis too large": (lambda: ln.layer_norm(X, scale_axis=7),
                             "scale_axis=7 is out of range for x of shape (2, 3, 4); use -3 to 2."),
    "gamma of one value": (lambda: ln.layer_norm(X, np.ones(1)), "gamma has shape (1,) but x has shape (2, 3, 4); "
                           f"{THREE} (4,), or one with 3 axes, each of length 1 or x's."),
    "gamma of one value for 768": (lambda: ln.layer_norm(np.zeros(768), np.ones(1)), "gamma has shape (1,) but x has "
                                   f"shape (768,); {THREE} (768,), or one with 1 axes, each of length 1 or x's."),
    "gamma is a shape": (lambda: ln.layer_norm(np.zeros((2, 768)), (768,)), "gamma has shape (1,) but x has shape "
                         f"(2, 768) (gamma=(768,) looks like a shape, not values); {THREE} (768,), or one with 2 axes, "
                         "each of length 1 or x's."),
    "gamma of the wrong axis": (lambda: ln.layer_norm(X, np.ones(4), axis=1), "gamma has shape (4,) but x has shape "
                                f"(2, 3, 4); {THREE} (3,), or one with 3 axes, each of length 1 or x's."),
    "gamma of two axes out of order": (lambda: ln.layer_norm(X, np.ones((4, 3)), axis=(-1, -2)), "gamma has shape (4, 3) "
                                       f"but x has shape (2, 3, 4); {THREE} (3, 4), or one with 3 axes, each of length 1 "
                                       "or x's."),
    "gamma larger than x": (lambda: ln.layer_norm(X, np.ones((5, 3, 4))), "gamma has shape (5, 3, 4) but x has shape "
                            f"(2, 3, 4); {THREE} (4,), or one with 3 axes, each of length 1 or x's."),
    "beta of another size": (lambda: ln.layer_norm(X, beta=np.ones(5)), "beta has shape (5,) but x has shape (2, 3, 4); "
                             f"{THREE} (4,), or one with 3 axes, each of length 1 or x's."),
    "eps negative": (lambda: ln.layer_norm(X, eps=-1e-5), "eps=-1e-05 must be finite and at least 0; LayerNorm's usual "
                     "value is 1e-5."),
    "eps NaN": (lambda: ln.rms_norm(X, eps=float("nan")), "eps=nan must be finite and at least 0; LayerNorm's usual "
                "value is 1e-5."),
    "eps infinite": (lambda: ln.layer_norm(X, eps=float("inf")), "eps=inf must be finite and at least 0; LayerNorm's "
                     "usual value is 1e-5."),
    "eps as text": (lambda: ln.layer_norm(X, eps="1e-5"), "eps='1e-5' is not a number; pass one such as 1e-5."),
    "eps beyond numbers": (lambda: ln.layer_norm(X, eps=10**400), f"eps={10**400} is not a number; pass one such as 1e-5."),
    "axis a truth": (lambda: ln.layer_norm(X, axis=True), "axis=True is not an axis; pass an int, a tuple of ints, or "
                     "None for all."),
    "two channel axes": (lambda: ln.batch_norm(X, channel_axis=(0, 1)), "channel_axis=(0, 1) is not one axis; pass an int."),
    "eps no number": (lambda: ln.layer_norm(X, eps="small"), "eps='small' is not a number; pass one such as 1e-5."),
    "out of another shape": (lambda: ln.layer_norm(X, out=np.zeros((2, 4, 3), np.float32)), "out has shape (2, 4, 3) but "
                             "the result has (2, 3, 4); pass one of that shape."),
    "out of another type": (lambda: ln.layer_norm(X, out=np.zeros(X.shape)), "out has type float64 but the result has "
                            "float32; pass one of that type."),
    "out that overlaps itself": (lambda: ln.layer_norm(np.zeros((3, 4), np.float32), out=np.lib.stride_tricks.as_strided(
        np.zeros(12, np.float32), (3, 4), (8, 4))), "out has elements that share memory (strides (8, 4)); pass an array "
                                 "that has not."),
    "groups no number": (lambda: ln.group_norm(X, 3.0), "groups=3.0 is not a number of groups; pass an integer of at "
                         "least 1."),
    "stats a number": (lambda: ln.layer_norm_backward(X, X, 5), "stats is 5; pass the Stats that return_stats=True gave."),
    "out no array": (lambda: ln.layer_norm(X, out=[0.0]), "out is a list; pass a NumPy array of shape (2, 3, 4) and type "
                     "float32."),
    "stats of another x": (lambda: ln.layer_norm_backward(X, X, ln.layer_norm(X[:1], return_stats=True)[1]),
                           "stats has an array of shape (1, 3, 1) but x of shape (2, 3, 4) has statistics of shape "
                           "(2, 3, 1); pass the Stats of this x and axis."),
    "stats of two arrays": (lambda: ln.layer_norm_backward(X, X, (X, X)), "stats holds 2 arrays; pass the Stats that "
                            "return_stats=True gave."),
    "no stats": (lambda: ln.layer_norm_backward(X, X, None), "stats is None; pass the Stats that the forward pass gave "
                 "with return_stats=True."),
    "a negative variance": (lambda: ln.batch_norm(X, mean=[1.0, 2.0, 3.0], var=[1.0, -2.0, 3.0]), "var holds -2.0, and "
                            "no variance is negative; were mean and var exchanged?"),
    "dy of another shape": (lambda: ln.layer_norm_backward(X[:1], X, ln.layer_norm(X, return_stats=True)[1]),
                            "dy has shape (1, 3, 4) but x has (2, 3, 4); pass the gradient of the output."),
    "batch_norm with half its statistics": (lambda: ln.batch_norm(X, mean=[1.0, 2.0, 3.0]), "batch_norm got one of mean "
                                            "and var; pass both (given statistics) or neither (the batch's)."),
    "batch_norm with statistics of another size": (
        lambda: ln.batch_norm(X, mean=[1.0, 2.0], var=[1.0, 2.0]), "mean has shape (2,) but x of shape (2, 3, 4) keeps "
        "(3,) sets of statistics; pass an array of shape (3,) or (1, 3, 1), or a scalar."),
    "instance_norm of a matrix": (lambda: ln.instance_norm(X[0]), "instance_norm needs x of at least 3 axes (samples, "
                                  "channels, places), but x has shape (3, 4); add the missing axes."),
    "threads": (lambda: ln.set_num_threads(0), "threads=0 is not a number of threads; pass an integer of at least 1."),
}  # fmt: skip

WRONG_ARRAYS = {
    "complex": (lambda: ln.layer_norm(X.astype(complex)), "x has type complex128, which is not normalized here; use "
                "float16, bfloat16, float32 or float64 (integers and bools become float64)."),
    "object": (lambda: ln.layer_norm(X.astype(object)), "x has type object, which is not normalized here; use "
               "float16, bfloat16, float32 or float64 (integers and bools become float64)."),
    "longdouble": (lambda: ln.rms_norm(X.astype(np.longdouble)), "x has type float128, which is not normalized here; use "
                   "float16, bfloat16, float32 or float64 (integers and bools become float64)."),
    "text": (lambda: ln.layer_norm(["a", "b"]), "x has type <U1, which is not normalized here; use "
             "float16, bfloat16, float32 or float64 (integers and bools become float64)."),
    "None": (lambda: ln.layer_norm(None), "x has type object, which is not normalized here; use "
             "float16, bfloat16, float32 or float64 (integers and bools become float64)."),
    "masked": (lambda: ln.layer_norm(np.ma.masked_array(X, X > 3)), "x is a masked array and the mask would be lost; fill "
               "it (x.filled(0)) or drop the masked rows first."),
    "masked gamma": (lambda: ln.layer_norm(X, np.ma.ones(4)), "gamma is a masked array and the mask would be lost; fill "
                     "it (x.filled(0)) or drop the masked rows first."),
    "complex gamma": (lambda: ln.layer_norm(X, np.ones(4, complex)), "gamma has type complex128, which is not normalized "
                      "here; use float16, bfloat16, float32 or float64 (integers and bools become float64)."),
}  # fmt: skip

WRONG_SPECS = {
    "unknown fields": (lambda: ln.normalize(X, ln.NormSpec(eps=ln.UNKNOWN, centered=ln.UNKNOWN)), "the spec leaves "
                       'centered, eps unknown, which would change the result; fill in with spec.assume("bert"), '
                       "say, or dataclasses.replace."),
    "text for a document": (lambda: ln.NormSpec.from_json("{}"), "a spec's document is a str; pass the object that "
                            "to_json() gave."),
    "groups that do not divide": (lambda: ln.group_norm(X, 2), "3 channels (axis 1 of shape (2, 3, 4)) do not split into "
                                  "2 equal groups; pass a number that divides them."),
    "a backend that cannot": (lambda: ln.normalize(X, ln.NormSpec(eps_at="deviation"), backend="cpu"),
                              "no backend can run this norm: cpu: eps_at='deviation' is not written here. "
                              'backend="reference" always works.'),
    "a backend unheard of": (lambda: ln.normalize(X, ln.NormSpec(), backend="gpu"), "backend='gpu' is not one of cpu, "
                             "reference; name one, or leave it out."),
    "an axis the array lacks": (lambda: ln.normalize(X, ln.NormSpec(axes=(4,))), "axes names axis 4, but the array has 3 "
                                "axes (-3 to 2)."),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments(name):
    call, sentence = WRONG_ARGUMENTS[name]
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_wrong_arrays(name):
    call, sentence = WRONG_ARRAYS[name]
    with pytest.raises(ArrayTypeError) as caught:
        call()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", WRONG_SPECS)
def test_wrong_specs(name):
    call, sentence = WRONG_SPECS[name]
    with pytest.raises(SpecError) as caught:
        call()
    assert str(caught.value) == sentence


def test_out_that_is_read_only_is_refused_and_untouched():
    out = np.full(X.shape, 7, np.float32)
    out.setflags(write=False)
    with pytest.raises(ArgumentError, match=r"^out is read-only; pass an array that can be written to\.$"):
        ln.layer_norm(X, out=out)
    np.testing.assert_array_equal(out, 7)


def test_an_array_of_another_framework_is_refused_by_name():
    torch = pytest.importorskip("torch")
    with pytest.raises(ArrayTypeError, match=r"^x is a torch array \(Tensor\) and this function takes NumPy arrays; "):
        ln.layer_norm(torch.zeros(3))


def test_gamma_of_the_right_length_is_laid_along_the_axis_even_where_the_last_one_has_it_too():
    """W == C: NumPy's broadcasting from the right would scale the columns for the channels."""
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 5))
    gamma = np.arange(1.0, 6.0)
    expected = ln.layer_norm(x, axis=1) * gamma[:, None, None]
    np.testing.assert_allclose(ln.layer_norm(x, gamma, axis=1), expected, rtol=1e-15)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (2, 0, 5), (2, 5, 0)])
def test_arrays_of_no_values_come_back_empty(shape):
    x = np.zeros(shape, np.float32)
    y, stats = ln.layer_norm(x, return_stats=True)
    assert y.shape == shape
    dx, dgamma, dbeta = ln.layer_norm_backward(x, x, stats, np.ones(shape[-1]))
    assert dx.shape == shape
    np.testing.assert_array_equal(dgamma, np.zeros(shape[-1]))
    np.testing.assert_array_equal(dbeta, np.zeros(shape[-1]))


@pytest.mark.parametrize("given", [[1, 2, 4], (1.0, 2.0, 4.0), np.array([1, 2, 4], np.int8), np.array([0, 1, 1], bool)])
def test_lists_integers_and_bools_become_float64(given):
    y = ln.layer_norm(given)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, ln.layer_norm(np.asarray(given, np.float64)))


def test_a_subclass_comes_back_as_a_plain_array():
    class Tagged(np.ndarray):
        pass

    assert type(ln.layer_norm(np.array([[1.0, 2.0]]).view(Tagged))) is np.ndarray


NAMES = {
    "no such name": (lambda: ln.normalize(X, "brt"), "brt: no such named norm; did you mean bert?"),
    "no spec": (lambda: ln.plan(X, None), "spec=None is a NoneType; give a NormSpec or the name of one."),
    "a spec like no other": (lambda: ln.NormSpec().same_as(7, (2, 8)), "spec=7 is a int; give a NormSpec or the name of one."),
    "moments of nothing": (lambda: ln.Moments(), "Moments are taken of data; write Moments.of(x, axis=0), or Moments.of([]) of none."),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_wrong_names(name):
    call, sentence = NAMES[name]
    with pytest.raises((ArgumentError, NotFoundError)) as caught:
        call()
    assert str(caught.value) == sentence
