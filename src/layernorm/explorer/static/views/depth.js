// SPDX-License-Identifier: MIT
// This view stacks random layers, with and without norms, and measures what size the numbers have in each.
"use strict";

(() => {
const { el, say } = LN;
const STACKS = {
  none: { name: "plain: W·h", text: "gᴸ" },
  residual: { name: "residual: h + W·h", text: "√(1 + g²)ᴸ" },
  pre: { name: "pre-norm: h + W·LN(h)", text: "√(1 + g²·L)" },
  post: { name: "post-norm: LN(h + W·h)", text: "1" },
};
const EPS = 1e-5, rms = (x) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / x.length), same = (v) => v;

/** What the mean of squares over all draws comes to, as its root: after layer l, or for the gradient before it. */
const formula = (kind, l, { depth, gain, back }) => {
  const n = back ? depth - l : l;
  if (kind === "none") return gain ** n;
  if (kind === "residual") return (1 + gain ** 2) ** (n / 2);
  if (kind === "pre") return back ? Math.sqrt((1 + gain ** 2 * depth) / (1 + gain ** 2 * l)) : Math.sqrt(1 + gain ** 2 * l);
  return 1;
};

/** How far the logarithm of one run's size is from that of the typical run, in two runs of three. */
const deviation = (kind, { depth, width, gain }) => {
  if (kind === "none") return Math.sqrt(depth / (2 * width));
  const g = gain ** 2;
  if (kind === "residual") return Math.sqrt((depth * (g + g * g / 2)) / (width * (1 + g) ** 2));
  if (kind === "post") return 0;
  const before = depth + (g * depth * (depth - 1)) / 2; // the sum of 1 + g²·l over the layers
  return Math.sqrt((2 * g * g * depth + 4 * g * before) / width) / (2 * (1 + g * depth));
};
/** The band in which two runs of three end. Products of many factors are skewed: most runs are below the root of the mean. */
const band = (kind, s) => {
  const d = deviation(kind, s), middle = formula(kind, s.depth, s) * (kind === "none" || kind === "residual" ? Math.exp(-d * d) : 1);
  return [middle / Math.exp(d), middle * Math.exp(d)];
};

// The same draws serve every gain and every stack.
let drawn = { key: "" };
const draws = ({ depth, width, seed }) => {
  const key = `${depth},${width},${seed}`;
  if (drawn.key === key) return drawn;
  const next = LN.normal(seed), take = (length) => Float64Array.from({ length }, next), unit = (x) => { const size = rms(x); return x.map((v) => v / size); };
  drawn = { key, start: unit(take(width)), weights: take(depth * width * width), end: unit(take(width)) };
  return drawn;
};

/** Run the stacks forward, and gradients back through them; gives the size after each layer, from layer 0 on. */
function run(s) {
  const { start, weights, end } = draws(s), d = s.width, scale = s.gain / Math.sqrt(d);
  const times = (l, x, turned) => {
    const y = new Float64Array(d);
    for (let i = 0, k = l * d * d; i < d; i += 1) for (let j = 0; j < d; j += 1, k += 1) { if (turned) y[j] += weights[k] * x[i]; else y[i] += weights[k] * x[j]; }
    return y.map((v) => v * scale);
  };
  const plus = (a, b) => a.map((v, i) => v + b[i]);
  const norm = (x) => { const { variance, centered } = LN.moments(x), root = Math.sqrt(variance + EPS); return { y: centered.map((v) => v / root), root }; };
  /** The gradient before a norm, from that behind it. */
  const undone = (g, { y, root }) => {
    const mean = g.reduce((a, v) => a + v, 0) / d, along = g.reduce((a, v, i) => a + v * y[i], 0) / d;
    return g.map((v, i) => (v - mean - y[i] * along) / root);
  };
  const FORWARD = {
    none: (l, h) => [times(l, h)], residual: (l, h) => [plus(h, times(l, h))],
    pre: (l, h) => { const n = norm(h); return [plus(h, times(l, n.y)), n]; }, post: (l, h) => { const n = norm(plus(h, times(l, h))); return [n.y, n]; },
  };
  const BACK = {
    none: (l, g) => times(l, g, true), residual: (l, g) => plus(g, times(l, g, true)),
    pre: (l, g, n) => plus(g, undone(times(l, g, true), n)), post: (l, g, n) => { const u = undone(g, n); return plus(u, times(l, u, true)); },
  };
  const sizes = {}, last = {};
  for (const kind of Object.keys(STACKS)) {
    const norms = [];
    let h = start, g = end;
    sizes[kind] = [rms(h)];
    for (let l = 0; l < s.depth; l += 1) { const [out, n] = FORWARD[kind](l, h); h = out; norms.push(n); sizes[kind].push(rms(h)); }
    last[kind] = h;
    if (!s.back) continue;
    sizes[kind] = [rms(g)];
    for (let l = s.depth - 1; l >= 0; l -= 1) { g = BACK[kind](l, g, norms[l]); sizes[kind].unshift(rms(g)); }
  }
  return { sizes, last };
}

let known = { key: "" };
const measured = ({ depth, width, gain, seed, back }) => {
  const s = { depth: Math.min(Math.max(Math.round(depth), 1), 96), width: Math.min(Math.max(Math.round(width), 4), 128), gain, seed: Math.round(seed), back }, key = JSON.stringify(s);
  if (known.key !== key) known = { key, s, ...run(s) };
  return known;
};
const ended = (m, kind) => (m.s.back ? m.sizes[kind][0] : m.sizes[kind].at(-1));

function build(view) {
  const m = () => measured(view.state), shown = el("div", {});
  const picked = LN.pick(view, {
    ask: "Predict first. A vector of 64 numbers of size 1 passes 48 layers. Each layer adds W·h to h, where W is random and keeps the size of what it multiplies. How large are the numbers at the end?",
    key: "guess", reveal: [shown], right: () => "power", land: { depth: 48, width: 64, gain: 1, back: false },
    options: [
      { value: "one", text: "about 1: each W keeps the size", show: { depth: 2 }, why: (s) => `W·h alone keeps it, but it is added to h: after two layers the size is about ${say(formula("residual", 2, s), 2)} already, and here it ends at ${say(ended(m(), "residual"), 3)}.` },
      { value: "sum", text: "about 7: 49 pieces of size 1, added at random", show: { gain: 1 }, why: () => `So it is with pre-norm, where each piece has size 1: ${say(ended(m(), "pre"), 3)}. Without a norm each piece is as large as all before it: ${say(ended(m(), "residual"), 3)}.` },
      { value: "line", text: "about 49: each layer adds 1", show: { depth: 4 }, why: () => `Each layer adds as much as there is, not 1, and at a right angle: times √2 each, and ${say(ended(m(), "residual"), 3)} in the end.` },
      { value: "power", text: "millions", why: () => `Each layer multiplies the size by about √2, and √2⁴⁸ is ${say(formula("residual", 48, { gain: 1, depth: 48 }), 3)}; this run ends at ${say(ended(m(), "residual"), 3)}.` },
    ],
  });
  const figure = LN.figure(view, {
    caption: () => `${m().s.back ? "Size (RMS) of the gradient before each layer, 1 at the end" : "Size (RMS) of the numbers after each layer, 1 at the start"}; rings: what the formula says`,
    width: 560, height: 300,
    draw: () => {
      const { s, sizes } = m(), kinds = Object.keys(STACKS), every = Math.max(1, Math.round(s.depth / 8)), at = Array.from({ length: s.depth + 1 }, (_, l) => l);
      const all = kinds.flatMap((kind) => [...sizes[kind], formula(kind, 0, s), formula(kind, s.depth, s)]).filter((v) => v > 0 && Number.isFinite(v));
      const low = 10 ** Math.floor(Math.log10(Math.min(...all) / 1.5)), high = 10 ** Math.ceil(Math.log10(Math.max(...all) * 1.5)), end = s.depth <= 4 ? s.depth : 4 * Math.ceil(s.depth / 4);
      return LN.plot([
        ...kinds.map((kind) => ({ name: { none: "plain", residual: "residual", pre: "pre-norm", post: "post-norm" }[kind], points: sizes[kind].map((v, l) => [l, v]) })),
        ...kinds.map((kind, i) => ({ marks: i, points: at.filter((l) => l % every === 0).map((l) => [l, formula(kind, l, s)]) })),
      ], { x: { low: 0, high: end, name: "layer", count: s.depth <= 4 ? s.depth + 1 : 5 }, y: { low, high, log: true }, width: 560, height: 300 });
    },
    rows: () => [["layer", ...Object.values(STACKS).map((k) => k.name)], ...m().sizes.none.map((_, l) => [l, ...Object.keys(STACKS).map((kind) => m().sizes[kind][l])])],
  });
  const region = LN.region("", "Run and formula");
  view.ondraw(() => {
    const { s } = m(), where = s.back ? "Gradient before the first layer" : `After ${s.depth} layer${s.depth === 1 ? "" : "s"}`;
    const rows = Object.entries(STACKS).map(([kind, { name, text }]) => [name, say(ended(m(), kind), 3), `${text}${kind === "post" ? "" : ` = ${say(formula(kind, s.back ? 0 : s.depth, s), 3)}`}`, ...(s.back ? [] : [band(kind, s).map((v) => say(v, 3)).join(" to ")])]);
    region.replaceChildren(LN.table([["stack", "this run", "formula", ...(s.back ? [] : ["two runs of three end in"])], ...rows], where));
  });
  const ends = (kind) => `${STACKS[kind].name.split(":")[0]} ends at ${say(ended(m(), kind), 3)}`;
  shown.append(
    el("div", { class: "panel" },
      LN.slider(view, "gain", { label: "gain g of each layer", min: 0.5, max: 2, step: 0.05, mean: () => `${ends("residual")}, ${ends("pre")}` }),
      LN.slider(view, "depth", { label: "depth L, layers", min: 2, max: 96, step: 1, mean: () => `${ends("none")}, ${ends("residual")}` }),
      LN.choice(view, "width", { label: "Width d", options: [16, 32, 64, 128] }),
      LN.toggle(view, "back", "gradients, from the end to the start"),
      el("div", { class: "buttons" }, LN.button("Draw other weights", () => view.set({ seed: view.state.seed + 1 })), LN.button("g = 0.8", () => view.set({ gain: 0.8 })), LN.button("g = 1", () => view.set({ gain: 1 }))),
    ),
    figure, el("h3", {}, "This run and the formula"), region,
    el("p", { class: "small" }, "The formula is the root of the mean square over all draws of W, whose numbers are normal with deviation g/√d. A product of many random factors is skewed: most runs end below it, a few far above."),
  );
  return [picked, shown];
}

const notice = ({ state }) => {
  const m = measured(state), { s } = m, end = (kind) => say(ended(m, kind), 3);
  if (s.back) return `Going back, the gradient is ${end("residual")} times as large at the first layer of the residual stack, ${end("none")} times in the plain one, ${end("pre")} times with pre-norm and ${end("post")} times with post-norm.`;
  const plain = s.gain === 1 ? "stays near its size only because g is exactly 1" : s.gain < 1 ? "has all but vanished" : "has exploded";
  return `After ${s.depth} layers the residual stack stands at ${end("residual")}, the plain one at ${end("none")}: it ${plain}. With pre-norm it is ${end("pre")}, near √(1 + g²·L) = ${say(formula("pre", s.depth, s), 3)}: each layer adds the same amount, whatever came before. Post-norm resets it to ${end("post")}.`;
};

const code = ({ state }) => {
  const { s } = measured(state);
  return `import numpy as np
import layernorm as ln

depth, width, gain, seed = ${s.depth}, ${s.width}, ${LN.py(s.gain)}, ${s.seed}

def normal(count):  # the page's own random numbers: mulberry32, Box and Muller
    a = np.uint32(seed % 2**32) + np.arange(1, 2 * count + 1, dtype=np.uint32) * np.uint32(0x6D2B79F5)
    t = (a ^ a >> 15) * (a | 1)
    t = t + (t ^ t >> 7) * (t | 61) ^ t
    u = (t ^ t >> 14) / 2**32
    return np.sqrt(-2 * np.log(1 - u[::2])) * np.cos(2 * np.pi * u[1::2])

def rms(x):
    return np.sqrt((x * x).mean())

drawn = normal(2 * width + depth * width * width)
start = drawn[:width] / rms(drawn[:width])
weights = drawn[width:-width].reshape(depth, width, width) * gain / np.sqrt(width)
plain = residual = pre = post = start
for w in weights:
    plain = w @ plain
    residual = residual + w @ residual
    pre = pre + w @ ln.layer_norm(pre)
    post = ln.layer_norm(post + w @ post)
print(rms(plain), rms(residual), rms(pre), rms(post))
`;
};

LN.view({
  id: "depth", title: "Deep stack", ask: "Why do networks of many layers need a norm at all?",
  start: { depth: 48, width: 64, gain: 1, seed: 602, back: false, guess: "", done: null },
  build, notice, code,
  calls: ({ state }) => {
    const x = state.done === null ? null : Array.from(measured(state).last.pre);
    return x?.every(Number.isFinite) ? [{ call: "layer_norm", x, options: {}, expected: LN.layer(x) }] : [];
  },
  because: "Without a norm each layer multiplies the size of what it gets, and a product of many factors grows or dies like a power. With a norm before each layer, what a layer adds has the same size however large the rest has become, so sizes add up instead; with a norm after it, each layer starts from 1 again.",
});
})();
