# SPDX-License-Identifier: MIT
"""This file says where the configuration beside a model's tensors contradicts them: it may be another model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layernorm.models.families import family_at, refutes
from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import NormRecord, Unidentified

# Where configurations keep how many numbers a token is.
WIDTHS = ("hidden_size", "d_model", "n_embd")
TO_DO = "see that it is this model's"


def contradictions(model: ModelFile, norms: Sequence[NormRecord]) -> list[Unidentified]:
    """Give each contradiction with what both sides say; GGUF files hold their configuration and cannot be mixed up."""
    if model.format == "gguf":
        return []
    return [Unidentified(model.path, why) for why in (*_of_kind(model, norms), *_of_width(model, norms))]


def _of_kind(model: ModelFile, norms: Sequence[NormRecord]) -> Iterator[str]:
    shifted: dict[str, list[NormRecord]] = {}
    bare: dict[str, list[NormRecord]] = {}
    for norm in norms:
        kind, family, _ = family_at(model.config, norm.name)
        # some architectures leave beta out of the norms of queries and keys alone
        if family is None or norm.scale is None or norm.mean is not None or norm.placement == "qk":
            continue
        spec, _ = family.at(norm.name)
        if refutes({"shift"} if norm.shift else {}, spec):
            shifted.setdefault(kind, []).append(norm)
        elif norm.shift is None and spec.shift_axes is not None and spec.statistics == "input":
            bare.setdefault(kind, []).append(norm)
    for kind, held in shifted.items():
        yield (
            f"the configuration says {kind}, whose norms are RMS norms without beta, but {_named(held)} beta: the "
            f"tensors are believed, and epsilon is left open; {TO_DO}."
        )
    for kind, held in bare.items():
        yield (
            f"the configuration says {kind}, whose norms take a mean off and have beta, but {_named(held)} no beta, "
            f"as an RMS norm would; {TO_DO}."
        )


def _of_width(model: ModelFile, norms: Sequence[NormRecord]) -> Iterator[str]:
    _, _, config = family_at(model.config, "")
    key = next((key for key in WIDTHS if type(config.get(key)) is int), None)
    # the norms of queries and keys are over a head
    sizes = sorted({norm.size for norm in norms if isinstance(norm.size, int) and norm.placement != "qk"})
    if key is not None and sizes and config[key] not in sizes:
        said = ", ".join(map(str, sizes[:3])) + (", …" if len(sizes) > 3 else "")
        yield (
            f"the configuration says {key} {config[key]}, but no norm is over that many values: they have {said}; "
            f"{TO_DO}."
        )


def _named(norms: Sequence[NormRecord]) -> str:
    return f"{norms[0].name} has" if len(norms) == 1 else f"{norms[0].name} and {len(norms) - 1} more have"
