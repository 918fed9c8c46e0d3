// SPDX-License-Identifier: MIT
// This view puts layer, RMS, group, instance and batch norm side by side, and tries what each of them leaves unchanged.
"use strict";

(() => {
const { el, say, apart } = LN;
const SHAPE = [2, 3, 4], [BATCH, TOKENS, FEATURES] = SHAPE, SIZE = BATCH * TOKENS * FEATURES, EXAMPLE = TOKENS * FEATURES;
const NORMS = { layer: "layer norm", rms: "RMS norm", group: "group norm, 2 groups", instance: "instance norm", batch: "batch norm" };
const drawn = (seed) => { const next = LN.uniform(seed); return Array.from({ length: SIZE }, () => 1 + Math.floor(next() * 9)); };

/** Normalize; `shape` may have a batch of 1. In use a batch norm takes stored statistics, at first mean 0 and variance 1. */
function normed(kind, x, shape = SHAPE, inUse = false) {
  if (kind === "batch" && inUse) return x.map((v) => v / Math.sqrt(1 + 1e-5));
  const { members } = LN.groups(shape, LN.SHARED[kind](shape, 2));
  return LN.overGroups(x, members, { centered: kind !== "rms" });
}

const perToken = (x, change) => x.map((v, k) => change(v, Math.floor(k / FEATURES)));
// Each gives how far the outputs are from those of x itself.
const TRIES = {
  offset: ["an offset for each token", (f, x) => apart(f(perToken(x, (v, t) => v + 3 * t - 4)), f(x))],
  scale: ["a positive factor for each token", (f, x) => apart(f(perToken(x, (v, t) => v * (t + 2))), f(x))],
  shuffle: ["the examples in another order, put back after", (f, x) => {
    const turn = (a) => [...a.slice(EXAMPLE), ...a.slice(0, EXAMPLE)];
    return apart(turn(f(turn(x))), f(x));
  }],
  other: ["other numbers in the second example, seen by the first", (f, x) => apart(f(x.map((v, k) => (k < EXAMPLE ? v : 10 - v))).slice(0, EXAMPLE), f(x).slice(0, EXAMPLE))],
  alone: ["a batch of 1", (f, x) => apart(f(x.slice(0, EXAMPLE), [1, TOKENS, FEATURES]), f(x).slice(0, EXAMPLE))],
  use: ["in use and not in training", (f, x) => apart(f(x, SHAPE, true), f(x))],
};
const same = (d) => d < 1e-4;
const measure = (x, norm) => Object.fromEntries(Object.entries(TRIES).map(([key, [, change]]) => [key, change((...a) => normed(norm, ...a), x)]));

// -- the shape of a distribution --

const sample = (seed) => { const next = LN.uniform(seed); return Array.from({ length: 2000 }, () => -Math.log(1 - next())); };
const skew = (x) => { const { variance, centered } = LN.moments(x); return LN.sum(centered.map((d) => d ** 3)) / x.length / variance ** 1.5; };
const counts = (x, bins = 12) => {
  const low = Math.min(...x), high = Math.max(...x), found = new Array(bins).fill(0);
  for (const v of x) found[Math.min(bins - 1, Math.floor(((v - low) / (high - low)) * bins))] += 1;
  return found;
};

const build = (view) => {
  const x = () => drawn(view.state.seed);
  const y = () => normed(view.state.norm, x());
  const shade = (v) => (v < -0.8 ? "g1" : v < 0 ? "" : v < 0.8 ? "g0" : "g3");
  const name = (i) => `${"AB"[Math.floor(i / TOKENS)]} · ${(i % TOKENS) + 1}`;
  const grid = (label, values, words) => LN.heads(view, LN.grid(view, {
    label, rows: () => BATCH * TOKENS, columns: () => FEATURES, head: name,
    cell: (i, j) => ({ text: say(values()[i * FEATURES + j], 3), name: `token ${name(i)}, feature ${j + 1}, ${words} ${say(values()[i * FEATURES + j], 3)}`, class: words === "output" ? shade(values()[i * FEATURES + j]) : "" }),
  }), () => ["token", ...Array.from({ length: FEATURES }, (_, j) => `f ${j + 1}`)]);
  const body = el("tbody", {});
  const table = LN.region("", "What changes the outputs", el(
    "table", { class: "invariance" }, el("caption", {}, "What changes the outputs, by running each norm twice: ✓ nothing, ✗ and by how much"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "what is done"), Object.values(NORMS).map((n) => el("th", { scope: "col" }, n)))), body,
  ));
  view.ondraw((s) => {
    const found = Object.fromEntries(Object.keys(NORMS).map((norm) => [norm, measure(drawn(s.seed), norm)]));
    body.replaceChildren(...Object.entries(TRIES).map(([key, [words]]) => el(
      "tr", { "data-try": key }, el("th", { scope: "row" }, words), Object.keys(NORMS).map((norm) => el("td", {}, same(found[norm][key]) ? "✓ none" : `✗ ${say(found[norm][key], 3)}`)),
    )));
  });
  const histogram = (caption, values) => LN.figure(view, {
    caption: () => `${caption}: skew ${say(skew(values()), 6)}`,
    draw: () => LN.bars(counts(values()), { low: -60, high: 1100, colour: "a" }),
    rows: () => [["bin", "how many"], ...counts(values()).map((n, i) => [i + 1, n])],
  });
  const numbers = () => sample(view.state.seed), normal = () => LN.layer(sample(view.state.seed));
  const shown = el(
    "div", {}, el("div", { class: "panel" }, LN.choice(view, "norm", { label: "The norm", options: Object.entries(NORMS) }),
      LN.redraw(view)),
    el("div", { class: "pair" }, el("div", {}, el("h3", {}, "The numbers"), grid("The numbers", x, "number")), el("div", {}, el("h3", {}, "The outputs"), grid("The outputs", y, "output"))),
    el("h3", {}, "What each of them leaves unchanged"), table,
    el("h3", {}, "The shape stays"), el("p", {}, "A token of 2000 numbers, most of them small: is it a bell curve after layer normalization?"),
    el("div", { class: "pair" }, histogram("Before", numbers), histogram("After", normal)),
  );
  return [LN.pick(view, {
    ask: "A number is added to all features of one token. Which norms give the same outputs as before?",
    key: "answer", reveal: [shown], right: (s) => Object.keys(NORMS).filter((norm) => same(measure(drawn(s.seed), norm).offset)).join(),
    options: [
      { value: "all", text: "all of them: each divides by a spread", why: (s) => `Dividing undoes no offset. RMS norm, which takes no mean off, changes by ${say(measure(drawn(s.seed), "rms").offset, 3)}.`, show: { norm: "group" } },
      { value: "rms", text: "layer and RMS norm: both look at one token", why: (s) => `Both look at one token, but RMS norm takes no mean off; it changes by ${say(measure(drawn(s.seed), "rms").offset, 3)}.`, show: { norm: "rms" } },
      { value: "layer", text: "layer norm alone", why: () => "It takes off the mean of that very token; the others take off none, or one of other numbers too." },
      { value: "batch", text: "batch norm: its mean is over the batch", why: (s) => `The offset of one token moves that token beside the others; batch norm changes by ${say(measure(drawn(s.seed), "batch").offset, 3)}.`, show: { norm: "batch" } },
    ],
  }), shown];
};

