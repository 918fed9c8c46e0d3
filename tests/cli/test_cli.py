# SPDX-License-Identifier: MIT
"""This file runs the command line as a user does: what it prints, where, and with which exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import layernorm
from layernorm.cli import run
from layernorm.cli.explain import page_of
from layernorm.report.norm_table import COLUMNS, HEAD
from layernorm.spec.variants import VARIANTS

SCHEMA = json.loads((Path(__file__).parents[1] / "schema/error.schema.json").read_text(encoding="utf-8"))


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"layernorm {layernorm.__version__}\n"


def test_the_installed_command_and_the_module_are_the_same():
    for command in (["layernorm"], [sys.executable, "-m", "layernorm"]):
        if command == ["layernorm"]:
            command = [str(Path(sys.executable).with_name("layernorm"))]
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"layernorm {layernorm.__version__}\n")


@pytest.mark.parametrize("name", VARIANTS)
def test_explain_prints_every_variant_with_its_formula_spelling_and_source(name, capsys):
    assert run(["explain", name]) == 0
    page = capsys.readouterr().out
    assert str(VARIANTS[name]) in page
    assert "Source: " in page
    assert "  onnx     " in page


def test_explain_prints_every_field_of_a_spec(capsys):
    for field in VARIANTS["bert"].to_json():
        if field != "kind":
            assert run(["explain", field]) == 0
            assert capsys.readouterr().out.startswith(f"{field}: ")
    assert page_of("shift_axes") == "shift_axes: the same for beta."


def test_every_column_of_inspect_has_a_page_that_says_a_field_once():
    for column in (*HEAD, "gamma", "beta", "γ"):
        page = page_of(column)
        assert page.count(f"{COLUMNS[column][0] if column in COLUMNS else 'scale'}: ") >= 1, column
    assert page_of("eps").count("added where `eps_at` says") == 1
    assert "`fused` (one standard operator)" in page_of("form")
    assert page_of("kind").startswith("kind: the family, computed from the fields: layer,")


@pytest.mark.parametrize("code", ["BERT", "Eps-At", "eps at", " stats_dtype ", "Parameter_Gradients"])
def test_a_code_may_be_written_in_any_case_and_with_any_dash(code):
    own = code.strip().lower()
    assert page_of(code) == page_of(own.replace(" ", "_").replace("-", "_")) == page_of(own.replace("_", "-"))


def test_explain_without_a_code_lists_every_page(capsys):
    assert run(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name}" in listed for name in (*VARIANTS, "eps_at"))


def test_explain_with_json_prints_one_document(capsys):
    assert run(["explain", "bert", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["code"] == "bert"
    assert "1e-12" in document["page"]


WRONG = {
    "an unknown code": (["explain", "bertt"], "not-found", "bertt: no such page; did you mean bert or beta?"),
    "a code like no other": (["explain", "zzz"], "not-found", "zzz: no such page; layernorm explain lists them all."),
    "an unknown command": (
        ["inspekt"],
        "bad-input",
        "No such command 'inspekt'; did you mean 'inspect'; see layernorm --help.",
    ),
    "an unknown option": (["explain", "bert", "--loud"], "bad-input", "No such option: --loud; see layernorm --help."),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_done_exits_with_2_and_one_sentence(name, capsys):
    arguments, _, sentence = WRONG[name]
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"layernorm: {sentence}\n"


@pytest.mark.parametrize("name", WRONG)
def test_with_json_the_error_is_a_document_on_stdout(name, capsys):
    arguments, code, sentence = WRONG[name]
    assert run([*arguments, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["error"]["code"] == code
    assert sentence.split(";")[0] in document["error"]["sentence"]


@pytest.mark.parametrize("arguments", [["explain", "gemma"], ["explain", "zzz", "--json"], ["--help"]])
def test_where_nothing_can_be_written_the_status_is_2_and_no_traceback(arguments):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "layernorm", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("redirection", "said"), [
    (">&-", "layernorm: stdout is closed, so the answer has no place; send it to /dev/null or a file.\n"),
    (">&- 2>&-", ""),
    ("<&- >&- 2>&-", ""),
])  # fmt: skip
def test_where_stdout_is_closed_the_status_is_2_and_one_sentence_says_it(redirection, said):
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m layernorm explain gemma {redirection}', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_where_stderr_is_closed_the_answer_is_as_ever():
    for code, status in (("gemma", 0), ("zzz", 2)):
        done = subprocess.run(
            ["/bin/sh", "-c", f'"$0" -m layernorm explain {code} 2>&-', sys.executable],
            capture_output=True, check=False,
        )  # fmt: skip
        assert (done.returncode, bool(done.stdout)) == (status, status == 0)


def test_stopped_while_it_still_loads_it_ends_in_silence(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "layernorm", "--help"], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_terminal_without_greek_shows_what_it_can():
    done = subprocess.run(
        [sys.executable, "-m", "layernorm", "explain", "gemma"],
        capture_output=True, env=os.environ | {"PYTHONIOENCODING": "cp1252"}, check=True,
    )  # fmt: skip
    assert b"y = (1 + ?)" in done.stdout


def test_help_of_no_command(capsys):
    assert run(["--help"]) == 0
    assert "explain" in capsys.readouterr().out


@pytest.mark.parametrize("said", ["", " (Unable to allocate 8.00 EiB)"])
def test_where_memory_ends_is_one_sentence_and_status_2(said, monkeypatch, capsys):
    def greedy(code):
        raise MemoryError(said.strip(" ()"))

    monkeypatch.setitem(page_of.__globals__, "page_of", greedy)
    assert run(["explain", "bert"]) == 2
    shown = capsys.readouterr()
    told = f"there is not memory enough{said}; give it more, or a smaller model or array."
    assert (shown.out, shown.err) == ("", f"layernorm: {told}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", ""], ["inspect", "m.onnx", "--card", ""], ["inspect", "m.onnx", "--card="], ["compare", "", "b"],
        ["infer", "x.npy", ""], ["conform", ""], ["conform", "torch", "--save", ""], ["explore", ""],
        ["explore", "--html="],
    ],
)  # fmt: skip
def test_an_empty_argument_is_refused(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    said = "layernorm: an argument is empty, as of a variable that is not set; pass a name.\n"
    assert capsys.readouterr() == ("", said)
