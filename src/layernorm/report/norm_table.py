# SPDX-License-Identifier: MIT
"""This file says in a terminal which norms a model holds: a row each, then what they compute and may go wrong in."""

import io
import textwrap
from collections.abc import Iterable
from dataclasses import replace

from layernorm.conformance.targets import printable
from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import Found, NormRecord
from layernorm.spec.norm_spec import UNKNOWN, NormSpec

HEAD = ("norm", "kind", "axes", "size", "eps", "γ β", "form", "place")
# For each column, and each word for one, the fields of a record and of its spec that it shows.
COLUMNS = {
    "norm": ("name", "where"),
    "kind": ("kind", "centered", "spread"),
    "axes": ("axes", "groups"),
    "size": ("size",),
    "eps": ("eps", "eps_at"),
    "gamma": ("scale", "scale_axes", "scale_offset"),
    "beta": ("shift", "shift_axes"),
    "γ β": ("scale", "scale_axes", "scale_offset", "shift", "shift_axes"),
    "form": ("form",),
    "place": ("placement",),
    "placement": ("placement",),
    "dtype": ("dtype",),
}
# What the file does not say.
OPEN = "?"
# What a spec is silent about where it has its usual value.
QUIET = ("statistics", "stats_dtype", "variance_by", "cast_before_scale", "round_each")
# Below this a table would break words in every cell.
NARROWEST = 60
# Below this for the names, the other columns break their words, too.
LEAST_NAME = 12


def inspect_text(found: Found, model: ModelFile, width: int = 80) -> str:
    """Write what was found, in lines of at most `width` characters."""
    width = max(width, NARROWEST)
    count = len(found.norms)
    lines = [printable(f"{model.path} ({model.format}): {count or 'no'} norm{'' if count == 1 else 's'}")]
    if found.norms:
        lines += ["", *_table(found.norms, width), "", "What they compute", *_specs(found.norms, width)]
        lines += _left_open(found.norms, model, width)
    elif not found.unidentified:
        lines += paragraph(_looked_for(model), width)
    if found.risks:
        lines += ["", "What may go wrong", *_risks(found, width)]
    if found.unidentified:
        lines += ["", "Not identified"]
        for item in found.unidentified:
            lines += paragraph(item.why if item.where == model.path else f"{item.where}: {item.why}", width)
    return "\n".join(lines)


def _table(norms: Iterable[NormRecord], width: int) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [[printable(cell) for cell in _cells(norm)] for norm in norms]
    room = width - sum(2 + max(map(len, column)) for column in zip(HEAD[1:], *(row[1:] for row in rows), strict=True))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for head in HEAD:
        table.add_column(
            head, overflow="fold", no_wrap=head != "norm" and room >= LEAST_NAME,
            min_width=LEAST_NAME if head == "norm" else None, justify="right" if head == "size" else "left",
        )  # fmt: skip
    for name, *rest in rows:
        # Text, for a name is no markup, whatever it holds
        table.add_row(*map(Text, ["\n".join(_lines(name, max(room, LEAST_NAME))), *rest]))
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def _lines(name: str, room: int) -> list[str]:
    """Cut a name that is too long into lines: after a dot or slash if it can be, else an underscore, else anywhere.

    >>> _lines("model.layers.0.post_attention_layernorm", 24)
    ['model.layers.0.', 'post_attention_layernorm']
    """
    lines = []
    while len(name) > room:
        cut = max(name.rfind(sign, 0, room) for sign in "./") + 1 or name.rfind("_", 0, room) + 1 or room
        lines.append(name[:cut])
        name = name[cut:]
    return [*lines, name]


def _cells(norm: NormRecord) -> tuple[str, ...]:
    spec = norm.spec
    axes = OPEN if spec.axes is UNKNOWN else f"({', '.join(map(str, spec.axes))})"
    groups = "" if spec.groups is None else f" /{OPEN if spec.groups is UNKNOWN else spec.groups}"
    return (
        norm.name, _kind(spec), axes + groups, OPEN if norm.size is UNKNOWN else str(norm.size), _eps(spec),
        _affine(spec), norm.form, OPEN if norm.placement == "unknown" else norm.placement,
    )  # fmt: skip


