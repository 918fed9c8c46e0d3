// SPDX-License-Identifier: MIT
// This file is what views are built from: controls with words for screen readers, figures with a table beside them.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

// -- elements: text is only ever set as text --

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

LN.el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
LN.svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const { el, svg } = LN;

/** Make a name that no other element has. */
LN.id = (() => {
  let count = 0;
  return (word) => `${word}-${(count += 1)}`;
})();

// -- numbers in words --

/** Write a number with some digits, a true minus, and signs for what is not finite. */
LN.say = (x, digits = 5) => {
  if (typeof x !== "number") return String(x);
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e6 || size < 1e-4 ? x.toExponential(digits - 1).replace(/\.?0+e/, "e") : String(Number(x.toPrecision(digits)));
  return text.replace("e+", "e").replaceAll("-", "−");
};

LN.row = (values, digits = 5) => `[${values.map((v) => LN.say(v, digits)).join(", ")}]`;

/** Write a value as Python reads it. */
LN.py = (value) => {
  if (Array.isArray(value)) return `[${value.map(LN.py).join(", ")}]`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (Number.isNaN(value)) return 'float("nan")';
  if (!Number.isFinite(value)) return value < 0 ? 'float("-inf")' : 'float("inf")';
  return Number.isInteger(value) && Math.abs(value) < 1e15 ? `${value}.0` : String(value);
};

/** What every snippet begins with. */
LN.HEAD = "import numpy as np\nimport layernorm as ln\n\n";

/** Say which part of what stands below the root ε is. */
LN.share = (eps, variance, digits = 3) => `ε is ${LN.say((100 * eps) / (variance + eps), digits)} % of what stands below the root`;

// -- controls: each belongs to one key of the view's state --

/**
 * A slider with a field for exact numbers. `scale` "log" makes the range one of exponents; `mean` says in words what
 * the value does, and a screen reader says it after the value.
 */
LN.slider = (view, key, { label, min, max, step = 0.01, scale = "linear", mean = () => "" }) => {
  const id = LN.id(key), log = scale === "log";
  const shown = (value) => (log ? Math.log10(Math.max(value, 10 ** min)) : value);
  const taken = (place) => (log ? Number((10 ** place).toPrecision(3)) : place);
  const set = (value) => { if (Number.isFinite(value)) view.set({ [key]: value }); };
  const range = el("input", { type: "range", id, min, max, step, oninput: () => set(taken(Number(range.value))) });
  const field = el("input", {
    type: "number", step: "any", "aria-label": `${label}, exact value`, onchange: () => set(Number(field.value)),
  });
  const words = el("output", { for: id, class: "mean" });
  view.ondraw(() => {
    const value = view.state[key], consequence = mean(value);
    if (document.activeElement !== range || Number(range.value) !== shown(value)) range.value = shown(value);
    if (document.activeElement !== field) field.value = value;
    words.textContent = consequence;
    range.setAttribute("aria-valuetext", `${LN.say(value)}${consequence ? `; ${consequence}` : ""}`);
  });
  return el("div", { class: "slider" }, el("label", { for: id }, label), range, field, words);
};

/** One of several values, as radio buttons. */
LN.choice = (view, key, { label, options }) => {
  const name = LN.id(key);
  const inputs = options.map((option) => {
    const [value, text] = Array.isArray(option) ? option : [option, String(option)];
    const input = el("input", { type: "radio", name, id: LN.id(key), onchange: () => view.set({ [key]: value }) });
    view.ondraw(() => { input.checked = view.state[key] === value; });
    return el("span", { class: "option" }, input, el("label", { for: input.id }, text));
  });
  return el("fieldset", { class: "choice" }, el("legend", {}, label), inputs);
};

/** Yes or no. */
LN.toggle = (view, key, label) => {
  const input = el("input", { type: "checkbox", id: LN.id(key), onchange: () => view.set({ [key]: input.checked }) });
  view.ondraw(() => { input.checked = view.state[key]; });
  return el("span", { class: "option" }, input, el("label", { for: input.id }, label));
};

