# SPDX-License-Identifier: MIT
"""This file reads Keras models, .keras and .h5: a configuration says every norm's settings, HDF5 has the numbers."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layernorm.models.formats.archive import Archive
from layernorm.models.formats.hdf5 import Hdf5
from layernorm.models.model_file import Layer, ModelFile, Tensor
from layernorm.spec.errors import FileError
from layernorm.spec.files import opened

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
NORMS = ("LayerNormalization", "RMSNormalization", "GroupNormalization", "BatchNormalization", "UnitNormalization")
# The same layer under other names; tensorflow_addons' instance norm is its group norm with a group a channel.
ADDONS_INSTANCE = "Addons>InstanceNormalization"
ALIASES = {
    "SyncBatchNormalization": "BatchNormalization",
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "Addons>GroupNormalization": "GroupNormalization",
    ADDONS_INSTANCE: "GroupNormalization",
}
# These normalize weights, or data by what was known of it before training.
OTHERS = ("SpectralNormalization", "WeightNormalization", "Normalization")
ROLES = {"gamma": "scale", "scale": "scale", "beta": "shift", "moving_mean": "mean", "moving_variance": "variance"}
# What mixed precision computes in; a layer's own type otherwise.
POLICIES = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
# What leaves an array as many axes as it has.
RANK_KEEPING = ("Dense", "Activation", "ReLU", "LeakyReLU", "PReLU", "ELU", "Softmax", "Dropout", "GaussianNoise",
                "Rescaling", "Normalization")  # fmt: skip
NORMLIKE = re.compile(r"(layer|batch|group|instance|rms)_?norm", re.IGNORECASE)


def recognizes(path: Path, head: bytes) -> bool:
    """Tell whether it is HDF5, a .keras archive, or a folder of what such an archive holds."""
    if path.is_dir():
        return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()
    return head.startswith(HDF5_SIGNATURE) or path.suffix.lower() in (".keras", ".h5", ".hdf5")


def read(path: Path) -> ModelFile:
    """Read a model's layers and where their parameters lie.

    Raises:
        FileError: it is no Keras model, is damaged, or lies about itself.
        MissingExtraError: h5py is not installed.
    """
    if path.is_dir():
        with opened(path / CONFIG) as file:
            config = file.read()
        return _model(path, config, Hdf5(path / WEIGHTS))
    with opened(path) as file:
        zipped = file.read(4).startswith(b"PK")
    if not zipped:
        weights = Hdf5(path)
        text = weights.attributes.get("", {}).get("model_config")
        return _model(path, None if text is None else str(text).encode(), weights, legacy=True)
    archive = Archive(path)
    if WEIGHTS not in archive.names():
        raise FileError(
            f"{path}: it holds {', '.join(sorted(archive.names())[:4])} and no {WEIGHTS}; save it by model.save(), "
            "whose weights are HDF5.", str(path),
        )  # fmt: skip
    return _model(path, archive.read(CONFIG), Hdf5(path, WEIGHTS))


@dataclass(frozen=True)
class _Place:
    """One object of a configuration: its class and settings, its names from the outside in, where its weights lie."""

    kind: str
    said: Mapping[str, Any]
    config: Mapping[str, Any]
    names: tuple[str, ...]
    weights: str
    training: bool
    shape: list[Any] | None


def _model(path: Path, text: bytes | None, weights: Hdf5, legacy: bool = False) -> ModelFile:
    tensors = {name: weights.tensor(name) for name in weights.arrays}
    config = {} if text is None else _json(path, text)
    layers: list[Layer] = []
    notes: list[str] = []
    claimed: set[str] = set()
    seen: set[tuple[Any, ...]] = set()
    find = _legacy_arrays if legacy else _arrays
    for place in _places(config):
        shared = place.said.get("shared_object_id")
        key = (place.kind, shared, *place.names[-1:])
        if shared is not None and isinstance(shared, (int, str)) and place.kind in NORMS:
            if key in seen:  # one layer, met again inside another model
                continue
            seen.add(key)
        if place.kind not in NORMS:
            if "norm" in place.kind.lower() and place.kind not in OTHERS:
                notes.append(
                    f"layer {'/'.join(place.names)} is a {place.kind}, a class that is not Keras' own: the file says "
                    "its settings, not what it computes; look into its code."
                )
            continue
        found = find(weights, place)
        claimed |= set(found.values())
        if missing := [role for role in _roles(place.kind, place.config) if role not in found]:
            notes.append(
                f"layer {'/'.join(place.names)}: its {' and '.join(missing)} cannot be told among the file's arrays."
            )
        layers.append(_layer(place, {role: weights.tensor(name, together=True) for role, name in found.items()}))
    notes += _leftovers(weights, claimed, bool(config))
    return ModelFile(str(path), "keras", tensors, config, None, tuple(layers), tuple(notes))


def _json(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: its configuration is no JSON ({error}); save the model again.", str(path)) from None
    if not isinstance(found, dict):
        raise FileError(f"{path}: its configuration is a {type(found).__name__}; save the model again.", str(path))
    return found


def _places(config: Mapping[str, Any]) -> Iterator[_Place]:
    """Walk a configuration in the order of its layers, whatever holds them: models, wrappers, lists of cells."""
    waiting: list[tuple[Any, tuple[str, ...], str, bool, int | None]] = [(config, (), "", False, None)]
    while waiting:
        said, names, weights, training, rank = waiting.pop()
        inner = said.get("config")
        kind = _kind(said)
        if isinstance(inner, list):  # a Sequential of Keras before 2.2
            inner = {"layers": inner}
        if not isinstance(inner, dict):
            continue
        training = _training(said, training)
        settings = inner | {"groups": -1} if kind == ADDONS_INSTANCE else inner
        shape = _shape(said) or (None if rank is None else [None] * rank)
        yield _Place(ALIASES.get(kind, kind), said, settings, names, weights, training, shape)
        children: list[tuple[Any, tuple[str, ...], str, bool, int | None]] = []
        ranks = _ranks(inner["layers"]) if kind == "Sequential" and isinstance(inner.get("layers"), list) else {}
        for key, value in inner.items():
            step = "forward_layer" if kind == "Bidirectional" and key == "layer" else key
            for child, path in _objects(value, f"{weights}/{step}" if weights else step):
                own = child["config"].get("name") if isinstance(child["config"], dict) else None
                children.append(
                    (child, (*names, own) if isinstance(own, str) else names, path, training, ranks.get(id(child)))
                )
        waiting += reversed(children)


def _objects(value: Any, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Give the objects that a setting holds, each with the path that Keras saves its weights under."""
    if _is_object(value):
        yield value, path
    elif isinstance(value, list):
        counts: dict[str, int] = {}
        for item in value:
            if _is_object(item):
                snake = _snake(str(item["class_name"]).rpartition(">")[2])
                count = counts.get(snake, 0)
                counts[snake] = count + 1
                yield item, f"{path}/{snake}_{count}" if count else f"{path}/{snake}"


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and "class_name" in value and "config" in value


