# SPDX-License-Identifier: MIT
"""This file holds the array functions: each is one NormSpec, run on the arrays it is given."""

from __future__ import annotations  # so that help() prints ArrayLike, and not a screen of what it stands for

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, overload

from numpy.typing import ArrayLike

from layernorm.dispatch import Call, Plan, Stats, axes_of, backward, checked_eps, forward, plan_of
from layernorm.ops.arrays import array_of
from layernorm.ops.layout import Array
from layernorm.spec.errors import ArgumentError
from layernorm.spec.norm_spec import Axes, GroupOrder, NormSpec
from layernorm.spec.variants import named

Axis = int | Sequence[int] | None
Yes = Literal[True]
No = Literal[False]


@overload
def layer_norm(x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, axis: Axis = -1, *,
               scale_axis: Axis = None, out: Array | None = None, return_stats: No = False) -> Array: ...  # fmt: skip
@overload
def layer_norm(x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, axis: Axis = -1, *,
               scale_axis: Axis = None, out: Array | None = None, return_stats: Yes
) -> tuple[Array, Stats]: ...  # fmt: skip
def layer_norm(
    x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, axis: Axis = -1, *,
    scale_axis: Axis = None, out: Array | None = None, return_stats: bool = False,
) -> Any:  # fmt: skip
    """Shift and scale every group of values to mean 0 and standard deviation 1, then apply gamma and beta.

    y = gamma · (x − mean) / √(var + eps) + beta, where mean and var (which divides by the number of values) are
    taken over `axis` (Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450, section 3).

    Args:
        x: array of at least one axis; float16, bfloat16, float32 or float64. Lists, integers and bools become
            float64.
        gamma: the scale, without unit: a scalar; an array of shape `tuple(x.shape[a] for a in sorted(axis))`; or
            one with as many axes as x, each of length 1 or x's: `gamma[:, None]` of shape (batch, 1, width) scales
            each sample of (batch, tokens, width) by its own. None: 1.
        beta: the shift, in the same three forms. None: 0.
        eps: added to the variance, so in units of x²; at least 0. With eps=0 a constant row gives NaN.
        axis: the axis or axes that share one mean and variance; None for all of them.
        scale_axis: the axes that gamma and beta carry, where those are not `axis`.
        out: where to write, an array of x's shape and type; it may be x itself.
        return_stats: also give the `Stats` that `layer_norm_backward` needs.

    Returns:
        A plain array of x's shape and type; with `return_stats`, that and its Stats.

    Raises:
        ArgumentError: an axis, eps, or the shape of gamma, beta or out cannot be what was meant.
        ArrayTypeError: an array is complex, object, longdouble, masked, or another framework's.

    >>> import numpy as np
    >>> np.round(layer_norm([[2.0, 4.0, 6.0, 8.0], [5.0, 5.0, 5.0, 5.0]]), 3)
    array([[-1.342, -0.447,  0.447,  1.342],
           [ 0.   ,  0.   ,  0.   ,  0.   ]])
    """
    x = array_of(x, "x")
    return _call("std", eps, axis, scale_axis, x).forward(x, gamma, beta, out, return_stats)


def layer_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    stats: Stats,
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    scale_axis: Axis = None,
) -> tuple[Array, Array | None, Array]:
    """Give the gradients of a loss to x, gamma and beta, from its gradient dy to the output of `layer_norm`.

    With g = gamma · dy: dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)), dgamma = Σ dy · x̂, dbeta = Σ dy. The sums
    run in a fixed order: the same bits on any number of threads.

    Args:
        dy: array of x's shape.
        x: the input of the forward pass.
        stats: what `layer_norm(..., return_stats=True)` gave for it.
        gamma, axis, scale_axis: as in the forward pass.

    Returns:
        dx of x's shape and type; dgamma of gamma's shape and type, None without gamma; dbeta of gamma's shape and
        type where gamma is an array, else of the shape that a beta along the axes has.

    >>> import numpy as np
    >>> x = np.array([[1.0, 3.0, 5.0]])
    >>> y, stats = layer_norm(x, return_stats=True)
    >>> dx, dgamma, dbeta = layer_norm_backward(np.array([[1.0, 0.0, 0.0]]), x, stats)
    >>> print(np.round(dx, 3), dgamma, dbeta)
    [[ 0.102 -0.204  0.102]] None [1. 0. 0.]
    """
    x = array_of(x, "x")
    return _call("std", 0.0, axis, scale_axis, x).backward(dy, x, gamma, _saved(stats))