LN.button = (text, act, attributes = {}) => el("button", { type: "button", onclick: act, ...attributes }, text);

/** Draw other numbers; `changes` is what is forgotten with the old ones. */
LN.redraw = (view, changes = {}) => LN.button("Other numbers", () => view.set({ seed: (view.state.seed % 999) + 1, ...changes }));

/** Buttons that put the view into a state each: [text, changes] pairs. */
LN.chips = (view, label, pairs) => el(
  "div", { class: "chips", role: "group", "aria-label": label },
  pairs.map(([text, changes]) => LN.button(text, () => view.set(changes), { class: "chip" })),
);

/** A row of numbers that someone may type, kept as an array. */
LN.numbers = (view, key, { label, least = 1, most = 12 }) => {
  const id = LN.id(key);
  const wrong = el("span", { class: "wrong", id: `${id}-wrong` });
  const field = el("input", {
    type: "text", id, inputmode: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": wrong.id,
    onchange: () => {
      const parts = field.value.replaceAll("−", "-").split(/[\s,;]+/).filter(Boolean), values = parts.map(Number);
      const fine = values.length >= least && values.length <= most && values.every(Number.isFinite);
      field.setAttribute("aria-invalid", String(!fine));
      wrong.textContent = fine ? "" : `Write ${least} to ${most} numbers with commas between, such as 2, 4, 6, 8.`;
      if (fine) view.set({ [key]: values });
    },
  });
  view.ondraw(() => { if (document.activeElement !== field) field.value = view.state[key].map((v) => String(v)).join(", "); });
  return el("div", { class: "numbers" }, el("label", { for: id }, label), field, wrong);
};

// -- figures --

/**
 * A figure and the table that says the same. `draw()` gives SVG or HTML children for its picture, `rows()` the table:
 * a list of rows, the first of which are the headings.
 */
LN.figure = (view, { caption, draw, rows, width = 360, height = 200, html = false }) => {
  const picture = html
    ? el("div", { class: "picture" })
    : svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img" });
  const text = el("figcaption", {}), body = LN.region("", "");
  const twin = el("details", { class: "twin" }, el("summary", {}, "The same as a table"), body);
  const said = typeof caption === "function" ? caption : () => caption;
  const tell = () => { if (twin.open) body.replaceChildren(LN.table(rows(), said())); };
  twin.addEventListener("toggle", tell);
  view.ondraw(() => {
    const words = said();
    text.textContent = words;
    if (!html) picture.setAttribute("aria-label", words);
    body.setAttribute("aria-label", `Table: ${words}`);
    picture.replaceChildren(...[draw(view.state)].flat());
    tell();
  });
  return el("figure", {}, text, picture, twin);
};

/** What may be wider than the page and scrolls by itself; `kind` is "", "wide" or "words". */
LN.region = (kind, label, ...children) => el("div", { class: `scroll ${kind}`, tabindex: 0, role: "region", "aria-label": label }, ...children);

LN.table = (rows, caption = "") => {
  const [head, ...rest] = rows;
  const cell = (value) => (typeof value === "number" ? LN.say(value) : value);
  return el(
    "table", {}, caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, head.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rest.map(([first, ...others]) => el(
      "tr", {}, el("th", { scope: "row" }, cell(first)), others.map((v) => el("td", {}, cell(v))),
    ))),
  );
};

/**
 * Bars on a fixed scale from `low` to `high`. What is beyond has an arrow at its end and its value; what is not finite
 * has a sign. `guess` are outlines over them, as a prediction is shown.
 */