def _kind(said: Mapping[str, Any]) -> str:
    """Name a class; one that is not Keras' own keeps its package, so that it is not taken for its namesake.

    >>> _kind({"class_name": "RMSNormalization", "module": "mine", "registered_name": None})
    'mine>RMSNormalization'
    """
    name, module = said.get("registered_name") or said.get("class_name"), said.get("module")
    if not isinstance(name, str):
        return ""
    strange = isinstance(module, str) and module.partition(".")[0] not in ("keras", "tf_keras", "tensorflow")
    return f"{module}>{name}" if strange and ">" not in name else name


def _snake(name: str) -> str:
    """Write a class's name as Keras does in the paths of weights.

    >>> _snake("RMSNormalization"), _snake("Conv2DTranspose")
    ('rms_normalization', 'conv2d_transpose')
    """
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _training(said: Mapping[str, Any], inherited: bool) -> bool:
    """Tell whether a layer is called with training=True, itself or by the model around it."""
    nodes = said.get("inbound_nodes")
    for node in nodes if isinstance(nodes, list) else ():
        calls = [node.get("kwargs")] if isinstance(node, dict) else []
        if isinstance(node, list):  # [name, node, tensor, {arguments}] for each input, before Keras 3
            calls = [call[3] for call in node if isinstance(call, list) and len(call) > 3]
        for call in calls:
            if isinstance(call, dict) and isinstance(call.get("training"), bool):
                return bool(call["training"])
    return inherited


def _shape(said: Mapping[str, Any]) -> list[Any] | None:
    """Give the shape that a layer was built for, or that of what it is called on; None if the file says neither."""
    built, nodes = said.get("build_config"), said.get("inbound_nodes")
    found = built.get("input_shape") if isinstance(built, dict) else None
    if not isinstance(found, list) and isinstance(nodes, list) and nodes and isinstance(nodes[0], dict):
        given = nodes[0].get("args")
        given = given[0] if isinstance(given, list) and given else None
        tensor = given.get("config") if isinstance(given, dict) else None
        found = tensor.get("shape") if isinstance(tensor, dict) else None
    return found if isinstance(found, list) else None


def _ranks(layers: list[Any]) -> dict[int, int | None]:
    """Count the axes of what each layer of a chain is called on, as far as the classes before it tell."""
    ranks: dict[int, int | None] = {}
    rank: int | None = None
    for layer in layers:
        config = layer.get("config") if isinstance(layer, dict) else None
        if not isinstance(config, dict):
            rank = None
            continue
        said = next((config[k] for k in ("batch_shape", "batch_input_shape") if isinstance(config.get(k), list)), None)
        ranks[id(layer)] = rank = rank if said is None else len(said)
        kind = _kind(layer)
        if kind.startswith("Global") or kind == "Flatten":
            rank = 2
        elif dimensions := re.search(r"([123])D(Transpose)?$", kind):
            rank = int(dimensions[1]) + 2
        elif kind not in ("InputLayer", *NORMS, *RANK_KEEPING):
            rank = None
    return ranks