@overload
def rms_norm(x: ArrayLike, gamma: ArrayLike | None = None, *, beta: ArrayLike | None = None, eps: float = 1e-6, axis: Axis = -1,
             scale_axis: Axis = None, out: Array | None = None, return_stats: No = False) -> Array: ...  # fmt: skip
@overload
def rms_norm(x: ArrayLike, gamma: ArrayLike | None = None, *, beta: ArrayLike | None = None, eps: float = 1e-6, axis: Axis = -1,
             scale_axis: Axis = None, out: Array | None = None, return_stats: Yes
) -> tuple[Array, Stats]: ...  # fmt: skip
def rms_norm(
    x: ArrayLike, gamma: ArrayLike | None = None, *, beta: ArrayLike | None = None, eps: float = 1e-6, axis: Axis = -1,
    scale_axis: Axis = None, out: Array | None = None, return_stats: bool = False,
) -> Any:  # fmt: skip
    """Divide every group of values by its root mean square, then apply gamma (and beta, if there is one).

    y = gamma · x / √(mean(x²) + eps) + beta; the mean is not taken off (Zhang and Sennrich, "Root Mean Square Layer
    Normalization", arXiv:1910.07467, equation 4). Arguments, result and errors are those of `layer_norm`.

    >>> import numpy as np
    >>> np.round(rms_norm([3.0, 4.0]), 4)
    array([0.8485, 1.1314])
    """
    x = array_of(x, "x")
    return _call("rms", eps, axis, scale_axis, x).forward(x, gamma, beta, out, return_stats)


def rms_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    stats: Stats,
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    scale_axis: Axis = None,
) -> tuple[Array, Array | None, Array]:
    """Give the gradients to x, gamma and beta of `rms_norm`.

    With g = gamma · dy: dx = rstd · (g − x̂ · mean(g · x̂)). Arguments and result are those of
    `layer_norm_backward`.

    >>> import numpy as np
    >>> y, stats = rms_norm(np.array([3.0, 4.0]), return_stats=True)
    >>> dx, dgamma, dbeta = rms_norm_backward(np.array([1.0, 0.0]), np.array([3.0, 4.0]), stats)
    >>> np.round(dx, 4)
    array([ 0.181 , -0.1358])
    """
    x = array_of(x, "x")
    return _call("rms", 0.0, axis, scale_axis, x).backward(dy, x, gamma, _saved(stats))


@overload
def group_norm(x: ArrayLike, groups: int, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
               channel_axis: int = 1, group_order: GroupOrder = "blocked", out: Array | None = None,
               return_stats: No = False) -> Array: ...  # fmt: skip
@overload
def group_norm(x: ArrayLike, groups: int, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
               channel_axis: int = 1, group_order: GroupOrder = "blocked", out: Array | None = None,
               return_stats: Yes
) -> tuple[Array, Stats]: ...  # fmt: skip
def group_norm(
    x: ArrayLike, groups: int, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
    channel_axis: int = 1, group_order: GroupOrder = "blocked", out: Array | None = None,
    return_stats: bool = False,
) -> Any:  # fmt: skip
    """Normalize each sample in groups of channels, over a group's channels and all places, as `layer_norm` does.

    (Wu and He, "Group Normalization", arXiv:1803.08494, equations 1, 2 and 7.) Axis 0 counts the samples.

    Args:
        x: array of at least two axes.
        groups: how many groups the channels are split into; it divides their number.
        gamma, beta: one value a channel, shape (channels,), or the other two forms of `layer_norm`.
        eps: added to the variance, in units of x².
        channel_axis: which axis holds the channels.
        group_order: `blocked` groups neighbours; `interleaved` puts channel c in group c mod groups, as MLX does.
        out, return_stats: as in `layer_norm`. Statistics have one value a group on the channel axis.

    >>> import numpy as np
    >>> print(group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0))
    [[-1.  1. -1.  1.]]
    """
    x = array_of(x, "x")
    spec = _group_spec(x, groups, checked_eps(eps), channel_axis, group_order)
    return forward(x, spec, gamma, beta, out=out, return_stats=return_stats)


