# SPDX-License-Identifier: MIT
"""This file keeps the house in order: who may import whom, and what `import layernorm` may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import layernorm

ROOT = Path(layernorm.__file__).parent

# A room may import itself and the rooms after its name. `dispatch` is the part of functional that no user sees.
ARROWS = {
    "spec": (),
    "ops": ("spec",),
    "dispatch": ("spec", "ops"),
    "functional": ("spec", "ops", "dispatch"),
    "standardizer": ("spec", "ops"),
    "conformance": ("spec", "ops", "dispatch", "functional"),
    "models": ("spec", "ops"),
    "runtimes": ("spec", "models"),
    "comparing": ("spec", "ops", "models", "runtimes"),
    "report": ("spec", "models", "comparing", "conformance"),
    "explorer": ("spec", "models", "__init__"),
    "cli": ("spec", "ops", "dispatch", "functional", "standardizer", "models", "runtimes", "comparing", "report",
            "conformance", "explorer", "__init__"),
    "__init__": ("spec", "ops", "dispatch", "functional", "standardizer", "comparing", "conformance", "report"),
    "__main__": ("cli",),
}  # fmt: skip
# Not even loaded until an array or a file asks for it.
HEAVY = ("numba", "llvmlite", "ml_dtypes", "torch", "jax", "triton", "onnx", "onnxruntime", "openvino", "h5py", "typer",
         "rich", "scipy", "sklearn", "starlette", "uvicorn")  # fmt: skip
# Only these may be imported at the top of a module in spec, which everybody can afford to import.
PUBLIC = {"layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "normalize", "plan", "conform",
          "compare", "inspect", "infer"}  # fmt: skip

MODULES = sorted(ROOT.rglob("*.py"))


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            if node.module == "layernorm":
                yield from (f"layernorm.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_arrow_points_down(path):
    assert room(path) in ARROWS, f"{path} is in no room; give it one in ARROWS"
    for name in imported(path):
        first, _, rest = name.partition(".")
        if first != "layernorm":
            if room(path) == "spec":
                assert first in sys.stdlib_module_names, f"{path} imports {name}; spec needs the standard library only"
            continue
        target = rest.partition(".")[0]
        target = target if (ROOT / target).is_dir() or (ROOT / f"{target}.py").exists() else "__init__"
        target = target or "__init__"
        assert target == room(path) or target in ARROWS[room(path)], f"{path} may not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_says_its_licence_and_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: MIT\n")
    assert ast.get_docstring(ast.parse(text))


def test_the_arrow_test_can_fail(tmp_path):
    wrong = ROOT / "spec" / "norm_spec.py"
    assert "layernorm.ops" not in set(imported(wrong))
    bad = tmp_path / "bad.py"
    bad.write_text("from layernorm.ops import layout\nfrom layernorm import plan\n")
    assert {"layernorm.ops", "layernorm.plan"} <= set(imported(bad))


def loaded_after(code):
    listing = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {name.partition(".")[0] for name in listing}


def test_importing_the_package_loads_nothing_heavy():
    loaded = loaded_after("import layernorm; layernorm.layer_norm")
    assert "numpy" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_nothing_but_the_standard_library_and_typer_is_loaded_before_the_command_line_can_be_stopped():
    assert "numpy" not in loaded_after("import layernorm.__main__")
    assert "numpy" not in loaded_after("from layernorm.cli import run; run(['--help'])")


def test_a_spec_loads_nothing_heavy_and_a_call_loads_numba_but_no_framework():
    assert loaded_after("import layernorm as ln; ln.NormSpec().spelling(); str(ln.VARIANTS['bert'])").isdisjoint(HEAVY)
    loaded = loaded_after("import layernorm as ln; ln.layer_norm([1.0, 2.0])")
    assert "numba" in loaded
    assert loaded.isdisjoint({"torch", "jax", "triton", "onnx", "typer"})


def test_no_package_bears_the_name_of_a_public_function():
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir()} | {p.stem for p in ROOT.glob("*.py")}
    assert rooms.isdisjoint(PUBLIC)


def test_every_public_name_has_its_place_and_no_other_name_has():
    for name in layernorm.__all__:
        assert getattr(layernorm, name) is vars(layernorm)[name]
    with pytest.raises(AttributeError, match="module 'layernorm' has no attribute 'FooError'"):
        layernorm.FooError  # noqa: B018


def test_every_public_name_is_exported_and_has_a_docstring_with_an_example():
    for name in layernorm.__all__:
        value = getattr(layernorm, name)
        if callable(value):
            assert value.__doc__, name
            bare = name in {"Stats", "Plan"} or name.endswith("Error")
            assert bare or ">>>" in value.__doc__, f"{name} has no example"
