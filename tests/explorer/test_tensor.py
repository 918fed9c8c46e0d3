# SPDX-License-Identifier: MIT
"""This file brings arrays, good and hostile, to the page: through the server, and into a page without one."""

import io
import json
import re
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial

import numpy as np
import pytest
from explorer.conftest import Running, axe_finds_nothing, link
from playwright.sync_api import expect

import layernorm as ln
from layernorm.explorer import tensors
from layernorm.explorer.page import one_file, static_files
from layernorm.explorer.tensors import CANCELS, read_tensors, uploaded
from layernorm.spec.errors import LayerNormError

HOSTILE = "</script><img src=x onerror=document.title='taken'>\u202egnp.exe" + "x" * 10_000


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def safetensors(**arrays):
    header, data = {}, b""
    for name, array in arrays.items():
        kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}[array.dtype.name]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def drawn(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(dtype)


# -- reading and computing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("array", "expected"), [
    (drawn((5, 7)), None),
    (drawn((2, 3, 7), "float64"), None),
    (drawn((5, 7), "float16"), None),
    (drawn((7,)), None),
    (np.asfortranarray(drawn((5, 7))), None),
    (drawn((5, 7)).astype(">f4"), drawn((5, 7))),
    (np.arange(35).reshape(5, 7), np.arange(35.0).reshape(5, 7)),
    (drawn((5, 7)) > 3, (drawn((5, 7)) > 3).astype(float)),
])  # fmt: skip
def test_outputs_are_the_librarys_byte_for_byte(array, expected, tmp_path):
    expected = array if expected is None else expected
    (tmp_path / "x.npy").write_bytes(npy(array))
    (held,) = read_tensors(tmp_path / "x.npy")
    (same,) = uploaded(npy(array))
    y = np.asarray(ln.layer_norm(np.ascontiguousarray(expected))).reshape(-1, array.shape[-1])
    for k in range(len(y)):
        said = held.look(token=k)
        assert said == {**same.look(token=k), "name": "x.npy", "file": "x.npy"}
        assert np.array(said["token"]["y"]).astype(y.dtype).tobytes() == y[k].tobytes()
        assert np.array(said["token"]["x"]).tobytes() == expected.reshape(y.shape)[k].astype(float).tobytes()
    assert np.array(said["map"]["y"]).astype(y.dtype).tobytes() == y.tobytes()


def test_the_server_answers_with_the_same_bytes(tmp_path):
    array = drawn((40, 100), "float32")
    (tmp_path / "x.npy").write_bytes(npy(array))
    run = Running(tensors={"t0": read_tensors(tmp_path / "x.npy")[0]})
    try:
        asked = urllib.request.Request(f"{run.base}api/tensors/t0?token=33", headers={"X-Token": run.served.token})
        with urllib.request.urlopen(asked) as answer:
            said = json.load(answer)
    finally:
        run.stop()
    y = ln.layer_norm(array)
    assert np.array(said["token"]["y"], np.float32).tobytes() == y[33].tobytes()
    rows, columns = said["map"]["rows"], said["map"]["columns"]
    assert (len(rows), len(columns)) == (16, 24)
    assert np.array(said["map"]["y"], np.float32).tobytes() == y[np.ix_(rows, columns)].tobytes()


def test_safetensors_of_several_types_are_read(tmp_path):
    arrays = {"a": drawn((4, 6)), "b": drawn((4, 6), "bfloat16"), "c": drawn((4, 6), "float16")}
    (tmp_path / "m.safetensors").write_bytes(safetensors(**arrays, none=np.array(3)))
    for held, named in (
        (read_tensors(tmp_path / "m.safetensors"), "m.safetensors"),
        (uploaded(safetensors(**arrays)), None),
    ):
        assert [(t.name, t.dtype, t.file) for t in held] == [(name, a.dtype.name, named) for name, a in arrays.items()]
        for tensor, array in zip(held, arrays.values(), strict=True):
            y = np.array(tensor.look(token=2)["token"]["y"]).astype(array.dtype)
            assert y.tobytes() == np.asarray(ln.layer_norm(array))[2].tobytes()


