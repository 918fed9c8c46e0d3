# SPDX-License-Identifier: MIT
"""This file knows architectures by name: which norm each has, where its eps is kept; it makes records of named tensors.

A new architecture is one row. A row's norm is a row of the table of variants; its eps is a key of the configuration or,
where the configuration does not say it, the number in the architecture's code. Of an architecture that no row names,
names and shapes are believed as far as they prove something.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from layernorm.models.model_file import ModelFile, Tensor
from layernorm.models.named_tensors import Named, named_norms, per_head, runs_at
from layernorm.models.norm_record import Evidence, NormRecord, Source, Unidentified
from layernorm.models.placement import by_name
from layernorm.spec.norm_spec import UNKNOWN, NormSpec, Unknown
from layernorm.spec.variants import VARIANTS


@dataclass(frozen=True)
class Part:
    """Norms of an architecture that are not like its others, by a pattern of their names."""

    names: re.Pattern[str]
    spec: NormSpec
    eps: str | float | None
    """A key, a number in the code, or None where nothing in the file says it."""


@dataclass(frozen=True)
class Family:
    """One row: the model types that share a norm."""

    types: tuple[str, ...]
    spec: NormSpec
    eps: str | float
    default: float
    """What the configuration's class takes where the file leaves the key out."""
    source: str
    parts: tuple[Part, ...] = ()
    nameless: tuple[str, ...] = ()
    """Names of norms that have no tensors, with {} for the block's number."""

    def at(self, name: str) -> tuple[NormSpec, str | float | None]:
        """Give the norm of this name, and where its eps is."""
        for part in self.parts:
            if part.names.search(name):
                return part.spec, part.eps
        return self.spec, self.eps


def _part(names: str, variant: str, eps: str | float | None) -> Part:
    return Part(re.compile(names), VARIANTS[variant], eps)


def _row(types: str, norm: str | NormSpec, eps: str | float, default: float, source: str, *parts: Part,
         nameless: tuple[str, ...] = ()) -> Family:  # fmt: skip
    spec = VARIANTS[norm] if isinstance(norm, str) else norm
    return Family(tuple(types.split()), spec, eps, default, source, parts, nameless)


_LN = "pytorch-layer"
# where it rounds has changed from release to release
_CHANNELS = dataclasses.replace(
    VARIANTS["convnext"], stats_dtype=UNKNOWN, cast_before_scale=UNKNOWN, round_each=UNKNOWN
)
_BLOCKS = ("model.layers.{}.input_layernorm", "model.layers.{}.post_attention_layernorm", "model.norm")

