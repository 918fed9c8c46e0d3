# SPDX-License-Identifier: MIT
"""This file runs `layernorm conform` as a user does: a table, a document, a case again, its arrays, a refusal."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import layernorm as ln
from layernorm.cli import run
from layernorm.conformance.conform import Report, known_properties, report_of_case
from layernorm.conformance.grade import Grade, cases_of
from layernorm.conformance.inputs import Case
from layernorm.conformance.known import known
from layernorm.conformance.properties import PROPERTIES
from layernorm.conformance.worst import save_worst
from layernorm.report.text import conform_text
from layernorm.spec.errors import ArgumentError, NotFoundError

SCHEMAS = {
    name: json.loads((Path(__file__).parents[1] / f"schema/{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("conform", "error")
}
FEW = ("--only", "exact", "--only", "offset", "--only", "in-place")


def one_pass(x, gamma=None, beta=None):
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.float32(1e-5))
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def test_what_holds_exits_with_0_and_every_property_has_a_row(capsys):
    assert run(["conform", "layernorm", "--quick"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[3 : 3 + len(PROPERTIES)]] == list(PROPERTIES)
    assert said.out.startswith(f"layernorm {ln.__version__}\n  y = γ·(x − mean) / √(var + 1e-05) + β\n")
    assert f"All of {len(PROPERTIES)} properties hold" in said.out
    assert said.err == ""


def test_what_fails_exits_with_1_and_says_how_to_see_it_again(capsys):
    assert run(["conform", "numpy", "--quick", *FEW]) == 1
    out = capsys.readouterr().out
    assert "in-place  not-applicable" in out
    assert "what it means:  layernorm explain exact" in out
    command = out.split("to see it again:  layernorm ")[1].strip()
    arguments = ["conform", "numpy", "--only", "exact", "--case", command.split("'")[1]]
    assert command.startswith(" ".join(arguments[:-1]))
    assert run(arguments) == 1
    again = capsys.readouterr().out
    assert next(line for line in out.splitlines() if line.startswith("exact")).split() == (
        next(line for line in again.splitlines() if line.startswith("exact")).split()
    )


@pytest.mark.parametrize("arguments", [("layernorm", "--norm", "rms"), ("numpy",)], ids=lambda a: a[0])
def test_the_document_is_one_and_valid(arguments, capsys):
    status = run(["conform", *arguments, "--quick", "--json"])
    document = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    jsonschema.validate(document, SCHEMAS["conform"])
    assert [p["name"] for p in document["properties"]] == list(PROPERTIES)
    assert document["spec"]["kind"] == ("rms" if "rms" in arguments else "layer")
    verdicts = {p["verdict"] for p in document["properties"]}
    assert status == int("fails" in verdicts)
    assert all(p["unit"] == "allowed error" for p in document["properties"] if p["worst"] is not None)
    if arguments == ("numpy",):
        assert "inf" in [p["worst"] for p in document["properties"]]


def test_the_schema_can_refuse():
    document = Report(known("numpy"), (Grade("exact", "holds", 0.5, 1.0, "a case", 3),)).to_json()
    jsonschema.validate(document, SCHEMAS["conform"])
    document["properties"][0]["worst"] = "Infinity"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMAS["conform"])


def test_an_epsilon_that_a_file_keeps_as_float32_is_its_shortest_decimal():
    report = Report(known("onnxruntime"), ())
    assert report.to_json()["spec"]["eps"] == 1e-5
    assert "(var + 1e-05)" in conform_text(report)


def test_a_case_alone_is_graded_on_the_properties_that_have_it():
    target = known("numpy")
    name = str(next(cases_of("offset", target, True)))
    found = report_of_case(target, name)
    assert "offset" in [g.property for g in found.grades]
    assert all((g.cases, g.at) == (1, name) for g in found.grades)
    with pytest.raises(ArgumentError, match=r"is no case of any property for numpy; name one with --only\."):
        report_of_case(target, str(Case(13, seed=99)))
    assert report_of_case(target, str(Case(13, seed=99)), ["exact"]).grades[0].cases == 1
    assert report_of_case(target, str(Case(13)), ["in-place"]).grades[0].verdict == "not-applicable"


def test_save_writes_the_worst_row_alone(tmp_path, capsys):
    path = tmp_path / "worst.npz"
    case = Case(64, rows=5, offset=3e4, scale=1.0, affine="both")
    assert run(["conform", "numpy", "--only", "offset", "--case", str(case), "--save", str(path)]) == 1
    assert f"saved {path}: row " in capsys.readouterr().err
    kept = np.load(path)
    assert sorted(kept) == ["beta", "case", "eps", "exact", "gamma", "property", "row", "x", "y"]
    row = int(kept["row"])
    assert kept["x"].shape == kept["y"].shape == kept["exact"].shape == (1, 64)
    np.testing.assert_array_equal(kept["x"][0], case.x[row])
    np.testing.assert_array_equal(kept["gamma"], case.gamma)
    assert str(kept["case"]) == str(case)
    exact = ln.layer_norm(case.x.astype(np.float64), case.gamma, case.beta)
    np.testing.assert_allclose(kept["exact"][0], exact[row], rtol=1e-9)
    off = np.abs(known("numpy").forward(case.x, case.gamma, case.beta) - exact)
    assert np.abs(kept["y"] - kept["exact"]).max() <= off.max()


def test_save_writes_the_gradients_of_a_worst_case_about_gradients(tmp_path):
    path = tmp_path / "worst.npz"
    case = Case(33, rows=70, dtype="bfloat16", offset=3.0, scale=32.0, affine="gamma")
    target = known("torch")
    found = report_of_case(target, str(case), ["parameter-gradients"])
    said = save_worst(found, path)
    kept = np.load(path)
    assert set(kept) == {
        "case", "row", "property", "eps", "x", "gamma", "dy", "dx", "exact_dx", "dgamma", "exact_dgamma", "dbeta",
        "exact_dbeta",
    }  # fmt: skip
    np.testing.assert_array_equal(kept["x"], case.x.astype(np.float32))
    x, dy = case.x.astype(np.float64), case.dy.astype(np.float64)
    xhat = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(kept["exact_dgamma"], (dy * xhat).sum(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kept["exact_dbeta"], dy.sum(0), rtol=1e-12)
    off = np.abs(kept["dx"] - kept["exact_dx"]).max(1)
    assert f"row {int(kept['row'])} of {case} (parameter-gradients)" == said
    assert off[int(kept["row"])] > 0


def test_bfloat16_is_saved_as_float32_and_nothing_measured_is_a_refusal(tmp_path):
    case = Case(64, dtype="bfloat16")
    report = Report(known("layernorm"), (Grade("exact", "holds", 0.5, 0.5, str(case), 1),))
    save_worst(report, tmp_path / "a.npz")
    assert np.load(tmp_path / "a.npz")["x"].dtype == np.float32
    with pytest.raises(ArgumentError, match="no case of layernorm was measured"):
        save_worst(Report(known("layernorm"), ()), tmp_path / "b.npz")


WRONG = {
    "an unknown target": (["torhc"], "not-found"),
    "an unknown property": (["numpy", "--only", "ofset"], "not-found"),
    "no name of a case": (["numpy", "--case", "nonsense"], "bad-input"),
    "a norm it lacks": (["jax", "--norm", "rms"], "unsupported"),
    "no such norm": (["numpy", "--norm", "batch"], "bad-input"),
    "a folder that is none": (["numpy", "--save", "/no/such/folder/x.npz"], "bad-input"),
    "no target": ([], "bad-input"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_exits_with_2_and_an_error_document(name, capsys):
    arguments, code = WRONG[name]
    assert run(["conform", *arguments, "--json"]) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    jsonschema.validate(document, SCHEMAS["error"])
    assert document["error"]["code"] == code
    assert said.err.startswith("layernorm: ")


def test_what_is_not_installed_is_a_missing_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert run(["conform", "openvino", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == {
        "code": "missing-extra", "sentence": "openvino is not installed; pip install openvino.", "where": "openvino",
    }  # fmt: skip


def test_a_near_property_is_named():
    with pytest.raises(NotFoundError, match=r"^ofset: no such property; did you mean offset.*\?$"):
        known_properties(["ofset"])


def test_conform_of_a_function_from_python():
    report = ln.conform(one_pass, "layer", quick=True, only=["exact", "offset", "in-place"], name="one pass")
    assert not report.holds
    assert [(g.property, g.verdict) for g in report.grades] == [
        ("exact", "holds"), ("offset", "fails"), ("in-place", "not-applicable"),
    ]  # fmt: skip
    assert str(report).splitlines()[0] == "one pass: 1 of 2 properties hold"
    assert "offset fails: " in str(report)
    assert report.worst.property == "offset"
    jsonschema.validate(report.to_json(), SCHEMAS["conform"])


def test_what_a_function_raises_is_its_grade():
    def broken(x, gamma=None, beta=None):
        raise RuntimeError("no such kernel")

    report = ln.conform(broken, "layer", quick=True, only="exact")
    assert (report.holds, report.grades[0].verdict) == (False, "error")
    assert "exact: RuntimeError: no such kernel at " in str(report)
    assert "exact: RuntimeError: no such kernel" in conform_text(report)
    assert report_of_case(report.target, report.grades[0].at, ["exact"]).grades[0].verdict == "error"


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_has_a_page(name, capsys):
    assert run(["explain", name]) == 0
    page = capsys.readouterr().out
    assert all(heading in page for heading in ("What it checks", "Why it matters"))
    assert run(["explain"]) == 0
    assert name in capsys.readouterr().out


STRANGERS = """
import os
import sys
import time
import layernorm
print("imported")
os.write(1, b"imported natively")
def prints(x, gamma=None, beta=None):
    print("called")
    os.write(1, b"called natively")
    return layernorm.layer_norm(x, gamma, beta)