def test_statistics_and_the_worst_tokens(monkeypatch):
    monkeypatch.setattr(tensors, "BLOCK", 50)
    x = drawn((300, 20), "float64")
    x[4] = 7
    x[9] *= 1e-3
    x[11] *= 1e-4
    x[20, 3] = np.nan
    x[21, 3:5] = np.inf, -np.inf
    x[30] = x[30] * 300
    x[31, 2] = 70_000
    x[40] += 6e4
    (held,) = uploaded(npy(x))
    said = held.look()
    fine = x[np.isfinite(x)]
    assert (said["nan"], said["plus"], said["minus"]) == (1, 1, 1)
    assert (said["least"], said["most"]) == (fine.min(), fine.max())
    assert said["mean"] == pytest.approx(fine.mean(), rel=1e-12)
    assert said["sd"] == pytest.approx(fine.std(), rel=1e-12)
    first = {kind: [t[0] for t in said["worst"][kind]["first"]] for kind in said["worst"]}
    assert first == {"odd": [20, 21], "tiny": [4, 11, 9], "overflow": [31, 30], "cancels": [40]}
    assert {kind: met["count"] for kind, met in said["worst"].items()} == {
        "odd": 2,
        "tiny": 3,
        "overflow": 2,
        "cancels": 1,
    }
    assert len(said["tokens"]) == 200
    for at, mean, sd in said["tokens"]:
        if np.isfinite(x[at]).all():
            assert (mean, sd) == (
                pytest.approx(x[at].mean(), rel=1e-12),
                pytest.approx(x[at].std(), rel=1e-9, abs=1e-15),
            )
    assert held.look(eps=1e-12)["worst"]["tiny"]["count"] == 1
    close = held.look(token=290, feature=18, whole=False)["map"]
    assert (close["rows"], close["columns"]) == (list(range(290, 300)), [18, 19])
    assert held.look(token=10**9, feature=10**9, whole=False)["map"]["rows"] == [299]


def test_the_bound_of_cancellation_is_where_one_pass_misses_by_a_hundredth():
    """(μ/σ)² · 2⁻²⁴ = 0.01: one unit in the last place of μ² against σ²."""
    assert pytest.approx(0.01) == CANCELS**2 * 2**-24


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_an_empty_array_is_said_to_be_empty(shape):
    (held,) = uploaded(npy(np.zeros(shape)))
    assert held.look()["size"] == 0
    assert "map" not in held.look()


class Evil:
    def __reduce__(self):
        return (print, ("unpickled",))


def lying(shape):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"\0" * 16


@pytest.mark.parametrize(("data", "words"), [
    (npy(np.array([Evil()], object)), "Object arrays cannot be loaded when allow_pickle=False"),
    (npy(drawn((5, 7)))[:-1], "does not take 139 bytes"),
    (npy(drawn((5, 7))) + b"x", "does not take 141 bytes"),
    (lying("(1152921504606846976,)"), "does not take 16 bytes"),
    (lying("(-4,)"), "does not take 16 bytes"),
    (lying("(" * 500), "not read as .npy"),
    (lying("(__import__('os'),)"), "not read as .npy"),
    (b"\x93NUMPY\x01\x00\xff\xff", "not read as .npy"),
    (b"\x93NUMPY", "not read as .npy"),
    (b"\x93NUMPY\x09\x00" + b"\0" * 60, "not read as .npy"),
    (npy(np.array(3.0)), "the array has no axis; save real numbers, one token a row"),
    (npy(np.zeros(3, "complex64")), "the array has numbers of type complex64; save real numbers"),
    (npy(np.array(["text"])), "the array has numbers of type <U4; save real numbers"),
    (npy(np.zeros(3, [("a", "f4")])), "save real numbers"),
    (b"", "the file: neither .npy nor .safetensors; its first bytes are "),
    (b"PK\x03\x04" + b"\0" * 90, "the file: neither .npy nor .safetensors; its first bytes are 50 4b 03 04"),
    (safetensors(a=drawn((4, 6)))[:-1], "the file: tensor 'a' ends at byte 96 of 95 bytes of data"),
    (struct.pack("<Q", 2**40) + b"{}", "the file: its header should have 1099511627776 bytes and the file has 10"),
    (safetensors(a=np.array(3)), "the file holds no array of numbers with at least one axis"),
])  # fmt: skip
def test_a_file_that_lies_is_refused_in_a_sentence(data, words, tmp_path, capsys):
    with pytest.raises(LayerNormError, match=words) as refused:
        uploaded(data)
    assert not re.search(r"/|\.safetensors: ", str(refused.value).replace("nor .safetensors", ""))  # no path of ours
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(LayerNormError, match=r"x\.npy: |array|holds no array"):
        read_tensors(tmp_path / "x.npy")
    assert capsys.readouterr().out == ""


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(LayerNormError, match="No such file or directory; check the name"):
        read_tensors(tmp_path / "none.npy")


# -- the server ---------------------------------------------------------------------------------------------