# Read in transformers 5.24 unless a row says otherwise: src/transformers/models/TYPE/.
FAMILIES = (
    # LayerNorm, eps in the configuration
    _row("bert roberta xlm-roberta electra albert mpnet layoutlm", _LN, "layer_norm_eps", 1e-12, "BertConfig"),
    _row("vit deit", _LN, "layer_norm_eps", 1e-12, "ViTConfig"),
    _row("clip clip_text_model clip_vision_model", _LN, "layer_norm_eps", 1e-5, "CLIPTextConfig, CLIPVisionConfig"),
    _row("siglip siglip_text_model siglip_vision_model", _LN, "layer_norm_eps", 1e-6, "SiglipVisionConfig"),
    _row("gpt2 gptj gpt_neo bloom falcon rwkv gpt_bigcode", _LN, "layer_norm_epsilon", 1e-5, "GPT2Config"),
    _row("gpt_neox phi persimmon stablelm", _LN, "layer_norm_eps", 1e-5, "GPTNeoXConfig"),
    _row("starcoder2", _LN, "norm_epsilon", 1e-5, "Starcoder2Config"),
    _row("phimoe", _LN, "rms_norm_eps", 1e-5, "modeling_phimoe.py: a torch.nn.LayerNorm, whatever the key is called"),
    _row("modernbert", "cohere", "norm_eps", 1e-5, "ModernBertConfig: norm_bias is False, so there is no shift"),
    _row("mpt", "cohere", "layer_norm_epsilon", 1e-5, "MptConfig: low_precision_layernorm, without shift"),
    _row("cohere cohere2", "cohere", "layer_norm_eps", 1e-5, "CohereLayerNorm: a mean, but no shift"),
    _row("nemotron", "nemotron", "norm_eps", 1e-5, "NemotronLayerNorm1P: multiplies by 1 + w"),
    # LayerNorm, and the configuration is wrong for a part of the model
    _row(
        "convnext", _CHANNELS, 1e-6, 1e-6, "modeling_convnext.py: layer_norm_eps is that of the last norm alone",
        _part(r"^(convnext\.)?layernorm$", _LN, "layer_norm_eps"),
        _part(r"\.layers\.\d+\.layernorm$", _LN, 1e-6),
    ),
    _row(
        "swin", _LN, "layer_norm_eps", 1e-5, "SwinConfig",
        _part(r"embeddings\.norm$|downsample\.norm$|hidden_states_norms\.", _LN, 1e-5),
    ),
    # LayerNorm, eps in the code
    _row("whisper", _LN, 1e-5, 1e-5, "modeling_whisper.py: a torch.nn.LayerNorm of default eps"),
    _row("bart opt", _LN, 1e-5, 1e-5, "modeling_bart.py: a torch.nn.LayerNorm of default eps"),
    _row("distilbert", _LN, 1e-12, 1e-12, "modeling_distilbert.py: eps=1e-12 in the code"),
    _row("olmo", "olmo", 1e-5, 1e-5, "OlmoLayerNorm: no scale, no shift, eps=1e-5 in the code", nameless=_BLOCKS),
    # RMSNorm of Llama's kind
    _row("llama mistral smollm3 granite granitemoe glm", "llama", "rms_norm_eps", 1e-6, "LlamaRMSNorm"),
    _row("qwen2 qwen2_moe qwen3 qwen3_moe", "llama", "rms_norm_eps", 1e-6, "Qwen2RMSNorm"),
    _row("mixtral phi3", "llama", "rms_norm_eps", 1e-5, "MixtralRMSNorm"),
    _row("glm4", "llama", "rms_norm_eps", 1.5625e-07, "Glm4RMSNorm"),
    _row(
        "deepseek_v2 deepseek_v3", "llama", "rms_norm_eps", 1e-6, "DeepseekV3RMSNorm",
        # they are made without an eps, so the class' own default counts and not the configuration
        _part(r"\.(q_a|kv_a)_layernorm$", "llama", 1e-6),
    ),
    _row("pixtral", "llama", 1e-5, 1e-5, "modeling_pixtral.py: PixtralRMSNorm with eps=1e-5 in the code"),
    _row("qwen2_vl", "llama", "rms_norm_eps", 1e-6, "Qwen2RMSNorm", _part(r"(^|\.)visual\.", _LN, 1e-6)),
    _row("mamba mamba2", "mamba", "layer_norm_epsilon", 1e-5, "MambaRMSNorm: an RMS norm, whatever the key is called"),
    _row("t5 mt5 umt5 longt5", "t5", "layer_norm_epsilon", 1e-6, "T5LayerNorm: an RMS norm, whatever it is called"),
    # RMSNorm that rounds after the scale
    _row("olmo2 olmo3", "olmo2", "rms_norm_eps", 1e-5, "Olmo2RMSNorm: rounds after the scale"),
    _row("gpt_oss", "olmo2", "rms_norm_eps", 1e-5, "GptOssRMSNorm: rounds after the scale"),
    _row(
        "gemma3n gemma3n_text", "olmo2", "rms_norm_eps", 1e-6, "Gemma3nRMSNorm: unlike Gemma 3 it multiplies by w",
        _part(r"multi_modal_projector|audio_tower|vision_tower", "olmo2", None),
    ),
    # RMSNorm that multiplies by 1 + w
    _row(
        "gemma gemma2 gemma3 gemma3_text recurrent_gemma vaultgemma", "gemma", "rms_norm_eps", 1e-6,
        "GemmaRMSNorm: multiplies by 1 + w",
        _part(r"multi_modal_projector", "gemma", None),
    ),
    _row("t5gemma t5_gemma_module", "gemma", "rms_norm_eps", 1e-6, "T5GemmaRMSNorm: multiplies by 1 + w"),
    _row(
        "qwen3_next qwen3_5 qwen3_5_text qwen4_exp", "gemma", "rms_norm_eps", 1e-6,
        "Qwen3NextRMSNorm: multiplies by 1 + w",
        # the gated norm of linear attention multiplies by w
        _part(r"linear_attn\.norm$", "llama", "rms_norm_eps"),
        _part(r"(^|\.)visual\.", _LN, 1e-6),
    ),
    # batch norm
    _row("resnet", "pytorch-batch", 1e-5, 1e-5, "modeling_resnet.py: a torch.nn.BatchNorm2d of default eps"),
    # timm says `architecture` where transformers says `model_type`
    _row("timm:vit timm:deit timm:beit", "vit-timm", 1e-6, 1e-6, "timm vision_transformer.py: eps in the code"),
    _row("timm:swin", _LN, 1e-5, 1e-5, "timm swin_transformer.py: a torch.nn.LayerNorm of default eps"),
    _row("timm:resnet timm:resnext", "pytorch-batch", 1e-5, 1e-5, "timm resnet.py: a BatchNorm2d of default eps"),
)  # fmt: skip

