# SPDX-License-Identifier: MIT
"""This file runs every implementation that can be named on ordinary input, where all of them must agree."""

import sys
import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

from layernorm.conformance.implementations import packages
from layernorm.conformance.inputs import Case
from layernorm.conformance.known import KNOWN, installed, known, of_function, onnx_file, resolve
from layernorm.conformance.measure import exact_of, parameters_of
from layernorm.conformance.oracle import backward, error
from layernorm.conformance.targets import Target
from layernorm.spec.errors import (
    ArgumentError,
    LayerNormError,
    MissingExtraError,
    NotFoundError,
    UnsupportedError,
)
from layernorm.spec.norm_spec import NormSpec
from layernorm.spec.variants import VARIANTS

# torch.compile takes some 20 s of C++ for all of this; it has one test of its own, and the scoreboard grades it
HERE = [(name, norm) for name, row in KNOWN.items() for norm in row.norms if name != "torch-compile"]
# On ordinary rows: a few roundings of the narrowest type in which any of them computes, of values up to 16 in size.
NEAR = {"float16": 3e-2, "bfloat16": 3e-1, "float32": 2e-5, "float64": 2e-5}


@pytest.fixture(scope="module", params=HERE, ids=lambda p: f"{p[0]}-{p[1]}")
def target(request):
    return known(*request.param)


def test_it_computes_what_its_spec_says_in_every_type_it_takes(target):
    for dtype in target.dtypes:
        for affine in ("none", "gamma", "beta", "both") if dtype == "float32" else ("both",):
            case = Case(48, rows=5, dtype=dtype, affine=affine)
            gamma, beta = parameters_of(target, case)
            y = target.forward(case.x, gamma, beta)
            assert (y.dtype, y.shape) == (case.x.dtype, case.x.shape)
            assert error(y, exact_of(target, case.x, gamma, beta).y).max() < NEAR[dtype], (dtype, affine)


def test_it_gives_the_gradients_of_it(target):
    if target.backward is None:
        pytest.skip(f"{target.name} gives no gradients")
    for dtype in target.dtypes:
        case = Case(48, rows=5, dtype=dtype, affine="gamma")
        found = target.backward(case.dy, case.x, case.gamma)
        exact = backward(case.dy, case.x, case.gamma, target.eps, target.centered)
        assert all(error(a, b).max() < NEAR[dtype] for a, b in zip(found, exact, strict=False) if a is not None)
        assert found[2] is not None or target.spec.shift_axes is None
        assert target.backward(case.dy, case.x)[1] is None


