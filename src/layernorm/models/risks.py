# SPDX-License-Identifier: MIT
"""This file says what may go wrong with the norms of one model: one function a finding, whose docstring is its page."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import Finding, NormRecord, Severity
from layernorm.spec.dtypes import DTYPES, StorageType
from layernorm.spec.norm_spec import UNKNOWN

SEVERITIES: tuple[Severity, ...] = ("info", "minor", "major")
Norms = Sequence[NormRecord]
_BATCH_NORM = re.compile(r"batch_?norm", re.IGNORECASE)
_SAYS_LAYER = re.compile(r"layer_?norm", re.IGNORECASE)


def risks(model: ModelFile, norms: Norms) -> list[Finding]:
    """List what may go wrong, the worst first."""
    found = [risk for check in CHECKS.values() for risk in check(model, norms)]
    return sorted(found, key=lambda risk: -SEVERITIES.index(risk.severity))


def page_of(code: str) -> str:
    """Give the page of a finding."""
    return f"{code}: {inspect.cleandoc(CHECKS[code].__doc__ or '')}"


def eps_lost(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """Epsilon is 0, or so small that it is 0 or subnormal in the type in which it is added.

    What it checks
        The epsilon of every norm, rounded to the type of its statistics where the file says that type.

    Why it matters
        Epsilon is what keeps a row of equal values from 0/0. float16 has no positive number below 2⁻²⁴ ≈ 6e-8: an
        epsilon of up to 2⁻²⁵ becomes 0 there, and one below 6.1e-5 is subnormal, so it has few digits, and many
        accelerators make it 0 too.

    Example
        A BERT model (eps = 1e-12) converted to float16: the row (2, 2, 2, 2) has variance 0, and 0 / √(0 + 0) is NaN.
        eps = 1e-7 is stored as 1.19e-7, a fifth too large.

    What to do
        Keep the statistics in float32, as fused operators do, or export with an epsilon of at least 6.1e-5.
    """
    for norm in norms:
        spec = norm.spec
        if not isinstance(spec.eps, float) or spec.eps < 0 or not math.isfinite(spec.eps):
            continue
        if spec.eps == 0 or spec.eps_at == "none":
            yield _about(
                "eps-lost", "minor", norm, f"nothing is added to the denominator, so {_flat(norm)} divides by 0.",
                "add an epsilon, unless such rows cannot come.", eps=0.0,
            )  # fmt: skip
            continue
        kept = _statistics_type(norm)
        if kept is None:
            continue
        stored = _rounded(spec.eps, kept)
        smallest = math.ldexp(kept.tiny, kept.digits - 1)
        if stored == 0:
            yield _about(
                "eps-lost", "major", norm, f"its epsilon {spec.eps:g} is 0 in {kept.name}, the type of its statistics: "
                f"{_flat(norm)} divides by 0.", "keep the statistics in float32, or take a larger epsilon.",
                eps=spec.eps, stored=stored, dtype=kept.name,
            )  # fmt: skip
        elif stored < smallest:
            yield _about(
                "eps-lost", "minor", norm, f"its epsilon {spec.eps:g} is subnormal in {kept.name}, where it is "
                f"{stored:.3g}, or 0 on hardware without subnormals.",
                "keep the statistics in float32, or take a larger epsilon.",
                eps=spec.eps, stored=stored, dtype=kept.name, smallest=smallest,
            )  # fmt: skip


def overflow(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """Squares of float16 values are summed in float16, where 256² is already infinite.

    What it checks
        Norms that take statistics of their input in float16, as the file says or leaves open.

    Why it matters
        The largest float16 is 65504, so a value 256 from the mean has a square of infinity. The variance is infinite,
        the quotient 0, and the output β alone, or 0 where there is none: finite, plausible, wrong. Speech and vision
        models have such values.

    Example
        Of 768 values one is 795 above the mean: 795² = 632025. Every output of that row is β.

    What to do
        Cast to float32 before the square and back after the division, or export the fused operator, which does.
    """
    for norm in norms:
        if norm.spec.statistics == "stored":
            continue
        kept = _statistics_type(norm)
        numbers: dict[str, float | int | str] = {"largest": 65504.0, "from": 256}
        if kept is not None and kept.name == "float16":
            yield _about(
                "overflow", "major", norm, f"its squares are taken in float16: a value {_far(norm)} makes their sum "
                f"infinite and the output {_rest(norm)}.", "take the statistics in float32.", **numbers,
            )  # fmt: skip
        elif norm.dtype == "float16" and norm.spec.stats_dtype is UNKNOWN:
            yield _about(
                "overflow", "info", norm, "it normalizes float16, and the file leaves open in which type a runtime "
                f"keeps the statistics; in float16 a value {_far(norm)} overflows.",
                "see that the runtime keeps them in float32.", **numbers,
            )  # fmt: skip


def cancellation(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """The variance is E[x²] − E[x]²: two large numbers whose difference has no digits left when the mean is large.

    What it checks
        Norms whose operations, or whose framework, compute the variance from the two moments.

    Why it matters
        In a type of p bits the difference loses twice the bits by which the mean exceeds the spread. From a mean of
        2^(p/2) spreads on, 4096 in float32, nothing is left: the variance is 0, or negative and the root NaN.

    Example
        x = (40000, 40001, 40002, 40003) in float32: E[x²] − E[x]² is −128, the variance 1.25.

    What to do
        Subtract the mean first (Flax: use_fast_variance=False), or export an operator that does.
    """
    for norm in norms:
        spec = norm.spec
        if spec.variance_by not in ("moments", "moments_clamped") or spec.statistics == "stored":
            continue
        kept = _statistics_type(norm) or DTYPES["float32"]
        ratio = 2.0 ** (kept.digits / 2)
        ends = "0" if spec.variance_by == "moments_clamped" else "0 or negative, and the root NaN"
        yield _about(
            "cancellation", "major" if kept.bits == 16 else "minor", norm, "its variance is E[x²] − E[x]²: where a "
            f"row's mean is {ratio:.0f} times its spread, the difference is {ends}.", "subtract the mean first.",
            ratio=ratio, dtype=kept.name,
        )  # fmt: skip


def statistics(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """A batch norm uses the statistics of the batch at hand, or statistics run over the batch's axis.

    What it checks
        Batch norms that do not use stored statistics, and other norms whose axes include the first.

    Why it matters
        A batch norm left in training mode gives one sample a result that depends on its neighbours, and a batch of one
        sample a result that is β. It also forgets what it learned, if it updates its statistics.

    Example
        A batch of one row: x − mean is 0, so every output is β, whatever x is.

    What to do
        Export with the model in inference mode: model.eval(), training=False. A batch norm that never kept statistics
        is meant so; a layer norm over axis 0 has an axis too many.
    """
    for norm in norms:
        spec = norm.spec
        if spec.statistics not in ("input", "updated") or spec.axes is UNKNOWN:
            continue
        if spec.kind == "batch":
            yield _about(
                "statistics", "major", norm, f"it normalizes with {_WHOSE[spec.statistics]}, so a sample's result "
                "depends on the others in its batch.", "export it in inference mode.", statistics=spec.statistics,
            )  # fmt: skip
        elif 0 in spec.axes or "0:" in spec.axes:
            yield _about(
                "statistics", "minor", norm, "its statistics run over the first axis, the batch in most models.",
                "name the axes from the end, or leave the first one out.", statistics=spec.statistics,
            )  # fmt: skip


_WHOSE = {"input": "the statistics of its input", "updated": "running statistics that its input has just changed"}


def eps_value(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """Epsilon cannot be what was meant: it is no positive number, or the file has one for norms that may have several.

    What it checks
        Epsilons that are negative, infinite or NaN; and GGUF files, whose format holds one epsilon for the whole model.

    Why it matters
        Where activations are small, epsilon decides the scale of the output. A model whose norms differ in it, such
        as one with a tower for images, cannot be written to GGUF without loss, and nothing in the file shows it.

    Example
        x with root mean square 0.01: 1e-6 instead of 1e-5 makes every output 4 % larger.

    What to do
        Compare with the configuration of the model that the file was made from.
    """
    for norm in norms:
        if isinstance(norm.spec.eps, float) and not 0 <= norm.spec.eps < math.inf:
            yield _about(
                "eps-value", "major", norm, f"its epsilon is {norm.spec.eps!r}, under which no root is safe.",
                "set it to what the model was trained with.", eps=str(norm.spec.eps),
            )  # fmt: skip
    said = {norm.spec.eps for norm in norms if isinstance(norm.spec.eps, float)}
    if model.format == "gguf" and len(norms) > 1 and len(said) == 1:
        (eps,) = said
        yield Finding(
            "eps-value", "info", None,
            f"the format holds one epsilon, {eps:g}, for all {len(norms)} norms; one that had another has lost it.",
            "compare with the configuration of the original model.", {"eps": eps, "norms": len(norms)},
        )  # fmt: skip


def gamma_offset(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """Gamma looks like the w of a layer that multiplies by 1 + w, or like one to which the 1 was added already.

    What it checks
        The values of gamma: near 0 and of both signs where the layer multiplies by gamma; where it adds 1, near 1, or
        in every norm of the model between 0.6 and 1.6 and nowhere negative.

    Why it matters
        Gemma, Nemotron and others store w and multiply by 1 + w; converters add the 1 or do not. One time too few
        and the output is near 0, one time too many and it is doubled.

    Example
        w has mean 0.01 and spread 0.3. Read as gamma it leaves a hundredth of the signal.

    What to do
        Look up what the architecture does, and add 1 to the stored values, or take it off, when converting.
    """
    judged = [
        (norm, norm.scale.values().astype(np.float64))
        for norm in norms
        if norm.scale is not None and norm.scale.size and norm.spec.kind != "batch"
    ]
    # one w of mean 1.2 may be just that; where every norm's is about 1 and nowhere negative, they are gammas
    adding = [gamma for norm, gamma in judged if norm.spec.scale_offset == 1]
    all_gammas = all(0.6 < gamma.mean() < 1.6 and gamma.min() > 0 for gamma in adding)
    for norm, gamma in judged:
        mean, negative = float(gamma.mean()), float((gamma < 0).mean())
        if norm.spec.scale_offset == 0 and abs(mean) < 0.1 and (negative > 0.2 or not gamma.any()):
            said = f"has mean {mean:.2g} and {negative:.0%} negative values" if gamma.any() else "is 0 throughout"
            yield _about(
                "gamma-offset", "minor", norm, f"its gamma {said}, as the w of a norm that multiplies by 1 + w would.",
                "see whether the architecture adds 1.", mean=mean, negative=negative,
            )  # fmt: skip
        elif norm.spec.scale_offset == 1 and (all_gammas or (abs(mean - 1) < 0.1 and float(gamma.std()) < 0.3)):
            yield _about(
                "gamma-offset", "minor", norm, f"it multiplies by 1 + w, and w has mean {mean:.2g}, as if the 1 had "
                "been added already.", "see whether the converter added 1.", mean=mean, negative=negative,
            )  # fmt: skip


def folded(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """A norm was merged into the layer before it, so the model computes it and the file does not hold it.

    What it checks
        Names that speak of a batch norm where the graph has none, and records that say they were folded.

    Why it matters
        A batch norm with stored statistics is a multiplication and an addition, which exporters merge into the
        convolution before it. Its gamma, statistics and epsilon are gone. Two files of one model then have different
        norms and the same outputs: nothing is missing.

    Example
        The same network as a SavedModel has 3 batch norms, as Core ML 1, as TFLite and ONNX none; the outputs agree.

    What to do
        Nothing. To compare norm by norm, export without folding.
    """
    for norm in norms:
        if norm.form == "folded":
            yield _about("folded", "info", norm, "it was merged into another layer.", None)
    if model.graph is None:
        return
    present = {norm.name for norm in norms} | {
        p.name for norm in norms for p in (norm.scale, norm.mean) if p is not None
    }
    its_own = {*_batch_norms(norm.output for norm in norms)}
    names = dict.fromkeys(
        _batch_norms(name for graph, node in model.graph.walk() for name in (*node.inputs, *node.outputs))
    )
    gone = [name for name in names if name not in its_own and not any(name in held or held in name for held in present)]
    if gone:
        yield Finding(
            "folded", "info", None,
            f"names in the graph speak of {_listed(gone)}, merged into other layers: computed, not held by the file.",
            None, {"norms": len(gone)},
        )  # fmt: skip


def _batch_norms(names: Iterable[str]) -> Iterator[str]:
    """Cut the names of batch norms out of names of values, which may be those of several layers with `;` between."""
    for whole in names:
        for name in whole.split(";") if _BATCH_NORM.search(whole) else ():
            steps = re.split(r"(?<=[/.])", name)
            at = next((i for i, step in enumerate(steps) if _BATCH_NORM.search(step)), None)
            if at is not None:
                yield "".join(steps[: at + 1]).rstrip("/.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def name_only(model: ModelFile, norms: Norms) -> Iterator[Finding]:
    """A norm is called a layer norm and is none.

    What it checks
        Names with "LayerNorm" in them over norms that do not subtract the mean.

    Why it matters
        T5LayerNorm, Llama's input_layernorm and Mamba's layer_norm_epsilon belong to RMS norms, by design: whoever goes
        by the name builds the wrong layer. Keras' LayerNormalization(rms_scaling=True) is neither: it divides x, not
        centred, by the standard deviation.

    Example
        x = (1, 2, 3, 4): a layer norm gives (−1.34, −0.45, 0.45, 1.34), an RMS norm (0.37, 0.73, 1.10, 1.46).

    What to do
        Go by the record's kind. For Keras' rms_scaling use RMSNormalization, unless the model was trained so.
    """
    called = [norm for norm in norms if _SAYS_LAYER.search(f"{norm.name} {norm.where}")]
    rms = [norm for norm in called if norm.spec.kind == "rms"]
    if rms:
        count = f"it and {len(rms) - 1} more are RMS norms" if len(rms) > 1 else "it is an RMS norm"
        yield _about(
            "name-only", "info", rms[0], f"it is called a layer norm, but {count}: no mean is subtracted.", None,
            norms=len(rms),
        )  # fmt: skip
    for norm in called:
        if norm.spec.centered is False and norm.spec.spread == "std":
            yield _about(
                "name-only", "minor", norm, "it is called a layer norm, but divides x by its standard deviation "
                "without centring it: neither a layer norm nor an RMS norm.", "use an RMS norm, unless trained so.",
            )  # fmt: skip


CHECKS: dict[str, Callable[[ModelFile, Norms], Iterator[Finding]]] = {
    "eps-lost": eps_lost,
    "eps-value": eps_value,
    "overflow": overflow,
    "cancellation": cancellation,
    "statistics": statistics,
    "gamma-offset": gamma_offset,
    "folded": folded,
    "name-only": name_only,
}


def _about(
    code: str, severity: Severity, norm: NormRecord, sentence: str, remedy: str | None, **numbers: float | int | str
) -> Finding:
    return Finding(code, severity, norm.name, sentence, remedy, numbers)


_ROWS = {True: "a row of equal values", False: "a row of zeros", UNKNOWN: "a row of zeros, or of equal values,"}


def _flat(norm: NormRecord) -> str:
    """Say which rows have nothing to divide by, by what the norm divides by."""
    if norm.spec.statistics == "stored":
        return "a channel whose stored variance is 0"
    return _ROWS[norm.spec.centered]


def _far(norm: NormRecord) -> str:
    """Say which values have a square that float16 cannot hold."""
    return {True: "256 from the mean", False: "of 256", UNKNOWN: "of 256, or 256 from the mean,"}[norm.spec.centered]


def _rest(norm: NormRecord) -> str:
    """Say what is left of an output whose denominator is infinite."""
    shift = norm.spec.shift_axes
    return "0" if shift is None else "0, or β," if shift is UNKNOWN else "β"


def _statistics_type(norm: NormRecord) -> StorageType | None:
    """Give the type in which a norm keeps its statistics, None where the file leaves it open."""
    said = norm.spec.stats_dtype
    return DTYPES.get(norm.dtype if said == "input" else str(said))


def _rounded(value: float, kind: StorageType) -> float:
    import ml_dtypes  # noqa: F401 - importing it is what teaches NumPy the name bfloat16

    return float(np.asarray(value).astype(kind.name))