BY_TYPE: dict[str, Family] = {name: row for row in FAMILIES for name in row.types}

# Norms that are not called so: ConvNeXt's before each stage stand first in a Sequential.
SILENT: dict[str, re.Pattern[str]] = {"convnext": re.compile(r"downsampling_layer\.0$")}

# Keys under which a configuration of any architecture keeps an eps, and whether the word alone says RMS.
EPS_KEYS = {
    "rms_norm_eps": True,
    "layer_norm_eps": False,
    "layer_norm_epsilon": False,
    "layernorm_epsilon": False,
    "norm_eps": False,
    "norm_epsilon": False,
}

# A model of several has a configuration for each; the first words of a tensor's name say whose it is.
_SCOPES = (
    ("vision_config", re.compile(r"(?:^|\.)(?:visual|vision\w*|image_encoder|v)\.")),
    ("audio_config", re.compile(r"(?:^|\.)(?:audio\w*|a)\.")),
    ("text_config", re.compile(r"")),
)


def family_at(config: Mapping[str, Any], name: str) -> tuple[str, Family | None, Mapping[str, Any]]:
    """Say of which type the part of a model is that a tensor's name leads to, and give its configuration."""
    kind = type_of(config)
    for key, names in _SCOPES:
        within = config.get(key)
        if isinstance(within, dict) and names.search(name):
            inner = type_of(within) or kind
            if inner in BY_TYPE or key == "text_config":
                return inner, BY_TYPE.get(inner, BY_TYPE.get(kind)), within
            whole = BY_TYPE.get(kind)
            parts = whole is not None and any(part.names.search(name) for part in whole.parts)
            return (kind, whole, within) if parts else (inner, None, within)
        if names.search(name) and key != "text_config" and isinstance(config.get("text_config"), dict):
            break
    return kind, BY_TYPE.get(kind), config


def refutes(roles: Container[str], spec: NormSpec) -> bool:
    """Tell whether a norm with tensors of these roles cannot be of the kind that an architecture has: RMS with a shift.

    >>> refutes({"scale", "shift"}, VARIANTS["llama"])
    True
    """
    return "shift" in roles and spec.shift_axes is None and spec.centered is False


def type_of(config: Mapping[str, Any]) -> str:
    """Give the model type, "" where the configuration has none."""
    kind, timm = config.get("model_type"), config.get("architecture")
    if isinstance(kind, str):
        return kind
    return f"timm:{re.split(r'[_0-9]', timm)[0]}" if isinstance(timm, str) else ""