def group_norm_backward(
    dy: ArrayLike, x: ArrayLike, stats: Stats, groups: int, gamma: ArrayLike | None = None, *,
    channel_axis: int = 1, group_order: GroupOrder = "blocked",
) -> tuple[Array, Array | None, Array]:  # fmt: skip
    """Give the gradients to x, gamma and beta of `group_norm`; the result is that of `layer_norm_backward`.

    >>> import numpy as np
    >>> x = np.array([[1.0, 3.0, 10.0, 30.0]])
    >>> y, stats = group_norm(x, 2, return_stats=True)
    >>> dx, dgamma, dbeta = group_norm_backward(np.ones((1, 4)), x, stats, 2, np.ones(4))
    >>> np.round(dgamma, 3)
    array([-1.,  1., -1.,  1.])
    """
    x = array_of(x, "x")
    return backward(dy, x, _group_spec(x, groups, 0.0, channel_axis, group_order), gamma, _saved(stats))


@overload
def instance_norm(x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
                  channel_axis: int = 1, out: Array | None = None, return_stats: No = False) -> Array: ...  # fmt: skip
@overload
def instance_norm(x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
                  channel_axis: int = 1, out: Array | None = None, return_stats: Yes
) -> tuple[Array, Stats]: ...  # fmt: skip
def instance_norm(
    x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
    channel_axis: int = 1, out: Array | None = None, return_stats: bool = False,
) -> Any:  # fmt: skip
    """Normalize each channel of each sample over all its places, as `layer_norm` does.

    (Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", arXiv:1607.08022, equation 2.) Axis 0 counts the
    samples; x has at least three axes; gamma and beta hold one value a channel.

    >>> import numpy as np
    >>> print(instance_norm(np.array([[[1.0, 3.0], [10.0, 30.0]]]), eps=0))
    [[[-1.  1.]
      [-1.  1.]]]
    """
    x = array_of(x, "x")
    spec = _channel_spec(x, checked_eps(eps), channel_axis, 3, "instance_norm")
    return forward(x, spec, gamma, beta, out=out, return_stats=return_stats)


def instance_norm_backward(
    dy: ArrayLike, x: ArrayLike, stats: Stats, gamma: ArrayLike | None = None, *, channel_axis: int = 1
) -> tuple[Array, Array | None, Array]:
    """Give the gradients to x, gamma and beta of `instance_norm`; the result is that of `layer_norm_backward`.

    >>> import numpy as np
    >>> x = np.array([[[1.0, 3.0], [10.0, 30.0]]])
    >>> y, stats = instance_norm(x, return_stats=True)
    >>> dx, dgamma, dbeta = instance_norm_backward(np.ones((1, 2, 2)), x, stats)
    >>> dbeta
    array([2., 2.])
    """
    x = array_of(x, "x")
    return backward(dy, x, _channel_spec(x, 0.0, channel_axis, 3, "instance_norm"), gamma, _saved(stats))


@overload
def batch_norm(x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
               channel_axis: int = 1, mean: ArrayLike | None = None, var: ArrayLike | None = None, out: Array | None = None,
               return_stats: No = False) -> Array: ...  # fmt: skip
@overload
def batch_norm(x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
               channel_axis: int = 1, mean: ArrayLike | None = None, var: ArrayLike | None = None, out: Array | None = None,
               return_stats: Yes
) -> tuple[Array, Stats]: ...  # fmt: skip
def batch_norm(
    x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, eps: float = 1e-5, *,
    channel_axis: int = 1, mean: ArrayLike | None = None, var: ArrayLike | None = None, out: Array | None = None,
    return_stats: bool = False,
) -> Any:  # fmt: skip
    """Normalize each channel over all samples and places, with this batch's statistics or with given ones.

    (Ioffe and Szegedy, "Batch Normalization", arXiv:1502.03167, algorithm 1.) With `mean` and `var`, both of shape
    (channels,), nothing is averaged: that is the layer in evaluation. x has at least two axes; gamma and beta hold
    one value a channel. Keeping running statistics is the caller's: `Moments` counts, merges and divides.

    >>> import numpy as np
    >>> print(batch_norm(np.array([[1.0, 10.0], [3.0, 30.0]]), eps=0))
    [[-1. -1.]
     [ 1.  1.]]
    """
    x = array_of(x, "x")
    if (mean is None) != (var is None):
        raise ArgumentError(
            "batch_norm got one of mean and var; pass both (given statistics) or neither (the batch's)."
        )
    spec = _channel_spec(x, checked_eps(eps), channel_axis, 2, "batch_norm", stored=mean is not None)
    return forward(x, spec, gamma, beta, mean=mean, var=var, out=out, return_stats=return_stats)


