# SPDX-License-Identifier: MIT
"""This file looks at what all views have in common: their links, colours, motion, and the way in for a keyboard."""

import pytest
from playwright.sync_api import expect

VIEWS = ["shift", "rows", "precision", "museum", "axes", "recipe", "questions", "affine", "family", "depth", "tensor"]


def test_the_views_are_those(lab):
    links = lab("shift").locator("#views a").evaluate_all("all => all.map((a) => a.getAttribute('href').slice(1))")
    assert links == VIEWS


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_moves_for_whoever_asked_for_that(lab, page, view):
    page.emulate_media(reduced_motion="reduce")
    moving = lab(view).evaluate(
        "() => [...document.querySelectorAll('*')].map((e) => getComputedStyle(e))"
        ".filter((s) => s.animationName !== 'none' || s.transitionDuration.split(', ').some((d) => d !== '0s')).length"
    )
    assert moving == 0


def test_bars_move_otherwise(lab):
    durations = lab("shift", done="passed").evaluate(
        "() => getComputedStyle(document.querySelector('.bar')).transitionDuration"
    )
    assert "0.12s" in durations


def test_bars_and_marks_are_seen_in_forced_colours(lab, page):
    page.emulate_media(forced_colors="active")
    shown = lab("shift", done="passed")
    bar, paper = shown.evaluate(
        "() => [getComputedStyle(document.querySelector('.bar')).fill, getComputedStyle(document.body).backgroundColor]"
    )
    assert bar != paper
    assert shown.evaluate("() => getComputedStyle(document.querySelector('nav a[aria-current]')).outlineWidth") == "3px"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chosen_colours_stay(lab, page, theme):
    lab("shift").get_by_label(theme, exact=True).check()
    again = lab("recipe", loaded=True)
    expect(again.get_by_label(theme, exact=True)).to_be_checked()
    paper = again.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 22, 26)"}[theme]
    assert again.evaluate("() => Object.keys(localStorage)") == ["layernorm.theme"]


SOILED = """() => {
  const was = [window.left ?? null, localStorage.length, document.documentElement.dataset.theme,
    matchMedia("(prefers-color-scheme: dark)").matches, innerWidth, LN.page.view.state.c];
  window.left = "of a test";
  localStorage.setItem("layernorm.theme", "dark");
  LN.page.view.set({ c: 3 });
  return was;
}"""


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_finds_nothing_of_another(lab, page, turn):
    assert lab("shift").evaluate(SOILED) == [None, 0, "auto", False, 1280, 0]
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 320, "height": 800})


def test_the_first_tab_leads_past_the_list_of_views(lab):
    page = lab("rows", loaded=True)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the view")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_a_link_brings_a_state_back_and_a_broken_one_opens_its_view(lab):
    page = lab("shift", k=-2, done="passed")
    expect(page.get_by_role("slider", name="k, multiplied by")).to_have_value("-2")
    base = page.url.partition("#")[0]
    for broken in ("#shift?k=%7B", "#shift?k=%22x%22&nothing=1&constructor=1", "#shift?k"):
        page.goto("about:blank")
        page.goto(base + broken)
        expect(page.locator("main h2")).to_have_text("k·x + c")


def test_an_unknown_view_opens_the_first(lab):
    page = lab("no-such-view", loaded=True)
    expect(page.locator("main h2")).to_have_text("k·x + c")


def test_reset_takes_everything_back(lab):
    page = lab("recipe", x=[1, 3, 5], done="passed")
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => location.hash === '#recipe'")
    expect(page.get_by_role("button", name="Commit my answer")).to_be_visible()