def _kind(spec: NormSpec) -> str:
    """Name the kind, unless what is unknown could make it another."""
    open_ = spec.centered is UNKNOWN or spec.spread is UNKNOWN or spec.axes is UNKNOWN
    return OPEN if open_ and spec.kind == "other" else spec.kind


def _eps(spec: NormSpec) -> str:
    if spec.eps_at == "none":
        return "none"
    return OPEN if spec.eps is UNKNOWN else f"{spec.eps:g}"


def _affine(spec: NormSpec) -> str:
    """Write which of gamma and beta there are, with a question mark where the file does not say."""
    if spec.scale_axes is None:
        scale = "-"
    elif spec.scale_axes is UNKNOWN:
        scale = "γ?"
    else:
        scale = {0: "γ", 1: "1+γ", UNKNOWN: "1?+γ"}[spec.scale_offset]
    shift = "-" if spec.shift_axes is None else "β?" if spec.shift_axes is UNKNOWN else "β"
    return f"{scale} {shift}"


def _specs(norms: Iterable[NormRecord], width: int) -> list[str]:
    counts: dict[str, int] = {}
    for norm in norms:
        said = str(_without_silence(norm.spec))
        counts[said] = counts.get(said, 0) + 1
    return [line for spec, count in counts.items() for line in paragraph(f"{count} × {spec}", width)]


def _without_silence(spec: NormSpec) -> NormSpec:
    """Give unknown fields the value that is not printed, where there is one: `_left_open` says them, once."""
    usual = NormSpec()
    return replace(spec, **{name: getattr(usual, name) for name in QUIET if getattr(spec, name) is UNKNOWN})


def _left_open(norms: Iterable[NormRecord], model: ModelFile, width: int) -> list[str]:
    """Say once what of how many norms is unknown, and where it can be had."""
    counts: dict[tuple[str, ...], int] = {}
    for norm in norms:
        unknown = norm.spec.unknown()
        counts[unknown] = counts.get(unknown, 0) + 1
    lines = [
        line for unknown, count in counts.items() if unknown
        for line in paragraph(f"{count} × {', '.join(unknown)}", width)
    ]  # fmt: skip
    if lines and _by_names(model):
        lines += paragraph(_remedy(model), width)
    return ["", "What the file does not say", *lines] if lines else []


def _looked_for(model: ModelFile) -> str:
    if model.graph is not None:
        count = sum(1 for _ in model.graph.walk())
        return f"Read {count} operators, and none is a norm, nor do any together compute one that is recognized here."
    if not _by_names(model):
        return f"Read {len(model.layers)} layers that the file describes as norms, and none is one."
    return (
        f"Read the names of {len(model.tensors)} tensors, and none speaks of a norm (norm, ln, bn, gamma, beta); a "
        f"norm without parameters has none. {_remedy(model)}"
    )


def _remedy(model: ModelFile) -> str:
    folder = "" if model.config else "the folder with the model's config.json, "
    return f"To do: pass {folder}an ONNX export, or in Python the torch.nn.Module: ln.inspect(module)."


def _by_names(model: ModelFile) -> bool:
    """Tell whether nothing but the names of tensors, and a configuration, says what the norms of a model are."""
    return model.graph is None and not model.layers and model.format != "keras" and model.card is None


def _risks(found: Found, width: int) -> list[str]:
    """Say each risk once, with the first norm that has it and how many more do."""
    held: dict[tuple[str, str, str, str | None], list[str | None]] = {}
    for risk in found.risks:
        held.setdefault((risk.code, risk.severity, risk.sentence, risk.remedy), []).append(risk.a)
    lines: list[str] = []
    for (code, severity, sentence, remedy), names in held.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        whose = f" {names[0]}{more}:" if names[0] is not None else ""
        whole = f"{severity} {code}:{whose} {sentence}"
        lines += paragraph(whole if remedy is None else f"{whole} To do: {remedy}", width)
    codes = dict.fromkeys(code for code, *_ in held)
    return [*lines, *paragraph(f"what they mean: {', '.join(f'layernorm explain {code}' for code in codes)}", width)]


def paragraph(text: str, width: int, indent: int = 2) -> list[str]:
    """Wrap a text into indented lines."""
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.wrap(printable(text), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
