# SPDX-License-Identifier: MIT
"""This file goes through the recipe, and through γ and β, in a browser."""

import contextlib
import io

import pytest
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect


def step(page, name):
    return page.locator(f"main tr[data-term={name}] td").text_content()


@pytest.mark.parametrize(
    ("x", "mean", "variance", "outputs"),
    [([2, 4, 6, 8], "5", "5", "[−1.341639, −0.4472131, 0.4472131, 1.341639]"),
     ([1, 3, 5], "3", "2.66667", "[−1.224743, 0, 1.224743]"), ([0, 3], "1.5", "2.25", "[−0.9999978, 0.9999978]"),
     ([5, 5, 5, 5], "5", "0", "[0, 0, 0, 0]"),
     ([20, 40, 60, 80], "50", "500", "[−1.341641, −0.4472136, 0.4472136, 1.341641]"),
     ([102, 104, 106, 108], "105", "5", "[−1.341639, −0.4472131, 0.4472131, 1.341639]")],
)  # fmt: skip
def test_the_four_steps(lab, x, mean, variance, outputs):
    page = lab("recipe", x=x, done="passed")
    assert step(page, "mean").endswith(f"= {mean}")
    assert step(page, "variance") == variance
    assert step(page, "affine") == outputs


def test_a_chip_and_a_slider_change_the_token(lab):
    page = lab("recipe", done="passed")
    page.get_by_role("button", name="[1, 3, 5]", exact=True).click()
    assert step(page, "mean") == "(1 + 3 + 5) / 3 = 3"
    slider = page.get_by_role("slider", name="x₃")
    slider.focus()
    slider.press("ArrowRight")
    assert step(page, "mean").startswith("(1 + 3 + 6) / 3")
    expect(page.get_by_role("slider", name="x₄")).to_be_hidden()


def test_one_term_is_marked_everywhere(lab):
    page = lab("recipe", done="passed")
    page.locator("main tr[data-term=mean]").focus()
    kinds = page.locator(".lit").evaluate_all("all => all.map((e) => e.localName)")
    assert set(kinds) >= {"mrow", "tr", "line", "span"}


def test_an_answer_is_told_what_it_overlooks(lab):
    page = lab("recipe")
    expect(page.locator("main table").first).to_be_hidden()
    page.get_by_label("the last, exactly 1").check()
    page.get_by_role("button", name="Commit my answer").click()
    expect(page.locator(".verdict")).to_contain_text("the largest lies 1.342 spreads above the mean")


def test_the_final_mean_need_not_be_0(lab):
    page = lab("affine")
    page.get_by_label("no: it is 1").check()
    page.get_by_role("button", name="Commit my answer").click()
    expect(page.locator(".notice")).to_contain_text("[−1.44949, 1, 3.44949]: mean 1")


def test_a_gamma_of_0_lets_nothing_through_and_folding_changes_nothing(lab):
    page = lab("affine", done="passed", gamma=[1, 0, -2], beta=[0.5, 2, 1])
    expect(page.locator(".notice")).to_contain_text("Feature 2 is β alone")
    before, after = (row.locator("td").last.text_content() for row in page.locator("main .scroll tbody tr").all()[:2])
    assert before == after != "0"


@pytest.mark.parametrize(("view", "state"), [("recipe", {"x": [1, 3, 5], "gamma": 2, "beta": 1}),
                                             ("affine", {"gamma": [2, 2, 2], "beta": [1, 1, 1]})])  # fmt: skip
def test_the_snippet_prints_what_is_shown(lab, view, state):
    page = lab(view, done="passed", **state)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(page.locator("details.snippet code").text_content(), view, "exec"), {})
    lines = printed.getvalue().splitlines()
    assert len(set(lines)) == 1
    assert [round(float(v), 4) for v in lines[0].strip("[]").split()] == [-1.4495, 1, 3.4495]


@pytest.mark.parametrize("view", ["recipe", "affine"])
def test_axe_finds_nothing(lab, view):
    for done in (None, "passed"):
        axe_finds_nothing(lab(view, done=done))


@pytest.mark.parametrize("view", ["recipe", "affine"])
def test_320_pixels_are_wide_enough(lab, page, view):
    page.set_viewport_size({"width": 320, "height": 800})
    assert lab(view, done="passed").evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize(
    ("view", "key", "right"), [("recipe", "answer", "some"), ("affine", "answer", "one"), ("family", "answer", "layer")]
)
def test_each_wrong_answer_has_a_state_to_look_at(lab, view, key, right):
    page = lab(view)
    answers = page.locator(".predict label").all_text_contents()
    looks = 0
    for words in answers:
        page.evaluate("(key) => LN.page.view.set({ [key]: '', done: null })", key)
        page.get_by_label(words, exact=True).check()
        page.get_by_role("button", name="Commit my answer").click()
        wrong = page.evaluate("(key) => LN.page.view.state[key]", key) != right
        expect(page.locator(".verdict")).to_contain_text("Not here." if wrong else "That is it.")
        expect(page.get_by_role("button", name="Show me where that is so")).to_be_visible(visible=wrong)
        looks += wrong
    assert looks == len(answers) - 1
