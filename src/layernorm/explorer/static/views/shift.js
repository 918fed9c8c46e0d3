// SPDX-License-Identifier: MIT
// This view multiplies a token by k and adds c, and looks for what layer normalization does not undo.
"use strict";

(() => {
const { el, say } = LN;
const TOKEN = [2, 4, 6, 8];
const before = ({ k, c }) => TOKEN.map((v) => k * v + c);
const after = (state) => {
  const x = before(state);
  return state.low ? LN.narrow(x, { type: "float16" }).y : LN.layer(x);
};
const plain = LN.layer(TOKEN);
const change = (state) => LN.apart(after(state), plain);

// The kinds of setting that change what comes out, and how each is known.
const HUNT = [
  { key: "flipped", name: "a negative k", met: ({ k }) => k < 0 },
  { key: "flat", name: "k = 0", met: ({ k }) => k === 0 },
  { key: "small", name: "k so small that the spread is near √ε", met: (s) => s.k !== 0 && Math.abs(s.k) < 0.05 && change({ ...s, c: 0, low: false, k: Math.abs(s.k) }) > 1e-3 },
  { key: "coarse", name: "c so large that a 16-bit number cannot hold the differences", met: (s) => s.low && change(s) > 0.01 && s.k >= 0.25 },
];

const effect = (state) => {
  const d = change(state);
  if (state.k === 0) return "every output is 0";
  if (state.k < 0) return "the outputs are flipped";
  return d < 1e-4 ? "the outputs stay as they are" : `the outputs change by ${say(d, 3)}`;
};

const build = (view) => {
  const left = LN.figure(view, {
    caption: () => `The token: k × [2, 4, 6, 8] + c; mean ${say(LN.moments(before(view.state)).mean, 4)}, spread ${say(Math.sqrt(LN.moments(before(view.state)).variance), 4)}`,
    draw: (s) => LN.bars(before(s), { low: -20, high: 20 }),
    rows: () => [["number", "before", "after"], ...before(view.state).map((v, i) => [i + 1, v, after(view.state)[i]])],
  });
  const right = LN.figure(view, {
    caption: "After layer normalization, with γ = 1 and β = 0",
    draw: (s) => LN.bars(after(s), { low: -2.2, high: 2.2, colour: "b", guess: s.done === "committed" ? s.guess : null }),
    rows: () => [["number", "output", "predicted"], ...after(view.state).map((v, i) => [i + 1, v, view.state.guess[i]])],
  });
  const guessed = LN.figure(view, {
    caption: "Your prediction: drag a bar, or use the sliders below",
    draw: (s) => LN.bars(s.guess, { low: -2.2, high: 2.2, colour: "b" }),
    rows: () => [["number", "predicted"], ...view.state.guess.map((v, i) => [i + 1, v])],
  });
  drag(guessed, view);
  const slides = TOKEN.map((_, i) => LN.slider(LN.entry(view, "guess", i), "v", {
    label: `output ${i + 1}`, min: -2.2, max: 2.2, step: 0.05, mean: () => `predicted for ${20 * (i + 1)}`,
  }));
  const straight = LN.slider(view, "k", { label: "k, multiplied by", min: -10, max: 10, step: 0.25, mean: () => effect(view.state) });
  const fine = LN.slider(view, "k", { label: "k, from 10⁻⁵ to 10", min: -5, max: 1, step: 0.01, scale: "log", mean: () => effect(view.state) });
  const controls = el(
    "div", { class: "panel" },
    straight, fine,
    LN.slider(view, "c", { label: "c, added", min: -10, max: 10, step: 0.5, mean: () => (view.state.low ? effect(view.state) : "an offset is taken off with the mean") }),
    LN.toggle(view, "log", "k on a log scale"), LN.toggle(view, "low", "in 16-bit floating point"),
    LN.chips(view, "Settings to try", [["k = −1", { k: -1 }], ["k = 0", { k: 0 }], ["k = 0.001", { k: 0.001, c: 0, log: true }], ["c = 2048 in 16 bits", { k: 1, c: 2048, low: true }], ["+ 100", { k: 1, c: 100 }]]),
  );
  const hunt = el("ul", { class: "hunt" }), count = el("p", {});
  const shown = el("div", {}, el("div", { class: "pair" }, left, right), controls,
    el("h3", {}, "Is there any setting that changes the right-hand bars?"), count, hunt);
  const asked = LN.predict(view, {
    ask: "[2, 4, 6, 8] comes out as [−1.342, −0.447, 0.447, 1.342]. Draw what [20, 40, 60, 80] comes out as.",
    asked: [guessed, ...slides], revealed: [shown], land: { k: 10, c: 0 },
    verdict: ({ guess }) => {
      const off = LN.apart(guess, plain), outlines = `Your bars, kept as outlines, are ${off < 0.25 ? "within" : "up to"} ${say(off, 2)}`;
      return off < 0.25 ? `You had it: [20, 40, 60, 80] comes out the same again. ${outlines}.`
        : `[20, 40, 60, 80] comes out the same again, [−1.342, −0.447, 0.447, 1.342]. ${outlines} off. ${Math.max(...guess.map(Math.abs)) > 3 ? "A larger token does not give a larger output: the spread grew with it." : ""}`;
    },
  });
  view.ondraw((s) => {
    straight.hidden = s.log;
    fine.hidden = !s.log;
    const found = HUNT.filter((h) => s.found.includes(h.key) || (s.done !== null && h.met(s)));
    s.found = found.map((h) => h.key);
    count.textContent = `Found ${found.length} of 4 kinds.`;
    hunt.replaceChildren(...HUNT.map((h) => el("li", { class: found.includes(h) ? "done" : "open" }, found.includes(h) ? h.name : "not found yet")));
  });
  return [asked, shown];
};

/** Let the bars of a prediction be drawn with a pointer. */
function drag(figure, view) {
  const svg = figure.querySelector("svg");
  const put = (event) => {
    if (event.buttons === 0 && event.type === "pointermove") return;
    const box = svg.getBoundingClientRect(), i = Math.floor(((event.clientX - box.left) / box.width) * 4);
    const at = 2.2 - (((event.clientY - box.top) / box.height) * 200 - 18) / 160 * 4.4;
    if (i >= 0 && i < 4) view.set({ guess: view.state.guess.map((g, j) => (i === j ? Number(Math.min(2.2, Math.max(-2.2, at)).toFixed(2)) : g)) });
  };
  svg.addEventListener("pointerdown", put);
  svg.addEventListener("pointermove", put);
}

LN.view({
  id: "shift", title: "k·x + c",
  ask: "Layer normalization is said to undo an offset and a scale. What happens to a token that is multiplied by k and moved by c?",
  start: { k: 1, c: 0, log: false, low: false, guess: [0, 0, 0, 0], done: null, found: [""] },
  build,
  notice: ({ state: s }) => {
    const { variance } = LN.moments(before(s)), d = change(s), spread = Math.sqrt(variance);
    if (s.low && d > 0.01) return `In 16 bits the numbers near ${say(s.c, 4)} stand ${say(2 ** (Math.floor(Math.log2(Math.abs(s.c || 1))) - 10), 3)} apart, and the mean is rounded to one of them: the outputs are ${LN.row(after(s), 4)}. An offset is undone exactly only in exact arithmetic.`;
    if (s.k === 0) return "All four numbers are equal, the spread is 0, and every output is 0: ε alone stands below the root, and 0 / √ε is 0.";
    if (s.k < 0) return `A negative k turns the token over, and the outputs with it: the largest number is now the smallest.`;
    if (d < 1e-4) return `The outputs change by ${say(d, 2)}, too little to see: the spread is ${say(spread, 3)}, far above √ε = 0.00316, and so k cancels.`;
    return `The spread is ${say(spread, 3)} and √ε is 0.00316: ${LN.share(1e-5, variance)}, and the outputs shrink to ${LN.row(after(s), 4)}.`;
  },
  code: ({ state: s }) => `${LN.HEAD}x = ${LN.py(s.k)} * np.array([2.0, 4.0, 6.0, 8.0]) + ${LN.py(s.c)}\nprint(ln.layer_norm(x${s.low ? '.astype("float16")' : ""}))\n`,
  calls: ({ state: s }) => [{ call: "layer_norm", x: before(s), options: {}, expected: s.low ? LN.exact(before(s), { type: "float16" }) : LN.layer(before(s)), type: s.low ? "float16" : "float64" }],
  because: "The mean moves with an offset, so x − mean does not notice it. The spread grows with |k|, so dividing by it takes |k| away, as long as ε is small beside the variance. What is left of k is its sign.",
});
})();