LN.bars = (values, { low, high, guess = null, names = null, width = 360, height = 200, colour = "a" }) => {
  const top = 18, bottom = height - 22, span = bottom - top;
  const y = (v) => bottom - ((Math.min(Math.max(v, low), high) - low) / (high - low)) * span;
  const step = (width - 16) / values.length, wide = Math.min(step * 0.7, 56), zero = y(Math.max(low, Math.min(high, 0)));
  const left = (i) => 8 + i * step + (step - wide) / 2;
  const parts = [svg("line", { x1: 4, x2: width - 4, y1: zero, y2: zero, class: "axis" })];
  values.forEach((v, i) => {
    const middle = left(i) + wide / 2, finite = Number.isFinite(v), end = finite ? y(v) : zero, over = finite && (v > high || v < low);
    if (finite) {
      parts.push(svg("rect", {
        x: left(i), width: wide, y: Math.min(end, zero), height: Math.max(Math.abs(end - zero), 0.5), class: `bar ${colour}${v < 0 ? " below" : ""}`,
      }));
    }
    if (over) {
      const tip = v > high ? -7 : 7;
      parts.push(svg("path", { d: `M${middle - 7},${end} L${middle},${end + tip} L${middle + 7},${end} Z`, class: `bar ${colour}` }));
    }
    const above = v < 0 ? Math.min(end + (over ? 18 : 13), height - 12) : Math.max(end - (over ? 8 : 4), 11);
    parts.push(svg("text", { x: middle, y: above, class: finite ? "value" : "value odd" }, finite ? LN.say(v, 4) : `⚠ ${LN.say(v)}`));
    if (names) parts.push(svg("text", { x: middle, y: height - 2, class: "name" }, names[i]));
  });
  (guess ?? []).forEach((v, i) => {
    if (!Number.isFinite(v)) return;
    const end = y(v);
    parts.push(svg("rect", {
      x: left(i) - 3, width: wide + 6, y: Math.min(end, zero), height: Math.max(Math.abs(end - zero), 1), class: "guess",
    }));
  });
  return parts;
};

/**
 * A line plot. `lines` are {name, points: [[x, y], …]}; a log axis leaves out what it cannot show. A line with `marks`,
 * the number of another, is drawn as rings on it, without a name.
 */
LN.plot = (lines, { x, y, width = 480, height = 260 }) => {
  const left = 52, right = width - 96, top = 12, bottom = height - 34;
  const place = ({ low, high, log }, from, to) => (v) => {
    const f = log ? Math.log10 : (u) => u;
    return from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
  };
  const px = place(x, left, right), py = place(y, bottom, top);
  const ticks = ({ low, high, log, count = 5 }) => {
    if (!log) return Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
    const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high)), every = Math.max(1, Math.ceil((last - first) / 6));
    return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => 10 ** (first + i * every));
  };
  const inside = ([u, v]) => Number.isFinite(u) && Number.isFinite(v) && (!x.log || u > 0) && (!y.log || v > 0);
  const clip = (v) => Math.min(Math.max(v, y.low), y.high);
  const parts = [];
  for (const t of ticks(x)) {
    parts.push(svg("line", { x1: px(t), x2: px(t), y1: top, y2: bottom, class: "tick" }));
    parts.push(svg("text", { x: px(t), y: bottom + 14, class: "name" }, LN.say(t, 3)));
  }
  for (const t of ticks(y)) {
    parts.push(svg("line", { x1: left, x2: right, y1: py(t), y2: py(t), class: "tick" }));
    parts.push(svg("text", { x: left - 4, y: py(t) + 4, class: "name end" }, LN.say(t, 3)));
  }
  parts.push(svg("text", { x: (left + right) / 2, y: height - 4, class: "name" }, x.name));
  const ends = [];
  lines.forEach((line, i) => {
    const points = line.points.filter(inside).map(([u, v]) => [px(u), py(clip(v))]);
    if (points.length === 0) return;
    if (line.marks !== undefined) {
      parts.push(...points.map(([cx, cy]) => svg("circle", { cx, cy, r: 4, class: `line ring l${line.marks}` })));
      return;
    }
    parts.push(svg("polyline", { points: points.map((p) => p.join(",")).join(" "), class: `line l${i}` }));
    let at = points.at(-1)[1];
    while (ends.some((other) => Math.abs(other - at) < 12)) at += 12; // names beside the ends, not over one another
    ends.push(at);
    parts.push(svg("text", { x: right + 4, y: at + 4, class: `name start l${i}` }, line.name));
  });
  return parts;
};

