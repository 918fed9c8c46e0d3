// SPDX-License-Identifier: MIT
// This view scales and shifts each feature of a normalized token, and folds both into the linear layer that follows.
"use strict";

(() => {
const { el, say } = LN;
const xhat = ({ x }) => LN.layer(x);
const out = (s) => LN.layer(s.x, { gamma: s.gamma, beta: s.beta });
const WEIGHTS = [0.5, -1, 2];
const dot = (a, b) => LN.sum(a.map((v, i) => v * b[i]));
const fit = (values, n, otherwise) => Array.from({ length: n }, (_, i) => values[i] ?? otherwise);
const all = (s, key, v) => s.x.map(() => v);

const build = (view) => {
  const figure = (caption, values, key) => LN.figure(view, {
    caption: () => `${caption}: mean ${say(LN.moments(values(view.state)).mean, 5)}, spread ${say(Math.sqrt(LN.moments(values(view.state)).variance), 5)}`,
    draw: (s) => LN.bars(values(s), { low: -4, high: 4, colour: key }),
    rows: () => [["feature", "normalized", "γ", "β", "output"], ...view.state.x.map((_, i) => [i + 1, xhat(view.state)[i], view.state.gamma[i], view.state.beta[i], out(view.state)[i]])],
  });
  const per = (key, name, low, high, words) => Array.from({ length: 3 }, (_, i) => LN.slider(LN.entry(view, key, i), "v", {
    label: `${name} of feature ${i + 1}`, min: low, max: high, step: 0.1, mean: () => words(i),
  }));
  const whole = (key, name, low, high) => {
    const shared = { get state() { return { v: view.state[key][0] }; }, set: ({ v }) => view.set({ [key]: all(view.state, key, v) }), ondraw: (d) => view.ondraw(d) };
    return LN.slider(shared, "v", { label: `${name} of all features`, min: low, max: high, step: 0.1, mean: () => "moves all three" });
  };
  const fold = el("div", {});
  view.ondraw((s) => {
    const h = xhat(s), folded = WEIGHTS.map((w, i) => w * s.gamma[i]), bias = dot(WEIGHTS, s.beta);
    fold.replaceChildren(
      el("p", {}, `A linear layer with the weights ${LN.row(WEIGHTS)} follows. It gives the same for the normalized token if its weights are multiplied by γ and its bias grows by w·β:`),
      LN.region("", "γ and β folded", LN.table([
        ["the layer", "weights", "bias", "result"],
        ["after γ and β", LN.row(WEIGHTS), "0", say(dot(WEIGHTS, out(s)), 7)],
        ["folded, without γ and β", LN.row(folded), say(bias), say(dot(folded, h) + bias, 7)],
      ], "γ and β folded into the next layer")),
    );
  });
  const shown = el(
    "div", {}, el("div", { class: "pair" }, figure("Normalized", xhat, "a"), figure("After γ and β", out, "b")),
    el("div", { class: "panel" },
      LN.chips(view, "Settings to try", [
        ["γ = 2, β = 1", { gamma: [2, 2, 2], beta: [1, 1, 1] }], ["γ₂ = 0", { gamma: [1, 0, 1] }], ["γ₁ = −1", { gamma: [-1, 1, 1] }], ["γ = 1, β = 0", { gamma: [1, 1, 1], beta: [0, 0, 0] }], ["[7, 7, 7]", { x: [7, 7, 7] }],
      ]),
      whole("gamma", "γ", -3, 3), ...per("gamma", "γ", -3, 3, (i) => (view.state.gamma[i] === 0 ? "0: this feature is β, whatever came in" : view.state.gamma[i] < 0 ? "negative: this feature is turned over" : `output ${say(out(view.state)[i], 4)}`)),
      whole("beta", "β", -3, 3), ...per("beta", "β", -3, 3, (i) => `output ${say(out(view.state)[i], 4)}`)),
    el("h3", {}, "Folded away"), fold,
  );
  return [LN.pick(view, {
    ask: "A normalized token has mean 0. Every γ is now 2 and every β is 1. Must the final mean be 0?",
    key: "answer", reveal: [shown], right: () => "one", land: { gamma: [2, 2, 2], beta: [1, 1, 1] },
    options: [
      { value: "zero", text: "yes: normalizing makes it 0", why: () => "Normalizing does, but β comes after it, and nothing takes the mean off again.", show: { beta: [1, 1, 1] } },
      { value: "one", text: "no: it is 1", why: () => `Twice a mean of 0 is 0, and 1 more is ${say(LN.moments(out({ x: [1, 3, 5], gamma: [2, 2, 2], beta: [1, 1, 1] })).mean)}.` },
      { value: "three", text: "no: it is 3, for γ and β add up", why: () => "γ multiplies: twice a mean of 0 is still 0.", show: { gamma: [2, 2, 2] } },
    ],
  }), shown];
};

LN.view({
  id: "affine", title: "γ and β",
  ask: "After the division each feature is multiplied by its γ and moved by its β, both learned. What do they change, and what can they not?",
  start: { x: [1, 3, 5], gamma: [1, 1, 1], beta: [0, 0, 0], answer: "", done: null },
  build,
  notice: ({ state: raw }) => {
    const s = { ...raw, gamma: fit(raw.gamma, raw.x.length, 1), beta: fit(raw.beta, raw.x.length, 0) };
    const y = out(s), { mean, variance } = LN.moments(y), dead = s.gamma.flatMap((g, i) => (g === 0 ? [i + 1] : []));
    const flat = LN.moments(s.x).variance === 0 ? " All numbers of the token are equal, so every output is its β." : "";
    return `The outputs are ${LN.row(y, 6)}: mean ${say(mean, 5)}, spread ${say(Math.sqrt(variance), 5)}.${dead.length ? ` Feature ${dead.join(" and ")} is β alone: γ = 0 lets nothing of the token through.` : ""}${flat}`;
  },
  code: ({ state: s }) => `${LN.HEAD}x = np.array(${LN.py(s.x)})\nprint(ln.layer_norm(x, gamma=np.array(${LN.py(s.gamma)}), beta=np.array(${LN.py(s.beta)})).round(5))\n`,
  calls: ({ state: s }) => [{ call: "layer_norm", x: s.x, options: { gamma: s.gamma, beta: s.beta }, expected: out(s) }],
  because: "γ and β act feature by feature after the statistics are used up. So they may give a token any mean and spread again, and a following linear layer can take them into its own weights.",
});
})();