_LAYER_NAME = re.compile(r"layer_?norm(?:alization)?s?(?:_?\d+|_\w+)?$|^(?:\w+_)?ln(?:_?\d+|_\w+)?$", re.IGNORECASE)
_UNGROUPED = {"groups": None, "channel_axis": None, "group_order": None}
_RMS_NAME = re.compile(r"rms_?norm", re.IGNORECASE)
_GROUP_NAME = re.compile(r"group_?norm|(?:^|_)gn\d*$", re.IGNORECASE)


class _Claims:
    """A spec in the making: every field is unknown until something says it."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {f.name: UNKNOWN for f in dataclasses.fields(NormSpec) if f.name != "assumed"}
        self.evidence: dict[str, Evidence] = {}

    def say(self, source: Source, detail: str, **fields: Any) -> None:
        self.fields.update(fields)
        told = [name for name, value in fields.items() if value is not UNKNOWN or source == "unknown"]
        self.evidence.update(dict.fromkeys(told, Evidence(source, detail)))


def records(model: ModelFile) -> tuple[list[NormRecord], list[Unidentified]]:
    """Find the norms of a file by the names of its tensors, in the order in which they run.

    Tensors that belong to a layer which the file describes are left out.

    >>> records(ModelFile("m", "safetensors", {}))
    ([], [])
    """
    taken = {tensor.name for layer in model.layers for tensor in layer.tensors.values()}
    left = [tensor for name, tensor in model.tensors.items() if name not in taken]
    named, unidentified = named_norms(left, SILENT.get(type_of(model.config)))
    # without a convolution, what is normalized has no channels before its last axis
    flat = not any(map(_convolves, left))
    made = [
        _gguf_record(norm, model.config) if model.format == "gguf" else _record(norm, model.config, flat)
        for norm in named
    ]
    made += _nameless(model)
    names = frozenset(record.name for record in made)
    made = [dataclasses.replace(record, placement=by_name(record.name, names)) for record in made]
    # a state dict stands in the order of definition, which is mostly that of execution; other files are sorted
    if model.format != "pytorch" or type_of(model.config) in BY_TYPE:
        made.sort(key=lambda record: runs_at(record.name))
    return made, unidentified


def _record(norm: Named, config: Mapping[str, Any], flat: bool) -> NormRecord:
    claims = _Claims()
    kind, family, own = family_at(config, norm.name)
    if family is not None:
        _as_family_says(claims, norm, kind, family, own)
    else:
        _as_names_say(claims, norm, own, flat)
    return _finished(claims, norm)


def _as_family_says(claims: _Claims, norm: Named, kind: str, family: Family, config: Mapping[str, Any]) -> None:
    spec, eps = family.at(norm.name)
    skip = {"eps", "scale_axes", "shift_axes", "assumed"}
    said = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name not in skip}
    if "mean" in norm.tensors and spec.statistics != "stored":
        _as_names_say(claims, norm, config, False)
        return
    if refutes(norm.tensors, spec):  # then it is another model's configuration, and its eps says nothing either
        _as_names_say(claims, norm, {}, False)
        return
    claims.say("convention", f"{kind}: {family.source}", **said)
    along = spec.scale_axes if isinstance(spec.scale_axes, tuple) else spec.axes
    _say_affine(claims, norm, along)
    if isinstance(eps, str) and _number(config.get(eps)) is not None:
        claims.say("config", eps, eps=_number(config[eps]))
    elif isinstance(eps, str):
        claims.say("default", f"{kind}: {eps} where the configuration leaves it out", eps=family.default)
    elif eps is not None:
        claims.say("convention", f"{kind}: {family.source}", eps=eps)
    else:
        claims.say("unknown", f"{kind} takes it from elsewhere for this part of the model", eps=UNKNOWN)


def _as_names_say(claims: _Claims, norm: Named, config: Mapping[str, Any], flat: bool) -> None:
    """Claim of an unknown architecture what names, shapes and one key of a configuration prove, and no more."""
    if "mean" in norm.tensors:
        _as_batch(claims, norm, config)
        return
    key = next((key for key in EPS_KEYS if _number(config.get(key)) is not None), None)
    _say_affine(claims, norm, (-1,) if flat or _LAYER_NAME.search(norm.last) else UNKNOWN)
    annotated = {"a_2", "b_2"} & norm.words
    if annotated or ("shift" in norm.tensors and _LAYER_NAME.search(norm.last)):
        claims.say("name", f"{norm.last}, with a shift", centered=True, spread="std")
    elif _RMS_NAME.search(norm.last):
        claims.say("name", norm.last, centered=False, spread="rms")
    elif "shift" in norm.tensors:
        claims.say("convention", "a norm with a shift takes a mean off", centered=True, spread="std")
    elif key is not None and EPS_KEYS[key]:
        claims.say("config", f"{key}, and no norm has a shift", centered=False, spread="rms")
    if claims.fields["centered"] is not UNKNOWN:
        claims.say("convention", "a layer of the frameworks", ddof=0, eps_at="variance", statistics="input")
    if claims.fields["centered"] is True:
        claims.say("convention", "a scale is stored whole unless the architecture says 1 + w", scale_offset=0)
    if annotated:
        claims.say(
            "convention", "the Annotated Transformer: over its sample deviation + eps", ddof=1, eps_at="deviation"
        )
    several = len(next(iter(norm.tensors.values())).shape)
    if several > 1:
        axes = (-1,) if per_head(norm) else tuple(range(-several, 0))
        claims.say(
            "shape", "its parameters have several axes", axes=axes, groups=None, channel_axis=None, group_order=None
        )
    elif _LAYER_NAME.search(norm.last) or _RMS_NAME.search(norm.last):
        claims.say("name", norm.last, axes=(-1,), **_UNGROUPED)
    elif _GROUP_NAME.search(norm.last):
        claims.say(
            "name",
            norm.last,
            axes=("1:",),
            channel_axis=1,
            scale_axes=(1,),
            shift_axes=(1,) if "shift" in norm.tensors else None,
        )
    elif flat:
        claims.say(
            "structure", "the file has no convolution", axes=(-1,), groups=None, channel_axis=None, group_order=None
        )
    if key is not None:
        claims.say("config", key, eps=_number(config[key]))
    else:
        claims.say("unknown", "tensors and their names hold no eps", eps=UNKNOWN)


def _as_batch(claims: _Claims, norm: Named, config: Mapping[str, Any]) -> None:
    claims.say("name", "it keeps a mean and a variance", statistics="stored", centered=True, spread="std")
    claims.say(
        "convention", "batch normalization", axes=(0, "2:"), ddof=0, eps_at="variance", scale_offset=0, **_UNGROUPED
    )
    _say_affine(claims, norm, (1,))
    if _number(config.get("batch_norm_eps")) is not None:
        claims.say("config", "batch_norm_eps", eps=_number(config["batch_norm_eps"]))
    else:
        claims.say("unknown", "tensors and their names hold no eps", eps=UNKNOWN)


def _say_affine(claims: _Claims, norm: Named, along: Any) -> None:
    """Claim the axes of scale and shift, which the tensors show: as many as they have."""
    for field, role in (("scale_axes", "scale"), ("shift_axes", "shift")):
        tensor = norm.tensors.get(role)
        if tensor is None:
            claims.say("name", f"there is no {role}", **{field: None})
        elif len(tensor.shape) > 1:
            claims.say("shape", str(tensor.shape), **{field: tuple(range(-len(tensor.shape), 0))})
        else:
            claims.say("name", tensor.name, **{field: along})


def _gguf_record(norm: Named, config: Mapping[str, Any]) -> NormRecord:
    """A GGUF keeps one eps for all its norms, and the name of its key says of which kind they are."""
    claims = _Claims()
    arch = str(config.get("general.architecture", ""))
    if arch == "clip":
        arch = "clip.audio" if norm.name.startswith("a.") else "clip.vision"
    keys = {
        word: f"{arch}.attention.{word}"
        for word in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon")
    }
    rms, layer, group = (_number(config.get(key)) for key in keys.values())
    _say_affine(claims, norm, (-1,))
    claims.say(
        "convention",
        "ggml's norms are over the innermost axis",
        axes=(-1,),
        groups=None,
        channel_axis=None,
        group_order=None,
    )
    claims.say("convention", "ggml adds it under the root", eps_at="variance", ddof=0, statistics="input")
    claims.say("convention", "a GGUF stores 1 + w already added up", scale_offset=0)
    shift = "shift" in norm.tensors
    family = BY_TYPE.get(arch.removesuffix("encoder"))
    known_rms = family is not None and family.spec.centered is False
    if norm.name.startswith("posnet.") and group is not None:
        groups = config.get(f"{arch}.attention.group_norm_groups")
        claims.say("key", keys["group_norm_epsilon"], eps=group, centered=True, spread="std")
        claims.say("key", f"{arch}.attention.group_norm_groups", axes=("1:",), channel_axis=1, group_order="blocked",
                   groups=groups if type(groups) is int and groups > 0 else UNKNOWN)  # fmt: skip
        _say_affine(claims, norm, (1,))
    elif rms is not None and not shift and (layer is None or known_rms):
        claims.say("key", keys["layer_norm_rms_epsilon"], eps=rms, centered=False, spread="rms")
    elif layer is not None and (shift or rms is None):
        if known_rms and not shift:
            claims.say("convention", f"{arch}: {family.source if family else ''}", centered=False, spread="rms")
        else:
            claims.say("key", keys["layer_norm_epsilon"], centered=True, spread="std")
        claims.say("key", keys["layer_norm_epsilon"], eps=layer)
    elif rms is not None and shift:
        claims.say("key", keys["layer_norm_rms_epsilon"], eps=rms)
        claims.say(
            "unknown",
            f"{keys['layer_norm_rms_epsilon']} says RMS, and the shift says otherwise",
            centered=UNKNOWN,
            spread=UNKNOWN,
        )
    else:
        why = (
            "both keys are there, and nothing says which is this norm's"
            if rms is not None
            else "the file has no key for it"
        )
        claims.say("unknown", why, eps=UNKNOWN, centered=UNKNOWN, spread=UNKNOWN)
    return _finished(claims, norm)


def _finished(claims: _Claims, norm: Named) -> NormRecord:
    spec = NormSpec(**claims.fields)
    first = next(iter(norm.tensors.values()))
    scale = norm.tensors.get("scale", first)
    size: int | Unknown = UNKNOWN
    if spec.groups is None and spec.axes == (-1,):
        size = scale.shape[-1]
    elif spec.groups is None and spec.axes == spec.scale_axes and isinstance(spec.axes, tuple) and spec.axes[0] != 1:
        size = scale.size
    dtype = scale.dtype if "float" in scale.dtype else "unknown"
    held: dict[str, Any] = dict(norm.tensors)
    return NormRecord(norm.name, norm.where, "named", spec, claims.evidence, dtype, size, **held)


def _nameless(model: ModelFile) -> list[NormRecord]:
    """Make records of norms without scale and shift, which an architecture has and no tensor shows."""
    kind, family, config = family_at(model.config, "")
    if family is None or not family.nameless or model.format == "gguf":
        return []
    blocks = sorted({int(n) for name in model.tensors for n in re.findall(r"^model\.layers\.(\d{1,6})\.", name)})
    claims = _Claims()
    spec = family.spec
    said = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name != "assumed"}
    claims.say("convention", f"{kind}: {family.source}", **said)
    width = config.get("hidden_size")
    size = width if type(width) is int and width > 0 else UNKNOWN
    names = [pattern.format(block) for block in blocks for pattern in family.nameless if "{}" in pattern]
    names += [pattern for pattern in family.nameless if "{}" not in pattern] if blocks else []
    where = f"{kind}: {family.source}"
    return [NormRecord(name, where, "named", spec, claims.evidence, "unknown", size) for name in names]


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 else None
    )


def _convolves(tensor: Tensor) -> bool:
    # tables of positions and stacks of experts have three axes too, but are not called so
    return len(tensor.shape) >= 4 or (len(tensor.shape) == 3 and tensor.name.endswith(("weight", "kernel")))