def batch_norm_backward(
    dy: ArrayLike,
    x: ArrayLike,
    stats: Stats,
    gamma: ArrayLike | None = None,
    *,
    channel_axis: int = 1,
    stored: bool = False,
) -> tuple[Array, Array | None, Array]:
    """Give the gradients to x, gamma and beta of `batch_norm`; the result is that of `layer_norm_backward`.

    `stored` says that the forward pass was given its statistics, so that they do not depend on x.

    >>> import numpy as np
    >>> x = np.array([[1.0], [3.0]])
    >>> y, stats = batch_norm(x, mean=[0.0], var=[4.0], eps=0, return_stats=True)
    >>> dx, dgamma, dbeta = batch_norm_backward(np.ones((2, 1)), x, stats, stored=True)
    >>> print(dx.ravel(), dbeta)
    [0.5 0.5] [2.]
    """
    x = array_of(x, "x")
    return backward(dy, x, _channel_spec(x, 0.0, channel_axis, 2, "batch_norm", stored=stored), gamma, _saved(stats))


@overload
def normalize(x: ArrayLike, spec: NormSpec | str, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, *,
              mean: ArrayLike | None = None, var: ArrayLike | None = None, update: float | None = None,
              out: Array | None = None, return_stats: No = False, backend: str | None = None) -> Array: ...  # fmt: skip
@overload
def normalize(x: ArrayLike, spec: NormSpec | str, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, *,
              mean: ArrayLike | None = None, var: ArrayLike | None = None, update: float | None = None,
              out: Array | None = None, return_stats: Yes, backend: str | None = None
) -> tuple[Array, Stats]: ...  # fmt: skip
def normalize(
    x: ArrayLike, spec: NormSpec | str, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, *,
    mean: ArrayLike | None = None, var: ArrayLike | None = None, update: float | None = None,
    out: Array | None = None, return_stats: bool = False, backend: str | None = None,
) -> Any:  # fmt: skip
    """Run any NormSpec on an array, by the fastest backend that can; `plan` tells which that is.

    Args:
        x, out, return_stats: as in `layer_norm`.
        spec: what to compute, a NormSpec or the name of a row of VARIANTS. Its unknown fields are refused, by name, if they could change a number.
        gamma, beta: as in `layer_norm`, along the spec's `scale_axes` and `shift_axes`; None for 1 and 0 (with
            `scale_offset=1` too: nothing is scaled).
        mean, var: the running statistics of a spec whose `statistics` are `stored` or `updated`: arrays of the
            shape of the axes that are not normalized.
        update: for `updated`, the weight of this input's statistics: 0.1 where ONNX says momentum=0.9.
        backend: `cpu` or `reference`, to insist on one.

    Raises:
        SpecError: the spec leaves open what would change a number, or does not fit x.

    >>> import numpy as np
    >>> from layernorm.spec.norm_spec import NormSpec
    >>> normalize(np.array([3.0, 4.0]), NormSpec(centered=False, spread="l2", eps_at="none"))
    array([0.6, 0.8])
    >>> normalize(np.array([3.0, 4.0]), "l2")
    array([0.6, 0.8])
    """
    return forward(
        array_of(x, "x"), named(spec), gamma, beta, mean=mean, var=var, update=update, out=out, return_stats=return_stats,
        backend=backend,
    )  # fmt: skip


def normalize_backward(
    dy: ArrayLike, x: ArrayLike, spec: NormSpec | str, gamma: ArrayLike | None = None, *, stats: Stats | None = None,
    mean: ArrayLike | None = None, var: ArrayLike | None = None, update: float | None = None, backend: str | None = None,
) -> tuple[Array, Array | None, Array]:  # fmt: skip
    """Give the gradients to x, gamma and beta of `normalize`; the result is that of `layer_norm_backward`.

    Without `stats` the statistics are taken anew from x. Roundings that the spec asks for are passed over: the
    gradient is that of the function they approximate.

    >>> import numpy as np
    >>> from layernorm.spec.norm_spec import NormSpec
    >>> unit = NormSpec(centered=False, spread="l2", eps_at="none")
    >>> dx, dgamma, dbeta = normalize_backward(np.array([1.0, 0.0]), np.array([3.0, 4.0]), unit)
    >>> np.round(dx, 4)
    array([ 0.128, -0.096])
    """
    return backward(
        dy, array_of(x, "x"), named(spec), gamma, stats, mean=mean, var=var, update=update, backend=backend
    )  # fmt: skip


