# SPDX-License-Identifier: MIT
"""This file turns what a person names into a Target: an implementation known here, a function, or an ONNX file."""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from layernorm.conformance.targets import Array, Gradients, Norm, Target, checked_spec, printable, told
from layernorm.spec.errors import ArgumentError, LayerNormError, MissingExtraError, NotFoundError, UnsupportedError
from layernorm.spec.norm_spec import NormSpec
from layernorm.spec.variants import named

# What every implementation is graded with unless told otherwise, so that they stand side by side.
EPS: dict[Norm, float] = {"layer": 1e-5, "rms": 1e-6}
# Protobuf reads no message beyond it.
LARGEST_FILE = 2**31
TYPES = ("float16", "bfloat16", "float32", "float64")
NORM_NODES = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


@dataclass(frozen=True)
class Known:
    """One implementation: who makes its target (`file:function` of `implementations`), and what it is."""

    maker: str
    what: str
    norms: tuple[Norm, ...] = ("layer", "rms")

    def target(self, norm: Norm, eps: float) -> Target:
        """Make the target; this is where its framework is imported."""
        file, function = self.maker.split(":")
        made: Callable[[Norm, float], Target] = getattr(
            import_module(f"layernorm.conformance.implementations.{file}"), function
        )
        return made(norm, eps)


KNOWN: dict[str, Known] = {
    "layernorm": Known("own:kernels", "this package: layer_norm, rms_norm"),
    "layernorm-reference": Known("own:definition", "this package's definition, in float64"),
    "numpy": Known("textbook:two_pass", "the two-pass formula, as people write it in NumPy"),
    "torch": Known("pytorch:eager", "torch.nn.functional.layer_norm, rms_norm"),
    "torch-compile": Known("pytorch:compiled", "the same through torch.compile"),
    "jax": Known("xla:standardize", "jax.nn.standardize, with gamma and beta applied to what it gives", ("layer",)),
    "flax": Known("xla:flax", "flax.linen.LayerNorm, RMSNorm"),
    "keras": Known("xla:keras", "keras.layers.LayerNormalization, RMSNormalization"),
    "onnxruntime": Known("onnx_nodes:onnxruntime", "ONNX LayerNormalization, RMSNormalization in ONNX Runtime"),
    "onnxruntime-expanded": Known(
        "onnx_nodes:expanded", "their function bodies, node by node, in ONNX Runtime unoptimized"
    ),
    "onnx-reference": Known("onnx_nodes:reference", "the same operators in onnx.reference"),
    "openvino": Known("onnx_nodes:openvino", "the same operators in OpenVINO, with its hint for accuracy"),
}


def known(name: str, norm: Norm = "layer", eps: float | None = None) -> Target:
    """Make the target of a known name.

    Raises:
        NotFoundError: no implementation is known by it.
        UnsupportedError: it has no such norm.
        MissingExtraError: it is not installed.

    >>> known("numpy").spec.eps
    1e-05
    """
    if name not in KNOWN:
        raise NotFoundError(f"{name}: no target is known by this name; {_near(name)}", name)
    if norm not in KNOWN[name].norms:
        raise UnsupportedError(f"{name} has no {norm} norm; it has {' and '.join(KNOWN[name].norms)}.", name)
    return KNOWN[name].target(norm, EPS[norm] if eps is None else eps)


def installed(norm: Norm = "layer", eps: float | None = None) -> tuple[dict[str, Target], dict[str, str]]:
    """Make every known target that can be made here, and say of the others why not."""
    made, missing = {}, {}
    for name, row in KNOWN.items():
        if norm in row.norms:
            try:
                made[name] = known(name, norm, eps)
            except (MissingExtraError, UnsupportedError) as fault:
                missing[name] = str(fault)
    return made, missing


