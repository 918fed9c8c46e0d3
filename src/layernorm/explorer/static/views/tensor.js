// SPDX-License-Identifier: MIT
// This view looks at someone's own array: which of its tokens layer normalization treats badly, and why.
"use strict";

(() => {
const { el, say } = LN;
const ROWS = 16, COLUMNS = 24, LISTED = 8, PLOTTED = 200, BARS = 6, MOST_BYTES = 2 ** 26, HALF = LN.TYPES.float16.most;
// beyond this |μ|/σ, E[x²] − E[x]² in float32 may miss the variance by 1 % and more
const CANCELS = Math.sqrt(0.01 * 2 ** 24);
const KINDS = {
  odd: ["NaN or infinity inside", "Its mean, its spread and all its outputs are NaN."],
  tiny: ["Spread below 10 √ε", "Beside the variance ε is no longer small, and the outputs shrink."],
  overflow: ["Beyond 16 bits", `A number or a squared difference is above ${HALF}, the largest float16.`],
  cancels: ["Mean far above the spread", `The mean is over ${say(CANCELS, 3)} σ: E[x²] − E[x]² in float32 may miss the variance by 1 % and more.`],
};
const EXAMPLE = { 3: (v) => v * 0.001, 6: () => 7, 8: (v, j) => (j === 4 ? NaN : v), 9: (v, j) => ({ 2: Infinity, 7: -Infinity })[j] ?? v, 11: (v) => v * 40000, 13: (v) => v + 30000 };
const next = LN.normal(11), deviation = (x) => { const m = LN.moments(x); return [m.mean, Math.sqrt(m.variance)]; };
const sources = new Map([["example", {
  name: "the example", shape: [16, 12], dtype: "float32",
  values: Array.from({ length: 192 }, (_, k) => LN.round((EXAMPLE[Math.floor(k / 12)] ?? ((v) => v))(next(), k % 12), "float32")),
}]]);
const some = (count, most, start = 0) => Array.from({ length: Math.min(count, most) }, (_, k) => start + (count <= most ? k : Math.floor((k * count) / most)));
const between = (v, low, high) => Math.min(Math.max(v, low), high);

// -- an array of this page: what the server computes for those that it holds --

function look({ values, shape, dtype }, { eps, token, feature, whole }) {
  const columns = shape.at(-1), rows = values.length / columns || 0, said = { shape, dtype, size: values.length, rows, columns };
  if (values.length === 0) return said;
  const row = (i) => Array.from(values.slice(i * columns, (i + 1) * columns)), norm = (x) => LN.exact(x, { type: dtype, eps });
  const tokens = [], worst = { odd: [], tiny: [], overflow: [], cancels: [] };
  for (let i = 0; i < rows; i += 1) {
    const x = row(i), [mean, sd] = deviation(x), one = [i, mean, sd], farthest = (from) => x.reduce((most, v) => Math.max(most, Math.abs(v - from)), 0);
    tokens.push(one);
    if (!Number.isFinite(sd) || !x.every(Number.isFinite)) { worst.odd.push([0, one]); continue; }
    if (sd < 10 * Math.sqrt(eps)) worst.tiny.push([sd, one]);
    if (farthest(0) > HALF || farthest(mean) ** 2 > HALF) worst.overflow.push([-farthest(mean), one]);
    if (sd > 0 && Math.abs(mean) > CANCELS * sd) worst.cancels.push([-Math.abs(mean) / sd, one]);
  }
  const finite = Array.from(values).filter(Number.isFinite), [mean, sd] = finite.length ? deviation(finite) : [NaN, NaN];
  const count = (met) => values.reduce((n, v) => n + met(v), 0), at = between(token, 0, rows - 1), from = between(feature, 0, columns - 1);
  const down = whole ? some(rows, ROWS) : some(Math.min(ROWS, rows - at), ROWS, at), across = whole ? some(columns, COLUMNS) : some(Math.min(COLUMNS, columns - from), COLUMNS, from);
  const cut = (of) => down.map((i) => { const x = of(i); return across.map((j) => x[j]); });
  return {
    ...said, mean, sd, nan: count(Number.isNaN), plus: count((v) => v === Infinity), minus: count((v) => v === -Infinity),
    least: finite.reduce((a, b) => Math.min(a, b), Infinity), most: finite.reduce((a, b) => Math.max(a, b), -Infinity), tokens: some(rows, PLOTTED).map((i) => tokens[i]),
    worst: Object.fromEntries(Object.entries(worst).map(([kind, met]) => [kind, { count: met.length, first: met.sort(([a], [b]) => a - b).slice(0, LISTED).map(([, one]) => one) }])),
    map: { rows: down, columns: across, x: cut(row), y: cut((i) => norm(row(i))) }, token: { at, x: row(at), y: norm(row(at)) },
  };
}

/** Read .npy of floating point numbers, as NumPy writes it unless it is asked otherwise. */
function npy(buffer) {
  const bytes = new DataView(buffer), text = (a, b) => new TextDecoder("latin1").decode(buffer.slice(a, b));
  if (buffer.byteLength < 12 || text(1, 6) !== "NUMPY") throw new Error("This is no .npy file; without a server nothing else is read.");
  const begin = bytes.getUint8(6) === 1 ? 10 + bytes.getUint16(8, true) : 12 + bytes.getUint32(8, true), head = text(10, begin);
  const [, order, kind] = /'descr':\s*'([<>=|]?)(\w+)'/.exec(head) ?? [], width = { f2: 2, f4: 4, f8: 8 }[kind];
  const shape = (/'shape':\s*\(([\d, ]+)\)/.exec(head)?.[1] ?? "").split(",").filter((n) => n.trim()).map(Number), length = shape.reduce((a, b) => a * b, 1);
  if (!width || shape.length === 0 || !/'fortran_order':\s*False/.test(head)) throw new Error('Without a server, what np.save writes of np.ascontiguousarray(x, "float32") is read, of float16 and float64 too, and nothing else.');
  if (length * width !== buffer.byteLength - begin) throw new Error("The file is cut off, or longer than its shape says; save it again.");
  const little = order !== ">", read = { f2: (k) => LN.halfOf(bytes.getUint16(k, little)), f4: (k) => bytes.getFloat32(k, little), f8: (k) => bytes.getFloat64(k, little) }[kind];
  return { values: Float64Array.from({ length }, (_, k) => read(begin + k * width)), shape, dtype: `float${8 * width}` };
}

// -- the arrays of the server --

let held = null, asked = "", listed = false, said = "";
const ODD = { nan: NaN, inf: Infinity, "-inf": -Infinity };
const revived = (v) => (Array.isArray(v) ? v.map(revived) : v && typeof v === "object" ? Object.fromEntries(Object.entries(v).map(([k, w]) => [k, k === "name" ? w : revived(w)])) : Object.hasOwn(ODD, v) ? ODD[v] : v);
const redraw = (view) => { if (LN.page.view === view) { view.draw(); LN.page.changed(); } };

/** Have what the state asks for: at once where this page computes it, later where the server does. */
function have(view) {
  const { of, eps, token, feature, whole } = view.state, key = JSON.stringify([of, eps, token, feature, whole]), source = sources.get(of);
  if (LN.library.there && !listed) list(view);
  if (!source || (held && held.of !== of)) held = null;
  if (!source || (key === asked && held)) return;
  asked = key;
  if (source.values) held = { ...look(source, view.state), of };
  else {
    LN.library.ask(`api/tensors/${encodeURIComponent(of)}?${new URLSearchParams({ eps, token, feature, whole: Number(whole) })}`)
      .then((answer) => { if (asked === key) { held = { ...revived(answer), of }; said = ""; redraw(view); } })
      .catch((error) => { if (said !== error.message) { said = error.message; redraw(view); } });
  }
}

async function list(view) {
  listed = true;
  try {
    const { tensors, more } = await LN.library.ask("api/about"), first = tensors.find(({ id }) => id.startsWith("t"));
    for (const tensor of tensors) if (!sources.has(tensor.id)) sources.set(tensor.id, tensor);
    if (more > 0) said = `${more} more arrays are held than can be listed.`;
    if (first && view.state.done === null) Object.assign(view.state, { of: first.id, token: 0, done: "passed" });
  } catch (error) { said = error.message; }
  if (!sources.has(view.state.of)) { said = "The array of this link is not here any more; choose its file again."; view.state.of = "example"; }
  redraw(view);
}

async function bring(view, file) {
  said = "";
  try {
    if (file.size > MOST_BYTES) throw new Error("The file is larger than 64 MiB; start with its name: layernorm explore FILE.");
    let key = `p${sources.size}`;
    if (LN.library.there) {
      const { tensors } = await LN.library.ask("api/tensors", { method: "POST", body: file });
      for (const t of tensors) sources.set(t.id, { ...t, file: file.name, name: tensors.length > 1 ? t.name : file.name, inside: t.name });
      key = tensors[0].id;
    } else sources.set(key, { name: file.name, file: file.name, ...npy(await file.arrayBuffer()) });
    view.set({ of: key, token: 0, feature: 0, done: view.state.done ?? "passed" });
  } catch (error) { said = error.message; redraw(view); }
}

// -- what is shown --

const open = (s) => s.done !== null && held !== null && held.size > 0;
const type = () => (held.dtype in LN.TYPES ? held.dtype : "float64");
const label = (at) => {
  const index = [];
  for (let axis = held.shape.length - 2, rest = at; axis >= 0; axis -= 1) { index.unshift(rest % held.shape[axis]); rest = Math.floor(rest / held.shape[axis]); }
  return index.length ? `x[${index.join(", ")}]` : "x";
};
const cells = (s) => held.map[s.show === "after" ? "y" : "x"];
const limit = (s) => {
  const sizes = cells(s).flat().filter(Number.isFinite).map(Math.abs).sort((a, b) => a - b), most = sizes.at(-1) || 1;
  return Math.min(3 * sizes[Math.floor(sizes.length / 2)] || most, most);
};

function drawn(s) {
  const { rows, columns } = held.map, most = limit(s), left = 56, top = 20, high = 18, wide = Math.min((480 - left) / columns.length, 36), parts = [];
  cells(s).forEach((row, i) => {
    const y = top + i * high;
    parts.push(LN.svg("text", { x: left - 4, y: y + 13, class: "name end" }, label(rows[i])));
    row.forEach((v, j) => {
      const x = left + j * wide, m = x + wide / 2, nan = Number.isNaN(v), finite = Number.isFinite(v);
      parts.push(LN.svg("rect", { x, y, width: wide, height: high, class: `cell ${nan ? "nan" : !finite ? "inf" : v < 0 ? "b" : "a"}`, "fill-opacity": finite ? (0.06 + 0.94 * Math.min(Math.abs(v) / most, 1)).toFixed(2) : 1 }));
      if (!finite) parts.push(LN.svg("text", { x: m, y: y + 13, class: `glyph${nan ? " nan" : ""}` }, nan ? "×" : say(v)));
      else if (Math.abs(v) > most) { const a = v > 0 ? 13 : 5; parts.push(LN.svg("path", { d: `M${m - 5},${y + a} L${m},${y + 18 - a} L${m + 5},${y + a} Z`, class: "sign over" })); }
      else if (v < 0) parts.push(LN.svg("line", { x1: m - 4, x2: m + 4, y1: y + 9, y2: y + 9, class: "sign" }));
    });
    if (rows[i] === held.token.at) parts.push(LN.svg("rect", { x: left, y, width: wide * columns.length, height: high, class: "chosen" }));
  });
  columns.forEach((c, j) => { if (j % 4 === 0) parts.push(LN.svg("text", { x: left + (j + 0.5) * wide, y: top - 5, class: "name" }, c)); });
  return parts;
}

function plotted({ eps }) {
  const edge = 10 * Math.sqrt(eps), sizes = [edge, ...held.tokens.flatMap(([, m, d]) => [Math.abs(m), d])].filter((v) => v > 0 && Number.isFinite(v));
  const low = 10 ** Math.floor(Math.log10(Math.min(...sizes))), high = 10 ** Math.ceil(Math.log10(Math.max(...sizes) * 1.01)), end = 4 * Math.ceil((held.rows - 1) / 4);
  return LN.plot([{ name: "σ", points: held.tokens.map((t) => [t[0], t[2]]) }, { name: "|μ|", points: held.tokens.map((t) => [t[0], Math.abs(t[1])]) }, { name: "10 √ε", points: [[0, edge], [end, edge]] }],
    { x: { low: 0, high: end, name: "token, counted from 0" }, y: { low, high, log: true } });
}

/** Say where the open token, or one with its mean and spread, can be looked at. */
function elsewhere(s) {
  const x = held.token.x, [mean, sd] = deviation(x);
  if (!x.every(Number.isFinite)) return [];
  return [
    x.length > 1 ? [x.length > BARS ? `its first ${BARS} numbers, step by step` : "its numbers, step by step", "recipe", { x: x.slice(0, BARS) }] : null,
    sd > 0 ? ["[2, 4, 6, 8] with its mean and spread", "shift", { k: sd / Math.sqrt(5), c: mean - Math.sqrt(5) * sd, log: true, low: type() === "float16", done: "passed" }] : null,
    sd > 0 ? ["its mean and spread in fewer bits", "precision", { sigma: sd, c: mean, eps: s.eps, type: type(), done: "passed" }] : null,
  ].filter(Boolean);
}

function measured() {
  const x = sources.get("example").values.slice(36, 48), sd = deviation(x)[1];
  return `The spread of x[3] is ${say(sd, 3)} and √ε is 0.00316: ${LN.share(1e-5, sd * sd)}, and the outputs have spread ${say(deviation(LN.layer(x))[1], 3)}.`;
}

function build(view) {
  const st = () => view.state, when = (give, otherwise = "") => (open(st()) ? give(st()) : otherwise), fresh = (of) => view.set({ of, token: 0, feature: 0, done: st().done ?? "passed" });
  const select = el("select", { id: LN.id("of"), onchange: () => fresh(select.value) });
  const file = el("input", { type: "file", id: LN.id("file"), accept: ".npy,.safetensors", onchange: () => { if (file.files[0]) bring(view, file.files[0]); file.value = ""; } });
  const field = (key, text) => {
    const input = el("input", { type: "number", id: LN.id(key), min: 0, step: 1, onchange: () => view.set({ [key]: Math.max(0, Math.round(Number(input.value)) || 0) }) });
    view.ondraw((s) => { if (document.activeElement !== input) input.value = s[key]; });
    return el("div", { class: "numbers" }, el("label", { for: input.id }, text), input);
  };
  const figure = (caption, draw, rows, height) => LN.figure(view, { caption: () => when(caption), width: 480, height, draw: () => when(draw, []), rows: () => when(rows, [[""]]) });
  const bars = (name, of, colour, scale) => figure(
    () => `${name} ${label(held.token.at)}${held.columns > BARS ? `, the first ${BARS} of ${say(held.columns)} features` : ""}`,
    () => { const x = held.token[of].slice(0, BARS), most = scale ?? (Math.max(0, ...x.filter(Number.isFinite).map(Math.abs)) * 1.1 || 1); return LN.bars(x, { low: -most, high: most, colour, width: 480, names: x.map((_, j) => j) }); },
    () => [["feature", name], ...held.token[of].slice(0, 64).map((v, j) => [j, v])], 200,
  );
  const map = figure(
    (s) => { const { rows, columns } = held.map, part = rows.length * columns.length < held.size; return `${s.show === "after" ? "After layer normalization" : "The values"}: ${rows.length} of ${say(held.rows)} tokens, ${columns.length} of ${say(held.columns)} features${part ? (s.whole ? ", evenly sampled" : ", close up") : ""}`; },
    drawn, (s) => [["token", ...held.map.columns.map((c) => `feature ${c}`)], ...cells(s).map((row, i) => [label(held.map.rows[i]), ...row])], 312,
  );
  const tokens = figure(
    () => `Mean and spread of ${held.tokens.length < held.rows ? `${held.tokens.length} of ${say(held.rows)} tokens` : "each token"}, by size; what is 0 or not finite has no place on a log scale`,
    plotted, () => [["token", "mean μ", "spread σ"], ...held.tokens.map(([i, m, d]) => [label(i), m, d])], 260,
  );
  const asks = LN.pick(view, {
    ask: "Predict first. The example has 16 tokens of 12 numbers. Those of token x[3] differ by about 0.001. After layer normalization with ε = 0.00001, the spread of its outputs is …",
    key: "guess", reveal: [], right: () => "small", land: { of: "example", token: 3, eps: 1e-5 },
    options: [
      { value: "one", text: "1, as that of every token", show: {}, why: () => `That needs an ε far below the variance. ${measured()}` },
      { value: "small", text: "far below 1", why: measured },
      { value: "nan", text: "NaN: the numbers are too close", show: { token: 6 }, why: () => "ε keeps the root away from 0: even x[6], whose numbers are all equal, comes out as zeros." },
    ],
  });
  const wrong = el("p", { role: "status", class: "wrong long" }), by = el("p", { class: "small" }), line = el("p", { class: "long summary" }), legend = el("p", { class: "small" });
  const worst = el("div", { class: "worst" }), links = el("ul", {}), go = el("div", {}, el("p", {}, "Look at it elsewhere:"), links), closer = field("feature", "Close up from feature");
  const shown = el(
    "div", {}, line, by, LN.choice(view, "eps", { label: "Epsilon", options: [1e-3, 1e-5, 1e-6, 1e-12].map((e) => [e, say(e)]) }),
    el("h3", {}, "The worst tokens"), worst, el("h3", {}, "One token"), field("token", "Token, counted from 0"), el("div", { class: "pair" }, bars("Before:", "x", "a"), bars("After:", "y", "b", 3.5)), go,
    el("h3", {}, "The whole array"), LN.choice(view, "show", { label: "Show", options: [["before", "the values"], ["after", "after layer normalization"]] }),
    LN.choice(view, "whole", { label: "Cells", options: [[true, "sampled from all"], [false, "close up, from the token above"]] }), closer, map, legend, tokens,
  );
  let offered = "", built = "";
  view.drawers.unshift(() => have(view));
  view.ondraw((s) => {
    const names = [...sources].map(([key, { name }]) => [key, name]), source = sources.get(s.of);
    if (offered !== JSON.stringify(names)) select.replaceChildren(...names.map(([value, name]) => el("option", { value }, name)));
    offered = JSON.stringify(names);
    select.value = s.of;
    shown.hidden = !open(s);
    wrong.textContent = said || (held?.size === 0 ? "The array is empty: there is nothing to normalize." : "");
    if (!open(s)) return;
    const h = held, odd = [["NaN", h.nan], ["∞", h.plus], ["−∞", h.minus]].filter(([, n]) => n > 0).map(([what, n]) => `${n} × ${what}`);
    line.replaceChildren(
      el("strong", {}, el("bdi", {}, source.name)), `: shape (${h.shape.join(", ")}), ${h.dtype}, ${say(h.rows)} token${h.rows === 1 ? "" : "s"} of ${say(h.columns)} features; from ${say(h.least)} to ${say(h.most)}, mean ${say(h.mean, 4)}, σ ${say(h.sd, 4)} `,
      odd.length ? el("span", { class: "loud" }, `⚠ ${odd.join(", ")}`) : "",
    );
    by.textContent = source.values ? "All of this is computed in this page." : `All of this is computed by ${LN.library.name}, in Python.`;
    legend.textContent = `Violet: above 0. Orange with a dash: below 0. The stronger, the larger; ▲ and ▼ are beyond ±${say(limit(s), 3)}. × is NaN.`;
    closer.hidden = s.whole;
    tokens.hidden = h.rows < 2;
    map.querySelector("svg").setAttribute("viewBox", `0 0 480 ${24 + 18 * h.map.rows.length}`);
    if (built !== JSON.stringify([h.worst, h.shape])) worst.replaceChildren(...Object.keys(KINDS).map((kind) => listing(view, kind)));
    built = JSON.stringify([h.worst, h.shape]);
    for (const b of worst.querySelectorAll("button")) b.setAttribute("aria-pressed", String(Number(b.dataset.at) === h.token.at));
    const places = elsewhere(s);
    go.hidden = places.length === 0;
    links.replaceChildren(...places.map(([text, ...to]) => el("li", {}, el("a", { href: `#${LN.link(...to)}` }, text))));
  });
  return [asks, el("div", { class: "panel" }, el("label", { for: select.id }, "Array"), select,
    el("p", {}, el("label", { for: file.id }, "Or bring your own, .npy or .safetensors; it stays on this machine: "), file), wrong), shown];
}

function listing(view, kind) {
  const { count, first } = held.worst[kind], [title, why] = KINDS[kind];
  const about = ([, m, d]) => (kind === "odd" ? "" : kind === "cancels" ? `, |μ| / σ = ${say(Math.abs(m) / d, 3)}` : `, σ = ${say(d, 3)}`);
  return el(
    "div", {}, el("p", {}, el("strong", {}, `${title}: ${count}. `), count ? why : "No token."),
    el("div", { class: "chips", role: "group", "aria-label": title }, first.map((t) => LN.button(label(t[0]) + about(t), () => view.set({ token: t[0] }), { "data-at": t[0] }))),
  );
}

const notice = ({ state: s }) => {
  if (!open(s)) return "No array is open.";
  const x = held.token.x, name = label(held.token.at), [mean, sd] = deviation(x), after = say(deviation(held.token.y)[1], 5), edge = 10 * Math.sqrt(s.eps);
  const reach = Math.max(...x.map((v) => Math.abs(v - mean)));
  if (!x.every(Number.isFinite)) return `${name} holds ${x.some(Number.isNaN) ? "NaN" : "infinity"}: its mean is no number, and so is none of its ${say(held.columns)} outputs. The other tokens keep theirs, for each is normalized on its own.`;
  if (sd === 0) return `All numbers of ${name} are ${say(x[0])}: the spread is 0, and thanks to ε every output is 0, not NaN.`;
  if (sd < edge) return `${name} has spread ${say(sd, 3)}, below 10 √ε = ${say(edge, 3)}: ${LN.share(s.eps, sd * sd)}, and the outputs have spread ${after} instead of 1.`;
  if (Math.abs(mean) > CANCELS * sd) return `The mean of ${name} is ${say(Math.abs(mean) / sd, 3)} times its spread. E[x²] − E[x]² subtracts numbers near ${say(mean * mean, 3)}, and gives ${say(LN.WAYS["one pass"](x, "float32").variance, 4)} in float32; the variance is ${say(sd * sd, 4)}. layernorm gets it right.`;
  if (reach ** 2 > HALF) return `${name} has a number ${say(reach, 4)} from its mean; the square, ${say(reach ** 2, 3)}, is more than float16 holds. A norm that squares in float16 gives zeros or NaN; these outputs have spread ${after}.`;
  return `${name} is harmless: mean ${say(mean, 4)} and spread ${say(sd, 4)} become 0 and ${after}.`;
};

const code = ({ state: s }) => {
  const { file = "", inside, name } = sources.get(s.of) ?? {}, start = "import numpy as np\nimport layernorm as ln\n", end = `print(ln.layer_norm(x, eps=${LN.py(s.eps)}))\n`;
  if (!held?.token) return `${start}\nprint(ln.layer_norm([2.0, 4.0, 6.0, 8.0]))\n`;
  if (s.of === "example") return `${start}\nx = np.array(${LN.py(held.token.x)}, np.float32)\n${end}`;
  const plain = file.endsWith(".npy"), load = plain ? `x = np.load(${LN.py(file)})` : `x = tensors_of(Path(${LN.py(file)}))[${LN.py(inside ?? name)}].values()`;
  return `${plain ? "" : "from pathlib import Path\n\n"}${start}${plain ? "" : "from layernorm.models.formats.safetensors import tensors_of\n"}\n${load}\nx = x.reshape(-1, x.shape[-1])[${held.token.at}]\n${end}`;
};

LN.view({
  id: "tensor", title: "My tensor", ask: "Which tokens of an array does layer normalization treat badly, and why?",
  start: { of: "example", eps: 1e-5, token: 3, feature: 0, whole: true, show: "before", guess: "", done: null },
  build, notice, code,
  calls: ({ state: s }) => {
    const x = open(s) ? held.token.x : [];
    if (x.length === 0 || x.length !== held.columns || !x.every(Number.isFinite)) return [];
    return [{ call: "layer_norm", x, options: { eps: s.eps }, expected: LN.exact(x, { type: type(), eps: s.eps }), type: type() }];
  },
  because: "Each token is measured by its own mean and spread. That goes wrong in four ways: a number that is none, a spread so small that ε outweighs it, squares beyond the type, and a mean so large that the differences drown in it. Each stays inside its token.",
});
})();