def plan(x: ArrayLike, spec: NormSpec | str, *, backend: str | None = None) -> Plan:
    """Say which backend, layout and number of threads `normalize(x, spec)` uses, and why.

    >>> import numpy as np
    >>> from layernorm.spec.norm_spec import NormSpec
    >>> print(plan(np.ones((2, 8)), NormSpec(eps_at="deviation")))
    reference: 2 rows of 8, read where they are, 1 thread (cpu: eps_at='deviation' is not written here)
    """
    return plan_of(array_of(x, "x"), named(spec), backend)


def get_num_threads() -> int:
    """Give how many threads a kernel may use: by default what processor affinity and cgroup allow.

    >>> get_num_threads() >= 1
    True
    """
    from layernorm.ops.backends import cpu

    return cpu.get_num_threads()


def set_num_threads(threads: int) -> None:
    """Set how many threads a kernel may use, in this process; no number changes a result.

    Raises:
        ArgumentError: it is not an integer of at least 1.

    >>> set_num_threads(get_num_threads())
    """
    if not hasattr(threads, "__index__") or isinstance(threads, bool) or threads < 1:
        raise ArgumentError(f"threads={threads!r} is not a number of threads; pass an integer of at least 1.")
    from layernorm.ops.backends import cpu

    cpu.set_num_threads(operator.index(threads))


def _saved(stats: Stats) -> Stats:
    if stats is None:
        raise ArgumentError("stats is None; pass the Stats that the forward pass gave with return_stats=True.")
    return stats


def _axes(axis: Axis, scale_axis: Axis, shape: tuple[int, ...]) -> tuple[Axes, Axes]:
    axes = axes_of(axis, shape)
    return axes, axes if scale_axis is None else axes_of(scale_axis, shape, "scale_axis")


def _call(spread: Literal["std", "rms"], eps: float, axis: Axis, scale_axis: Axis, x: Array) -> Call:
    """Prepare a norm over some axes, once for what has been asked before."""
    try:
        return _prepared(spread, eps, axis, scale_axis, x.shape, x.dtype)
    except TypeError:  # a list of axes, say, cannot be looked up
        return _prepared.__wrapped__(spread, eps, axis, scale_axis, x.shape, x.dtype)


@lru_cache(maxsize=1024, typed=True)
def _prepared(
    spread: Literal["std", "rms"], eps: float, axis: Axis, scale_axis: Axis, shape: tuple[int, ...], dtype: Any
) -> Call:
    return Call(_spec(spread, checked_eps(eps), *_axes(axis, scale_axis, shape)), shape, dtype)


@lru_cache(maxsize=1024)
def _spec(spread: Literal["std", "rms"], eps: float, axes: Axes, scale_axes: Axes) -> NormSpec:
    return NormSpec(
        axes=axes,
        centered=spread == "std",
        spread=spread,
        eps=eps,
        scale_axes=scale_axes,
        shift_axes=scale_axes,
    )


def _group_spec(x: Array, groups: int, eps: float, channel_axis: int, order: GroupOrder) -> NormSpec:
    channel = _channel(x, channel_axis, 2, "group_norm")
    if not hasattr(groups, "__index__") or isinstance(groups, bool):
        raise ArgumentError(f"groups={groups!r} is not a number of groups; pass an integer of at least 1.")
    groups = operator.index(groups)
    axes = tuple(a for a in range(x.ndim) if a != 0 or channel == 0)
    return NormSpec(
        axes=axes, channel_axis=channel, groups=groups, group_order=order, eps=eps,
        scale_axes=(channel,), shift_axes=(channel,),
    )  # fmt: skip


def _channel_spec(x: Array, eps: float, channel_axis: int, least: int, function: str, stored: bool = False) -> NormSpec:
    channel = _channel(x, channel_axis, least, function)
    axes = tuple(a for a in range(x.ndim) if a != channel and (a or function == "batch_norm"))
    return NormSpec(
        axes=axes,
        eps=eps,
        scale_axes=(channel,),
        shift_axes=(channel,),
        statistics="stored" if stored else "input",
    )


def _channel(x: Array, channel_axis: int, least: int, function: str) -> int:
    if x.ndim < least:
        raise ArgumentError(
            f"{function} needs x of at least {least} axes (samples, channels{', places' * (least == 3)}), but x has "
            f"shape {x.shape}; add the missing axes."
        )
    named = axes_of(channel_axis, x.shape, "channel_axis")
    if channel_axis is None or len(named) != 1:
        raise ArgumentError(f"channel_axis={channel_axis!r} is not one axis; pass an int.")
    return int(named[0]) + x.ndim