def resolve(name: str, norm: Norm | None = None, variant: str | None = None) -> Target:
    """Find what a name means: a known target, `module:function`, or the path of an ONNX file.

    Args:
        name: what was asked for.
        norm: which norm of a known target; layer unless told.
        variant: the row of VARIANTS that a function computes; its attribute `norm_spec`, or `layer`, unless told.

    Raises:
        NotFoundError: it names nothing.
        UnsupportedError: it names what cannot be graded.
        MissingExtraError: what it names is not installed.
        ArgumentError: an option does not go with it, or the module cannot be imported.
    """
    if name in KNOWN:
        if variant is not None:
            raise ArgumentError(f"--spec says what a function computes, and {name} says it itself; use --norm.")
        return known(name, norm or "layer")
    if name.endswith(".py"):
        raise ArgumentError(f"{name}: a file of Python may hold several functions; name one, {name}:function.", name)
    if name.endswith(".onnx") or _is_file(name):
        if norm is not None or variant is not None:
            raise ArgumentError(f"{name}: the file says which norm it holds; leave --norm and --spec out.")
        return onnx_file(Path(name))
    module, colon, attribute = name.rpartition(":")  # a path on Windows has a colon of its own
    if not (colon and module and attribute):
        raise NotFoundError(
            f"{name}: neither a known target, a module:function, a FILE.py:function nor an ONNX file; {_near(name)}",
            name,
        )
    if norm is not None:
        raise ArgumentError(f"--norm chooses among a known target's norms; say with --spec what {name} computes.")
    return _imported(name, module, attribute, variant)


def of_function(
    function: Callable[..., Array],
    spec: NormSpec | str,
    *,
    name: str | None = None,
    backward: Callable[..., Any] | None = None,
    dtypes: tuple[str, ...] = ("float32",),
    version: str | None = None,
) -> Target:
    """Wrap a function of x, gamma, beta on NumPy arrays that computes a spec, or the row of VARIANTS so named.

    Raises:
        UnsupportedError: the spec is of a norm that is not graded.
        ArgumentError: what should be a function is none, or a type is unheard of.
        NotFoundError: no row of VARIANTS is so named.
    """
    said = str(name or getattr(function, "__qualname__", type(function).__name__))
    for what, value in (("the target", function), ("backward", backward)):
        if value is not None and not callable(value):
            raise ArgumentError(f"{what} is a {type(value).__name__}; pass a function.", said)
    taken = tuple(dtypes) if isinstance(dtypes, Iterable) and not isinstance(dtypes, str) else ()
    if not taken or any(not isinstance(d, str) or d not in TYPES for d in taken):
        raise ArgumentError(f"dtypes={dtypes!r} is not a tuple of {', '.join(TYPES)}; name those it takes.", said)

    # what has no defaults of its own is called in full
    def forward(x: Array, gamma: Array | None = None, beta: Array | None = None) -> Array:
        return function(x, gamma, beta)

    def gradients(dy: Array, x: Array, gamma: Array | None = None) -> Gradients:
        assert backward is not None
        found: Gradients = backward(dy, x, gamma)
        return found

    given = None if backward is None else gradients
    return Target(said, version, checked_spec(named(spec)), forward, given, tuple(dict.fromkeys(taken)))