/**
 * A table whose cells can be walked with the arrow keys, one of them in the order of Tab. `cell(i, j)` gives
 * {text, name, class}; `focus(i, j)` is told where someone is.
 */
LN.grid = (view, { label, rows, columns, cell, focus = () => {}, act = null, head = null }) => {
  let at = [0, 0];
  const cells = [];
  const go = (i, j) => {
    at = [Math.min(Math.max(i, 0), rows() - 1), Math.min(Math.max(j, 0), columns() - 1)];
    paint();
    cells[at[0]][at[1]].focus();
  };
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const keys = (event) => {
    const [i, j] = at;
    if (event.key in MOVES) go(i + MOVES[event.key][0], j + MOVES[event.key][1]);
    else if (event.key === "Home") go(i, 0);
    else if (event.key === "End") go(i, columns() - 1);
    else if (act && (event.key === "Enter" || event.key === " ")) act(i, j);
    else return;
    event.preventDefault();
  };
  const table = el("table", { role: "grid", class: "grid", "aria-label": label, onkeydown: keys });
  const make = () => {
    cells.length = 0;
    const body = Array.from({ length: rows() }, (_, i) => {
      cells.push(Array.from({ length: columns() }, (__, j) => el("td", {
        role: "gridcell", onfocus: () => { at = [i, j]; paint(); focus(i, j); },
        onclick: () => { go(i, j); if (act) act(i, j); },
      })));
      return el("tr", { role: "row" }, head ? el("th", { scope: "row", role: "rowheader" }, head(i)) : null, cells[i]);
    });
    table.replaceChildren(...body);
  };
  const paint = () => {
    if (cells.length !== rows() || cells[0]?.length !== columns()) {
      make();
      at = [Math.min(at[0], rows() - 1), Math.min(at[1], columns() - 1)]; // or Tab would find no cell
    }
    cells.forEach((row, i) => row.forEach((node, j) => {
      const { text, name, class: kind = "" } = cell(i, j);
      node.textContent = text;
      node.setAttribute("aria-label", name);
      node.className = kind;
      node.tabIndex = i === at[0] && j === at[1] ? 0 : -1;
    }));
  };
  view.ondraw(paint);
  return el("div", { class: "scroll" }, table);
};

/**
 * The buttons under a question: commit, pass, and ask again. What is `asked` is shown until one of the first two, what is
 * `revealed` after it: `done` in the state is null, "committed" or "passed". `land` is what both set besides, `clear`
 * what the last does, `ready()` whether there is something to commit.
 */
LN.gate = (view, { words, asked, revealed, land = {}, clear = {}, ready = () => true }) => {
  const settle = (how) => view.set({ ...land, done: how });
  const commit = LN.button(words[0], () => { if (ready()) settle("committed"); }, { class: "main" });
  const pass = LN.button("Show me (not tried)", () => settle("passed"));
  const again = LN.button(words[1], () => view.set({ ...clear, done: null }));
  view.ondraw((s) => {
    const open = s.done !== null, had = [commit, pass, again].includes(document.activeElement);
    [...asked, commit, pass].forEach((part) => { part.hidden = open; });
    [...revealed, again].forEach((part) => { part.hidden = !open; });
    if (had && document.activeElement === document.body) (open ? again : commit).focus();
  });
  return { commit, pass, again };
};
const PREDICT = ["Commit my prediction", "Predict again"];

/** Predict first; `fields` are [key, label] pairs of numbers in the state, `asked` and `revealed` as of a gate. */
LN.predict = (view, { ask, asked = [], revealed = [], fields = [], range = {}, land = {}, verdict }) => {
  const inputs = el("div", { class: "guesses" }, fields.map(([key, label]) => LN.slider(view, key, { label, ...range })));
  const { commit, pass, again } = LN.gate(view, { words: PREDICT, asked: [...asked, inputs], revealed, land });
  const said = el("p", { class: "verdict" });
  view.ondraw((s) => { said.textContent = s.done === "committed" ? verdict(s) : ""; });
  return el("div", { class: "predict" }, el("p", {}, el("strong", {}, "Predict first. "), ask), asked, inputs, el("div", { class: "buttons" }, commit, pass, again), said);
};

