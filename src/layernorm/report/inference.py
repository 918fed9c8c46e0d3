# SPDX-License-Identifier: MIT
"""This file asks which norm turns one array into another, and keeps the answer together with how to say it."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from layernorm.comparing.answer import Answer, answer
from layernorm.report.text import number
from layernorm.spec.norm_spec import NormSpec

Array = npt.NDArray[Any]

# So many epsilons are written out, of more only the ends.
MOST = 6


@dataclass(frozen=True)
class Inference:
    """The norm that turns x into y; it prints as a short text."""

    answer: Answer

    @property
    def spec(self) -> NormSpec | None:
        """The simplest spec that fits, None if none does."""
        return self.answer.spec

    @property
    def residual(self) -> float | None:
        """Its largest error, in units of the bound; at most 1."""
        return self.answer.residual

    @property
    def gamma(self) -> Array | None:
        """Gamma, given or solved for, along `spec.scale_axes`."""
        return self.answer.gamma

    @property
    def beta(self) -> Array | None:
        """Beta, given or solved for, along `spec.shift_axes`."""
        return self.answer.beta

    @property
    def equivalent(self) -> Sequence[NormSpec]:
        """The other specs that these numbers allow."""
        return self.answer.equivalent

    @property
    def would_tell(self) -> str | None:
        """An input that would tell them apart."""
        return self.answer.would_tell

    @property
    def others(self) -> Sequence[tuple[NormSpec, float]]:
        """The nearest of those that do not fit, with their residuals."""
        return self.answer.others

    @property
    def notes(self) -> Sequence[str]:
        """What such arrays cannot tell, and why."""
        return self.answer.notes

    def document(self) -> dict[str, Any]:
        """Give the document layernorm.infer/1."""
        return {
            "schema": "layernorm.infer/1",
            "spec": None if self.spec is None else self.spec.to_json(),
            "residual": self.residual,
            "equivalent": [spec.to_json() for spec in self.equivalent],
            "would_tell": self.would_tell,
            "others": [{"spec": spec.to_json(), "residual": residual} for spec, residual in self.others],
        }

    def text(self, width: int = 80) -> str:
        """Write the answer in lines of `width` characters."""
        lines = ["No norm of the kinds that are known here turns x into y."]
        if self.answer.unchanged:
            lines = ["y equals x in every value: no norm is needed to turn one into the other."]
        if self.spec is not None:
            lines = _item(str(self.spec), width, "", "  ")
            lines += _item(f"fits: its largest error is {number(self.residual)} of what rounding allows", width)
            for name, values in (("γ", self.gamma), ("β", self.beta)):
                lines += [] if values is None else _item(_values(name, values), width)
        if self.spec is not None and self.equivalent:
            count = len(self.equivalent)
            lines += ["", f"These numbers do not tell it from {count} other{'s' * (count > 1)}:"]
            for differs in differences(self.spec, self.equivalent):
                lines += _item(differs, width)
        if self.would_tell is not None:
            lines += ["", "What would tell:", *_item(self.would_tell, width)]
        if self.notes:
            lines += ["", "What these arrays cannot tell:"]
            lines += [line for note in self.notes for line in _item(note, width)]
        if self.others:
            lines += ["", "Nearest of those that do not fit, with how many times the bound they miss:"]
            lines += [line for spec, miss in self.others for line in _item(f"{number(miss)}  {_rounded(spec)}", width)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def infer(x: ArrayLike, y: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None) -> Inference:
    """Find the norm that turns x into y: kind, axes, groups, epsilon and its place, 1 + gamma, rounding.

    Args:
        x, y: what went into a norm and what came out of it, arrays of one shape; four rows or more, of ordinary and of
            small spread, tell most.
        gamma, beta: the layer's parameters, if they are known; else they are solved for, which leaves more open.

    Raises:
        ArgumentError: the arrays differ in shape, are empty, not finite, or constant.
        ArrayTypeError: one is not an array of real numbers.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    >>> y = x / np.sqrt(np.mean(x.astype(float) ** 2, axis=-1, keepdims=True) + 1e-3)
    >>> print(infer(x, y.astype(np.float32)).spec)
    y = x / √(mean(x²) + 0.001) over axes (-1)
    """
    return Inference(answer(x, y, gamma, beta))


def differences(spec: NormSpec, others: Sequence[NormSpec]) -> list[str]:
    """Say in which fields others differ from a spec: each set of fields that is not put together from smaller ones.

    >>> differences(NormSpec(eps=1e-5), [NormSpec(eps=1e-6), NormSpec(eps=1e-7), NormSpec(eps=1e-7, ddof=1)])
    ['eps 1e-07 or 1e-06', 'eps 1e-07 and ddof 1']
    """
    own = spec.to_json()
    groups: dict[tuple[str, ...], dict[str, dict[Any, None]]] = {}
    counts: dict[tuple[str, ...], int] = {}
    for other in others:
        said = {k: v for k, v in other.to_json().items() if v != own[k] and k != "kind"}
        if said.get("eps_at") == "none":
            said.pop("eps", None)  # nobody adds it
        key = tuple(said)
        counts[key] = counts.get(key, 0) + 1
        fields = groups.setdefault(key, {k: {} for k in said})
        for name, value in said.items():
            fields[name].setdefault(tuple(value) if isinstance(value, list) else value)
    lines: list[str] = []
    told: list[tuple[str, ...]] = []
    rest = 0
    for key in sorted(groups, key=len):
        smaller = [set(t) for t in told if set(t) < set(key)]
        if smaller and set().union(*smaller) == set(key):
            rest += counts[key]
            continue
        told.append(key)
        lines.append(" and ".join(f"{name} {_listed(values)}" for name, values in groups[key].items()))
    return [*lines, *([f"and {rest} that differ in several of these at once"] if rest else [])]


def _listed(values: Iterable[Any]) -> str:
    shown = list(values)
    if all(isinstance(v, float) for v in shown):
        shown.sort()
        if len(shown) > MOST:
            return f"{_said(shown[0])} to {_said(shown[-1])} ({len(shown)} of those in use)"
    texts = [_said(v) for v in shown]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


def _rounded(spec: NormSpec) -> NormSpec:
    """Give a spec with an epsilon that can be read: of one that does not fit, more digits say nothing."""
    return dataclasses.replace(spec, eps=float(f"{spec.eps:.4g}")) if isinstance(spec.eps, float) else spec


def _values(name: str, values: Array) -> str:
    wide = values.astype(np.float64)
    low, high, middle = (f"{v:.6g}" for v in (wide.min(), wide.max(), wide.mean()))
    if values.size == 1:
        return f"{name} is {low}"
    shape = f"({', '.join(map(str, values.shape))}{',' * (values.ndim == 1)})"
    return f"{name} of shape {shape} runs from {low} to {high}, {middle} on average"


def _item(text: str, width: int, first: str = "  ", rest: str = "    ") -> list[str]:
    return textwrap.wrap(text, max(width, 40), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
