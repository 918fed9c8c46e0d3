# SPDX-License-Identifier: MIT
"""This file answers the questions in a browser, rightly and wrongly, and follows where wrong answers lead."""

import contextlib
import io
import json
import re

import numpy as np
import pytest
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect

ANSWERS = {
    "two numbers": "-1, 1",
    "equal numbers": "zeros; without ε, 0 / 0",
    "the other token": "no",
    "γ and β": "−1.683, 0.106, 1.894, 3.683",
    "ten times": "[-1.342, -0.447, 0.447, 1.342]",
    "plus 100": "the same four numbers again",
    "k and c": "k = −1",
    "the final mean": "no: it becomes 1",
    "a large batch": "no: one example is enough",
    "in use": "no: it uses the token at hand",
    "without γ and β": "no: they may be left out",
    "the shape": "the same",
    "a tiny token": "-0.775 -0.258 0.258 0.775",
    "a spread of 1?": "a little below 1",
    "the same shape": "perhaps not",
}


def names(page):
    labels = page.get_by_role("group", name="All questions").get_by_role("button")
    return [one.get_attribute("aria-label").split(": ", 1)[1] for one in labels.all()]


def go(page, name):
    page.get_by_role("group", name="All questions").get_by_role("button").nth(names(page).index(name)).click()


def answer(page, said):
    field = page.locator(".predict input[type=text]")
    if field.count():
        field.fill(said)
    else:
        page.get_by_label(said, exact=True).check()
    page.get_by_role("button", name="Check", exact=True).click()


def test_every_answer_of_the_documents_is_right(lab):
    page = lab("questions")
    for name, said in ANSWERS.items():
        go(page, name)
        answer(page, said)
        expect(page.locator(".verdict")).to_contain_text("✓ Right.")
    left = sorted(set(names(page)) - set(ANSWERS))
    assert left == ["numbers of this link", "order the steps", "pick a cell"]


def test_every_wrong_answer_says_what_it_believes_and_leads_to_a_state_that_shows_it(lab):
    page, led = lab("questions"), []
    page.evaluate("LN.page.go = (link) => { window.led = link; window.asStarted = false; }")
    for name in names(page):
        go(page, name)
        for text in page.locator(".predict .option label").all_text_contents():
            if text == ANSWERS.get(name):
                continue
            answer(page, text)
            assert len(page.locator(".verdict").text_content()) > len("✗ Not yet. ") + 10
            page.get_by_role("button", name="Show me where that is so").click()
            led.append(page.evaluate("window.led"))
    known = page.evaluate("Object.fromEntries(LN.VIEWS.map((v) => [v.id, Object.keys(v.start)]))")
    for link in led:
        view, words = link.split("?")
        assert [w for w in words.split("&") if w.split("=")[0] not in [*known[view], "done"]] == []
    assert len(led) >= 16


@pytest.mark.parametrize(
    ("name", "said", "belief"),
    [("two numbers", "-0.707, 0.707", "n − 1"), ("γ and β", "0, 0.447, 1.342, 2.683", "Off by"),
     ("γ and β", "-0.683, 1.106, 2.894, 4.683", "γ does not multiply β"),
     ("ten times", "-13.42, -4.47, 4.47, 13.42", "larger token"),
     ("a tiny token", "-1.342, -0.447, 0.447, 1.342", "not always negligible"),
     ("ten times", "-30, -10, 10, 30", "divide by the spread")],
)  # fmt: skip
def test_a_typed_answer_is_told_what_it_mixes_up(lab, name, said, belief):
    page = lab("questions")
    go(page, name)
    answer(page, said)
    expect(page.locator(".verdict")).to_contain_text(belief)
    expect(page.get_by_text("Worked solution")).to_be_hidden()
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("Worked solution")).to_be_visible()