def ask(run, path, data=None):
    asked = urllib.request.Request(f"{run.base}{path}", data, {"X-Token": run.served.token})
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_uploads_have_ids_that_say_nothing_and_the_oldest_goes(running):
    status, said = ask(running, "api/tensors", npy(drawn((4, 6))))
    (one,) = said["tensors"]
    assert status == 201
    assert re.fullmatch(r"u\d+", one["id"])
    assert (one["name"], one["file"], one["shape"], one["size"]) == ("array", None, [4, 6], 24)
    assert ask(running, f"api/tensors/{one['id']}")[0] == 200
    for _ in range(4):
        assert ask(running, "api/tensors", safetensors(a=drawn((4, 6)), b=drawn((2, 3))))[0] == 201
    assert ask(running, f"api/tensors/{one['id']}") == (
        404, {"error": "the server does not hold that array any more; choose the file again."}
    )  # fmt: skip
    assert len(ask(running, "api/about")[1]["tensors"]) == 8


@pytest.mark.parametrize(("query", "words"), [
    ("eps=-1", "eps is -1"), ("eps=nan", "eps is nan"), ("eps=x", "are numbers"), ("token=x", "are numbers"),
    ("feature=1.5", "are numbers"), (f"token={'9' * 9000}", None), ("token=-5", None), ("token=²", "are numbers"),
])  # fmt: skip
def test_what_is_asked_of_an_array_is_checked(running, query, words):
    key = ask(running, "api/tensors", npy(drawn((4, 6))))[1]["tensors"][0]["id"]
    status, said = ask(running, f"api/tensors/{key}?{urllib.request.quote(query, safe='=&')}")
    assert (status, words is None or words in said["error"]) == (200 if words is None else 400, True)


def test_bytes_that_are_no_array_are_a_400(running):
    status, said = ask(running, "api/tensors", b"GIF89a")
    assert (status, said["error"][:40]) == (400, "the file: neither .npy nor .safetensors;")
    for path in ("x.npy", "../t0", "%2e%2e/about", "etc/passwd"):
        assert ask(running, f"api/tensors/{path}")[0] in (404, 200 if "about" in path else 404)


# -- the view -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The page without a server."""
    file = tmp_path_factory.mktemp("alone") / "lab.html"
    file.write_text(one_file(static_files()), "utf-8")
    return file.as_uri()


def at(page, alone, **state):
    page.goto("about:blank")
    page.goto(alone + link("tensor", **state))
    page.wait_for_selector("main h2")
    return page


def twin(page, caption):
    """Read a figure's table."""
    figure = page.locator("figure", has=page.locator("figcaption", has_text=caption))
    if not figure.locator("table").count():
        figure.locator("summary").click()
        figure.locator("table").wait_for()
    rows = figure.locator("tr").all()
    return [[cell.replace("−", "-") for cell in row.locator("th, td").all_text_contents()] for row in rows]


def numbers(cells):
    return [{"∞": np.inf, "-∞": -np.inf}.get(c, float("nan") if c == "NaN" else None) if c in ("∞", "-∞", "NaN") else
            float(c) for c in cells]  # fmt: skip


def test_the_example_shows_each_kind_of_bad_token(page, alone):
    at(page, alone, done="passed")
    expect(page.locator(".summary .loud")).to_have_text("⚠ 1 × NaN, 1 × ∞, 1 × −∞")
    expect(page.locator(".worst p strong")).to_have_text(
        [
            "NaN or infinity inside: 2. ",
            "Spread below 10 √ε: 2. ",
            "Beyond 16 bits: 1. ",
            "Mean far above the spread: 1. ",
        ]
    )
    assert page.locator(".worst button").all_text_contents()[:3] == ["x[8]", "x[9]", "x[6], σ = 0"]
    assert page.locator(".worst [aria-pressed=true]").all_text_contents() == ["x[3], σ = 0.000901"]
    assert page.locator("rect.cell").count() == 192
    assert page.locator("rect.cell.nan").count() == 1
    assert page.locator("text.glyph").all_text_contents() == ["×", "∞", "−∞"]
    table = twin(page, "The values")
    assert len(table) == 17
    assert [row[0] for row in table[1:]] == [f"x[{k}]" for k in range(16)]
    assert (table[9][5], table[10][3], table[10][8]) == ("NaN", "∞", "-∞")


@pytest.mark.parametrize(("token", "words"), [
    (0, "x[0] is harmless"), (3, "and the outputs have spread 0.27"), (6, "All numbers of x[6] are 7"),
    (8, "x[8] holds NaN"), (9, "x[9] holds infinity"), (11, "more than float16 holds"), (13, "layernorm gets it right"),
])  # fmt: skip
def test_what_to_notice_is_said_of_each_kind(page, alone, token, words):
    at(page, alone, done="passed", token=token)
    expect(page.locator(".notice")).to_contain_text(words)