/** A formula in MathML, with the words that say it. `parts` are MathML children made by LN.math. */
LN.math = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/1998/Math/MathML", tag), attributes, children);
LN.formula = (words, ...children) => el(
  "div", { class: "formula" }, LN.math("math", { display: "block" }, ...children), el("p", { class: "spoken" }, words),
);

/** Put headings over the columns of a grid with row headings; `names()` gives them, the corner's first. */
LN.heads = (view, box, names) => {
  const table = box.querySelector("table");
  let said = "";
  view.ondraw(() => {
    const words = names();
    if (table.tHead && said === words.join()) return;
    said = words.join();
    table.tHead?.remove();
    table.prepend(el("thead", {}, el("tr", { role: "row" }, words.map((word) => el("th", { scope: "col", role: "columnheader" }, word)))));
  });
  return box;
};

/**
 * Answer first, by picking one. `options` are {value, text, why, show}: `why(state)` says what an answer overlooks or sees,
 * `show` is a state, of this view or of `at`, in which one can look at it; `right(state)` gives the value that is right.
 */
LN.pick = (view, { ask, key, options, right, reveal, land = {}, at = view.described.id }) => {
  const missed = el("p", { class: "wrong", id: LN.id("missed") });
  const choice = LN.choice(view, key, { label: ask, options: options.map(({ value, text }) => [value, text]) });
  choice.classList.add("list");
  const { commit, pass, again } = LN.gate(view, {
    words: ["Commit my answer", "Answer again"], asked: choice.querySelectorAll(".option"), revealed: reveal, land, clear: { [key]: "" },
    ready: () => {
      missed.textContent = view.state[key] === "" ? "Pick one answer first, or ask to be shown." : "";
      return view.state[key] !== "";
    },
  });
  commit.setAttribute("aria-describedby", missed.id);
  const verdict = el("p", { class: "verdict" }), chosen = () => options.find(({ value }) => value === view.state[key]);
  const look = LN.button("Show me where that is so", () => LN.page.go(LN.link(at, { done: "passed", ...chosen().show })));
  view.ondraw((s) => {
    const one = s.done === "committed" ? chosen() : null;
    if (s.done !== null || s[key] !== "") missed.textContent = "";
    verdict.textContent = one ? `You said: “${one.text}” ${one.value === right(s) ? "That is it." : "Not here."} ${one.why(s)}`.trim() : "";
    look.hidden = !one?.show || one.value === right(s);
  });
  return el("div", { class: "predict" }, choice, missed, verdict, el("div", { class: "buttons" }, commit, pass, look, again));
};

/** Write the link of a view in a state. */
LN.link = (id, state) => [id, Object.entries(state).map(([key, value]) => `${key}=${encodeURIComponent(JSON.stringify(value))}`).join("&")].filter(Boolean).join("?");

/** Treat one entry of an array in the state as a key of its own, `v`, for a control. */
LN.entry = (view, key, i) => ({
  get state() { return { v: view.state[key][i] ?? 0 }; },
  set: ({ v }) => view.set({ [key]: view.state[key].map((old, j) => (j === i ? v : old)) }),
  ondraw: (draw) => view.ondraw(draw),
});

/** Mark what belongs together: whoever points at one part with a `data-term` sees all of that term. */
LN.linked = (box) => {
  const light = (term) => {
    for (const part of box.querySelectorAll("[data-term]")) part.classList.toggle("lit", part.dataset.term === term);
  };
  const at = (event) => event.target.closest?.("[data-term]")?.dataset.term;
  box.addEventListener("focusin", (event) => light(at(event)));
  box.addEventListener("mouseover", (event) => { if (at(event)) light(at(event)); });
  return box;
};
