# SPDX-License-Identifier: MIT
"""This file does layer normalization with few digits in a browser, and replays public bugs, and reads what is shown."""

import contextlib
import io
import re

import numpy as np
import pytest
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect

from layernorm.explorer.computing import computed

PLAIN = ["−1.342", "−0.4472", "0.4472", "1.342"]
HALF = ["−1.342", "−0.4473", "0.4473", "1.342"]
NAN = ["⚠ NaN"] * 4

# A chip, what its way gives, and what the library gives from the same stored numbers.
SETTINGS = [
    ("float16, c = 2048", ["−0.8164", "0", "0.8164", "1.633"], HALF),
    ("one pass, c = 100 000", ["−948.7", "−316.2", "316.2", "948.7"], PLAIN),
    ("one pass, c = 1 000 000", NAN, PLAIN),
    ("two passes, c = 10⁷", PLAIN, PLAIN),
    ("two passes, c = 10⁸", ["0", "0", "1.414", "1.414"], ["−1", "−1", "1", "1"]),
    ("equal numbers, ε = 10⁻¹², float16", NAN, ["0"] * 4),
    ("[0, 600] in float16", ["0", "0"], ["−1", "1"]),
    ("σ = √ε", ["−0.9487", "−0.3162", "0.3162", "0.9487"], ["−0.9487", "−0.3162", "0.3162", "0.9487"]),
]


def bars(page, caption):
    return page.locator("figure", has_text=caption).locator("svg text").all_text_contents()


def put(page, **changes):
    page.evaluate("(changes) => LN.page.view.set(changes)", changes)


