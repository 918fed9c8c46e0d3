# SPDX-License-Identifier: MIT
"""This file lists what a norm that introduces a difference may be instead, and tries each on what it took and gave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layernorm.comparing.bound import bound_of, storage_of
from layernorm.comparing.hypothesis import ACTIVATIONS, Hypothesis, outcome
from layernorm.models.model_file import Tensor
from layernorm.models.norm_record import NormRecord
from layernorm.ops.reference import rounded
from layernorm.spec.errors import ArgumentError, SpecError
from layernorm.spec.norm_spec import Axes, NormSpec

Array = npt.NDArray[Any]

# Whose epsilon it would be.
DEFAULTS = {
    1e-5: "the default of PyTorch and ONNX",
    1e-6: "the default of Flax, and T5's",
    1e-12: "BERT's, and the default of ONNX Runtime's skip norms",
    1e-3: "the default of Keras",
    1e-8: "a usual one",
    1e-7: "a usual one",
    1e-9: "the default of MVN",
    2.0**-23: "the default of torch.nn.RMSNorm",
    1.001e-5: "the least that cuDNN took",
}
# What rounding the output alone may cost, in units of the bound: half an ulp of a float32 is a quarter, and a bit.
HALF_ULP = 0.27
AXES: tuple[Axes, ...] = ((-1,), (-2, -1), (-3, -2, -1), ("1:",), ("2:",), (1,), (0, "2:"), (0,), ("0:",))
# By what powers of two activations are divided to fit into float16 (OpenVINO's activation scaling, for one).
SCALES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Tried(NamedTuple):
    """A hypothesis and its largest error, in units of the bound; at most 1 fits."""

    hypothesis: Hypothesis
    residual: float

    @property
    def fits(self) -> bool:
        """Whether the numbers allow it."""
        return self.residual <= 1


def tried(x: Array, y: Array, hypotheses: Iterable[Hypothesis]) -> list[Tried]:
    """Work every hypothesis out in float64 and say how far it misses y, the nearest first.

    Of those that rounding alone explains, the order is the given one. One that cannot be worked out on x, because its
    axes or parameters do not go with x's shape, is left out, and so is one that is an earlier one at this shape.

    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    >>> y = (x / np.sqrt(7.5)).astype(np.float32)
    >>> layer = Hypothesis("a layer norm", "kind", NormSpec(eps=0))
    >>> rms = Hypothesis("an RMS norm", "kind", NormSpec(centered=False, spread="rms", eps=0))
    >>> [(t.hypothesis.words, t.fits) for t in tried(x, y, [layer, rms])]
    [('an RMS norm', True), ('a layer norm', False)]
    """
    kind = storage_of(y)
    found: list[Tried] = []
    for hypothesis in hypotheses:
        try:
            if not any(_alike(hypothesis, t.hypothesis, x.shape) for t in found):
                found.append(Tried(hypothesis, _residual(hypothesis, x, y, kind)))
        except (SpecError, ArgumentError):
            continue
    least = min((t.residual for t in found), default=0.0)
    enough = HALF_ULP if kind in ("float32", "float64") else 1.0
    return sorted(found, key=lambda t: 0.0 if t.residual <= max(enough, 1.2 * least) <= 1 else t.residual)


def _alike(a: Hypothesis, b: Hypothesis, shape: tuple[int, ...]) -> bool:
    """Tell whether two hypotheses are the same norm on arrays of this shape."""
    names = [f.name for f in fields(Hypothesis) if f.name not in ("words", "code", "spec")]
    return all(getattr(a, n) is getattr(b, n) for n in names) and a.spec.same_as(b.spec, shape)


@np.errstate(all="ignore")
def _residual(hypothesis: Hypothesis, x: Array, y: Array, kind: str) -> float:
    exact, terms = outcome(hypothesis, x)
    unit = bound_of(terms, exact, kind)
    if kind == "float64":
        # the definition itself is in float64 here, and so are the sums that its steps leave unrounded
        unit = 2 * unit
    error = np.abs(y.astype(np.float64) - exact) / unit
    # where both are NaN, or the same infinity, they agree
    alike = (np.isnan(exact) & np.isnan(y)) | (exact == y)
    worst = float(np.max(np.where(alike, 0.0, np.where(np.isnan(error), np.inf, error)), initial=0.0))
    return worst


def alternatives(
    record: NormRecord, partner: NormRecord | None = None, others: Sequence[NormRecord] = ()
) -> list[Hypothesis]:
    """List what a norm may be instead of what its file says: each differs from that in one thing.

    The first is the norm as its own file says; fields that the file leaves open are the partner's, else those of the
    exact norm.

    Args:
        record: the norm whose output is to be explained.
        partner: its counterpart in the other model.
        others: other norms of the two models, whose epsilons and parameters it may have by mistake.

    Raises:
        FileError: a parameter cannot be read.
    """
    spec = record.spec if partner is None else _filled(record.spec, partner.spec)
    spec = _filled(spec, NormSpec())
    own = Hypothesis(
        "what its own file says", "", spec, _values(record.scale), _values(record.shift), _values(record.mean),
        _values(record.variance), None if spec.statistics != "updated" else 0.1,
    )  # fmt: skip
    listed = [own]
    if partner is not None:
        listed += _of_partner(own, partner)
    sources = [_epsilons, _denominators, _sets, _gammas, _betas, _roundings, _statistics, _afterwards]
    for source in sources:
        listed += source(own, partner, others)
    for other in others:
        listed += _neighbour(own, record, other)
    return listed


def _filled(spec: NormSpec, other: NormSpec) -> NormSpec:
    try:
        return spec.assume(other)
    except SpecError:  # groups here and none there
        return spec


def _values(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.values().astype(np.float64)


def _as(own: Hypothesis, words: str, code: str, spec: dict[str, Any] | None = None, **changes: Any) -> list[Hypothesis]:
    """Change fields of the spec, or of the hypothesis; give nothing if they contradict each other or change nothing."""
    try:
        changed = own.spec if spec is None else replace(own.spec, **spec)
    except SpecError:
        return []
    if changed == own.spec and not changes:
        return []
    return [replace(own, words=words, code=code, spec=changed, **changes)]


def _of_partner(own: Hypothesis, partner: NormRecord) -> list[Hypothesis]:
    spec = _filled(_filled(partner.spec, own.spec), NormSpec())
    theirs = (_values(partner.scale), _values(partner.shift), _values(partner.mean), _values(partner.variance))
    names = ("gamma", "beta", "mean", "variance")
    whole: dict[str, Any] = dict(zip(names, theirs, strict=True))
    found = []
    if spec != own.spec:
        found += [
            replace(own, words="what the other model's norm says, its parameters too", code="kind", spec=spec, **whole)
        ]
        found += [
            replace(own, words="what the other model's norm says, with its own parameters", code="kind", spec=spec)
        ]
    if any(not _same(a, getattr(own, n)) for n, a in whole.items()):
        found += [
            replace(own, words="its own formula with the other model's parameters", code="parameter-value", **whole)
        ]
    return found


def _epsilons(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    whose: dict[float, str] = {}
    for name, record in [("the other model's", partner), *((f"that of {o.name}", o) for o in others)]:
        if record is not None and isinstance(record.spec.eps, float) and record.spec.eps_at != "none":
            whose.setdefault(record.spec.eps, name)
    for value, name in DEFAULTS.items():
        whose.setdefault(value, name)
    at = "variance" if own.spec.eps_at == "none" else own.spec.eps_at
    yield from _as(own, f"no epsilon instead of {_eps(own)}", "eps-lost", {"eps_at": "none"})
    for value, name in whose.items():
        if value > 0:
            yield from _as(
                own, f"epsilon {value:g}, {name}, instead of {_eps(own)}", "eps-value", {"eps": value, "eps_at": at}
            )
    if own.spec.eps_at == "none" or not isinstance(own.spec.eps, float):
        return
    half = float(rounded(np.array(own.spec.eps), "float16"))
    code = "eps-lost" if half == 0 else "eps-value"
    yield from _as(own, f"epsilon {own.spec.eps:g} rounded to float16, {half:.6g}", code, {"eps": half})
    yield from _as(own, "epsilon multiplied by each row's largest value squared", "eps-value", divided_by="peak")
    for scale in SCALES:
        yield from _as(
            own, f"epsilon multiplied by {scale * scale:g}, for activations divided by {scale:g}", "eps-value",
            divided_by=scale,
        )  # fmt: skip


def _eps(own: Hypothesis) -> str:
    return "none" if own.spec.eps_at == "none" else f"{own.spec.eps:g}"


def _denominators(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    words = {
        "variance": "epsilon added under the root",
        "deviation": "epsilon added outside the root",
        "sum": "epsilon added to the sum of squares",
        "variance_floor": "epsilon as the least variance",
        "deviation_floor": "epsilon as the least deviation",
    }
    if own.spec.eps_at != "none":
        for place, said in words.items():
            yield from _as(own, said, "eps-place", {"eps_at": place})
    yield from _as(own, "an RMS norm", "kind", {"centered": False, "spread": "rms"})
    yield from _as(own, "a layer norm, which subtracts the mean", "kind", {"centered": True, "spread": "std"})
    yield from _as(own, "x over its standard deviation, the mean not subtracted", "kind",
                   {"centered": False, "spread": "std"})  # fmt: skip
    yield from _as(own, "x over its length", "kind", {"centered": False, "spread": "l2"})
    yield from _as(own, "x multiplied by its spread instead of divided", "kind", inverted=True)
    if own.spec.spread == "std":
        yield from _as(own, f"a variance over n{' − 1' * (own.spec.ddof == 0)}", "ddof",
                       {"ddof": 1 if own.spec.ddof == 0 else 0})  # fmt: skip


def _sets(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    plain = {"channel_axis": None, "groups": None, "group_order": None}
    for axes in AXES:
        if axes != own.spec.axes or own.spec.groups is not None:
            code = "axes" if own.spec.groups is None else "groups"
            told = ", ".join(map(str, axes))
            yield from _as(own, f"statistics over axes ({told})", code, {"axes": axes, **plain})
    if own.spec.groups is not None:
        other = "interleaved" if own.spec.group_order == "blocked" else "blocked"
        yield from _as(own, f"{other} groups", "group-order", {"group_order": other})
        for groups in (1, 2, 4, 8, 16, 32):
            yield from _as(own, f"{groups} groups instead of {own.spec.groups}", "groups", {"groups": groups})
        channel = -1 if own.spec.channel_axis == 1 else 1
        moved = {name: (channel,) for name in ("scale_axes", "shift_axes") if getattr(own.spec, name) is not None}
        yield from _as(own, f"channels along axis {channel}", "axes", {"channel_axis": channel, **moved})


def _gammas(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    gamma = own.gamma
    if gamma is None:
        return
    if own.spec.scale_offset == 0:
        yield from _as(own, "1 + gamma instead of gamma", "gamma-offset", {"scale_offset": 1})
        yield from _as(own, "gamma less 1, as if 1 had been added to it", "gamma-offset", gamma=gamma - 1)
    else:
        yield from _as(own, "gamma instead of 1 + gamma", "gamma-offset", {"scale_offset": 0})
        yield from _as(own, "2 + gamma: 1 added twice", "gamma-offset", gamma=gamma + 1)
    yield from _as(own, "no gamma", "gamma-missing", {"scale_axes": None}, gamma=None)
    yield from _turned(own, "gamma", "scale_axes")
    if own.beta is not None and own.beta.shape == gamma.shape:
        yield from _as(own, "gamma and beta exchanged", "parameter-swapped", gamma=own.beta, beta=gamma)
        if gamma.shape and gamma.shape[-1] % 2 == 0:
            half = gamma.shape[-1] // 2
            turned: dict[str, Any] = {n: np.roll(p, half, axis=-1) for n, p in (("gamma", gamma), ("beta", own.beta))}
            yield from _as(own, "the halves of gamma and beta exchanged", "parameter-swapped", **turned)
    for name in ("float16", "bfloat16"):
        narrow = rounded(gamma, name)
        if not np.array_equal(narrow, gamma):
            yield from _as(own, f"gamma rounded to {name}", "parameter-value", gamma=narrow)
    yield from (
        _as(own, "gamma clipped to 10000", "parameter-value", gamma=np.clip(gamma, -1e4, 1e4))
        if (np.abs(gamma).max(initial=0) > 1e4)
        else ()
    )


def _turned(own: Hypothesis, name: str, field: str) -> Iterator[Hypothesis]:
    """Lay a parameter along other axes; where their lengths do not fit, it is not tried."""
    value, axes = getattr(own, name), getattr(own.spec, field)
    if value.ndim == 2 and value.shape[0] == value.shape[1]:
        yield from _as(own, f"{name} transposed", "gamma-layout", **{name: value.T.copy()})
    if value.ndim == 1:
        for other in ((-1,), (1,), (-2,), (0,)):
            if other != axes:
                said = f"{name} along axis {other[0]} instead of {axes}"
                yield from _as(own, said, "gamma-layout", {field: other})


def _betas(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    if own.beta is not None:
        yield from _as(own, "no beta", "beta-missing", {"shift_axes": None}, beta=None)
        yield from _turned(own, "beta", "shift_axes")
    elif partner is not None and partner.shift is not None and own.spec.scale_axes is not None:
        yield from _as(own, "the other model's beta", "beta-missing", {"shift_axes": own.spec.scale_axes},
                       beta=_values(partner.shift))  # fmt: skip


def _roundings(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    for name in ("float32", "float16", "bfloat16"):
        for each in (False, True):
            said = f"statistics in {name}" + ", every step rounded" * each
            fields: dict[str, Any] = {"stats_dtype": name, "round_each": each, "variance_by": "centered"}
            yield from _as(own, said, "precision", fields)
            if own.spec.spread == "std":
                yield from _as(own, f"E[x²] − E[x]² in {name}" + ", every step rounded" * each, "cancellation",
                               fields | {"variance_by": "moments"})  # fmt: skip
        if own.spec.spread == "std":
            yield from _as(own, f"E[x²] − E[x]² in {name}, at least 0", "cancellation",
                           {"stats_dtype": name, "variance_by": "moments_clamped"})  # fmt: skip
    yield from _as(own, "x̂ rounded before gamma", "cast-order", {"cast_before_scale": True})
    yield from _as(own, "x̂ rounded after gamma", "cast-order", {"cast_before_scale": False})


def _statistics(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    stored = own.mean is not None and own.variance is not None
    if own.spec.statistics != "input":
        yield from _as(own, "statistics of the input instead of stored ones", "statistics", {"statistics": "input"})
    elif stored:
        yield from _as(own, "stored statistics instead of the input's", "statistics", {"statistics": "stored"})
    if stored and own.spec.statistics != "updated":
        # of the input's own, too: ONNX Runtime took the updated ones where training mode asks for the input's
        for weight in (0.1, 0.01, 0.001, 0.5):
            yield from _as(own, f"stored statistics updated by this input, with weight {weight:g}", "statistics",
                           {"statistics": "updated"}, update=weight)  # fmt: skip
    if not stored and partner is not None and partner.mean is not None and partner.variance is not None:
        yield from _as(own, "the other model's stored statistics", "statistics", {"statistics": "stored"},
                       mean=_values(partner.mean), variance=_values(partner.variance))  # fmt: skip


def _afterwards(own: Hypothesis, partner: NormRecord | None, others: Sequence[NormRecord]) -> Iterator[Hypothesis]:
    for name in ACTIVATIONS:
        yield from _as(own, f"{name} after the norm", "folded", then=name)


def _neighbour(own: Hypothesis, record: NormRecord, other: NormRecord) -> Iterator[Hypothesis]:
    """Take another norm's parameters, where they have the same shapes and other values."""
    if other.name == record.name and other.where == record.where:
        return
    values: dict[str, Any] = {}
    for name, mine, theirs in (("gamma", record.scale, other.scale), ("beta", record.shift, other.shift)):
        if (mine is None) != (theirs is None) or (
            mine is not None and theirs is not None and mine.shape != theirs.shape
        ):
            return
        values[name] = _values(theirs)
    if not all(_same(v, getattr(own, n)) for n, v in values.items()):
        yield from _as(own, f"the parameters of {other.name}", "parameter-swapped", **values)


def _same(a: Array | None, b: Array | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