const CALLS = {
  layer: ["layer_norm", {}], rms: ["rms_norm", { eps: 1e-5 }], group: ["group_norm", { groups: 2, channel_axis: -1 }],
  instance: ["instance_norm", { channel_axis: -1 }], batch: ["batch_norm", { channel_axis: -1 }],
};
const spelled = (options) => Object.entries(options).map(([k, v]) => `, ${k}=${v}`).join("");
const nested = (x) => Array.from({ length: BATCH }, (_, b) => Array.from({ length: TOKENS }, (__, t) => x.slice((b * TOKENS + t) * FEATURES, (b * TOKENS + t + 1) * FEATURES)));

LN.view({
  id: "family", title: "The family",
  ask: "Layer, RMS, group, instance and batch norm are one formula over different groups of numbers. What does each undo, and who else do they look at?",
  start: { norm: "layer", seed: 1, answer: "", done: null },
  build,
  notice: ({ state: s }) => {
    const found = measure(drawn(s.seed), s.norm), undone = Object.entries(TRIES).filter(([key]) => same(found[key])).map(([, [words]]) => words);
    const kept = Object.entries(TRIES).filter(([key]) => !same(found[key])).map(([key, [words]]) => `${words} (${say(found[key], 3)})`);
    return `${NORMS[s.norm]}: nothing changes with ${undone.join("; ") || "none of these"}. ${kept.length ? `The outputs change with ${kept.join("; ")}.` : ""} And the skew of a long token is ${say(skew(sample(s.seed)), 6)} before and ${say(skew(LN.layer(sample(s.seed))), 6)} after: no norm makes a bell curve.`;
  },
  code: ({ state: s }) => {
    const [call, options] = CALLS[s.norm];
    return `${LN.HEAD}x = np.array(${LN.py(nested(drawn(s.seed)))})\nprint(ln.${call}(x${spelled(options)}).round(3))\n`;
  },
  calls: ({ state: s }) => {
    const [call, options] = CALLS[s.norm];
    return [{ call, x: nested(drawn(s.seed)), options, expected: normed(s.norm, drawn(s.seed)) }];
  },
  because: "What is undone depends on whose mean and spread are used: a token's own offset and scale vanish if the group is that token, and another example matters only if it is in the group.",
});
})();