def onnx_file(path: Path) -> Target:
    """Wrap the one norm node of an ONNX file, as ONNX Runtime runs it.

    Raises:
        NotFoundError: there is no such file.
        UnsupportedError: it is no ONNX file, or does not hold exactly one such node over the last axis, or no runtime
            could run that.
    """
    from layernorm.conformance.implementations.onnx_nodes import (
        OPSETS,
        OWN_DOMAIN,
        Node,
        node_attributes,
        onnxruntime_node,
    )
    from layernorm.conformance.implementations.packages import needed

    if not path.is_file():
        raise NotFoundError(f"{path}: there is no such file.", str(path))
    if path.stat().st_size > LARGEST_FILE:
        raise UnsupportedError(f"{path} is larger than 2 GiB, which no ONNX model is; name another file.", str(path))
    onnx = needed("onnx")
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as fault:  # protobuf's DecodeError has moved between its releases
        raise UnsupportedError(f"{path}: not an ONNX model; a file to grade holds one norm node.", str(path)) from fault
    nodes = [n for n in model.graph.node if n.op_type in NORM_NODES]
    if len(nodes) != 1:
        raise UnsupportedError(
            f"{path} holds {len(nodes)} nodes of {', '.join(sorted({n.op_type for n in nodes}) or NORM_NODES)}; cut "
            "out the one to grade, with onnx.utils.extract_model.", str(path)
        )  # fmt: skip
    node = nodes[0]
    norm: Norm = "layer" if node.op_type == "LayerNormalization" else "rms"
    opset = next((o.version for o in model.opset_import if o.domain in OWN_DOMAIN), OPSETS[norm])
    try:
        attributes = node_attributes(onnx, node, opset)
    except UnsupportedError as fault:
        raise UnsupportedError(f"{path}: its {node.op_type} {fault}", str(path)) from None
    axis = attributes.get("axis", -1)
    values = (*model.graph.input, *model.graph.value_info)
    ranks = {
        i.name: len(i.type.tensor_type.shape.dim) for i in values if i.type.tensor_type.HasField("shape")
    }  # fmt: skip
    if axis != -1 and axis != ranks.get(node.input[0], 0) - 1:
        rank = ranks.get(node.input[0], "an unsaid number of")
        raise UnsupportedError(
            f"{path}: its norm has axis={axis} of {rank} axes; only norms of the last axis are graded.", str(path)
        )  # fmt: skip
    # the shortest decimal that reads back as the float32 in the file
    eps = float(f"{attributes.get('epsilon', 1e-5):.8g}")
    made = Node(node.op_type, opset, attributes | {"axis": -1})
    return onnxruntime_node(f"{path}: its {node.op_type}, alone in ONNX Runtime", norm, eps, made)


def _imported(name: str, module: str, attribute: str, variant: str | None) -> Target:
    path = Path(module) if module.endswith(".py") else None
    if path is not None and not _is_file(module):
        raise NotFoundError(f"{name}: there is no file {module}; give its path, or the module's name.", name)
    here = str(Path.cwd() if path is None else path.absolute().parent)
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` and `python FILE` do, so that what lies beside is found
    with _blamed(name, f"importing {module}"):
        try:
            found: Any = import_module(module) if path is None else _run(path)
        except ModuleNotFoundError as fault:
            missing = f"{name}: there is no module {fault.name}; run it where it can be imported."
            raise NotFoundError(missing, name) from None
    for part in attribute.split("."):
        with _blamed(name, f"looking for {part}"):
            if not hasattr(found, part):
                near = difflib.get_close_matches(part, dir(found), 3)
                hint = f"did you mean {' or '.join(near)}?" if near else "name a function of it."
                raise NotFoundError(f"{name}: {module} has no {part}; {hint}", name)
            found = getattr(found, part)
    if isinstance(found, Target):
        return replace(found, name=name)
    with _blamed(name, f"reading the attributes of {attribute}"):
        said = getattr(found, "norm_spec", "layer") if variant is None else variant
        return of_function(
            found, said, name=name, version=_version(module if path is None else path.stem),
            backward=getattr(found, "norm_backward", None), dtypes=getattr(found, "norm_dtypes", ("float32",)),
        )  # fmt: skip


@contextlib.contextmanager
def _blamed(name: str, what: str) -> Iterator[None]:
    """Refuse a name whose own code raises, sys.exit() included."""
    try:
        yield
    except (LayerNormError, KeyboardInterrupt):
        raise
    except BaseException as fault:
        raise ArgumentError(f"{name}: {what} failed: {told(fault)}", name) from fault


def _run(path: Path) -> ModuleType:
    """Import a file by its path, under its own name unless that is taken."""
    made = spec_from_file_location(path.stem, path)
    if made is None or made.loader is None:
        raise ImportError(f"{path} is no file of Python")
    module = module_from_spec(made)
    sys.modules.setdefault(path.stem, module)  # where its classes are looked for
    made.loader.exec_module(module)
    return module


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a name too long for the system
        return False


def _version(module: str) -> str | None:
    said = getattr(sys.modules.get(module.partition(".")[0]), "__version__", None)
    return printable(said) if isinstance(said, str) else None


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, KNOWN, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(KNOWN)}."
