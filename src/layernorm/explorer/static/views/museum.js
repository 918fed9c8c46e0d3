// SPDX-License-Identifier: MIT
// This view replays public bugs of layer normalization with the numbers in their reports.
"use strict";

(() => {
const { el, say, moments, round } = LN;
const f = Math.fround;
const few = (y, digits) => (y.length < 7 ? LN.row(y, digits) : LN.row([...y.slice(0, 3), ...y.slice(-1)], digits).replace(/, (?=[^,]*$)/, ", …, "));
const spread = (x) => Math.sqrt(moments(x).variance);

// -- how the kernels added: some running sums side by side, joined in pairs; `fused` rounds a·b + c once
const sums = (x, lanes, laneOf, term) => {
  let held = new Array(lanes).fill(0);
  x.forEach((v, i) => { held[laneOf(i)] = f(held[laneOf(i)] + term(v)); });
  while (held.length > 1) held = held.flatMap((v, i) => (i % 2 ? [] : [f(v + held[i + 1])]));
  return held[0];
};
const divided = (x, mean, variance, eps) => x.map((v) => f(f(v - mean) * f(1 / f(Math.sqrt(f(variance + f(eps)))))));
const onePass = (x, laneOf, { fused = false, eps = 1e-5 } = {}) => {
  const mean = f(sums(x, 4, laneOf, (v) => v) / x.length), squares = f(sums(x, 4, laneOf, (v) => v * v) / x.length);
  const variance = fused ? f(squares - mean * mean) : f(squares - f(mean * mean));
  return { mean, variance, y: divided(x, mean, variance, eps) };
};
const turns = (lanes) => (i) => i % lanes, blocks = (i) => Math.floor(i / 4);
const twoPasses = (x) => {
  const mean = f(sums(x, 8, turns(8), (v) => v) / x.length);
  return divided(x, mean, f(sums(x.map((v) => f(v - mean)), 8, turns(8), (d) => f(d * d)) / x.length), 1e-5);
};
// DeepSpeed: ε is added in float32, and the sum becomes a half before its root
const late = (x, eps) => { const v = round(f(moments(x).variance + eps), "float16"); return { v, y: x.map((u) => u - moments(x).mean).map((d) => d / Math.sqrt(v)) }; };

const ten = new Array(10).fill(0), equal = [5, 5, 5, 5], half = { type: "float16" };
const mlx = [1449.570556640625, 1448.8741455078125, 1450.650390625, 1449.2633056640625, 1449.7763671875, 1449.317138671875, 1449.3297119140625, 1449.077880859375,
  1449.2181396484375, 1449.4329833984375, 1449.1605224609375, 1449.413330078125, 1449.7933349609375, 1450.066650390625, 1449.7762451171875, 1450.364990234375];
const printed = [22, 72.75, -285, 190.5], rebuilt = printed.map((v) => f(2000.25 + v * Math.sqrt(1e-5)));
const drawn = (() => { const next = LN.normal(32996); return [0, 0, 0, 0].map(() => f(f(next()) + 2000)); })();
const ramp = (mean) => Array.from({ length: 16 }, (_, i) => mean + i * 1e-3);
const narrow = [0, 0.01, 0.02, 0.03].map((v) => (v - 0.015) * (0.01 / spread([0, 0.01, 0.02, 0.03])));

const CULPRITS = {
  lost: "ε became 0 in a type with few digits.", cancel: "The variance was the difference of two large numbers.",
  over: "A square was too large for its type.", other: "Two programs used different ε.",
};

/**
 * An exhibit: what was reported and what comes out here. `rows()` are [what, reported, replayed here]; `x` the row that the
 * installed library is given, `code` what a snippet does with it.
 */
const EXHIBITS = [
  {
    key: "zeros", ref: "pytorch/pytorch#41527", year: 2020, culprit: "lost", type: "float16", eps: 1e-12, x: ten,
    story: "Ten zeros in half precision, ε = 1e−12, on a GPU. PyTorch 1.3.1 gave zeros, 1.4 and 1.5 gave NaN.",
    rows: () => [["float16 outputs", "ten NaN", few(LN.narrow(ten, { ...half, eps: 1e-12 }).y)], ["float32 outputs", "ten zeros", few(LN.narrow(ten, { eps: 1e-12 }).y)], ["ε as float16", "not printed", say(round(1e-12, "float16"))]],
    why: "No half lies between 0 and 5.96e−8, so 1e−12 became 0, and 0 / √0 is NaN.", fix: "statistics and ε in float32.",
  },
  {
    key: "late", ref: "microsoft/DeepSpeed#581", year: 2020, culprit: "lost", type: "float16", eps: 1e-12, x: ten, given: "The report names padding with zeros or a constant, and no other numbers.",
    story: "A training kernel: NaN wherever a sequence was padded. ε = 1e−12 was added in float32, and the sum then stored as a half.",
    rows: () => [["variance + ε in float32", "1e−12", say(f(0 + f(1e-12)))], ["the same as a half", "0", say(late(ten, 1e-12).v)], ["outputs", "NaN", few(late(ten, 1e-12).y)]],
    why: "Adding in float32 did not help: the sum was rounded to a half before the root was taken.", fix: "the maintainer’s proposal: keep the variance in float32.",
    code: "v = np.float16(x.astype(np.float32).var() + np.float32(1e-12))\nprint(v, (x - x.mean()) / np.sqrt(v))",
  },
  {
    key: "safe", ref: "tensorflow/tensorflow#24979", year: 2019, culprit: "lost", type: "float16", eps: 1e-12, x: equal, given: "No row is given; four equal numbers stand in for one.",
    story: "layer_norm in TensorFlow’s contrib had ε = 1e−12 for every type. Training BERT in half precision met NaN. The change: 1e−3 for halves.",
    rows: () => [["before, ε = 1e−12", "NaN", LN.row(LN.narrow(equal, { ...half, eps: 1e-12 }).y)], ["after, ε = 1e−3", "no NaN", LN.row(LN.narrow(equal, { ...half, eps: 1e-3 }).y)],
      ["what ε = 1e−3 leaves of a row of spread 0.01", "not mentioned", `${say(100 * 0.01 / Math.sqrt(1e-4 + 1e-3), 3)} %`]],
    why: "1e−12 is 0 as a half. 1e−3 is not, but rows with a small spread now shrink: the layer is another one.", fix: "a larger ε for halves; elsewhere ε was kept in float32.",
  },
  {
    key: "export", ref: "pytorch/pytorch#86580", year: 2022, culprit: "lost", type: "float16", eps: 1e-8, x: equal, given: "The report’s rows are random; NaN needs equal numbers, as here.",
    story: "A half model with ε = 1e−8 was exported to ONNX. In the file ε was 0.0; PyTorch itself had kept it in float32.",
    rows: () => [["1e−8 as a half", "0.0", say(round(1e-8, "float16"))], ...[3e-8, 1e-7, 1e-5].map((e) => [`${say(e)} as a half`, "–", say(round(e, "float16"), 6)]), ["equal numbers, exported", "–", LN.row(LN.narrow(equal, { ...half, eps: 1e-8 }).y)]],
    why: "The least half is 5.96e−8; below half of that everything is 0. The two programs agree on every row but the constant ones.", fix: "casts around ε; from ONNX 17 on the norm is one operator, and ε an attribute of it.",
  },
  {
    key: "shifted", ref: "pytorch/pytorch#51102", year: 2021, culprit: "cancel", type: "float32", eps: 1e-5, x: rebuilt, given: "The numbers were random. The outputs of one row are printed, and times √ε they are its differences from the mean; the mean, 2000.25, is ours. Of the other row only the variance is printed: the one here is drawn, from seed 32996, to be near.",
    story: "randn(5, 4) + 2000 in PyTorch 1.7. Outputs should have variance 1; two rows came out with variances of tens of thousands.",
    rows: () => {
      const one = LN.narrow(rebuilt, { way: "one pass" }), other = LN.narrow(drawn, { way: "one pass" });
      return [["a row’s outputs", LN.row(printed), LN.row(one.y)], ["their variance", "30 822.9", say(moments(one.y).variance, 7)], ["the variance below the root", "not printed", `${say(one.variance)}; right is ${say(moments(rebuilt).variance, 3)}`],
        ["the same row, two passes", "0.1249, 0.4133, −1.6235, 1.0852", LN.row(LN.narrow(rebuilt).y)], ["variance of another row’s outputs", "48 425.8", say(moments(other.y).variance, 7)]];
    },
    why: "Squares near 4 million stand 1/4 apart in float32, about as much as the variance is. It came out as 0, and outputs were divided by √ε.", fix: "later kernels by Welford’s way.",
    code: "mean = x.sum() / 4\nv = (x * x).sum() / 4 - mean * mean\ny = (x - mean) / np.sqrt(v + np.float32(1e-5))\nprint(v, y, y.astype(float).var())",
  },
  {
    key: "table", ref: "tracel-ai/burn#5607", year: 2026, culprit: "cancel", type: "float32", eps: 1e-5, x: ramp(100).map(f), given: "Added as its source does: sums side by side, four of them, and a·a + b rounded once.",
    story: "Rows of 16 numbers, mean + i · 0.001. The report has a table of first outputs and largest errors.",
    rows: () => [[0, "−1.3416", "0.000"], [100, "−2.3716", "1.030"], [1000, "−2.3740", "1.033"], [10000, "−0.0024", "1.329"]].flatMap(([mean, got, error]) => {
      const x = ramp(mean).map(f), { y } = onePass(x, turns(4)), exact = LN.layer(x);
      return [[`row mean ${mean}: first output`, got, say(y[0], 5)], [`row mean ${mean}: largest error`, error, Math.max(...y.map((v, i) => Math.abs(v - exact[i]))).toFixed(3)]];
    }).concat([["row mean 100, two passes", "–", say(twoPasses(ramp(100).map(f))[0], 5)], ["row mean 100, stored in float32, exactly", "−1.3415", say(LN.layer(ramp(100).map(f))[0], 5)], ["row mean 100, in float64", "–", say(LN.layer(ramp(100))[0], 5)]]),
    why: "At a mean of 100 squares are near 10 000 and stand 0.001 apart; the variance is 0.00002.", fix: "two passes were proposed: the row is in the cache anyway.",
    code: "mean = x.mean()\nfor v in ((x * x).mean() - mean * mean, ((x - mean) ** 2).mean()):\n    print((x[0] - mean) / np.sqrt(v + np.float32(1e-5)))",
  },
  {
    key: "fused", ref: "ml-explore/mlx#2238", year: 2025, culprit: "cancel", type: "float32", eps: 1e-5, x: mlx, given: "Added as the kernel of that time does: four threads of four numbers. In which order a GPU joins the four sums, and where it rounds only once, is not written down; here in pairs, and wherever it may.",
    story: "Sixteen numbers near 1449, cut out of a model. On the GPU every output was NaN; on the CPU all was well.",
    rows: () => {
      const one = onePass(mlx, blocks, { fused: true });
      return [["outputs on the GPU", "NaN", few(one.y)], ["variance", "not printed", `${say(one.variance)}; right is ${say(moments(mlx).variance)}`],
        ["variance, mean² rounded on its own", "–", say(onePass(mlx, blocks).variance)], ["variance, added one by one", "–", say(LN.narrow(mlx, { way: "one pass" }).variance)]];
    },
    why: "The mean of squares is rounded to a quarter, mean² was not rounded: the difference fell below 0. Added in another order the same row gives 0 or 0.5, so the bug comes and goes.", fix: "two passes, in the change that closed it.",
    code: "mean = x.sum() / 16\nfor v in ((x * x).cumsum()[-1] / 16 - mean * mean, x.astype(float).var()):\n    print(v)",
  },
  {
    key: "aligned", ref: "OpenNMT/CTranslate2#951", year: 2022, culprit: "other", type: "float32", eps: 1e-5, x: narrow, given: "The change gives the two numbers and no row; a row of spread 0.01 is used here.",
    story: "A program that runs models trained in PyTorch had ε = 1e−4 on the GPU; PyTorch has 1e−5. One constant was changed.",
    rows: () => [1e-4, 1e-5].map((eps) => [`spread 0.01, ε = ${say(eps)}`, "–", LN.row(LN.narrow(narrow, { eps }).y, 4)]).concat([["spread 1, between the two ε", "–", `${say(100 * (1 - Math.sqrt((1 + 1e-5) / (1 + 1e-4))), 2)} % apart`]]),
    why: "Nothing overflowed and nothing was lost. Rows with a wide spread look the same, rows with a narrow one do not.", fix: "1e−5 on the GPU too; later ε was read from the model.",
    code: "print(ln.layer_norm(x, eps=1e-4))",
  },
];

const of = (s) => EXHIBITS.find(({ key }) => key === s.exhibit) ?? EXHIBITS[0];
const least = (e) => `its least number above 0 is ${say(2 ** LN.TYPES[e.type].least, 3)}, and ε is ${say(e.eps)}`;
const WHY = {
  lost: (e) => (e.culprit === "lost" ? "" : `The type is ${e.type}: ${least(e)}, which stays.`),
  cancel: (e) => (e.culprit === "cancel" ? "" : `For that the mean must be large beside the spread; here they are ${say(moments(e.x.map((v) => round(v, e.type))).mean, 3)} and ${say(spread(e.x), 3)}.`),
  over: (e) => `The largest square here is ${say(Math.max(...e.x.map((v) => v * v)), 3)}; ${e.type} goes up to ${say(LN.TYPES[e.type].most, 3)}.`,
  other: (e) => (e.culprit === "other" ? "" : "Another ε shrinks rows with a small spread; it does not make NaN, and outputs stay below the spread they should have."),
};
const SHOW = {
  lost: { shape: "[5, 5, 5, 5]", eps: 1e-12, type: "float16" }, cancel: { c: 1e5, way: "one pass" },
  over: { shape: "[0, 600]", type: "float16" }, other: { sigma: Math.sqrt(1e-5) },
};

const build = (view) => {
  const e = () => of(view.state);
  const card = el("div", { class: "panel" }), heading = el("h3", {});
  const replay = LN.region("wide", ""), why = el("p", {}), given = el("p", { class: "small" });
  const shown = el("div", {}, replay, given, why);
  const which = LN.choice(view, "exhibit", { label: "Exhibit", options: EXHIBITS.map(({ key, ref, year }) => [key, `${ref.split("/")[1]}, ${year}`]) });
  which.addEventListener("change", () => view.set({ done: null, guess: "" }));
  const all = LN.region("wide", "All exhibits", LN.table(
    [["exhibit", "what", "reported", "replayed here"], ...EXHIBITS.flatMap(({ ref, rows }) => rows().map((row) => [ref, ...row]))], "Everything that is replayed"));
  view.ondraw(() => {
    heading.textContent = `${e().ref}, ${e().year}`;
    const [, repository, number] = /(.+)#(.+)/.exec(e().ref);
    card.replaceChildren(heading, el("p", {}, e().story), el("p", { class: "small" }, el("a", { href: `https://github.com/${repository}/issues/${number}`, rel: "noreferrer" }, "The report, on GitHub")));
    const label = `${e().ref}: reported, and replayed`;
    replay.setAttribute("aria-label", label);
    replay.replaceChildren(LN.table([["what", "reported", "replayed here"], ...e().rows(), ["layernorm, the same row", "–", few(LN.exact(e().x, e()), 4)]], label));
    given.textContent = e().given ?? "All numbers are in the report.";
    why.replaceChildren(el("strong", {}, CULPRITS[e().culprit]), ` ${e().why} What was done: ${e().fix}`);
  });
  const pick = LN.pick(view, {
    ask: "Answer first. What went wrong?", key: "guess", reveal: [shown], right: () => e().culprit, at: "precision",
    options: Object.entries(CULPRITS).map(([value, text]) => ({ value, text, why: () => WHY[value](e()), show: SHOW[value] })),
  });
  return [which, card, pick, shown, el("details", {}, el("summary", {}, "All exhibits in one table"), all)];
};

LN.view({
  id: "museum", title: "Museum of bugs",
  ask: "Each of these happened in public, in software that many use. What went wrong? Choose an exhibit.",
  start: { exhibit: "zeros", guess: "", done: null },
  build,
  notice: ({ state: s }) => {
    const e = of(s), x = e.x.map((v) => round(v, e.type)), lost = round(e.eps, e.type) === 0;
    return `The row has mean ${say(moments(x).mean, 6)} and spread ${say(spread(x), 3)}; ε is ${say(e.eps)}${lost ? `, which is 0 in ${e.type}` : ""}. layernorm, which adds in float64 and rounds once, gives ${few(LN.exact(e.x, e), 4)}.`;
  },
  code: ({ state: s }) => {
    const e = of(s), x = e.x.map((v) => round(v, e.type));
    return `${LN.HEAD}np.seterr(all="ignore")\nx = np.array(${LN.py(x)}, np.${e.type})\n${e.code ?? `print((x - x.mean()) / np.sqrt(x.var() + x.dtype.type(${LN.py(e.eps)})))`}\nprint(ln.layer_norm(x, eps=${LN.py(e.eps)}))\n`;
  },
  calls: ({ state: s }) => { const e = of(s); return [{ call: "layer_norm", x: e.x.map((v) => round(v, e.type)), options: { eps: e.eps }, expected: LN.exact(e.x, e), type: e.type }]; },
  because: "Three things go wrong again and again: an ε that a type cannot hold, a variance taken as the difference of two large numbers, and an ε that two programs do not share. Tests with ordinary rows find none of them: they need constant rows, rows far from zero, and rows with a small spread.",
});
})();