def test_an_answer_is_met_with_what_it_overlooks_and_where_to_see_it(page, alone):
    at(page, alone)
    assert len(page.locator("main").inner_text().split("What to notice")[0].split()) <= 120
    expect(page.locator(".worst")).to_be_hidden()
    page.get_by_label("NaN: the numbers are too close").check()
    page.get_by_role("button", name="Commit my answer").click()
    expect(page.locator(".verdict")).to_contain_text("Not here. ε keeps the root away from 0")
    page.get_by_role("button", name="Show me where that is so").click()
    expect(page.locator(".notice")).to_contain_text("All numbers of x[6] are 7")
    values = page.locator("figure", has_text="After: x[6]").locator("text.value").all_text_contents()
    assert values == ["0"] * 6


def test_the_snippet_prints_what_is_shown(page, alone, tmp_path):
    at(page, alone, done="passed", token=11)
    done = subprocess.run([sys.executable, "-c", page.locator(".snippet code").text_content()], capture_output=True,
                          text=True, check=True, cwd=tmp_path)  # fmt: skip
    printed = [float(v) for v in re.findall(r"-?\d\S*[\d.]", done.stdout)]
    shown = numbers([row[1] for row in twin(page, "After: x[11]")[1:]])
    assert printed == pytest.approx(shown, rel=1e-4)


X = drawn((2, 30, 30), "float32", 5)
X[0, 2] *= 1e-4
X[1, 29, 7] = np.nan


def test_a_file_is_read_without_a_server_and_shows_what_the_server_shows(page, alone, running, tmp_path):
    (tmp_path / "mine.npy").write_bytes(npy(X))
    seen = []
    for start in (alone, f"{running.base}#token={running.served.token}&"):
        page.goto("about:blank")
        page.goto(start + link("tensor")[1:] if start.endswith("&") else start + link("tensor"))
        if start != alone:
            expect(page.locator("#who")).to_contain_text("stands behind")
        page.get_by_label("Or bring your own").set_input_files(tmp_path / "mine.npy")
        expect(page.locator(".summary")).to_contain_text("mine.npy: shape (2, 30, 30), float32, 60 tokens of 30 feat")
        expect(page.locator(".summary .loud")).to_have_text("⚠ 1 × NaN")
        by = "computed in this page" if start == alone else f"computed by layernorm {ln.__version__}, in Python"
        expect(page.get_by_text(by).first).to_be_visible()
        page.get_by_role("button", name="x[0, 2]").click()
        page.get_by_label("after layer normalization").check()
        expect(page.get_by_text("After layer normalization: 16 of 60 tokens, 24 of 30 features")).to_be_visible()
        expect(page.locator(".notice")).to_contain_text("x[0, 2] has spread")
        seen.append([page.locator(".summary").text_content(), page.locator(".worst").text_content(),
                     twin(page, "After: x[0, 2]"), twin(page, "After layer normalization"),
                     twin(page, "Mean and spread"), page.locator(".notice").text_content()])  # fmt: skip
    assert seen[0] == seen[1]
    expect(page.locator(".badge")).to_have_text(re.compile("layernorm .* agrees to"))
    y = ln.layer_norm(X)[0, 2]
    assert numbers([row[1] for row in seen[1][2][1:]]) == pytest.approx(y, rel=1e-4)


@pytest.mark.parametrize(("dtype", "shape"), [("<f2", (3, 5)), ("<f8", (5,)), (">f4", (1, 2, 5))])
def test_the_page_reads_the_types_of_npy(page, alone, tmp_path, dtype, shape):
    x = drawn(shape).astype(dtype)
    (tmp_path / "x.npy").write_bytes(npy(x))
    at(page, alone).get_by_label("Or bring your own").set_input_files(tmp_path / "x.npy")
    expect(page.locator(".summary")).to_contain_text(f"float{8 * x.itemsize}")
    rows = numbers(cell for row in twin(page, "The values")[1:] for cell in row[1:])
    assert rows == pytest.approx(x.astype(float).ravel(), rel=1e-4)


@pytest.mark.parametrize(("data", "words"), [
    (b"GIF89a" + b"\0" * 20, "This is no .npy file"), (npy(drawn((5, 7)))[:-1], "cut off"),
    (npy(np.zeros(3, "complex64")), "and nothing else"), (npy(np.array(1.0)), "and nothing else"),
    (npy(np.asfortranarray(drawn((5, 7)))), "and nothing else"), (b"", "This is no .npy file"),
])  # fmt: skip
def test_a_file_that_the_page_does_not_read_is_said(page, alone, tmp_path, data, words):
    (tmp_path / "x.npy").write_bytes(data)
    at(page, alone).get_by_label("Or bring your own").set_input_files(tmp_path / "x.npy")
    expect(page.get_by_text(words)).to_be_visible()
    expect(page.get_by_role("button", name="Commit my answer")).to_be_enabled()


