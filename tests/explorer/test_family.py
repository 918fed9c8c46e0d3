# SPDX-License-Identifier: MIT
"""This file reads the table of what each norm leaves unchanged, in a browser, beside NumPy's own results."""

import re

import numpy as np
import pytest
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect

NORMS = ["layer", "rms", "group", "instance", "batch"]
# Who is unchanged by what, as the formulas say.
UNCHANGED = {
    "offset": ["layer"],
    "scale": ["layer", "rms"],
    "shuffle": NORMS,
    "other": ["layer", "rms", "group", "instance"],
    "alone": ["layer", "rms", "group", "instance"],
    "use": ["layer", "rms", "group", "instance"],
}


def test_the_table_of_invariances(lab):
    page = lab("family", done="passed")
    for what, norms in UNCHANGED.items():
        cells = page.locator(f"tr[data-try={what}] td").all_text_contents()
        assert [norm for norm, cell in zip(NORMS, cells, strict=True) if cell == "✓ none"] == norms


@pytest.mark.parametrize("norm", NORMS)
def test_the_outputs_are_numpys(lab, norm):
    page = lab("family", done="passed", norm=norm, seed=3)
    grids = page.locator("table[role=grid]")
    x, y = (
        np.array([float(t.replace("−", "-")) for t in grids.nth(k).locator("td").all_text_contents()]).reshape(2, 3, 4)
        for k in range(2)
    )
    wide = x.reshape(2, 3, 2, 2) if norm == "group" else x
    axes = {"layer": -1, "rms": -1, "group": (1, 3), "instance": 1, "batch": (0, 1)}[norm]
    middle = 0 if norm == "rms" else wide.mean(axes, keepdims=True)
    spread = np.sqrt(((wide - middle) ** 2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, ((wide - middle) / spread).reshape(x.shape), atol=6e-3)
    expect(page.locator(".badge")).to_have_text(re.compile("agrees to"))


def test_the_skew_stays(lab):
    captions = lab("family", done="passed").locator("figcaption", has_text="skew").all_text_contents()
    before, after = (re.search(r"skew (\S+)", caption)[1] for caption in captions)
    assert before == after
    assert 1.5 < float(before) < 2.5  # of exponential numbers it is 2


def test_a_wrong_answer_is_told_by_how_much(lab):
    page = lab("family")
    expect(page.locator(".invariance")).to_be_hidden()
    page.get_by_label("layer and RMS norm: both look at one token").check()
    page.get_by_role("button", name="Commit my answer").click()
    expect(page.locator(".verdict")).to_contain_text(re.compile(r"RMS norm takes no mean off; it changes by \d"))
    expect(page.locator(".invariance")).to_be_visible()


def test_axe_finds_nothing(lab):
    for done in (None, "passed"):
        axe_finds_nothing(lab("family", done=done))


def test_320_pixels_are_wide_enough(lab, page):
    page.set_viewport_size({"width": 320, "height": 800})
    assert lab("family", done="passed").evaluate("document.documentElement.scrollWidth") <= 320