def closes(x, gamma=None, beta=None):
    sys.stdout.close()
    return layernorm.layer_norm(x, gamma, beta)
def leaves(x, gamma=None, beta=None):
    sys.exit(0)
def stopped(x, gamma=None, beta=None):
    raise KeyboardInterrupt
def hangs(x, gamma=None, beta=None):
    print("hanging")
    time.sleep(60)
def at_exit(x, gamma=None, beta=None):
    import atexit
    atexit.register(os.write, 1, b"the last word")
    return layernorm.layer_norm(x, gamma, beta)
"""


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    (tmp_path / "strangers.py").write_text(STRANGERS)
    (tmp_path / "leaves.py").write_text("import argparse; argparse.ArgumentParser().parse_args(['--loud'])\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("strangers", None)


@pytest.mark.parametrize("function", ["prints", "closes", "leaves", "at_exit"])
def test_stdout_holds_the_document_alone_whatever_a_target_does_there(function, strangers):
    command = [sys.executable, "-m", "layernorm", "conform", f"strangers:{function}", "--only", "axes", "--json"]
    done = subprocess.run([*command, "--save", "a.npz"][: None if function == "prints" else -2], capture_output=True,
                          text=True, check=False)  # fmt: skip
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMAS["conform"])
    verdict = "error" if function == "leaves" else "holds"
    assert (done.returncode, document["properties"][0]["verdict"]) == (int(verdict == "error"), verdict)
    assert "imported natively" in done.stderr
    assert "Traceback" not in done.stderr
    if function == "prints":
        assert "called natively" in done.stderr
        assert done.stderr.count("called\n") >= 3


def test_the_table_is_alone_on_stdout_too_and_later_output_is_where_it_was(strangers, capfd):
    assert run(["conform", "strangers:prints", "--only", "axes"]) == 0
    sys.stdout.write("and on\n")
    said = capfd.readouterr()
    assert said.out.startswith("strangers:prints\n")
    assert said.out.endswith("and on\n")
    assert "called" not in said.out


@pytest.mark.parametrize("path", ["./strangers.py:prints", "aside/norms.py:norm", "aside/math.py:norm"])
def test_a_function_may_be_named_by_the_path_of_its_file(path, strangers, capsys):
    (strangers / "aside").mkdir()
    (strangers / "aside/beside.py").write_text("import layernorm\n")
    for name in ("norms", "math"):
        (strangers / f"aside/{name}.py").write_text("import beside\nnorm = beside.layernorm.layer_norm\n")
    assert run(["conform", path, "--only", "axes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == path
    for name in ("norms", "beside"):
        sys.modules.pop(name, None)


def test_one_reason_of_many_properties_is_said_once_and_how_a_function_is_called(capsys):
    assert run(["conform", "math:sqrt", "--quick"]) == 1
    said = capsys.readouterr().out
    assert said.count("takes exactly one argument") == 1
    assert "  output and 20 more: TypeError: math.sqrt() takes exactly one argument (3 given)\n" in said
    assert "  input-gradient, parameter-gradients, constant-gradients: it gives no gradients\n" in said
    assert said.endswith("how it is called:  function(x, gamma, beta), all NumPy arrays; gamma and beta may be None\n")


def test_a_module_that_leaves_is_a_sentence(strangers, capsys):
    assert run(["conform", "leaves:f", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["sentence"] == (
        "leaves:f: importing leaves failed: SystemExit: 2"
    )  # fmt: skip


def test_ctrl_c_is_an_error_document(strangers, capsys):
    assert run(["conform", "strangers:stopped", "--only", "axes", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["error"])
    assert document["error"]["code"] == "interrupted"


def test_a_signal_from_the_keyboard_is_one_too(strangers):
    command = [sys.executable, "-m", "layernorm", "conform", "strangers:hangs", "--only", "axes", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as running:  # fmt: skip
        try:
            assert any("hanging" in line for line in running.stderr)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 2
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert err == "layernorm: stopped before the end; run it again for a whole answer.\n"


def test_what_cannot_be_saved_is_one_document_and_no_colours_on_a_terminal(strangers, monkeypatch, capsys):
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert run(["conform", "numpy", "--only", "axes", "--json", "--save", "a.npz"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["sentence"] == (
        "a.npz cannot be written (Permission denied); choose another place."
    )  # fmt: skip
    assert run(["conform", "numpy", "--only", "axes", "--save", "a.npz"]) == 2
    assert capsys.readouterr().out.startswith("numpy ")
    assert run(["conform", "\x1b[31mred"]) == 2
    assert capsys.readouterr().err.startswith("layernorm: \\x1b[31mred: neither")


@pytest.mark.parametrize("name", ["worst", "a.np"])
def test_a_file_of_another_name_is_refused_before_anything_is_graded(name, strangers, capsys):
    assert run(["conform", "strangers:stopped", "--save", name]) == 2
    assert f"{name}: arrays are saved as .npz; give a name that ends in it." in capsys.readouterr().err
