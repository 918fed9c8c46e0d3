// SPDX-License-Identifier: MIT
// This view does layer normalization with few digits: an offset, ε beside the spread, and the ways to a variance.
"use strict";

(() => {
const { el, say, apart, moments, round, row } = LN;
const PATTERN = [2, 4, 6, 8], ROOT = Math.sqrt(5), EPSILONS = [1e-3, 1e-5, 1e-6, 1e-12];
const EVEN = "[2, 4, 6, 8], stretched", EQUAL = "[5, 5, 5, 5]", TWO = "[0, 600]";
const asked = ({ shape, sigma, c }) => (shape === EVEN ? PATTERN.map((v) => v * (sigma / ROOT)) : shape === EQUAL ? [5, 5, 5, 5] : [0, 600]).map((v) => v + c);
const narrow = (s) => LN.narrow(asked(s), s);
const ours = (s) => LN.exact(asked(s), s);
const finite = (x) => x.every(Number.isFinite);
const gap = (size, type) => 2 ** (Math.floor(Math.log2(size)) - LN.TYPES[type].digits + 1);
const whole = (v) => (Number.isInteger(v) && Math.abs(v) < 1e15 ? String(v).replace("-", "−") : say(v, 10));
const all = (x) => `[${x.map(whole).join(", ")}]`;
const kept = (s) => { const x = asked(s); return apart(x.map((v) => round(v, s.type) - x[0]), x.map((v) => v - x[0])) <= 1e-2 * (Math.max(...x) - Math.min(...x)); };

// -- where each way fails: the first power of two whose outputs are off, though all four numbers are stored exactly
const off = 0.01, plain = LN.layer(PATTERN);
const stored = (c, type) => PATTERN.every((v) => round(v + c, type) - c === v);
const failing = (type, compute) => {
  for (let k = 0; stored(2 ** k, type); k += 1) {
    const y = compute(PATTERN.map((v) => v + 2 ** k), type);
    if (!(apart(y, plain) <= off)) return { k, y };
  }
  return null;
};
const USERS = [
  ["one pass", "float32", "Flax unless told otherwise, candle and burn-flex on a CPU, ONNX Runtime’s earlier CPU kernel, PyTorch in 2020"],
  ["two passes", "float32", "NumPy’s var, quack, Liger, oneDNN, Haiku, MLX since 2025"],
  ["Welford", "float32", "PyTorch today, apex"],
  ["two passes", "float16", "models in half precision exported to ONNX before version 17"],
];
const users = () => [
  ["computed by", "how", "first fails at", "outputs there"],
  ...USERS.map(([way, type, who]) => {
    const { k, y } = failing(type, (x) => LN.narrow(x, { type, way }).y);
    return [who, `${way}, ${type}`, `2^${k} = ${2 ** k}`, row(y, 4)];
  }),
  ...["float32", "float16"].map((type) => {
    const found = failing(type, (x) => LN.exact(x, { type }));
    let k = 0;
    while (stored(2 ** (k + 1), type)) k += 1;
    return ["layernorm", `${type}, sums in float64`, found ? `2^${found.k}` : "nowhere", `at 2^${k} = ${2 ** k}: ${row(LN.exact(PATTERN.map((v) => v + 2 ** k), { type }), 4)}`];
  }),
];

// -- marks on a plot whose x is logarithmic, at the places LN.plot gives its points
const across = ({ low, high }, v) => 52 + (Math.log10(v / low) / Math.log10(high / low)) * 332;
const mark = (axis, v, name, y) => (v < axis.low || v > axis.high ? [] : [
  LN.svg("line", { x1: across(axis, v), x2: across(axis, v), y1: 12, y2: 226, class: "mark" }),
  LN.svg("text", { x: across(axis, v) + (v < axis.high / 100 ? 4 : -4), y, class: `name ${v < axis.high / 100 ? "start" : "end"}` }, name),
]);

const SPREADS = { low: 1e-8, high: 1e3, log: true, name: "spread σ" };
const shrink = (sigma, eps) => sigma / Math.sqrt(sigma * sigma + eps);
const MOST = { float64: 5e16, float32: 1e8, float16: 1.6e4, bfloat16: 2e3 }; // about as far as a type tells 2, 4, 6 and 8 apart
const offsets = (type) => Array.from({ length: 61 }, (_, i) => MOST[type] ** (i / 60));
const wrong = (x, type, eps, compute) => apart(compute(x), LN.layer(x.map((v) => round(v, type)), { eps }));
let held = { type: null, lines: [] }; // a slider that moves c is not to draw them anew
const curves = ({ type, eps }) => {
  if (held.type !== type || held.eps !== eps) held = { type, eps, lines: errorsBy(type, eps) };
  return held.lines;
};
const errorsBy = (type, eps) => [
  ...Object.keys(LN.WAYS).map((way) => ({ name: way, compute: (x) => LN.narrow(x, { type, way, eps }).y })),
  { name: "layernorm", compute: (x) => LN.exact(x, { type, eps }) },
].map(({ name, compute }) => ({ name, points: offsets(type).map((c) => [c, wrong(PATTERN.map((v) => v + c), type, eps, compute)]) }));

const shrunk = (s) => `σ is ${say(s.sigma / Math.sqrt(s.eps), 3)} times √ε; outputs keep ${say(100 * shrink(s.sigma, s.eps), 3)} % of their size`;
const moved = (s) => {
  const y = narrow(s).y, d = apart(y, LN.layer(asked({ ...s, c: 0 }), s));
  return `${s.type} numbers of that size are ${say(gap(Math.max(Math.abs(s.c), 1), s.type), 3)} apart; ${finite(y) ? `the offset changes the outputs by ${say(d, 2)}` : "the outputs are no numbers"}`;
};

const OPTIONS = [
  { value: "same", text: "The same four outputs: an offset is undone exactly.", show: { c: 2048, type: "float16" },
    why: () => "That holds for exact numbers. Here the mean, 2053, lies between two float16 numbers, and what is subtracted is 2052." },
  { value: "moved", text: "Outputs that are clearly off, but still numbers.",
    why: () => `The mean of the four is 2053; float16 has only 2052 and 2054 there. The outputs are ${row(narrow({ shape: EVEN, sigma: ROOT, c: 2048, type: "float16", way: "two passes", eps: 1e-5 }).y, 4)}.` },
  { value: "zeros", text: "All 0: at that size the differences are not stored.", show: { c: 2048, type: "bfloat16" },
    why: () => "float16 holds 2050, 2052, 2054 and 2056 exactly; nothing is lost in storing. In bfloat16, which has three binary digits fewer, it would be." },
  { value: "nan", text: "NaN: the numbers are too large for float16.", show: { shape: TWO, type: "float16" },
    why: () => "float16 goes up to 65 504. Squares get there sooner than numbers: 300² does." },
];

const WORDS = {
  "two passes": "Two passes: first the mean, then the mean of the squared differences from it.",
  "one pass": "One pass: the mean of the squares, less the square of the mean. Each number is read once.",
  Welford: "Welford’s way: mean and squared differences grow together, number by number.",
};
const told = ({ type, way }) => `${WORDS[way]} ${type} keeps ${LN.TYPES[type].digits} binary digits and goes up to ${say(LN.TYPES[type].most, 3)}.`;

const region = (label, rows) => LN.region("wide", label, LN.table(rows, label));

const build = (view) => {
  const st = () => view.state, types = Object.keys(LN.TYPES), ways = Object.keys(LN.WAYS), begin = view.described.start;
  for (const [key, known] of Object.entries({ shape: [EVEN, EQUAL, TWO], type: types, way: ways })) { // a link may say anything
    if (!known.includes(st()[key])) st()[key] = begin[key];
  }
  if (!(st().eps >= 0)) st().eps = begin.eps;
  const bars = (caption, values, colour) => LN.figure(view, {
    caption, draw: () => LN.bars(values(), { low: -2.2, high: 2.2, colour, guess: LN.layer(asked({ ...st(), c: 0 }), st()) }),
    rows: () => [["number", "stored", "output", "without the offset, exactly"], ...values().map((v, i) => [i + 1, round(asked(st())[i], st().type), v, LN.layer(asked({ ...st(), c: 0 }), st())[i]])],
  });
  const steps = () => {
    const s = st(), n = narrow(s), x = n.held, m = finite(x) ? moments(x) : { mean: NaN, variance: NaN };
    return [
      ["step", `${s.way}, ${s.type}`, "layernorm: float64 inside"],
      ["stored", all(x), all(x)], ["mean", whole(n.mean), whole(m.mean)],
      ["variance", say(n.variance, 6), say(m.variance, 6)], ["ε", say(n.eps, 6), say(s.eps, 6)],
      ["√(variance + ε)", say(round(Math.sqrt(round(n.variance + n.eps, s.type)), s.type), 6), say(Math.sqrt(m.variance + s.eps), 6)],
      ["outputs", row(n.y), row(ours(s))],
    ];
  };
  const errors = LN.figure(view, {
    caption: () => `The largest error of an output in ${st().type}, by offset; NaN is drawn at the top`,
    draw: (s) => {
      const x = { low: 1, high: MOST[s.type], log: true, name: "offset c" };
      const lines = curves(s).map(({ name, points }) => ({ name, points: points.map(([c, d]) => [c, Number.isNaN(d) ? 1e4 : Math.max(d, 1e-17)]) }));
      return [...LN.plot(lines, { x, y: { low: s.type === "float64" ? 1e-17 : 1e-8, high: 1e4, log: true } }), ...mark(x, s.c, "c", 222)];
    },
    rows: () => {
      const lines = curves(st());
      return [["offset", ...lines.map((l) => l.name)], ...lines[0].points.filter((_, i) => i % 3 === 0).map(([c], i) => [say(c, 3), ...lines.map((l) => say(l.points[3 * i][1], 3))])];
    },
  });
  const curve = LN.figure(view, {
    caption: () => `What is left of the outputs: σ / √(σ² + ε), with ε = ${say(st().eps)} and √ε = ${say(Math.sqrt(st().eps), 4)}`,
    width: 480, height: 260,
    draw: (s) => {
      const points = Array.from({ length: 89 }, (_, i) => 10 ** (-8 + i / 8)), held = round(s.eps, s.type);
      const lines = [{ name: "ε as asked", points: points.map((v) => [v, shrink(v, s.eps)]) }];
      if (Math.abs(held / s.eps - 1) > 0.01) lines.push({ name: `in ${s.type}`, points: points.map((v) => [v, shrink(v, held)]) });
      const seen = Math.min(Math.max(s.sigma, SPREADS.low), SPREADS.high), at = [across(SPREADS, seen), 226 - 214 * shrink(seen, s.eps)];
      return [...LN.plot(lines, { x: SPREADS, y: { low: 0, high: 1 } }), ...mark(SPREADS, Math.sqrt(s.eps), "√ε", 220), LN.svg("circle", { cx: at[0], cy: at[1], r: 5, class: "dot" })];
    },
    rows: () => [["σ", "what is left"], ...Array.from({ length: 12 }, (_, i) => [say(10 ** (i - 8)), say(shrink(10 ** (i - 8), st().eps), 5)]), [`now: ${say(st().sigma)}`, say(shrink(st().sigma, st().eps), 5)]],
  });
  errors.querySelector("svg").setAttribute("viewBox", "0 0 480 260");
  const way = region("On the way", steps());
  view.ondraw(() => way.replaceChildren(LN.table(steps(), "On the way")));
  const sigma = LN.slider(view, "sigma", { label: "spread σ", min: -8, max: 3, step: 0.05, scale: "log", mean: () => shrunk(st()) });
  view.ondraw((s) => { sigma.hidden = s.shape !== EVEN; });
  const words = el("p", { class: "small" });
  view.ondraw((s) => { words.textContent = told(s); });
  const main = { shape: EVEN, sigma: ROOT, eps: 1e-5 }, at = (type, way, c) => ({ ...main, type, way, c });
  const shown = el(
    "div", {},
    el("div", { class: "panel" },
      LN.choice(view, "shape", { label: "Token", options: [EVEN, EQUAL, TWO] }),
      LN.choice(view, "type", { label: "Stored and computed in", options: types }),
      LN.choice(view, "way", { label: "Variance by", options: ways }), words,
      LN.slider(view, "c", { label: "offset c, log scale", min: 0, max: 8, step: 0.01, scale: "log", mean: () => moved(st()) }),
      LN.chips(view, "Settings to try", [
        ["float16, c = 2048", at("float16", "two passes", 2048)], ["one pass, c = 100 000", at("float32", "one pass", 1e5)], ["one pass, c = 1 000 000", at("float32", "one pass", 1e6)],
        ["two passes, c = 10⁷", at("float32", "two passes", 1e7)], ["two passes, c = 10⁸", at("float32", "two passes", 1e8)],
        ["equal numbers, ε = 10⁻¹², float16", { shape: EQUAL, c: 0, eps: 1e-12, type: "float16", way: "two passes" }], ["[0, 600] in float16", { shape: TWO, c: 0, eps: 1e-5, type: "float16", way: "two passes" }],
        ["σ = √ε", { ...at("float32", "two passes", 0), sigma: Math.sqrt(1e-5) }],
      ])),
    el("div", { class: "pair" },
      bars(() => `Outputs by ${st().way} in ${st().type}; outlines: without the offset, exactly`, () => narrow(st()).y, "a"),
      bars(() => `As layernorm does it: sums in float64, rounded once to ${st().type}`, () => ours(st()), "b")),
    way,
    el("h3", {}, "“Undoes an offset exactly”: where that stops being true"), errors,
    region(`The first power of two that, added to [2, 4, 6, 8], puts an output off by more than ${off}; all four sums are still stored exactly`, users()),
    el("p", { class: "small" }, "Flax takes a negative variance for 0: outputs in the hundreds, where the others give NaN."),
    el("h3", {}, "ε beside the spread"),
    el("div", { class: "panel" }, LN.choice(view, "eps", { label: "ε", options: EPSILONS.map((e) => [e, say(e)]) }), sigma), curve,
    region("What each type makes of ε", [["ε", ...types], ...[1e-3, 1e-5, 1e-6, 1e-8, 1e-12].map((e) => [say(e), ...types.map((type) => say(round(e, type), 6))])]),
  );
  const pick = LN.pick(view, {
    ask: "Answer first. [2, 4, 6, 8] comes out as [−1.342, −0.447, 0.447, 1.342]. Add 2048, and store and compute in float16, which has eleven binary digits. What comes out?",
    key: "guess", options: OPTIONS, right: () => "moved", reveal: [shown], land: at("float16", "two passes", 2048),
  });
  return [pick, shown];
};

const notice = ({ state: s }) => {
  const x = asked(s), n = narrow(s), y = ours(s), d = apart(n.y, LN.layer(n.held, s));
  if (!finite(n.held)) return `${say(Math.max(...x), 6)} is more than ${say(LN.TYPES[s.type].most, 6)}, the largest ${s.type}; it is stored as infinity, and no way to a variance helps.`;
  const storing = kept(s) ? "" : ` Storing alone has changed the token: ${s.type} numbers near ${whole(s.c)} are ${say(gap(Math.max(Math.abs(s.c), 1), s.type), 3)} apart, and what is held is ${all(n.held)}. No arithmetic brings back what was not stored.`;
  if (n.variance === Infinity) return `(${say(n.held[0] - n.mean, 4)})² is ${say((n.held[0] - n.mean) ** 2)}, more than ${say(LN.TYPES[s.type].most, 6)}: the variance is infinite, and every output is 0. Squares outgrow a type long before numbers do. Right is ${row(y, 4)}.`;
  if (n.variance === 0 && s.eps === 0) return "All numbers are equal and ε is 0: 0 / 0 is NaN.";
  if (n.variance === 0 && n.eps === 0) return `${s.type} has no number near ${say(s.eps)}: ε becomes 0, the variance is 0 too, and 0 / 0 is NaN. layernorm adds ε in float64, and gives ${row(y, 4)}.`;
  if (n.variance < 0) return `One pass subtracts ${say(n.mean ** 2, 4)} from a number as large, where ${s.type} numbers are ${say(gap(n.mean ** 2, s.type), 4)} apart. The difference, ${say(n.variance)}, is below 0, and its root is NaN. The right variance is ${say(moments(n.held).variance)}.${storing}`;
  if (n.variance === 0 && moments(n.held).variance > 0) return `The variance came out as 0 instead of ${say(moments(n.held).variance)}: what tells the numbers apart is lost when squares near ${say(n.mean ** 2, 3)} are subtracted. Only ε is left to divide by, and the outputs are ${row(n.y, 4)}.${storing}`;
  if (!finite(n.y)) return `The squares are too large for ${s.type}; infinity less infinity is NaN. layernorm gives ${row(y, 4)}.`;
  if (d > off) return `The outputs are off by ${say(d, 3)}: the mean is held as ${whole(n.mean)} instead of ${whole(moments(n.held).mean)}, the variance as ${say(n.variance, 6)} instead of ${say(moments(n.held).variance, 6)}. layernorm, from the same stored numbers: ${row(y, 4)}.${storing}`;
  if (storing) return storing.trim();
  const { variance } = moments(n.held);
  if (variance === 0) return `All numbers are equal: 0 divided by √ε = ${say(Math.sqrt(n.eps), 4)}, and every output is 0.`;
  if (s.eps > 0.01 * variance) return `σ is ${say(Math.sqrt(variance), 3)} and √ε is ${say(Math.sqrt(s.eps), 3)}: ${LN.share(s.eps, variance)}, and outputs keep ${say(100 * shrink(Math.sqrt(variance), s.eps), 3)} % of their size.`;
  return `The outputs are off by ${say(d, 2)} at most, and the offset of ${say(s.c, 4)} does not show. ${LN.share(s.eps, variance, 2)}.`;
};

const PYTHON = {
  "two passes": "mean = t(total(x) / n)\nvariance = t(total((x - mean) ** 2) / n)",
  "one pass": "mean = t(total(x) / n)\nvariance = t(total(x * x) / n) - mean * mean",
  Welford: "mean, squares = t(0), t(0)\nfor i, v in enumerate(x):\n    d = v - mean\n    mean = mean + d / t(i + 1)\n    squares = squares + d * (v - mean)\nvariance = squares / t(n)",
};
const code = ({ state: s }) => {
  const type = s.type === "bfloat16" ? "ml_dtypes.bfloat16" : `np.${s.type}`, wide = s.type === "float64" ? "float64" : "float32";
  return [
    "import numpy as np", ...(s.type === "bfloat16" ? ["import ml_dtypes  # comes with layernorm"] : []), "import layernorm as ln", "",
    'np.seterr(all="ignore")', `t, n = ${type}, ${asked(s).length}`, `x = np.array(${LN.py(asked(s))}).astype(t)`, "",
    `def total(values):  # one after the other, in ${wide}`, `    return values.astype(np.${wide}).cumsum()[-1]`, "",
    PYTHON[s.way], `y = (x - mean) / np.sqrt(variance + t(${LN.py(s.eps)}))`,
    'print("mean", mean, "variance", variance)', `print("${s.way}", y)`, `print("layernorm", ln.layer_norm(x, eps=${LN.py(s.eps)}))`, "",
  ].join("\n");
};

LN.view({
  id: "precision", title: "ε and precision",
  ask: "“Layer normalization undoes an offset exactly.” Does it, on a machine that keeps a few digits of each number?",
  start: { shape: EVEN, sigma: ROOT, c: 0, eps: 1e-5, type: "float32", way: "two passes", guess: "", done: null },
  build, notice, code,
  calls: ({ state: s }) => {
    const x = asked(s).map((v) => round(v, s.type));
    return finite(x) ? [{ call: "layer_norm", x, options: { eps: s.eps }, expected: ours(s), type: s.type }] : [];
  },
  because: "A type keeps a fixed number of digits, so far from zero its numbers stand far apart. The mean falls between two of them and is rounded, and squares lose what tells the numbers apart. Sums with more digits, rounded once at the end, lose nothing that was stored. ε is a number too: a type may round it to 0.",
});
})();
