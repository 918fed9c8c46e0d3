# SPDX-License-Identifier: MIT
"""This file compares two models and keeps what was found together with how to say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from layernorm.comparing.checks import CODES, findings
from layernorm.comparing.checks.unpaired import unidentified
from layernorm.comparing.compared import Compared, Side
from layernorm.comparing.divergence import Outcome
from layernorm.comparing.explaining import explained
from layernorm.comparing.pairing import Pair
from layernorm.comparing.running import Ran, ran_both
from layernorm.models.norm_record import Finding, Severity
from layernorm.report.inspection import inspect
from layernorm.spec.norm_spec import UNKNOWN

Verdict = Literal["same", "differs", "inconclusive"]
COUNTS: tuple[Severity, ...] = ("minor", "major")
# Without these a norm cannot be compared: what one side leaves open may be the difference.
NEEDED = ("axes", "centered", "spread", "eps", "scale_offset")
RAN_ALIKE = ("equal", "propagates", "agrees-on-replay")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two models side by side; it prints as a report."""

    compared: Compared
    findings: Sequence[Finding]
    """The first culprit's first, what has no partner last."""
    ran: Ran
    paths: tuple[str, str] = field(default=("A", "B"))

    @property
    def pairs(self) -> Sequence[Pair]:
        """Which norm of A is which of B, in the order of A."""
        return self.compared.pairing.pairs

    @cached_property
    def verdict(self) -> Verdict:
        """`differs` with a minor or major finding; `same` if all that counts was compared; else `inconclusive`."""
        introduced = any(outcome.status in ("introduces", "differs") for outcome in self.ran.outcomes)
        if introduced or any(finding.severity in COUNTS for finding in self.findings):
            return "differs"
        return "same" if self.pairs and not self.open and not self.doubted else "inconclusive"

    @cached_property
    def doubted(self) -> bool:
        """Tell whether a norm without a partner may be in what was not identified on the other side."""
        left, a, b = self.compared.pairing, self.compared.a, self.compared.b
        return any(
            unidentified(record, other) for records, other in ((left.left_a, b), (left.left_b, a)) for record in records
        )

    @cached_property
    def open(self) -> Mapping[str, list[str]]:
        """By what one side does not say: the pairs that were not shown to agree by running them either."""
        left: dict[str, list[str]] = {}
        for pair, outcome in zip(self.pairs, self.ran.outcomes, strict=True):
            if outcome.status in RAN_ALIKE:
                continue
            for name in NEEDED:
                if name == "scale_offset" and pair.a.scale is None and pair.b.scale is None:
                    continue
                if UNKNOWN in (getattr(pair.a.spec, name), getattr(pair.b.spec, name)):
                    left.setdefault(name, []).append(pair.a.name)
        return left

    @cached_property
    def headline(self) -> str | None:
        """Say in one sentence which norm introduces a difference first, and why."""
        counting = [finding for finding in self.findings if finding.severity in COUNTS]
        if counting:
            first = counting[0]
            return f"{first.a or first.b}: {first.sentence}"
        for pair, outcome in zip(self.pairs, self.ran.outcomes, strict=True):
            if outcome.status in ("introduces", "differs"):
                return (
                    f"{pair.a.name}: its output differs by more than rounding explains; nothing in its spec says why."
                )
        return None

    def status(self, at: int) -> str:
        """Give a pair's status: of the run, unless its specs differ; of the specs where nothing ran."""
        outcome = self.ran.outcomes[at]
        differs = any(f.severity in COUNTS for f in self._about(self.pairs[at]))
        if outcome.status == "not-run":
            return "differs" if differs else "not-run" if self.pairs[at].a.name in self._open_names else "equal"
        return "differs" if differs and outcome.status in ("equal", "agrees-on-replay") else outcome.status

    @cached_property
    def _open_names(self) -> frozenset[str]:
        return frozenset(name for names in self.open.values() for name in names)

    def _about(self, pair: Pair) -> Sequence[Finding]:
        return self._by_norm.get(pair.a.name, ())

    @cached_property
    def _by_norm(self) -> Mapping[str | None, list[Finding]]:
        found: dict[str | None, list[Finding]] = {}
        for finding in self.findings:
            found.setdefault(finding.a, []).append(finding)
        return found

    def document(self) -> dict[str, Any]:
        """Give the document layernorm.compare/1."""
        from layernorm.report.documents import compare_document

        return compare_document(self)

    def text(self, width: int = 80) -> str:
        """Write a report for lines of `width` characters."""
        from layernorm.report.differences import compare_text

        return compare_text(self, width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Comparison of {self.paths[0]} and {self.paths[1]}: {self.verdict}>"


def compare(
    a: Any, b: Any, inputs: Mapping[str, NDArray[Any]] | None = None, names: Mapping[str, str] | None = None
) -> Comparison:
    """Compare the norms of two models: paths to files or folders of any format, norm cards, or torch.nn.Modules.

    Args:
        a, b: the models; B is judged by A.
        inputs: an array for each input by name; seeded ones, made from A's signature, if None.
        names: {name in A: name in B} for norms whose partners are known.

    >>> import layernorm as ln
    >>> ln.compare("no-such-file.onnx", "other.onnx")
    Traceback (most recent call last):
    layernorm.spec.errors.FileError: no-such-file.onnx: No such file or directory; pass a model file or a folder that \
holds one.

    Raises:
        FileError: a file is missing, cut off, or lies about itself.
        UnsupportedError: a file is of no format that is read here.
        MissingExtraError: the package that reads its format is not installed.
        ArgumentError: a model is neither a path nor a module, or `names` names a norm that is not there.
    """
    first, second = inspect(a), inspect(b)
    compared = Compared(Side(first.model, first.found), Side(second.model, second.found), names)
    order = {pair.a.name: at for at, pair in enumerate(compared.pairing.pairs)}
    ran = ran_both(compared, inputs)
    found = [*findings(compared), *explained(compared, ran.outcomes, ran.taps)]
    found.sort(key=lambda finding: _rank(finding, order))
    return Comparison(compared, found, ran, (_said(a, "A"), _said(b, "B")))


def _rank(finding: Finding, order: Mapping[str, int]) -> tuple[bool, int, bool, int]:
    """Put pairs in their order, in a pair what counts before what does not, and causes before consequences."""
    at = order.get(finding.a or "", len(order))
    unpaired = finding.code in ("unpaired", "folded")
    return unpaired, at, finding.severity == "info", CODES.index(finding.code)


def _said(source: Any, side: str) -> str:
    return str(source) if isinstance(source, (str, Path)) else f"{side}: {type(source).__name__}"


__all__ = ["Comparison", "Outcome", "compare"]
