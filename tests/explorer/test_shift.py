# SPDX-License-Identifier: MIT
"""This file moves k and c in a browser, and reads what is shown."""

import re

import pytest
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect


@pytest.mark.parametrize(
    ("k", "shown"),
    [(1, "1.342"), (0.01, "1.328"), (0.001, "0.7746"), (1e-4, "0.09463"), (0, "0"), (-1, "−1.342"), (0.25, "1.342")],
)
def test_the_last_output(lab, k, shown):
    page = lab("shift", k=k, done="passed")
    values = page.locator("figure", has_text="After layer normalization").locator("text.value")
    assert values.all_text_contents()[-1] == shown


def test_nothing_is_shown_before_a_prediction_and_it_stays_as_outlines(lab):
    page = lab("shift")
    expect(page.get_by_text("After layer normalization")).to_be_hidden()
    page.get_by_label("output 1, exact value").fill("-1.3")
    page.get_by_label("output 1, exact value").press("Enter")
    page.get_by_role("button", name="Commit my prediction").click()
    expect(page.get_by_text("After layer normalization")).to_be_visible()
    assert page.locator("rect.guess").count() == 4
    expect(page.locator(".verdict")).to_contain_text("up to 1.3 off")


def test_the_hunt_ticks_what_is_found(lab):
    page = lab("shift", done="passed")
    for count, chip in enumerate(["k = −1", "k = 0", "k = 0.001", "c = 2048 in 16 bits"], 1):
        page.get_by_role("button", name=chip, exact=True).click()
        expect(page.get_by_text(f"Found {count} of 4 kinds.")).to_be_visible()


def test_the_installed_library_agrees(lab):
    page = lab("shift", k=3, done="passed")
    expect(page.locator(".badge")).to_have_text(re.compile(r"layernorm \S+ agrees to [^ ]+ in the last place"))


def test_the_slider_says_what_k_does(lab):
    page = lab("shift", done="passed")
    slider = page.get_by_role("slider", name="k, multiplied by")
    slider.focus()
    slider.press("Home")
    assert slider.get_attribute("aria-valuetext") == "−10; the outputs are flipped"


def test_axe_finds_nothing(lab):
    answered = {"done": "committed", "k": -1, "guess": [-2, 0, 0, 2]}
    for state in ({}, answered, {"done": "passed", "log": True, "k": 0.001}):
        axe_finds_nothing(lab("shift", **state))
