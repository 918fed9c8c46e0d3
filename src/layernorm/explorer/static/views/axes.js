// SPDX-License-Identifier: MIT
// This view ticks the axes of a small tensor that share one mean, spells them in frameworks, and tells exports that went wrong.
"use strict";

(() => {
const { el, say } = LN;
const TOKENS = ["A · 1", "A · 2", "A · 3", "B · 1", "B · 2", "B · 3"], SHAPE = [2, 3, 4], AXES = ["batch", "token", "feature"], EPS = 1e-5;
const named = (k) => `example ${"AB"[Math.floor(k / 12)]}, token ${(Math.floor(k / 4) % 3) + 1}, feature ${(k % 4) + 1}`;
const apart = (a, b) => a.map((v, k) => v - b[k]);
const brief = (v) => (Math.abs(v) > 1e-12 && Math.abs(v) < 5e-4 ? "≈ 0" : say(Math.round(v * 1000) / 1000));
const largest = (d) => d.reduce((best, v, k) => (Math.abs(v) > Math.abs(d[best]) ? k : best), 0);

// -- the axes --

const ticked = (s) => [0, 1, 2].filter((a) => s[AXES[a]]);
const split = (axes) => LN.groups(SHAPE, (i) => i.map((v, a) => (axes.includes(a) ? 0 : v)));
const over = (x, axes, options) => LN.overGroups(x, split(axes).members, options);
const tuple = (list) => `(${list.join(", ")}${list.length === 1 ? "," : ""})`;
const spoken = (axes) => (axes.length ? axes.map((a) => AXES[a]).join(", ").replace(/, (\w+)$/, " and $1") : "nothing");

const NAMES = {
  "": "No name: each number is a group of its own, and x − mean is 0.",
  "0": "No common name: one token's one feature, across examples.",
  "1": "The groups of instance norm: one feature across the tokens of an example.",
  "2": "Layer norm as transformers have it: each token by itself, over its features.",
  "0,1": "The groups of batch norm in training: one feature across all tokens of all examples.",
  "0,2": "No common name: a place in the text, across examples and features.",
  "1,2": "Also called layer norm: each example by itself, over tokens and features together. The original paper takes all hidden units of a layer together, and image networks read that as all places and channels.",
  "0,1,2": "No common name: the whole tensor has one mean, so examples mix.",
};

/** Spell some axes in each framework: [framework, code, remark]. */
const spelled = (axes) => {
  const trailing = axes.length > 0 && axes.every((a) => axes.includes(2) && (a === 2 || axes.includes(a + 1)));
  const shape = axes.map((a) => SHAPE[a]), list = axes.join(", ");
  const rest = [0, 1, 2].filter((a) => !axes.includes(a)), order = [...rest, ...axes], back = [0, 1, 2].map((a) => order.indexOf(a));
  return [
    ["this library", `ln.layer_norm(x, axis=${tuple(axes)})`, "ε 1e-5 unless said"],
    ["NumPy", `x.mean(axis=${tuple(axes)}, keepdims=True)`, "and x.var likewise"],
    ["PyTorch", trailing ? `nn.LayerNorm(normalized_shape=${tuple(shape)})(x)` : `nn.LayerNorm(normalized_shape=${tuple(shape)})(x.permute(${order.join(", ")})).permute(${back.join(", ")})`, trailing ? "lengths, not axes; ε 1e-5 unless said" : "it takes trailing axes only: they are moved to the end and back"],
    ["Keras", `LayerNormalization(axis=[${list}], epsilon=1e-5)`, `ε is 1e-3 unless said${["0", "1", "0,1"].includes(axes.join()) ? "; its PyTorch backend refused these axes in 3.15" : ""}`],
    ["Flax", `nn.LayerNorm(reduction_axes=${tuple(axes)}, feature_axes=${tuple(axes)}, epsilon=1e-5)`, "ε is 1e-6 unless said; γ's axes are said apart, and are the last unless said"],
    ["ONNX", trailing ? `LayerNormalization(axis=${axes[0] - 3})` : `MeanVarianceNormalization(axes=[${list}])`, trailing ? "from this axis to the last; ε 1e-5 unless said" : "no γ, no β, and 1e-9 added to the root instead of ε"],
  ];
};

// What a count of pairs other than 6 stands for.
const PAIRS = {
  1: ["One pair is for the whole tensor: every example would depend on the others.", [0, 1, 2]],
  2: ["One pair for an example is layer norm over token and feature, the other thing of that name.", [1, 2]],
  3: ["Three are the tokens of one example; there are two examples, and each token of each has its own.", [2]],
  4: ["One pair for a feature is batch norm: a column, not a row.", [0, 1]],
  8: ["One pair for a feature of each example is instance norm.", [1]],
  12: ["Twelve pairs are what averaging across the two examples leaves.", [0]],
  24: ["A pair for each number would make every output 0.", []],
};

// -- the exports --

const scaled = (y, gamma, beta) => y.map((v, k) => v * gamma[k % 4] + beta[k % 4]);
// each gives the outputs that an export with this fault has
const CAUSES = {
  both: { text: "It normalizes token and feature together", make: (x, g, b) => scaled(over(x, [1, 2]), g, b), say: "a token that stands apart from the others would keep an offset", fix: "Name the feature axis alone: axis=-1.", options: { axis: [1, 2] } },
  batch: { text: "It normalizes each feature over batch and token", make: (x, g, b) => scaled(over(x, [0, 1]), g, b), say: "each column, not each row, would have mean 0", fix: "A batch norm stands where a layer norm was: name the feature axis, axis=-1.", options: { axis: [0, 1] } },
  eps: { text: "Its ε is 0.001", make: (x, g, b) => scaled(over(x, [2], { eps: 1e-3 }), g, b), say: "tokens with a small spread would shrink and the others hardly move", fix: "Say epsilon=1e-5: Keras takes 1e-3 unless told.", options: { axis: -1, eps: 1e-3 } },
  beta: { text: "Its β is missing", make: (x, g) => scaled(over(x, [2]), g, [0, 0, 0, 0]), say: "every row would be off by the same four numbers, −β", fix: "Export β as well; some loaders drop a bias that they do not expect.", options: { axis: -1 }, bare: true },
  gamma: { text: "Its γ is missing", make: (x, g, b) => scaled(over(x, [2]), [1, 1, 1, 1], b), say: "a feature would be off by a multiple of its normalized value, and one whose γ is 1 not at all", fix: "Export γ as well.", options: { axis: -1 }, plain: true },
  rms: { text: "It does not subtract the mean (RMS norm)", make: (x, g, b) => scaled(over(x, [2], { centered: false }), g, b), say: "a token with a large mean would come out nearly constant", fix: "An RMS norm stands where a layer norm was; subtract the mean.", rms: true },
  ddof: { text: "It divides the variance by n − 1", make: (x, g, b) => scaled(split([2]).members.flatMap((m) => { const { variance, centered } = LN.moments(m.map((k) => x[k])); return centered.map((d) => d / Math.sqrt((variance * 4) / 3 + EPS)); }), g, b), say: "every token's spread would be √(3/4) = 0.866, whatever its numbers", fix: "Divide by n: var(correction=0), the default of NumPy but not of torch.var.", ddof: true },
};
const KEYS = Object.keys(CAUSES);
const CASES = [
  ["The text classifier", "A team exports a text classifier to another runtime. Both sides have a part named LayerNorm and every shape agrees; the predictions do not.", "both"],
  ["The quiet tokens", "After the move to another framework most outputs agree to two digits; a few tokens are far off.", "eps"],
  ["The lost column", "The weights were copied one by one into a new program. No token agrees.", "beta"],
  ["The cheaper engine", "A fast engine replaced the norm by one of its own.", "rms"],
  ["The statistician", "Someone rewrote the layer with a statistics package. Every output is a little too small.", "ddof"],
  ["In company", "Alone, an example gives other outputs than beside a second one.", "batch"],
  ["Drawn by lot", "Nothing is known but the outputs. Other numbers may have another cause.", null],
];
const chosen = (s) => Math.min(Math.max(Math.trunc(s.case), 1), CASES.length);
const guilty = (s) => CASES[chosen(s) - 1][2] ?? KEYS[Math.floor(LN.uniform(7 * s.seed + 3)() * KEYS.length)];

/** Make what a case gives: tokens of unlike offsets and one quiet token in each example, γ and β, both outputs. */
const evidence = (s) => {
  const next = LN.normal(1000 * s.seed + chosen(s)), cut = (v) => Math.round(v * 100) / 100;
  const x = Array.from({ length: 6 }, (_, t) => {
    const offset = 3 * next(), spread = t % 3 === s.seed % 3 ? 0.06 : 1.5;
    const row = Array.from({ length: 4 }, (__, f) => cut(offset + spread * (next() / 3 + [1, -1.2, 0.7, -0.5][(f + t) % 4])));
    return row;
  }).flat();
  const gamma = [1.5, 1, 0.6, 2].map((v) => cut(v + (v === 1 ? 0 : 0.1 * next()))), beta = [0.9, -0.4, 0.5, 1.2].map((v) => cut(v * (1 + 0.1 * next())));
  const original = scaled(over(x, [2]), gamma, beta), made = KEYS.map((key) => [key, CAUSES[key].make(x, gamma, beta)]);
  const outputs = Object.fromEntries(made);
  return { x, gamma, beta, original, outputs, exported: outputs[guilty(s)] };
};
const mark = (s) => `${chosen(s)}.${s.seed}.`;
const tried = (s) => s.run.filter((r) => r.startsWith(mark(s))).map((r) => r.slice(mark(s).length)).filter((key) => KEYS.includes(key));
const solved = (s) => tried(s).includes(guilty(s));
const opened = (s) => s.run.includes(`${mark(s)}shown`);
const cause = (s) => (KEYS.includes(s.cause) ? s.cause : null);
const ran = (s) => cause(s) !== null && tried(s).includes(cause(s));

// -- what is shown --

const grid = (view, options) => LN.heads(view, LN.grid(view, {
  rows: () => 6, columns: () => 4, head: (i) => TOKENS[i], ...options,
}), () => ["token", "f 1", "f 2", "f 3", "f 4"]);

const picker = (view) => {
  const asked = LN.predict(view, {
    ask: "A tensor holds 2 examples (batch) of 3 tokens with 4 features. Layer norm in a language model works along the feature axis. How many pairs of mean and spread does it compute?",
    fields: [["pairs", "pairs of mean and spread"]], range: { min: 0, max: 24, step: 1 },
    verdict: (s) => (s.pairs === 6 ? "Six, as you said: one for each token of each example." : `${PAIRS[s.pairs]?.[0] ?? "That many groups come from no choice of axes."} It is 6: 2 examples × 3 tokens.`),
  });
  const shows = LN.button("Show me where that is true", () => {
    const axes = PAIRS[view.state.pairs]?.[1] ?? [2];
    view.set(Object.fromEntries(AXES.map((name, a) => [name, axes.includes(a)])));
  });
  const ticks = el("fieldset", { class: "choice" }, el("legend", {}, "Axes that share one mean"),
    AXES.map((name, a) => LN.toggle(view, name, `${name} (axis ${a}, length ${SHAPE[a]})`)));
  const cells = grid(view, {
    label: "The tensor; each number with the number of its group",
    cell: (i, j) => {
      const s = view.state, k = i * 4 + j, x = LN.small(s.seed), { of, members } = split(ticked(s)), y = over(x, ticked(s))[k];
      return { text: `${s.outputs ? say(y, 3) : x[k]}\n#${of[k] + 1}`, class: `two g${of[k] % 6}`, name: `${named(k)}, ${x[k]}, output ${say(y, 3)}, group ${of[k] + 1} of ${members.length}` };
    },
  });
  const facts = el("ul", { class: "facts" }), name = el("p", { class: "verdict" });
  const spelling = el("dl", { class: "spelled" }), none = el("p", {}, "No framework takes an empty list of axes.");
  const shown = el(
    "div", {}, shows, el("div", { class: "panel" }, ticks, LN.toggle(view, "outputs", "Show the outputs"),
      LN.chips(view, "Two things are called layer norm", [["layer norm of a token", { batch: false, token: false, feature: true }], ["layer norm of an example", { batch: false, token: true, feature: true }]])),
    name, el("div", { class: "pair" }, cells, facts), el("h3", {}, "How these axes are spelled"), none, spelling,
    el("div", { class: "buttons" }, LN.redraw(view)),
  );
  view.ondraw((s) => {
    shown.hidden = s.done === null;
    shows.hidden = s.done !== "committed" || s.pairs === 6;
    const axes = ticked(s), { members } = split(axes), shape = axes.map((a) => SHAPE[a]), x = LN.small(s.seed), d = apart(over(x, axes), over(x, [2]));
    name.textContent = NAMES[axes.join()];
    facts.replaceChildren(...[
      `Pairs (μ, σ): ${members.length}, each from ${members[0].length} ${members[0].length === 1 ? "number" : "numbers"}.`,
      axes.length ? `γ and β that span these axes: shape ${tuple(shape)}, ${members[0].length} numbers each.${axes.includes(0) ? " The batch axis among them would want a γ for each example: no layer does that." : ""}` : "γ and β would be one number each.",
      `Shape of the output: (2, 3, 4), whatever is ticked.${axes.join() === "2" ? "" : ` Largest difference from the feature axis alone: ${say(Math.abs(d[largest(d)]), 3)}.`}`,
    ].map((words) => el("li", {}, words)));
    none.hidden = axes.length > 0;
    spelling.replaceChildren(...(axes.length ? spelled(axes) : []).flatMap(([who, code, mind]) => [
      el("dt", {}, who), el("dd", {}, el("code", {}, code), el("span", { class: "small" }, mind)),
    ]));
  });
  return el("div", {}, asked, shown);
};

const SHOWN = [["x", "the input"], ["original", "the original's outputs"], ["exported", "the export's outputs"], ["difference", "export − original"], ["hypothesis", "the hypothesis's outputs"], ["residual", "export − hypothesis"]];

const files = (view) => {
  const story = el("p", {}), given = el("p", { class: "small" });
  const seen = (s) => {
    const e = evidence(s), made = ran(s) ? e.outputs[cause(s)] : e.exported;
    if (s.look === "difference") return apart(e.exported, e.original);
    if (s.look === "residual" && ran(s)) return apart(e.exported, made);
    return s.look === "hypothesis" ? made : e[s.look] ?? e.exported;
  };
  const cells = grid(view, {
    label: "The numbers of the case",
    cell: (i, j) => { const v = seen(view.state)[i * 4 + j]; return { text: brief(v), name: `${named(i * 4 + j)}, ${say(v, 4)}`, class: "" }; },
  });
  const need = el("p", { class: "small" });
  const whose = () => (view.state.look === "hypothesis" && ran(view.state) ? "hypothesis" : "export");
  const clue = (column, caption, low, high) => LN.figure(view, {
    caption: () => `${caption} (of the ${whose()})`, height: 130,
    draw: (s) => LN.bars(clues(s, whose()).map((row) => row[column]), { low, high, height: 130, names: TOKENS }),
    rows: () => [["token", "mean", "spread", "spread of the input"], ...clues(view.state, whose())],
  });
  const run = LN.button("Run this hypothesis", () => {
    const s = view.state;
    if (cause(s) === null) said.textContent = "Choose a hypothesis above first.";
    else view.set({ run: [...s.run.slice(-60).filter((r) => r !== mark(s) + cause(s)), mark(s) + cause(s)], look: "residual" });
  }, { class: "main" });
  const pass = LN.button("Show me (not tried)", () => {
    const s = view.state, flag = `${mark(s)}shown`;
    view.set({ run: opened(s) ? s.run.filter((r) => r !== flag) : [...s.run.slice(-60), flag] });
  });
  const again = LN.redraw(view, { cause: "", look: "exported" });
  const said = el("p", { class: "verdict" }), would = LN.button("Show me what that would look like", () => view.set({ look: "hypothesis" }));
  const all = el("div", {});
  view.ondraw((s) => {
    const [title, words] = CASES[chosen(s) - 1], e = evidence(s), done = tried(s), key = cause(s);
    story.textContent = `${title}. ${words}`;
    given.textContent = `The original: axis 2 (feature), ε 0.00001, γ = ${LN.row(e.gamma)}, β = ${LN.row(e.beta)}. The export was given the same.`;
    const r = ran(s) ? apart(e.exported, e.outputs[key]) : null, where = r && largest(r);
    said.textContent = !ran(s) ? "" : key === guilty(s)
      ? `✓ Residual 0 in all 24 places: ${CAUSES[key].text[0].toLowerCase()}${CAUSES[key].text.slice(1)}. ${CAUSES[key].fix}`
      : `✗ ${CAUSES[key].text}? Run again, that leaves ${say(Math.abs(r[where]), 3)} at ${named(where)}. If it were so, ${CAUSES[key].say}.`;
    would.hidden = !ran(s) || key === guilty(s);
    need.textContent = ["hypothesis", "residual"].includes(s.look) && !ran(s) ? "No hypothesis has been run yet: these are the export's outputs." : "";
    const open = solved(s) || done.length >= 2;
    pass.hidden = open;
    pass.textContent = opened(s) ? "Hide the solution" : "Show me (not tried)";
    all.hidden = !open && !opened(s);
    const rows = residuals(s);
    all.replaceChildren(el("h3", {}, "Worked solution"), el("p", {}, "Every hypothesis run again on the input; the one that leaves nothing (✓) is the cause. ", CAUSES[guilty(s)].fix),
      LN.region("words", "Every hypothesis", LN.table(rows)));
  });
  return el(
    "div", {}, LN.choice(view, "case", { label: "Case", options: CASES.map(([title], i) => [i + 1, `${i + 1} ${title}`]) }), story, given,
    el("div", { class: "pair" }, el("div", {}, LN.choice(view, "look", { label: "Show", options: SHOWN }), need, cells),
      el("div", {}, el("p", { class: "small" }, "Two clues. Take γ and β off again: a layer norm over features leaves each token mean 0, and spread 1 or just below."),
        clue(1, "Mean of each token", -3, 3), clue(2, "Spread of each token", 0, 1.5))),
    el("div", { class: "predict" }, LN.choice(view, "cause", { label: "What is wrong with the export?", options: KEYS.map((key) => [key, CAUSES[key].text]) }),
      el("div", { class: "buttons" }, run, pass, again), said, would), all,
  );
};

/** Undo γ and β in some outputs, and measure each token: [token, mean, spread, spread of the input]. */
const clues = (s, whose) => {
  const { x, gamma, beta, exported, outputs } = evidence(s), y = whose === "export" ? exported : outputs[cause(s)];
  return split([2]).members.map((m, t) => {
    const { mean, variance } = LN.moments(m.map((k) => (y[k] - beta[k % 4]) / gamma[k % 4]));
    const spread = Math.sqrt(LN.moments(m.map((k) => x[k])).variance);
    return [TOKENS[t], ...[Math.abs(mean) < 1e-12 ? 0 : mean, Math.sqrt(variance), spread].map((v) => Number(v.toPrecision(3)))];
  });
};

const residuals = (s) => {
  const { exported, outputs } = evidence(s);
  return [["hypothesis", "largest residual"], ...KEYS.map((key) => {
    const r = apart(exported, outputs[key]), worst = Math.abs(r[largest(r)]);
    return [CAUSES[key].text, `${worst === 0 ? "✓ " : ""}${say(worst, 3)}`];
  })];
};

const wide = (row) => [[row]]; // one value a feature, along x's three axes

LN.view({
  id: "axes", title: "Axes",
  ask: "Which numbers share one mean? Two layers of one name and one shape can differ in nothing else, and give other numbers.",
  start: { part: "pick", batch: false, token: false, feature: true, outputs: false, seed: 1, pairs: 12, done: null, case: 1, cause: "", look: "exported", run: [""] },
  build: (view) => {
    const one = picker(view), two = files(view);
    view.ondraw((s) => { one.hidden = s.part === "cases"; two.hidden = s.part !== "cases"; });
    return [LN.choice(view, "part", { label: "Do", options: [["pick", "pick the axes"], ["cases", "case files: find what is wrong"]] }), one, two];
  },
  waits: (s) => s.done === null && s.part !== "cases",
  notice: ({ state: s }) => {
    if (s.part === "cases") {
      const e = evidence(s), d = apart(e.exported, e.original), k = largest(d), done = tried(s).length;
      return `Both outputs have the shape (2, 3, 4); the export is up to ${say(Math.abs(d[k]), 3)} off, at ${named(k)}. ${solved(s) ? `Found, with ${done} ${done === 1 ? "hypothesis" : "hypotheses"} run.` : `${done} of ${KEYS.length} hypotheses run.`}`;
    }
    const axes = ticked(s), { members } = split(axes), x = LN.small(s.seed), d = apart(over(x, axes), over(x, [2]));
    const mixes = axes.includes(0) ? "Examples share a mean, so an output depends on who else is in the batch." : axes.includes(1) ? "Tokens share a mean, so a token's output depends on its neighbours, and padding counts." : "No output depends on another token or example.";
    return `Averaging over ${axes.length > 1 ? "the axes " : axes.length ? "the axis " : ""}${spoken(axes)} makes ${members.length} ${members.length === 1 ? "group" : "groups"} of ${members[0].length}. ${mixes} ${Math.abs(d[largest(d)]) > 0 ? "The shape of the output is the same as that of a transformer's layer norm; the values are not." : ""}`.trim();
  },
  code: ({ state: s }) => {
    if (s.part !== "cases") {
      const axes = ticked(s);
      return `${LN.HEAD}x = np.array(${LN.py(LN.nested(LN.small(s.seed), SHAPE))})\ny = ${axes.length ? `ln.layer_norm(x, axis=${tuple(axes)})` : "x - x  # a number less its own mean"}\nprint(np.round(y, 3))\nprint(${split(axes).members.length}, "pairs of mean and spread")\n`;
    }
    const e = evidence(s), key = cause(s), c = key ? CAUSES[key] : { options: { axis: -1 } };
    const options = Object.entries(c.options ?? {}).filter(([, v]) => v !== -1).map(([k, v]) => `, ${k}=${Array.isArray(v) ? tuple(v) : v}`).join("");
    const line = c.ddof ? "gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=1, keepdims=True) + 1e-5) + beta"
      : c.rms ? "ln.rms_norm(x, gamma, beta=beta, eps=1e-5)"
        : `ln.layer_norm(x, ${c.plain ? "None" : "gamma"}, ${c.bare ? "None" : "beta"}${options}${c.options.axis === -1 ? "" : ", scale_axis=-1"})`;
    return `${LN.HEAD}x = np.array(${LN.py(LN.nested(e.x, SHAPE))})\nexported = np.array(${LN.py(LN.nested(e.exported, SHAPE))})\ngamma, beta = np.array(${LN.py(e.gamma)}), np.array(${LN.py(e.beta)})\nhypothesis = ${line}\nprint("largest residual", np.round(abs(exported - hypothesis).max(), 6))\n`;
  },
  calls: ({ state: s }) => {
    if (s.part !== "cases") {
      const axes = ticked(s), x = LN.small(s.seed);
      return axes.length ? [{ call: "layer_norm", x: LN.nested(x, SHAPE), options: { axis: axes }, expected: LN.nested(over(x, axes), SHAPE) }] : [];
    }
    const e = evidence(s), key = cause(s), c = CAUSES[key], first = { call: "layer_norm", x: LN.nested(e.x, SHAPE), options: { gamma: e.gamma, beta: e.beta }, expected: LN.nested(e.original, SHAPE) };
    if (!c?.options) return [first];
    return [first, { ...first, options: { ...c.options, gamma: c.plain ? null : wide(e.gamma), beta: c.bare ? null : wide(e.beta) }, expected: LN.nested(e.outputs[key], SHAPE) }];
  },
  because: "The axes say over which numbers the mean and the variance are taken. They do not show in any shape, since each number is only shifted and scaled in its place; only outputs that are compared show them.",
});
})();
