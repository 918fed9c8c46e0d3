# SPDX-License-Identifier: MIT
"""This file pokes a number of a 2 × 3 × 4 tensor in a browser, and counts the outputs that are marked."""

import contextlib
import io

import numpy as np
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect

OUTPUTS = "The outputs; those that changed are marked"
COUNTS = {"layer": 4, "data": 6, "rms": 4, "instance": 3, "group": 6, "batch": 6, "both": 12}
# what stands at place k of the tensor: example, token, feature
COLUMN, ROW, EXAMPLE = "2.6.10.14.18.22", "4.5.6.7", ".".join(map(str, range(12)))


def marked(page):
    return page.get_by_role("grid", name=OUTPUTS).locator("td.changed")


def test_the_outputs_that_change_are_counted_norm_by_norm(lab):
    page = lab("rows", cell=[0, 1, 2], done="passed")
    for tried, radio in enumerate(page.get_by_role("group", name="The norm").get_by_role("radio").all(), 1):
        radio.check()
        count = list(COUNTS.values())[tried - 1]
        assert marked(page).count() == count
        assert all(text.endswith("\n●") for text in marked(page).all_text_contents())
        assert page.locator(".hunt .done").count() == tried
        expect(page.locator(".hunt li").nth(tried - 1)).to_contain_text(f": {count} of 24 outputs changed")
        expect(page.locator(".notice")).to_contain_text(f"{count} outputs changed, all in its group")
        expect(page.locator(".badge")).to_contain_text("agrees to")


def test_nothing_is_marked_where_nothing_is_added(lab):
    page = lab("rows", by=0, done="passed")
    assert marked(page).count() == 0


def test_the_picture_turns_and_the_group_does_not(lab):
    page = lab("rows", done="passed")
    inputs = page.get_by_role("grid", name="The numbers; Enter")
    names = "cells => cells.map(c => c.ariaLabel.split(',').slice(0, 3).join())"
    before = sorted(inputs.locator("td.group").evaluate_all(names))
    assert inputs.locator("tr").count() == 7
    page.get_by_label("Turn the picture").check()
    assert inputs.locator("tr").count() == 5
    after = sorted(inputs.locator("td.group").evaluate_all(names))
    assert len(before) == 4
    assert before == after
    assert marked(page).count() == 4
    expect(page.locator(".notice")).to_contain_text("The picture is turned and the group is not")


PREDICTIONS = [
    (ROW, "You had it", None),
    ("6", "Its own output alone?", "layer norm"),
    (COLUMN, "That is normalizing data", "normalizing data"),
    ("2.6.10", "That is instance norm", "instance norm"),
    (EXAMPLE, "You marked the whole example", "layer norm over token and feature"),
    (".".join(map(str, range(24))), "You marked everything", "batch norm"),
    ("", "You marked nothing", "layer norm"),
    ("4.5.9", "you missed 2, and you marked 1 that stays", "layer norm"),
]


def test_each_prediction_has_its_answer_and_a_state_that_shows_it(lab):
    page = lab("rows")
    for picks, said, norm in PREDICTIONS:
        page.evaluate("picks => LN.page.view.set({ picks, done: null, norm: 'layer', at: [1, 2, 3] })", picks)
        expect(page.get_by_role("grid", name=OUTPUTS)).to_be_hidden()
        page.get_by_role("button", name="Commit my prediction").click()
        expect(page.locator(".predict .verdict")).to_contain_text(said)
        show = page.get_by_role("button", name="Show me", exact=True)
        if norm is None:
            expect(show).to_be_hidden()
            continue
        show.click()
        expect(page.get_by_role("radio", name=norm, exact=True)).to_be_checked()
        assert page.evaluate("document.activeElement.ariaLabel").startswith("example A, token 2, feature 3")
        assert page.locator("td.guessed:visible").count() == len(picks.split(".")) * bool(picks)  # the prediction stays


def test_the_view_is_walked_by_keyboard_alone(lab):
    page = lab("rows")
    focused = lambda: page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")  # noqa: E731
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused().startswith("example A, token 1, feature 1"):
            break
    for key in ["ArrowDown", " ", "ArrowRight", "Enter", "ArrowRight", " ", "ArrowRight", " "]:
        page.keyboard.press(key)
    assert focused() == "example A, token 2, feature 4, 7, marked"
    page.keyboard.press("Tab")
    assert focused() == "Commit my prediction"
    page.keyboard.press("Enter")
    assert focused() == "Predict again"
    expect(page.locator(".predict .verdict")).to_contain_text("You had it")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")  # the second of the norms
    expect(page.get_by_role("radio", name="normalizing data")).to_be_checked()
    assert marked(page).count() == 6
    for _ in range(4):
        page.keyboard.press("Tab")
    assert focused().startswith("example A, token 1, feature 1")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert focused() == "example A, token 1, feature 4, 12, output 1.86, group 4 of 4, the changed number"
    assert marked(page).count() == 6
    page.keyboard.press("Tab")
    assert "output" in focused()


def test_a_turned_grid_is_still_reached_by_tab(lab):
    page = lab("rows", done="passed")
    inputs = page.get_by_role("grid", name="The numbers; Enter")
    inputs.locator("td").last.focus()
    page.get_by_label("Turn the picture").check()
    assert inputs.locator("td[tabindex='0']").count() == 1


def test_axe_finds_nothing(lab):
    for state in ({}, {"done": "committed", "picks": COLUMN, "norm": "batch", "turned": True}):
        axe_finds_nothing(lab("rows", **state))


def test_narrow_and_few_words(lab):
    page = lab("rows")
    page.set_viewport_size({"width": 320, "height": 800})
    assert len(page.locator("main .ask, main .predict p:visible").all_inner_texts()[0].split()) <= 120
    for state in ({}, {"done": "passed"}, {"done": "passed", "turned": True}):
        page = lab("rows", **state)
        assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_hostile_links_open(lab):
    page = lab("rows", norm="__proto__", cell=[9, -4, 1e9], at=[0.5], picks="x.99.-1.4", seed=-3, by=1e300, done="-")
    expect(page.locator("main h2")).to_have_text("Row or column?")
    assert page.get_by_role("grid", name=OUTPUTS).locator("td").count() == 24


def test_the_snippet_prints_what_is_shown(lab):
    page = lab("rows", done="passed")
    for norm, count in COUNTS.items():
        page.evaluate("norm => LN.page.view.set({ norm })", norm)
        page.wait_for_timeout(350)  # the snippet is not written at each step of a drag
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(page.locator("pre code").text_content(), {})
        *values, counted = said.getvalue().strip().rpartition("\n")
        assert counted == f"{count} of 24 outputs changed"
        texts = page.get_by_role("grid", name=OUTPUTS).locator("td").all_text_contents()
        shown = [text.removesuffix("\n●").replace("−", "-") for text in texts]
        printed = np.array(values[0].translate(str.maketrans("[]", "  ")).split(), float)
        assert np.allclose(printed, np.array(shown, float), atol=6e-3)