def _layer(place: _Place, tensors: Mapping[str, Tensor]) -> Layer:
    config = place.config
    settings = {k: v for k, v in config.items() if k not in ("name", "dtype") and not isinstance(v, dict)}
    if place.shape is not None:
        settings["input_shape"] = place.shape  # None for a length that is not known
    frozen = config.get("trainable") is False  # such a batch norm uses what it stored, however it is called
    return Layer(
        framework="keras",
        kind=place.kind,
        name="/".join(place.names) or place.kind,
        where=f"configuration of layer {'/'.join(place.names)}",
        settings=settings,
        tensors=tensors,
        dtype=_dtype(config.get("dtype")),
        training=place.kind == "BatchNormalization" and place.training and not frozen,
    )


def _dtype(said: Any) -> str:
    """Take the type that a layer computes in from its `dtype`: a name, or a policy that holds one."""
    if isinstance(said, dict):
        inner = said.get("config")
        said = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(said, str):
        return "float32"
    name = said.rpartition("_from_")[2]  # int8_from_float32 quantizes kernels, not norms
    return POLICIES.get(name, name)


def _roles(kind: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """List a norm's parameters in the order in which Keras makes and saves them."""
    if kind == "UnitNormalization":
        return ()
    if kind == "RMSNormalization":
        return ("scale",)
    rms = kind == "LayerNormalization" and bool(config.get("rms_scaling", False))
    scale = ("scale",) if config.get("scale", True) or rms else ()
    shift = ("shift",) if config.get("center", True) and not rms else ()
    return (*scale, *shift, *(("mean", "variance") if kind == "BatchNormalization" else ()))


def _arrays(weights: Hdf5, place: _Place) -> dict[str, str]:
    """Find a norm's arrays in the layout of .keras: numbered, in a group `vars` at the layer's own path."""
    roles = _roles(place.kind, place.config)
    own = place.names[-1] if place.names else ""
    # until Keras 2.13 the list of layers bore another name
    paths = [place.weights, place.weights.replace("layers/", "_layer_checkpoint_dependencies/")]
    named = [g.removesuffix("/vars") for g, said in weights.attributes.items() if said.get("name") == own and own]
    paths += named if len(named) == 1 else []
    for path in paths:
        group = f"{path}/vars"
        said = weights.attributes.get(group, {}).get("name", own)
        found = {role: f"{group}/{i}" for i, role in enumerate(roles) if f"{group}/{i}" in weights.arrays}
        if said == own and len(found) == len(roles):
            return found
    return {}


def _legacy_arrays(weights: Hdf5, place: _Place) -> dict[str, str]:
    """Find a norm's arrays in the layout of .h5: a group for each layer of the model, with a list of names inside."""
    top = f"model_weights/{place.names[0]}" if place.names else ""
    best: dict[str, tuple[int, list[str]]] = {}
    for name in _weight_names(weights.attributes.get(top, {})):
        array = f"{top}/{name}"
        *owners, last = name.split("/")
        role = ROLES.get(last.partition(":")[0])
        if role is None or array not in weights.arrays:
            continue
        common = 0
        for ours, theirs in zip(reversed(place.names), reversed(owners), strict=False):
            if ours != theirs:
                break
            common += 1
        length, arrays = best.get(role, (-1, []))
        if common >= length:
            best[role] = (common, [*(arrays if common == length else []), array])
    roles = _roles(place.kind, place.config)
    return {role: arrays[0] for role, (_, arrays) in best.items() if role in roles and len(arrays) == 1}


def _weight_names(said: Mapping[str, Any]) -> Iterator[str]:
    """Read a list of names, which is cut into pieces where it would not fit."""
    pieces = sorted((k for k in said if k.startswith("weight_names")), key=lambda k: int(k[12:] or 0))
    for piece in pieces:
        names = said[piece] if isinstance(said[piece], list) else [said[piece]]
        yield from (name for name in names if isinstance(name, str))


def _leftovers(weights: Hdf5, claimed: set[str], configured: bool) -> Iterator[str]:
    """Say why parameters that look like a norm's, and that no layer of the configuration claims, are not listed."""
    groups: dict[str, None] = {}
    for name in weights.arrays:
        if name not in claimed and not name.startswith(("optimizer", "model_weights/optimizer")):
            owner = name.rpartition("/")[0]
            own = str(weights.attributes.get(owner, {}).get("name", ""))
            path = owner.removesuffix("/vars")
            if NORMLIKE.search(f"{path.rpartition('/')[2]} {own}"):
                groups.setdefault(path)
    for path in groups:
        yield (
            f"{path}: parameters of what looks like a norm; "
            + ("it is made inside another layer, so the configuration does not say its settings." if configured else
               "the file holds weights without a configuration, which alone says axes and epsilon: use model.save().")
        )  # fmt: skip