def test_it_takes_views_and_any_number_of_axes_without_a_warning(target):
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    views = [x[::-1, ::-1], x.T, np.broadcast_to(x[0], (3, 8)), x.reshape(2, 3, 8), x[0], x.astype(">f4")[::2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for view in views[: None if target.takes_views else 5]:
            y = target.forward(view)
            plain = target.forward(np.ascontiguousarray(view.astype(np.float32)))
            np.testing.assert_allclose(y.astype(np.float32), plain, atol=1e-5)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_torch_compile_computes_what_its_spec_says(norm):
    try:
        target = known("torch-compile", norm)
    except MissingExtraError as fault:
        pytest.skip(str(fault))
    case = Case(48, rows=5, affine="gamma")
    y = target.forward(case.x, case.gamma)
    assert error(y, exact_of(target, case.x, case.gamma).y).max() < NEAR["float32"]


def test_it_says_who_it_is(target):
    assert target.version
    assert target.spec.unknown() == ()
    if target.set_threads is not None:
        target.set_threads(1)
        assert target.forward(np.ones((2, 4), np.float32)).shape == (2, 4)
        target.set_threads(2)


def test_a_wrong_answer_is_seen(target):
    case = Case(48, rows=5)
    y = target.forward(case.x) * np.float32(1.001)
    assert error(y, exact_of(target, case.x).y).max() > NEAR["float32"]


def test_what_cannot_be_made_is_listed_with_what_to_install(monkeypatch):
    rows = {name: KNOWN[name] for name in ("numpy", "openvino")}
    monkeypatch.setattr("layernorm.conformance.known.KNOWN", rows)
    monkeypatch.setitem(sys.modules, "openvino", None)
    made, missing = installed()
    assert list(made) == ["numpy"]
    assert missing == {"openvino": "openvino is not installed; pip install openvino."}


def test_a_compiler_that_does_not_work_is_one_sentence(monkeypatch):
    import torch

    def broken(function, **_):
        def run(*_):
            raise RuntimeError("no g++ here\nand a long trace")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(MissingExtraError) as caught:
        known("torch-compile")
    assert str(caught.value) == (
        "torch.compile cannot compile here (no g++ here); install a C++ compiler such as g++."
    )  # fmt: skip


def test_a_package_that_lacks_another_or_is_broken_says_which(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_installed.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "quite_broken.py").write_text("raise ImportError('bad magic')\n")
    with pytest.raises(MissingExtraError, match=r"lacks no_such_thing_at_all; pip install no_such_thing_at_all\.$"):
        packages.needed("half_installed")
    with pytest.raises(MissingExtraError, match=r"^quite_broken cannot be imported: bad magic; install it anew\.$"):
        packages.needed("quite_broken")
    assert packages.version("no_such_thing_at_all") is None


MODULE = """
import numpy as np
from layernorm.conformance.targets import Target
from layernorm.spec.norm_spec import NormSpec
__version__ = "7"
def plain(x, gamma=None, beta=None):
    return x
def marked(x, gamma=None, beta=None):
    return x
marked.norm_spec = "rms"
marked.norm_dtypes = ("float32", "float64")
marked.norm_backward = plain
class Kept:
    made = Target("whatever", "8", NormSpec(), plain)
number = 3
def unsure(x, gamma=None, beta=None):
    return x
unsure.norm_spec = {}
def narrow(x, gamma=None, beta=None):
    return x
narrow.norm_dtypes = float
def __getattr__(name):
    if name == "trap":
        raise RuntimeError("a\\n\\x1b[31mtrap")
    raise AttributeError(name)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "some_kernels.py").write_text(MODULE)
    (tmp_path / "some.txt").write_text(MODULE)
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("some_kernels", None)


def test_a_function_is_found_in_the_folder_one_stands_in(here):
    plain = resolve("some_kernels:plain")
    assert (plain.name, plain.version, plain.spec) == ("some_kernels:plain", "7", VARIANTS["layer"])
    assert resolve("some_kernels:plain", variant="bert").eps == 1e-12
    marked = resolve("some_kernels:marked")
    assert (marked.spec, marked.dtypes) == (VARIANTS["rms"], ("float32", "float64"))
    assert marked.backward(1, 2, 3) == 1
    assert resolve("some_kernels:marked", variant="layer").spec == VARIANTS["layer"]
    kept = resolve("some_kernels:Kept.made")
    assert isinstance(kept, Target)
    assert (kept.name, kept.version) == ("some_kernels:Kept.made", "8")


def test_of_function_keeps_what_it_is_given():
    made = of_function(np.negative, NormSpec(eps=1e-3), name="neg", dtypes=("float64",))
    assert (made.name, made.eps, made.dtypes, made.version) == ("neg", 1e-3, ("float64",), None)


SENTENCES = {
    "no name": (("torhc",), NotFoundError, "torhc: neither a known target, a module:function, a FILE.py:function nor an ONNX file; did you mean torch?"),
    "no file": (("gone.onnx",), NotFoundError, "gone.onnx: there is no such file."),
    "no file of a function": (("./nowhere.py:f",), NotFoundError, "./nowhere.py:f: there is no file ./nowhere.py; give its path, or the module's name."),
    "no function of a file": (("known.py",), ArgumentError, "known.py: a file of Python may hold several functions; name one, known.py:function."),
    "no module": (("nowhere:f",), NotFoundError, "nowhere:f: there is no module nowhere; run it where it can be imported."),
    "no function": (("some_kernels:plian",), NotFoundError, "some_kernels:plian: some_kernels has no plian; did you mean plain?"),
    "no such function": (("some_kernels:zzz",), NotFoundError, "some_kernels:zzz: some_kernels has no zzz; name a function of it."),
    "no callable": (("some_kernels:number",), ArgumentError, "the target is a int; pass a function."),
    "a module that raises": (("raises:f",), ArgumentError, "raises:f: importing raises failed: ZeroDivisionError: division by zero"),
    "a module that leaves": (("leaves:f",), ArgumentError, "leaves:f: importing leaves failed: SystemExit: 0"),
    "an attribute that raises": (("some_kernels:trap",), ArgumentError, "some_kernels:trap: looking for trap failed: RuntimeError: a \\x1b[31mtrap"),
    "a spec of another type": (("some_kernels:unsure",), ArgumentError, "spec={} is a dict; give a NormSpec or the name of one."),
    "types of another type": (("some_kernels:narrow",), ArgumentError, "dtypes=<class 'float'> is not a tuple of float16, bfloat16, float32, float64; name those it takes."),
    "no norm": (("jax", "rms"), UnsupportedError, "jax has no rms norm; it has layer."),
    "a norm of a function": (("some_kernels:plain", "rms"), ArgumentError, "--norm chooses among a known target's norms; say with --spec what some_kernels:plain computes."),
    "a spec of a known name": (("torch", None, "bert"), ArgumentError, "--spec says what a function computes, and torch says it itself; use --norm."),
    "no variant": (("some_kernels:plain", None, "brt"), NotFoundError, "brt: no such named norm; did you mean bert?"),
    "a norm that is not graded": (("some_kernels:plain", None, "batch"), UnsupportedError, "only norms over the last axis with a finite eps on the variance are graded, and this is y = γ·(x − mean) / √(var + 1e-05) + β over axes (0, 2:); move its axes last, or fill in what is unknown with assume()."),
    "a file of another kind": (("some.txt",), UnsupportedError, "some.txt: not an ONNX model; a file to grade holds one norm node."),
    "a norm of a file": (("some.onnx", "rms"), ArgumentError, "some.onnx: the file says which norm it holds; leave --norm and --spec out."),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_what_cannot_be_resolved_says_why(name, here):
    arguments, kind, sentence = SENTENCES[name]
    with pytest.raises(LayerNormError) as caught:
        resolve(*arguments)
    assert (type(caught.value), str(caught.value)) == (kind, sentence)


def test_wrong_types_and_names_of_python():
    with pytest.raises(ArgumentError, match="name those it takes"):
        of_function(np.negative, "layer", dtypes=("float8",))
    with pytest.raises(ArgumentError, match="backward is a int; pass a function"):
        of_function(np.negative, "layer", backward=3)
    with pytest.raises(NotFoundError, match="no target is known by this name; known are layernorm"):
        known("zzz")


def save(path, *nodes, rank=2, opset=23):
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * r)
        for name, r in (("x", rank), ("g", 1), ("y", rank))
    ]
    graph = helper.make_graph(list(nodes), "some", infos[:2], infos[2:])
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path


def node(operator, inputs=("x", "g"), **attributes):
    return helper.make_node(operator, list(inputs), ["y"], **attributes)


def named(attribute, **fields):
    """A node with an attribute that says nothing of its value."""
    made = node("LayerNormalization")
    made.attribute.add(name=attribute, **fields)
    return made


FILES = {
    "layer": (node("LayerNormalization", epsilon=1e-12), "layer", 1e-12),
    "layer of the last of two": (node("LayerNormalization", epsilon=1e-6, axis=1), "layer", 1e-6),
    "rms": (node("RMSNormalization", epsilon=1e-3), "rms", 1e-3),
    "defaults": (node("RMSNormalization"), "rms", 1e-5),
    "simplified": (node("SimplifiedLayerNormalization", epsilon=1e-5, axis=-1), "rms", 1e-5),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_one_norm_is_graded_with_its_own_attributes(name, tmp_path):
    made, kind, eps = FILES[name]
    target = resolve(str(save(tmp_path / "some.onnx", made)))
    assert (target.spec.kind, target.eps) == (kind, float(np.float32(eps)))
    assert target.dtypes == ("float16", "float32", "float64")
    case = Case(48, affine="gamma")
    y = target.forward(case.x, case.gamma)
    assert error(y, exact_of(target, case.x, case.gamma).y).max() < NEAR["float32"]


def test_other_files_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "some.onnx"
    with pytest.raises(UnsupportedError, match=r"some\.onnx holds 0 nodes of LayerNormalization"):
        onnx_file(save(path, node("Add")))
    first = helper.make_node("RMSNormalization", ["x", "g"], ["z"])
    second = helper.make_node("RMSNormalization", ["z", "g"], ["y"])
    with pytest.raises(UnsupportedError, match=r"holds 2 nodes of .*; cut out the one to grade"):
        onnx_file(save(path, first, second))
    with pytest.raises(UnsupportedError, match="its norm has axis=1 of 3 axes; only norms of the last axis are graded"):
        onnx_file(save(path, node("LayerNormalization", axis=1), rank=3))
    with pytest.raises(UnsupportedError, match="its norm has axis=1 of an unsaid number of axes"):
        onnx_file(save(path, helper.make_node("Relu", ["x"], ["r"]), node("LayerNormalization", ["r", "g"], axis=1)))
    path.write_bytes(b"junk")
    with pytest.raises(UnsupportedError, match="not an ONNX model"):
        onnx_file(path)


FLOAT = onnx.AttributeProto.FLOAT
NODES = {
    "eps is NaN": (node("LayerNormalization", epsilon=np.nan), 23, "has epsilon=nan; only a finite one that is not negative is graded."),
    "eps is infinite": (node("RMSNormalization", epsilon=np.inf), 23, "has epsilon=inf; only a finite one"),
    "eps is negative": (node("LayerNormalization", epsilon=-1.0), 23, "has epsilon=-1.0; only a finite one"),
    "eps is a word": (node("LayerNormalization", epsilon="abc"), 23, "has an attribute epsilon that is no number; write the number there."),
    "an axis of axes": (node("LayerNormalization", axis=[1]), 23, "has an attribute axis that is no number"),
    "eps is said elsewhere": (named("epsilon", ref_attr_name="e", type=FLOAT), 23, "has an attribute epsilon that is no number"),
    "eps without a type": (named("epsilon"), 23, "has an attribute epsilon that is no number"),
    "no input": (node("LayerNormalization", inputs=()), 23, "has no input; name a file whose norm has one."),
    "a foreign domain": (node("LayerNormalization", domain="my.own"), 23, "is of the domain my.own; only those of ONNX's own domain are graded."),
    "Microsoft's domain": (node("SimplifiedLayerNormalization", domain="com.microsoft"), 23, "is of the domain com.microsoft"),
    "before its opset": (node("RMSNormalization"), 17, "stands in opset 17; ONNX has it from 23 on, so convert the file."),
    "no opset": (node("LayerNormalization"), 0, "stands in opset 0"),
    "an opset to come": (node("LayerNormalization"), 9999, "runs in none of float16, float32, float64 (Fail: "),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_a_node_that_no_runtime_could_mean_is_refused_in_a_sentence(name, tmp_path):
    made, opset, sentence = NODES[name]
    with pytest.raises(UnsupportedError) as caught:
        onnx_file(save(tmp_path / "some.onnx", made, opset=opset))
    assert sentence in str(caught.value)
    assert "some.onnx: its " in str(caught.value)


def test_nodes_beside_the_norm_are_no_matter(tmp_path):
    path = save(tmp_path / "some.onnx", node("LayerNormalization"), helper.make_node("Relu", ["y"], ["z"]))
    assert onnx_file(path).name == f"{path}: its LayerNormalization, alone in ONNX Runtime"


def test_a_file_beyond_what_protobuf_reads_is_not_read(tmp_path):
    with (tmp_path / "some.onnx").open("wb") as file:
        file.truncate(2**32)
    with pytest.raises(UnsupportedError, match="is larger than 2 GiB"):
        onnx_file(tmp_path / "some.onnx")
