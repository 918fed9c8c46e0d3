// SPDX-License-Identifier: MIT
// This view goes through the four steps of the formula; every number in it can be moved, and each term lights up everywhere.
"use strict";

(() => {
const { el, say } = LN;
const CHIPS = [[2, 4, 6, 8], [1, 3, 5], [0, 3], [5, 5, 5, 5], [20, 40, 60, 80], [102, 104, 106, 108]];
const MOST = 8;
const most = ({ x }) => Math.max(1, ...x.map(Math.abs));
const steps = ({ x, eps, gamma, beta }) => {
  const { mean, variance, centered } = LN.moments(x), root = Math.sqrt(variance + eps), xhat = centered.map((d) => d / root);
  return { mean, variance, centered, root, xhat, y: xhat.map((v) => gamma * v + beta) };
};

const m = (tag, ...children) => LN.math(tag, {}, ...children);
const term = (name, ...children) => LN.math("mrow", { "data-term": name }, ...children);
const formula = () => LN.formula(
  "y is gamma times x minus the mean, over the square root of the variance plus epsilon, plus beta.",
  m("msub", m("mi", "y"), m("mi", "i")), m("mo", "="), term("affine", m("mi", "γ"), m("mo", "·")),
  m("mfrac", term("centered", m("msub", m("mi", "x"), m("mi", "i")), m("mo", "−"), term("mean", m("mi", "μ"))),
    LN.math("msqrt", { "data-term": "root" }, term("variance", m("msup", m("mi", "σ"), m("mn", "2"))), m("mo", "+"), term("eps", m("mi", "ε")))),
  m("mo", "+"), term("affine", m("mi", "β")),
);

const LINES = [
  [null, "import numpy as np"], [null, ""], [null, "def layer_norm(x, gamma, beta, eps):"],
  ["mean", "    mean = x.mean(axis=-1, keepdims=True)        # one mean for each row"],
  ["centered", "    centered = x - mean"],
  ["variance", "    variance = (centered ** 2).mean(axis=-1, keepdims=True)"],
  ["root", "    root = np.sqrt(variance + eps)"],
  ["affine", "    return gamma * (centered / root) + beta"],
];

const build = (view) => {
  const s0 = () => steps(view.state);
  const rows = [
    ["mean", "1. The mean μ: the sum over the count", () => `(${view.state.x.map((v) => say(v)).join(" + ")}) / ${view.state.x.length} = ${say(s0().mean, 6)}`],
    ["centered", "2. The differences x − μ", () => LN.row(s0().centered, 6)],
    ["variance", "   and their mean square, the variance σ²", () => say(s0().variance, 6)],
    ["root", "3. The spread √(σ² + ε)", () => say(s0().root, 7)],
    ["xhat", "   and what is left when it divides", () => LN.row(s0().xhat, 7)],
    ["affine", "4. γ times that, plus β", () => LN.row(s0().y, 7)],
  ];
  const cells = rows.map(([name, words, value]) => {
    const cell = el("td", {});
    view.ondraw(() => { cell.textContent = value(); });
    return el("tr", { "data-term": name, tabindex: 0 }, el("th", { scope: "row" }, words), cell);
  });
  const table = el("div", { class: "scroll" }, el("table", { class: "words" }, el("caption", {}, "The four steps; point at one, or walk with Tab"), el("tbody", {}, cells)));
  const before = LN.figure(view, {
    caption: () => `The token ${LN.row(view.state.x)}, its mean as a line`,
    draw: (s) => {
      const high = most(s), y = 178 - ((s0().mean + high) / (2 * high)) * 160;
      return [LN.svg("line", { x1: 4, x2: 356, y1: y, y2: y, class: "meanline", "data-term": "mean" }), ...LN.bars(s.x, { low: -high, high })];
    },
    rows: () => [["number", "x", "x − μ"], ...view.state.x.map((v, i) => [i + 1, v, s0().centered[i]])],
  });
  const after = LN.figure(view, {
    caption: "After layer normalization",
    draw: (s) => {
      const { y } = s0(), high = Math.max(2.2, ...y.map(Math.abs));
      return LN.bars(y, { low: -high, high, colour: "b" }).map((part) => { part.setAttribute("data-term", "affine"); return part; });
    },
    rows: () => [["number", "x̂", "y"], ...s0().y.map((v, i) => [i + 1, s0().xhat[i], v])],
  });
  const listing = el("pre", { class: "listing", tabindex: 0, "aria-label": "The same in NumPy" }, LINES.map(([name, line]) => el("span", { "data-term": name }, line)));
  const entries = Array.from({ length: MOST }, (_, i) => LN.slider(LN.entry(view, "x", i), "v", {
    label: `x${"₁₂₃₄₅₆₇₈"[i]}`, min: -20, max: 120, step: 1, mean: () => `output ${say(s0().y[i] ?? 0, 4)}`,
  }));
  view.ondraw((s) => entries.forEach((entry, i) => { entry.hidden = i >= s.x.length; }));
  const controls = el(
    "div", { class: "panel" },
    LN.chips(view, "Tokens", CHIPS.map((x) => [LN.row(x), { x }])),
    LN.numbers(view, "x", { label: "or your own numbers", least: 2, most: MOST }), ...entries,
    LN.slider(view, "eps", { label: "ε, added to σ²", min: -12, max: 1, step: 0.1, scale: "log", mean: () => LN.share(view.state.eps, s0().variance) }),
    LN.slider(view, "gamma", { label: "γ, for every number", min: -3, max: 3, step: 0.1, mean: () => `the spread of the outputs is ${say(Math.sqrt(LN.moments(s0().y).variance), 4)}` }),
    LN.slider(view, "beta", { label: "β, for every number", min: -3, max: 3, step: 0.1, mean: () => `the mean of the outputs is ${say(LN.moments(s0().y).mean, 4)}` }),
  );
  const shown = el("div", {}, formula(), controls, el("div", { class: "pair" }, before, after), table, el("h3", {}, "The same in ten lines"), listing);
  const last = say(LN.layer([2, 4, 6, 8])[3], 4);
  const asked = LN.pick(view, {
    ask: "[2, 4, 6, 8] has mean 5 and spread √5. Before you compute anything: which of its four outputs is largest, and about how large?",
    key: "answer", reveal: [shown], right: () => "some",
    options: [
      { value: "eight", text: "the last, about 8", why: () => `Outputs are not in the units of the token: they count spreads, and 8 lies ${last} of them above the mean.`, show: {} },
      { value: "one", text: "the last, exactly 1", why: () => `Nothing is scaled to 1: the spread of all four is 1, and the largest lies ${last} spreads above the mean.`, show: { x: [0, 3] } },
      { value: "some", text: "the last, between 1 and 2", why: () => `8 lies 3 above the mean, and 3 / √5 is ${last}.` },
      { value: "none", text: "all four are 0, since their mean is taken off", why: () => "Their mean is taken off, so they sum to 0; each by itself is not 0.", show: { x: [5, 5, 5, 5] } },
    ],
  });
  return [LN.linked(el("div", {}, asked, shown))];
};

LN.view({
  id: "recipe", title: "The recipe",
  ask: "Subtract the mean, divide by the spread, then scale and shift: four steps, with every number of them in your hands.",
  start: { x: [2, 4, 6, 8], eps: 1e-5, gamma: 1, beta: 0, answer: "", done: null },
  build,
  notice: ({ state: s }) => {
    const { mean, variance, root, y } = steps(s);
    if (variance === 0) return `All numbers are equal: the differences are 0, and ${s.eps > 0 ? `ε keeps √(0 + ε) = ${say(root, 4)} from being 0, so every output is β = ${say(s.beta)}` : "without ε this would be 0 / 0"}.`;
    const small = s.eps > 0.01 * variance ? ` ${LN.share(s.eps, variance)}, and the outputs are smaller for it.` : "";
    return `The mean is ${say(mean, 6)} and the variance ${say(variance, 6)} (it divides by ${s.x.length}, not by ${s.x.length - 1}); the outputs are ${LN.row(y, 6)}.${small}`;
  },
  code: ({ state: s }) => `${LINES.map(([, line]) => line).join("\n")}\n\nx = np.array(${LN.py(s.x)})\nprint(layer_norm(x, ${LN.py(s.gamma)}, ${LN.py(s.beta)}, ${LN.py(s.eps)}).round(6))\n\nimport layernorm as ln\n\nprint(ln.layer_norm(x, ${LN.py(s.gamma)}, ${LN.py(s.beta)}, eps=${LN.py(s.eps)}).round(6))\n`,
  calls: ({ state: s }) => [{
    call: "layer_norm", x: s.x, options: { eps: s.eps, gamma: s.gamma, beta: s.beta }, expected: LN.layer(s.x, { eps: s.eps, gamma: [s.gamma], beta: [s.beta] }),
  }],
  because: "The differences from the mean say where each number stands in its own row; dividing by the spread makes that a count of spreads, whatever the units were. ε only matters where the spread is tiny.",
});
})();
