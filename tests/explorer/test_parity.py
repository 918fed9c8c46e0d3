# SPDX-License-Identifier: MIT
"""This file holds the page's own arithmetic against the installed library and NumPy, in a browser."""

import base64

import ml_dtypes
import numpy as np
import pytest

import layernorm as ln

CASES = 500
# 65 536 numbers are 0.5 MB of bytes, and take seconds as a list
SEND = """((all) => {
  const bytes = new Uint8Array(Float64Array.from(all).buffer), parts = [];
  for (let i = 0; i < bytes.length; i += 4096) parts.push(String.fromCharCode(...bytes.subarray(i, i + 4096)));
  return btoa(parts.join(""));
})"""


def sent(text):
    return np.frombuffer(base64.b64decode(text))


NORMS = """(cases) => cases.map(({ norm, type, x, eps, gamma, beta }) => {
  const held = x.map((v) => LN.round(v, type));
  const y = norm === "layer" ? LN.layer(held, { eps, gamma, beta }) : LN.rms(held, { eps, gamma });
  return y.map((v) => LN.round(v, type));
})"""


def drawn():
    """Draw rows of all widths, offsets and spreads, in the types of the page."""
    random = np.random.default_rng(77)
    for k in range(CASES):
        type_ = ("float64", "float32", "float16", "bfloat16")[k % 4]
        n = int(random.integers(2, 65))
        offset = float(random.choice([0, 1, -30, 1000])) * (type_ not in ("float16", "bfloat16") or 0.1)
        x = np.array(offset + 10.0 ** random.uniform(-3, 1) * random.standard_normal(n)).astype(type_)
        gamma, beta = (np.float32(random.normal(m, 0.5, n)).astype(np.float64).tolist() for m in (1, 0))
        yield {"norm": ("layer", "rms")[k // 4 % 2], "type": type_, "x": x.astype(np.float64).tolist(),
               "eps": float(random.choice([1e-3, 1e-5, 1e-12])), "gamma": gamma, "beta": beta}  # fmt: skip


def test_500_rows_are_the_librarys_within_its_bound(lab):
    """The library is within 4u(|γx̂| + |γ|ρ + |β|) of exact, and the page, in float64, within one rounding more."""
    cases = list(drawn())
    answers = lab("recipe").evaluate(NORMS, cases)
    for case, answer in zip(cases, answers, strict=True):
        x, gamma, beta = np.array(case["x"]).astype(case["type"]), np.array(case["gamma"]), np.array(case["beta"])
        layer = case["norm"] == "layer"
        y = (
            ln.layer_norm(x, gamma, beta, case["eps"]) if layer else ln.rms_norm(x, gamma, eps=case["eps"])
        )  # fmt: skip
        wide = x.astype(np.float64)
        d = wide - wide.mean() if layer else wide
        root = np.sqrt((d**2).mean() + case["eps"])
        size = np.abs(gamma * d / root) + np.abs(gamma) * np.sqrt((d**2).mean()) / root + layer * np.abs(beta)
        u = 2.0**-53 if case["type"] == "float64" else 2.0**-24
        last = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(case["type"], 0) * np.abs(y.astype(np.float64))
        apart = np.abs(y.astype(np.float64) - np.array(answer))
        assert (apart <= 5 * u * size + last + 2.0**-24 * (case["type"] == "float16")).all(), case


def test_all_half_patterns(lab):
    read = sent(lab("recipe").evaluate(f"() => {SEND}(Array.from({{ length: 65536 }}, (_, bits) => LN.halfOf(bits)))"))
    exact = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    np.testing.assert_array_equal(read, exact)
    np.testing.assert_array_equal(np.signbit(read)[~np.isnan(exact)], np.signbit(exact)[~np.isnan(exact)])


def test_every_half_is_its_own_rounding_and_the_middle_of_two_goes_to_the_even_one(lab):
    halves = "Array.from({ length: 65536 }, (_, bits) => LN.halfOf(bits))"
    middles = "all.slice(0, -1).map((v, i) => (v + all[i + 1]) / 2)"
    page = lab("recipe")
    rounded = f"(of) => {SEND}(of.map((v) => LN.round(v, 'float16')))"
    same, middle = (
        sent(page.evaluate(f"() => {{ const all = {halves}; return ({rounded})({of}); }}")) for of in ("all", middles)
    )
    exact = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    np.testing.assert_array_equal(same, exact)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(middle, ((exact[:-1] + exact[1:]) / 2).astype(np.float16).astype(np.float64))


@pytest.mark.parametrize("type_", ["float32", "float16", "bfloat16"])
def test_rounding_is_numpys(lab, type_):
    random = np.random.default_rng(5)
    wide = np.concatenate([10.0 ** random.uniform(-9, 5, 400) * random.choice([-1, 1], 400), [65519.99, 65520.0, 3e-8]])
    to = np.dtype(ml_dtypes.bfloat16) if type_ == "bfloat16" else np.dtype(type_)
    with np.errstate(over="ignore"):
        expected = wide.astype(to).astype(np.float64)
    read = lab("recipe").evaluate("([x, type]) => x.map((v) => String(LN.round(v, type)))", [wide.tolist(), type_])
    np.testing.assert_array_equal([float(t.replace("Infinity", "inf")) for t in read], expected)


def test_neighbours_of_a_tie_are_rounded_to_even(lab):
    values = [1 + 2**-11, 1 + 3 * 2**-11, 2049, 2051, 65519.999]
    read = lab("recipe").evaluate("(x) => x.map((v) => LN.round(v, 'float16'))", values)
    assert read == [1, 1 + 2**-9, 2048, 2052, 65504]