def test_arrays_of_the_command_line_open_at_once_hostile_names_inert_and_a_lost_server_said(page, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(safetensors(**{HOSTILE: drawn((4, 6)), "plain": drawn((3, 5)),
                                                            "empty": np.zeros((0, 4), "float32")}))  # fmt: skip
    held = {f"t{k}": tensor for k, tensor in enumerate(read_tensors(tmp_path / "m.safetensors"))}
    run = Running(tensors=held)
    page.goto(f"{run.base}#token={run.served.token}&tensor")
    expect(page.locator(".summary")).to_contain_text("</script><img src=x")
    expect(page.locator(".summary")).to_contain_text("shape (4, 6)")
    expect(page).to_have_title("My tensor – layer normalization")
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_label("Array").select_option("plain")
    expect(page.locator(".summary")).to_contain_text("plain: shape (3, 5)")
    expect(page.locator(".snippet code")).to_contain_text('["plain"]')
    code = page.locator(".snippet code").text_content()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    shown = numbers([row[1] for row in twin(page, "After: x[0]")[1:]])
    assert [float(v) for v in re.findall(r"-?\d\S*[\d.]", done.stdout)] == pytest.approx(shown, rel=1e-4)
    page.get_by_label("Array").select_option("empty")
    expect(page.get_by_text("The array is empty: there is nothing to normalize.")).to_be_visible()
    page.get_by_label("Array").select_option("plain")
    expect(page.locator(".summary")).to_contain_text("plain")
    run.stop()
    page.get_by_label("Array").select_option("the example")
    expect(page.locator(".summary")).to_contain_text("the example")
    (tmp_path / "x.npy").write_bytes(npy(drawn((5, 7))))
    page.get_by_label("Array").select_option("plain")
    expect(page.get_by_text("The server has gone: what is in the page goes on working").first).to_be_visible()
    page.get_by_label("Or bring your own").set_input_files(tmp_path / "x.npy")
    expect(page.locator(".summary")).to_contain_text("x.npy: shape (5, 7)")


def test_the_view_is_walked_by_keyboard(page, alone):
    at(page, alone)
    press = page.keyboard.press
    page.get_by_label("1, as that of every token").focus()
    press("ArrowDown")
    expect(page.get_by_label("far below 1")).to_be_checked()
    press("Tab")
    press("Enter")
    expect(page.locator(".verdict")).to_contain_text("That is it.")
    expect(page.get_by_role("button", name="Answer again")).to_be_focused()
    called = (
        "((e) => [...(e.labels?.length ? e.labels : [e])].map((l) => l.textContent).join())(document.activeElement)"
    )
    for wanted in ("Array", "Or bring your own", "1e−5", "x[8]", "x[9]", "x[6], σ = 0"):
        press("Tab")
        assert wanted in page.evaluate(called)
    press("Enter")
    expect(page.locator(".notice")).to_contain_text("All numbers of x[6] are 7")
    assert page.evaluate("document.activeElement.textContent") == "x[6], σ = 0"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_axe_finds_nothing_and_it_is_not_wider_than_a_phone(page, alone):
    page.set_viewport_size({"width": 320, "height": 800})
    answered = [{"done": "committed", "guess": "one"}, {"done": "passed", "token": 8, "whole": False}]
    for state in ({}, *answered):
        at(page, alone, **state)
        if state:
            twin(page, "After: ")
        axe_finds_nothing(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_command_line_holds_the_files_it_is_given(tmp_path):
    (tmp_path / "x.npy").write_bytes(npy(drawn((4, 6))))
    (tmp_path / "bad.npy").write_bytes(npy(drawn((4, 6)))[:-1])
    command = [sys.executable, "-m", "layernorm", "explore", "--check", "--port", "0"]
    run = partial(subprocess.run, capture_output=True, text=True, check=False, cwd=tmp_path)
    held = json.loads(run([*command, tmp_path / "x.npy"]).stdout.splitlines()[-1])["tensors"]
    assert held == [{"id": "t0", "name": "x.npy", "file": "x.npy", "shape": [4, 6], "dtype": "float32", "size": 24}]
    done = run([*command, "bad.npy"])
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"layernorm: bad\.npy: not read as \.npy \(shape .*\); save it again\.\n", done.stderr)