def run(page):
    """Run the snippet of a state; gives what it prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), np.errstate():
        exec(page.evaluate("LN.page.view.described.code(LN.page.view)"), {})
    return said.getvalue()


def agrees(page):
    """Hold what the page gives as the library's result against the library; gives it."""
    calls = page.evaluate("LN.page.view.described.calls(LN.page.view)")
    (answer,) = computed([{key: value for key, value in calls[0].items() if key != "expected"}])
    precision = {"float64": 2e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[calls[0]["type"]]
    np.testing.assert_allclose(answer, calls[0]["expected"], rtol=precision, atol=precision / 4)
    return calls[0]["expected"]


def printed(line):
    return [float(word) for word in re.findall(r"nan|-?inf|-?\d+\.?\d*(?:e[-+]?\d+)?", line)]


def numbers(shown):
    return [float(text.replace("⚠ ", "").replace("−", "-").replace("NaN", "nan")) for text in shown]


def rows(page, name):
    table = page.get_by_role("region", name=name)
    return [row.locator("th, td").all_text_contents() for row in table.locator("tr").all()]


def test_every_setting_shows_its_numbers_the_library_agrees_and_the_snippet_prints_them(lab):
    page = lab("precision", done="passed")
    for chip, way, ours in SETTINGS:
        page.get_by_role("button", name=chip, exact=True).click()
        assert bars(page, "outlines: without the offset") == way, chip
        assert bars(page, "As layernorm does it") == ours, chip
        agrees(page)
        first, last = run(page).splitlines()[-2:]
        np.testing.assert_allclose(printed(first)[-len(way) :], numbers(way), rtol=6e-4, err_msg=chip)
        np.testing.assert_allclose(printed(last), numbers(ours), rtol=6e-4, err_msg=chip)
    expect(page.locator(".badge")).to_have_text(re.compile(r"layernorm \S+ agrees to [^ ]+ in the last place"))


def test_the_snippet_of_each_way_in_each_type_prints_what_the_page_computes(lab):
    page = lab("precision", done="passed", c=300, sigma=1.5)
    x = page.evaluate("(({state: s}) => [2, 4, 6, 8].map((v) => (v * s.sigma) / Math.sqrt(5) + s.c))(LN.page.view)")
    for kind in ("float64", "float32", "float16", "bfloat16"):
        for way in ("two passes", "one pass", "Welford"):
            put(page, type=kind, way=way)
            agrees(page)
            first = run(page).splitlines()[-2]
            y = page.evaluate("([x, s]) => LN.narrow(x, s).y.map(String)", [x, {"type": kind, "way": way, "eps": 1e-5}])
            assert first.startswith(way)
            np.testing.assert_allclose(
                printed(first)[-4:], [float(v) for v in y], rtol=1e-2 if kind == "bfloat16" else 1e-3
            )


def test_the_sentence_fails_in_each_arithmetic_and_holds_in_ours(lab):
    page = lab("precision", done="passed")
    found = [row[1:] for row in rows(page, "The first power of two")[1:]]
    fails = ["2^12 = 4096", "2^24 = 16777216", "2^24 = 16777216", "2^11 = 2048", "nowhere", "nowhere"]
    assert [row[1] for row in found] == fails
    assert found[3][2] == "[−0.8164, 0, 0.8164, 1.633]"
    assert found[4][2] == "at 2^24 = 16777216: [−1.342, −0.4472, 0.4472, 1.342]"
    head, *made = rows(page, "What each type makes")
    halves = {row[0]: row[head.index("float16")] for row in made}
    assert (halves["1e−5"], halves["1e−8"], halves["1e−12"]) == ("1.00136e−5", "0", "0")


def test_the_shrink_curve_has_its_mark_and_its_table(lab):
    page = lab("precision", done="passed", sigma=0.001)
    figure = page.locator("figure", has_text="What is left of the outputs")
    expect(figure.locator("text", has_text="√ε")).to_be_visible()
    figure.get_by_text("The same as a table").click()
    figure.locator("tbody tr").first.wait_for()  # the table is written when the opening is told, a moment later
    assert ["now: 0.001", "0.30151"] in [
        row.locator("th, td").all_text_contents() for row in figure.locator("tr").all()
    ]
    expect(page.locator(".notice")).to_contain_text("ε is 90.9 % of what stands below the root")


def test_every_wrong_answer_leads_to_where_it_is_so(lab):
    page = lab("precision")
    where = {"The same four": ("c=2048", HALF), "All 0": ("bfloat16", ["0"] * 4), "NaN: the": ("600", ["0", "0"])}
    for answer, (place, shown) in where.items():
        page.get_by_label(answer).check()
        page.get_by_role("button", name="Commit my answer").click()
        expect(page.locator(".verdict")).to_contain_text("Not here.")
        page.get_by_role("button", name="Show me where that is so").click()
        expect(page.locator(".verdict")).to_have_text("")
        assert place in page.url
        assert shown in (bars(page, "outlines: without the offset"), bars(page, "As layernorm does it"))
        page.get_by_role("button", name="Answer again").click()


def test_a_link_may_say_anything(lab):
    page = lab("precision", done="passed", type="x", way="__proto__", shape="", sigma=-1, c=-5, eps=-1)
    assert bars(page, "outlines: without the offset") == ["1.342", "0.4472", "−0.4472", "−1.342"]
    put(page, sigma=0, eps=0)
    assert bars(page, "outlines: without the offset") == NAN
    expect(page.locator(".notice")).to_contain_text("NaN")


def test_by_keyboard_alone(lab):
    page = lab("precision")
    expect(page.get_by_text("As layernorm does it")).to_be_hidden()
    page.locator("h2").focus()
    for key in ("Tab", "Tab", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_text("Pick one answer first")).to_be_visible()
    for key in ("Shift+Tab", "Space", "ArrowDown", "Tab", "Enter"):
        page.keyboard.press(key)
    expect(page.locator(".verdict")).to_contain_text("That is it.")
    expect(page.get_by_role("button", name="Answer again")).to_be_focused()
    for _ in range(4):
        page.keyboard.press("Tab")
    slider = page.get_by_role("slider", name="offset c")
    expect(slider).to_be_focused()
    slider.press("Home")
    said = slider.get_attribute("aria-valuetext")
    assert said == "1; float16 numbers of that size are 0.000977 apart; the offset changes the outputs by 0.00016"
    slider.press("End")
    assert "the outputs are no numbers" in slider.get_attribute("aria-valuetext")


# -- the museum ------------------------------------------------------------------------------------------------------

NANS = "[NaN, NaN, NaN, NaN]"
TEN = "[NaN, NaN, NaN, …, NaN]"
EXHIBITS = {
    "zeros": {"float16 outputs": TEN, "float32 outputs": "[0, 0, 0, …, 0]"},
    "late": {"variance + ε in float32": "1e−12", "the same as a half": "0", "outputs": TEN},
    "safe": {"before, ε = 1e−12": NANS, "after, ε = 1e−3": "[0, 0, 0, 0]"},
    "export": {"1e−8 as a half": "0", "1e−5 as a half": "1.00136e−5", "equal numbers, exported": NANS},
    "shifted": {"their variance": "30823.43", "variance of another row’s outputs": "48428.27"},
    "table": {
        "row mean 0: first output": "−1.3416",
        "row mean 100: first output": "−2.3716",
        "row mean 100: largest error": "1.030",
        "row mean 1000: first output": "−2.374",
        "row mean 1000: largest error": "1.033",
        "row mean 10000: largest error": "1.329",
        "row mean 100, two passes": "−1.3414",
        "row mean 100, in float64": "−1.3416",
    },
    "fused": {"outputs on the GPU": TEN, "variance, added one by one": "0.5"},
    "aligned": {"spread 0.01, ε = 1e−5": "[−1.279, −0.4264, 0.4264, 1.279]"},
}


def test_every_exhibit_replays_its_report(lab):
    page = lab("museum", done="passed")
    told = {"shifted": "30823.4", "table": "-2.37161", "fused": "0.5", "aligned": "-0.948683"}
    for key, expected in EXHIBITS.items():
        put(page, exhibit=key)
        shown = {row[0]: row[-1] for row in rows(page, "reported, and replayed")}
        assert {what: shown[what] for what in expected} == expected
        ours, said = agrees(page), run(page)
        np.testing.assert_allclose(printed(said.replace("\n", " "))[-len(ours) :], ours, rtol=1e-3, err_msg=key)
        assert told.get(key, "nan") in said
    assert (
        page.get_by_role("radio").count()
        >= len(EXHIBITS)
        == page.evaluate("document.querySelectorAll('fieldset')[1].querySelectorAll('input').length")
    )


def test_a_culprit_is_named_and_a_wrong_one_leads_to_where_it_is_so(lab):
    page = lab("museum")
    page.get_by_label("mlx#2238").check()
    expect(page.get_by_role("region", name="reported, and replayed")).to_be_hidden()
    page.get_by_label("A square was too large").check()
    page.get_by_role("button", name="Commit my answer").click()
    expect(page.locator(".verdict")).to_contain_text("The largest square here is 2.1e6; float32 goes up to 3.4e38.")
    page.get_by_role("button", name="Show me where that is so").click()
    expect(page.locator("h2")).to_have_text("ε and precision")
    expect(page.locator("h2")).to_be_focused()
    assert bars(page, "outlines: without the offset") == ["0", "0"]


def test_another_exhibit_asks_anew_by_keyboard(lab):
    page = lab("museum", done="passed")
    page.get_by_role("radio", name="pytorch#41527").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="DeepSpeed#581")).to_be_focused()
    for key in ("Tab", "Tab", "Space", "Tab", "Enter"):  # the link, the answers, the button
        page.keyboard.press(key)
    expect(page.locator(".verdict")).to_contain_text("That is it.")
    expect(page.get_by_role("region", name="microsoft/DeepSpeed#581: reported")).to_be_visible()


@pytest.mark.parametrize(
    ("view", "answered"),
    [("precision", {"guess": "zeros", "way": "one pass", "c": 1e6}), ("museum", {"guess": "over", "exhibit": "table"})],
)
def test_axe_finds_nothing(lab, view, answered):
    page = lab(view)
    for state in ({}, {"done": "committed", **answered}):
        put(page, **state)
        if state:
            page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        axe_finds_nothing(page)


@pytest.mark.parametrize("view", ["precision", "museum"])
def test_little_is_read_before_the_first_action_and_a_narrow_page_does_not_scroll_sideways(lab, view):
    page = lab(view)
    parts = page.locator("main h2, main .ask, main > fieldset, main > .panel, main .predict").all()
    assert 20 < sum(len(part.inner_text().split()) for part in parts) <= 120
    page.set_viewport_size({"width": 320, "height": 800})
    for done in (None, "passed"):
        put(page, done=done)
        assert page.evaluate("document.documentElement.scrollWidth") == 320
