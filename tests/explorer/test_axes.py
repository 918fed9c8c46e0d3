# SPDX-License-Identifier: MIT
"""This file ticks axes in a browser, and finds what is wrong with each export of the case files."""

import contextlib
import io
import itertools

import numpy as np
import pytest
from explorer.conftest import axe_finds_nothing
from playwright.sync_api import expect

import layernorm as ln

NAMES, LENGTHS = ("batch", "token", "feature"), (2, 3, 4)
TENSOR = "The tensor; each number with the number of its group"
# what the hypothesis that solves a case says, in the order of the cases
CAUSES = {
    "both": "token and feature",
    "eps": "ε is",
    "beta": "β is",
    "rms": "RMS",
    "ddof": "n − 1",
    "batch": "over batch",
}


def numbers(page, name, part=0):
    texts = page.get_by_role("grid", name=name).locator("td").all_text_contents()
    return np.array([text.split("\n")[part].replace("−", "-").removeprefix("≈ ") for text in texts], float).reshape(
        2, 3, 4
    )


def ran(page):
    """Run the snippet, and give the lines it prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(page.locator("pre code").text_content(), {})
    return said.getvalue().strip().split("\n")


def test_groups_pairs_and_shapes_of_every_choice_of_axes(lab):
    page = lab("axes", done="passed", feature=False)
    x = numbers(page, TENSOR)
    for count in (1, 2, 3):
        for axes in itertools.combinations(range(3), count):
            for axis, name in enumerate(NAMES):
                page.get_by_label(f"{name} (axis {axis}").set_checked(axis in axes)
            shape, members = tuple(LENGTHS[a] for a in axes), int(np.prod([LENGTHS[a] for a in axes]))
            facts = page.locator(".facts").text_content()
            assert f"Pairs (μ, σ): {24 // members}, each from {members} numbers" in facts
            assert f"shape {shape}, {members} numbers each" in facts
            texts = page.get_by_role("grid", name=TENSOR).locator("td").all_text_contents()
            assert len({text.split("\n#")[1] for text in texts}) == 24 // members
            page.get_by_label("Show the outputs").check()
            assert np.allclose(numbers(page, TENSOR), ln.layer_norm(x, axis=axes), atol=6e-3)
            page.get_by_label("Show the outputs").uncheck()


def test_the_two_things_called_layer_norm(lab):
    page = lab("axes", done="passed")
    page.get_by_role("button", name="layer norm of an example").click()
    expect(page.get_by_text("Also called layer norm")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("Pairs (μ, σ): 2, each from 12 numbers.")
    expect(page.locator(".notice")).to_contain_text("The shape of the output is the same")
    page.get_by_role("button", name="layer norm of a token").click()
    expect(page.get_by_text("Layer norm as transformers have it")).to_be_visible()
    expect(page.locator(".badge")).to_contain_text("agrees to")


@pytest.mark.parametrize(
    ("ticks", "codes"),
    [
        (
            "feature",
            [
                "ln.layer_norm(x, axis=(2,))", "x.mean(axis=(2,), keepdims=True)",
                "nn.LayerNorm(normalized_shape=(4,))(x)",
                "LayerNormalization(axis=[2], epsilon=1e-5)",
                "nn.LayerNorm(reduction_axes=(2,), feature_axes=(2,), epsilon=1e-5)", "LayerNormalization(axis=-1)",
            ],
        ),
        (
            "token feature",
            [
                "ln.layer_norm(x, axis=(1, 2))", "x.mean(axis=(1, 2), keepdims=True)",
                "nn.LayerNorm(normalized_shape=(3, 4))(x)", "LayerNormalization(axis=[1, 2], epsilon=1e-5)",
                "nn.LayerNorm(reduction_axes=(1, 2), feature_axes=(1, 2), epsilon=1e-5)", "LayerNormalization(axis=-2)",
            ],
        ),
        (
            "token",
            [
                "ln.layer_norm(x, axis=(1,))", "x.mean(axis=(1,), keepdims=True)",
                "nn.LayerNorm(normalized_shape=(3,))(x.permute(0, 2, 1)).permute(0, 2, 1)",
                "LayerNormalization(axis=[1], epsilon=1e-5)",
                "nn.LayerNorm(reduction_axes=(1,), feature_axes=(1,), epsilon=1e-5)",
                "MeanVarianceNormalization(axes=[1])",
            ],
        ),
    ],
)  # fmt: skip
def test_the_spelling(lab, ticks, codes):
    page = lab("axes", done="passed", **{name: name in ticks.split() for name in NAMES})
    assert page.locator(".spelled code").all_text_contents() == codes


def test_pytorch_agrees_with_its_spelling(lab):
    torch = pytest.importorskip("torch")
    page = lab("axes", done="passed")
    for axes in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]:
        page.evaluate("state => LN.page.view.set(state)", {name: axis in axes for axis, name in enumerate(NAMES)})
        x = torch.tensor(numbers(page, TENSOR), dtype=torch.float32)
        y = eval(page.locator(".spelled code").nth(2).text_content(), {"nn": torch.nn, "x": x})
        assert np.allclose(y.detach().numpy(), ln.layer_norm(x.numpy(), axis=axes), atol=1e-5)


def test_a_wrong_count_of_pairs_is_told_what_it_counts(lab):
    page = lab("axes")
    told = {1: "the whole tensor", 2: "token and feature", 4: "batch norm", 8: "instance norm", 5: "no choice of axes"}
    for pairs, said in told.items():
        page.evaluate("pairs => LN.page.view.set({ pairs, done: null })", pairs)
        expect(page.get_by_role("grid", name=TENSOR)).to_be_hidden()
        page.get_by_role("button", name="Commit my prediction").click()
        expect(page.locator(".predict .verdict").first).to_contain_text(said)
        page.get_by_role("button", name="Show me where that is true").click()
        expect(page.locator(".facts")).to_contain_text(f"Pairs (μ, σ): {6 if pairs == 5 else pairs},")
    page.evaluate("LN.page.view.set({ pairs: 6, done: 'committed' })")
    expect(page.get_by_text("Six, as you said")).to_be_visible()


def test_every_case_has_one_cause_and_no_other(lab):
    page = lab("axes", part="cases")
    expect(page.get_by_role("heading", name="Worked solution")).to_be_hidden()
    table = page.get_by_role("region", name="Every hypothesis").locator("tbody")
    for case, cause in enumerate([*CAUSES, None], 1):
        for seed in range(1, 6):
            page.evaluate(
                "state => LN.page.view.set(state)", {"case": case, "seed": seed, "run": [f"{case}.{seed}.shown"]}
            )
            left = [float(text.removeprefix("✓ ")) for text in table.locator("td").all_text_contents()]
            assert left.count(0) == 1
            assert sorted(left)[1] > 0.1  # no other is near
            found = table.locator("tr", has_text="✓").locator("th").text_content()
            assert cause is None or CAUSES[cause] in found


def test_the_text_classifier_is_solved(lab):
    page = lab("axes", part="cases")
    page.get_by_role("button", name="Run this hypothesis").click()
    expect(page.get_by_text("Choose a hypothesis above first.")).to_be_visible()
    expect(page.get_by_text("every shape agrees; the predictions do not")).to_be_visible()
    page.get_by_role("radio", name="Its β is missing").check()
    page.get_by_role("button", name="Run this hypothesis").click()
    said = page.locator(".predict:visible .verdict")
    expect(said).to_contain_text("✗ Its β is missing? Run again, that leaves")
    residual = np.abs(numbers(page, "The numbers of the case")).max()
    assert f"leaves {residual:.2f}" in said.text_content()
    page.get_by_role("button", name="Show me what that would look like").click()
    expect(page.get_by_text("Mean of each token (of the hypothesis)")).to_be_visible()
    means = page.locator("figure", has_text="Mean of each token").locator("text.value").all_text_contents()
    assert len(set(means)) == 1  # a missing β moves all tokens alike
    page.get_by_role("radio", name="It normalizes token and feature together").check()
    page.get_by_role("button", name="Run this hypothesis").click()
    expect(said).to_contain_text("✓ Residual 0 in all 24 places")
    assert not numbers(page, "The numbers of the case").any()
    expect(page.locator(".notice")).to_contain_text("Found, with 2 hypotheses run.")
    expect(page.locator(".badge")).to_contain_text("agrees to")


def test_the_clues_are_the_export_without_gamma_and_beta(lab):
    page = lab("axes", part="cases", case=5)
    spreads = page.locator("figure", has_text="Spread of each token").locator("text.value").all_text_contents()
    assert set(spreads) <= {"0.866", "0.865"}
    page = lab("axes", part="cases", case=2)
    figure = page.locator("figure", has_text="Spread of each token")
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()  # the table is written when the opening is told, a moment later
    rows = [row.locator("td").all_text_contents() for row in figure.locator("tbody tr").all()]
    assert figure.locator("text.value").all_text_contents() == [row[1] for row in rows]
    quiet = [float(row[1]) for row in rows if float(row[2]) < 0.2]
    assert 0 < len(quiet) < 6
    assert max(quiet) < 0.98


def test_snippets_print_what_is_shown(lab):
    page = lab("axes", part="cases", seed=4, look="residual")
    for causes in ("both", "eps", "beta", "gamma", "rms", "ddof", "batch"):
        page.evaluate("cause => LN.page.view.set({ cause, run: [`1.4.${cause}`] })", causes)
        page.wait_for_timeout(350)  # the snippet is not written at each step of a drag
        residual = float(ran(page)[-1].split()[-1])
        assert residual == pytest.approx(np.abs(numbers(page, "The numbers of the case")).max(), rel=6e-3)
        assert (residual == 0) == (causes == "both")
    page = lab("axes", done="passed", outputs=True, token=True)
    *values, pairs = ran(page)
    assert pairs == "2 pairs of mean and spread"
    printed = np.array(" ".join(values).translate(str.maketrans("[]", "  ")).split(), float)
    assert np.allclose(printed.reshape(2, 3, 4), numbers(page, TENSOR), atol=6e-3)


def test_the_view_is_walked_by_keyboard_alone(lab):
    page = lab("axes")

    def focused():
        named = "(e => e.ariaLabel ?? e.labels?.[0]?.textContent ?? e.textContent)(document.activeElement)"
        return page.evaluate(named)

    def tab_to(words):
        for _ in range(30):
            page.keyboard.press("Tab")
            if focused().startswith(words):
                return
        raise AssertionError(f"Tab does not come to {words}")

    tab_to("pairs of mean and spread")
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    tab_to("Commit my prediction")
    page.keyboard.press("Enter")
    assert focused() == "Predict again"
    expect(page.get_by_text("Six, as you said")).to_be_visible()
    tab_to("token (axis 1")
    page.keyboard.press(" ")
    expect(page.locator(".facts")).to_contain_text("Pairs (μ, σ): 2,")
    tab_to("example A, token 1, feature 1")
    page.keyboard.press("ArrowDown")
    assert focused().endswith("group 1 of 2")
    page.get_by_role("radio", name="pick the axes").focus()
    page.keyboard.press("ArrowRight")
    tab_to("the export's outputs")
    tab_to("It normalizes token and feature together")
    page.keyboard.press(" ")
    page.keyboard.press("ArrowDown")
    tab_to("Run this hypothesis")
    page.keyboard.press("Enter")
    assert focused() == "Run this hypothesis"
    expect(page.get_by_text("✗ It normalizes each feature over batch and token?")).to_be_visible()
    tab_to("Show me (not tried)")
    page.keyboard.press("Enter")
    assert focused() == "Hide the solution"
    expect(page.get_by_role("heading", name="Worked solution")).to_be_visible()


def test_axe_finds_nothing(lab):
    answered = {"part": "cases", "cause": "beta", "run": ["1.1.beta", "1.1.shown"]}
    states = [{}, {"done": "committed", "batch": True}, answered]
    for state in states:
        axe_finds_nothing(lab("axes", **state))


def test_narrow_and_few_words(lab):
    page = lab("axes")
    words = page.locator("main").inner_text().split("What to notice")[0].split()
    assert len(words) <= 120
    page.set_viewport_size({"width": 320, "height": 800})
    for state in ({}, {"done": "passed", "token": True, "feature": False}, {"part": "cases", "run": ["1.1.shown"]}):
        page = lab("axes", **state)
        assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_hostile_links_and_no_axis_open(lab):
    hostile = "__proto__"
    page = lab("axes", part="cases", case=1e9, seed=-7.5, cause=hostile, look=hostile, run=[f"7.-7.5.{hostile}"])
    assert page.get_by_role("grid", name="The numbers of the case").locator("td").count() == 24
    page = lab("axes", done="passed", feature=False, outputs=True)
    expect(page.get_by_text("No framework takes an empty list of axes.")).to_be_visible()
    assert not numbers(page, TENSOR).any()
    assert ran(page)[-1] == "24 pairs of mean and spread"