def test_what_is_shown_is_marked_not_tried_and_what_is_unreadable_is_no_miss(lab):
    page = lab("questions")
    go(page, "two numbers")
    answer(page, "one")
    expect(page.locator(".verdict")).to_contain_text("⚠ Write 2 numbers with commas between")
    page.get_by_role("button", name="Show me (not tried)").click()
    expect(page.locator(".verdict")).to_have_text("◇ Shown, not tried.")
    expect(page.get_by_text("Worked solution: Mean 1.5, differences [−1.5, 1.5]")).to_be_visible()
    expect(page.get_by_role("button", name="shown, not tried: two numbers")).to_be_visible()
    box = page.locator(".predict fieldset")
    assert page.locator(f"#{box.get_attribute('aria-describedby')}").text_content() == "◇ Shown, not tried."


@pytest.mark.parametrize("seed", [1, 2, 9])
def test_a_cell_is_picked_with_the_keyboard(lab, seed):
    page = lab("questions", seed=seed)
    go(page, "pick a cell")
    row, column = seed % 3, seed * 7 % 4
    cells = page.locator("table[role=grid] td")
    tries = [((row + 1) % 3, column, "column"), ((row + 1) % 3, (column + 1) % 4, "another token")]
    for i, j, belief in [*tries, (row, (column + 1) % 4, "✓ Right.")]:
        cells.nth(4 * i + j).focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Check", exact=True).press("Enter")
        expect(page.locator(".verdict")).to_contain_text(belief)


def test_steps_are_ordered_with_the_keyboard_and_focus_stays(lab):
    page = lab("questions")
    go(page, "order the steps")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.locator(".verdict")).to_contain_text("✗ Not yet. So it comes out as")
    for step, times in (("subtract the mean", 2), ("divide by √(variance + ε)", 2), ("multiply by γ = 2", 1)):
        for _ in range(times):
            button = page.get_by_role("button", name=f"↑ {step}")
            button.focus()
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    page.get_by_role("button", name="Check", exact=True).press("Enter")
    expect(page.locator(".verdict")).to_contain_text("✓ Right.")


def test_a_seed_gives_the_same_order_and_another_gives_another(lab):
    first, again, other = (names(lab("questions", seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)
    assert len(first) >= 14


def test_numbers_of_a_link_are_normalized(lab):
    page = lab("questions", seed=7)
    go(page, "numbers of this link")
    x = np.array(json.loads(re.search(r"\[.*?\]", page.locator(".predict legend").text_content())[0]))
    answer(page, ", ".join(f"{v:.3f}" for v in (x - x.mean()) / x.std()))
    expect(page.locator(".verdict")).to_contain_text("✓ Right.")
    expect(page.locator("pre code")).to_contain_text("print(ln.layer_norm(x))")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(page.locator("pre code").text_content(), {})
    y = [float(v) for v in printed.getvalue().strip("[]\n").split()]
    np.testing.assert_allclose(y, (x - x.mean()) / x.std(), atol=1e-3)
    expect(page.locator(".badge")).to_contain_text("agrees to")


def test_the_list_for_tomorrow_is_in_this_browser_and_can_be_forgotten(lab):
    page = lab("questions")
    name = names(page)[0]
    page.get_by_role("button", name="Again tomorrow", exact=True).click()
    expect(page.get_by_text(f"On the list for another day, in this browser only: {name}.")).to_be_visible()
    assert page.evaluate("Object.keys(localStorage)") == ["layernorm.again"]
    page.evaluate("n => localStorage.setItem('layernorm.again', JSON.stringify({[n]: '2020-01-01'}))", name)
    expect(lab("questions", loaded=True).get_by_role("button", name="1 ○ due")).to_be_visible()
    page.get_by_role("button", name="Forget what this page keeps").click()
    expect(page.get_by_text("in this browser only: nothing.")).to_be_visible()
    assert page.evaluate("Object.keys(localStorage)") == []


def test_axe_finds_nothing(lab):
    page = lab("questions")
    for name in ("two numbers", "pick a cell", "order the steps", "plus 100"):
        go(page, name)
        if name == "plus 100":
            answer(page, "four numbers near 1")
        elif name != "two numbers":
            page.get_by_role("button", name="Show me (not tried)").click()
        axe_finds_nothing(page)


def test_320_pixels_are_wide_enough(lab, page):
    page.set_viewport_size({"width": 320, "height": 800})
    page = lab("questions")
    for name in names(page):
        go(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
