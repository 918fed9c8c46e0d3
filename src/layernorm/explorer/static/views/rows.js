// SPDX-License-Identifier: MIT
// This view changes one number of a small tensor and marks the outputs that really changed, norm by norm.
"use strict";

(() => {
const { el, say } = LN;
const SHAPE = [2, 3, 4];
const NORMS = {
  layer: { name: "layer norm", group: "the four features of one token", call: "layer_norm", options: {}, code: "ln.layer_norm(x)" },
  data: { name: "normalizing data", group: "one feature of all six tokens", same: "batch", eps: 0, call: "batch_norm", options: { channel_axis: 2, eps: 0 }, code: "ln.batch_norm(x, channel_axis=2, eps=0)" },
  rms: { name: "RMS norm", group: "the four features of one token", call: "rms_norm", options: { eps: 1e-5 }, code: "ln.rms_norm(x, eps=1e-5)" },
  instance: { name: "instance norm", group: "one feature of the three tokens of an example", call: "instance_norm", options: { channel_axis: 2 }, code: "ln.instance_norm(x, channel_axis=2)" },
  group: { name: "group norm, 2 groups", group: "two features of the three tokens of an example", call: "group_norm", options: { groups: 2, channel_axis: 2 }, code: "ln.group_norm(x, 2, channel_axis=2)" },
  batch: { name: "batch norm", group: "one feature of all six tokens, in training", call: "batch_norm", options: { channel_axis: 2 }, code: "ln.batch_norm(x, channel_axis=2)" },
  both: { name: "layer norm over token and feature", group: "all twelve numbers of an example", same: "layer over tokens too", call: "layer_norm", options: { axis: [1, 2] }, code: "ln.layer_norm(x, axis=(1, 2))" },
};
const KEYS = Object.keys(NORMS);

// -- what is computed: every count below compares outputs before and after, none is known beforehand --

const known = ({ norm }) => (Object.hasOwn(NORMS, norm) ? norm : "layer");
const place = ([e = 0, t = 0, f = 0]) => [e, t, f].map((v, a) => Math.min(Math.max(Math.trunc(v), 0), SHAPE[a] - 1));
const number = (cell) => { const [e, t, f] = place(cell); return (e * SHAPE[1] + t) * SHAPE[2] + f; };
const cellOf = (k) => [Math.floor(k / 12), Math.floor(k / 4) % 3, k % 4];
const groups = (norm) => LN.groups(SHAPE, LN.SHARED[NORMS[norm].same ?? norm](SHAPE));
const output = (norm, x) => LN.overGroups(x, groups(norm).members, { eps: NORMS[norm].eps ?? 1e-5, centered: norm !== "rms" });
const poked = (s) => LN.small(s.seed).map((v, k) => (k === number(s.cell) ? v + s.by : v));
const changed = (norm, s) => {
  const before = output(norm, LN.small(s.seed)), after = output(norm, poked(s));
  return before.flatMap((v, k) => (v === after[k] ? [] : [k]));
};
const picked = ({ picks }) => [...new Set(picks.split(".").filter(Boolean).map(Number))].filter((k) => k >= 0 && k < 24).sort((a, b) => a - b);
const alike = (a, b) => a.length === b.length && a.every((v, i) => v === b[i]);

const named = (k) => { const [e, t, f] = cellOf(k); return `example ${"AB"[e]}, token ${t + 1}, feature ${f + 1}`; };
const capital = (words) => words[0].toUpperCase() + words.slice(1);

/** Read a prediction: what is said of it, and the state that shows why. */
const judge = (s) => {
  const picks = picked(s), truth = changed("layer", { ...s, by: s.by || 1 }), mine = number(s.cell);
  const same = (norm) => alike(picks, changed(norm, { ...s, by: s.by || 1 }));
  if (picks.length === 0) return ["You marked nothing: but the number enters its own output, and the mean and spread of its token.", { norm: "layer" }];
  if (alike(picks, truth)) return ["You had it: its own token's four outputs, and no other."];
  if (alike(picks, [mine])) return ["Its own output alone? The mean and the spread of its token moved too, and the token's other three numbers are measured by them.", { norm: "layer" }];
  if (same("data")) return ["You marked a column. That is normalizing data, or batch norm: one feature, across many tokens.", { norm: "data" }];
  if (same("instance")) return ["You marked a column of one example. That is instance norm: a feature's values in one example are its group.", { norm: "instance" }];
  if (same("both")) return ["You marked the whole example. A token of a language model does not look at the token beside it; the other thing that is called layer norm does.", { norm: "both" }];
  if (picks.length === 24) return ["You marked everything. Nothing here looks at the other example's tokens unless it is of the batch kind, and even that keeps the features apart.", { norm: "batch" }];
  const missed = truth.filter((k) => !picks.includes(k)).length, extra = picks.filter((k) => !truth.includes(k)).length;
  return [`Of the ${truth.length} outputs that change you missed ${missed}, and you marked ${extra} that ${extra === 1 ? "stays" : "stay"}. A token's own numbers are the group, whatever stands above or below.`, { norm: "layer" }];
};

const build = (view) => {
  // a cell of the picture is (row, column); turned, the tokens are its columns
  const index = (i, j) => (view.state.turned ? j * 4 + i : i * 4 + j);
  const token = (i) => `${i < 3 ? "A" : "B"} · ${(i % 3) + 1}`;
  const size = { rows: () => (view.state.turned ? 4 : 6), columns: () => (view.state.turned ? 6 : 4), head: (i) => (view.state.turned ? `f ${i + 1}` : token(i)) };
  const heads = () => (view.state.turned ? ["feature", ...Array.from({ length: 6 }, (_, i) => token(i))] : ["token", ...[1, 2, 3, 4].map((f) => `f ${f}`)]);
  const grid = (options) => LN.heads(view, LN.grid(view, { ...size, ...options }), heads);

  const pick = grid({
    label: "The numbers; mark the outputs that will change",
    cell: (i, j) => {
      const k = index(i, j), on = picked(view.state).includes(k), mine = k === number(view.state.cell), x = LN.small(view.state.seed)[k];
      return {
        text: `${on ? "✓ " : ""}${x}${mine ? ` → ${say(x + (view.state.by || 1))}` : ""}`,
        name: `${named(k)}, ${x}${mine ? ", this number will change" : ""}, ${on ? "marked" : "not marked"}`, class: `${mine ? "poked" : ""}${on ? " guessed" : ""}`,
      };
    },
    act: (i, j) => {
      const k = index(i, j), now = picked(view.state);
      view.set({ picks: (now.includes(k) ? now.filter((v) => v !== k) : [...now, k]).join(".") });
    },
  });
  const asked = LN.predict(view, {
    ask: "Two examples, A and B, of three tokens with four features (f) each. The number with the arrow is about to change. Layer norm is computed before and after: mark each place whose output will be different (click, or arrows and Space).",
    asked: [pick], verdict: (s) => judge(s)[0],
  });

  const inputs = grid({
    label: "The numbers; Enter changes one",
    cell: (i, j) => {
      const s = view.state, k = index(i, j), x = poked(s), { of, members } = groups(known(s)), y = output(known(s), x);
      const own = k === number(s.cell) && s.by !== 0, group = of[k] === of[number(s.at)];
      return {
        text: `${own ? "→ " : ""}${say(x[k])}`, class: `${own ? "poked" : ""}${group ? " group" : ""}`,
        name: `${named(k)}, ${say(x[k])}, output ${say(y[k], 3)}, group ${of[k] + 1} of ${members.length}${own ? ", the changed number" : ""}`,
      };
    },
    focus: (i, j) => { if (number(view.state.at) !== index(i, j)) view.set({ at: cellOf(index(i, j)) }); },
    act: (i, j) => view.set({ cell: cellOf(index(i, j)), by: view.state.by || 3 }),
  });
  const outputs = grid({
    label: "The outputs; those that changed are marked",
    cell: (i, j) => {
      const s = view.state, k = index(i, j), before = output(known(s), LN.small(s.seed))[k], after = output(known(s), poked(s))[k];
      const { of, members } = groups(known(s)), moved = before !== after, guess = s.done === "committed" && picked(s).includes(k);
      return {
        text: `${say(Math.round(after * 100) / 100)}${moved ? "\n●" : ""}`, class: `two${moved ? " changed" : ""}${of[k] === of[number(s.at)] ? " group" : ""}${guess ? " guessed" : ""}`,
        name: `${named(k)}, output ${say(after, 3)}, ${moved ? `changed from ${say(before, 3)}` : "unchanged"}, group ${of[k] + 1} of ${members.length}${guess ? ", you marked it" : ""}`,
      };
    },
    focus: (i, j) => { if (number(view.state.at) !== index(i, j)) view.set({ at: cellOf(index(i, j)) }); },
  });

  const shows = LN.button("Show me", () => {
    view.set(judge(view.state)[1] ?? {});
    const k = number(view.state.cell), [i, j] = view.state.turned ? [k % 4, Math.floor(k / 4)] : [Math.floor(k / 4), k % 4];
    outputs.querySelector("table").rows[i + 1].cells[j + 1].focus();
  });
  const sum = el("p", { class: "small" }), hunt = el("ul", { class: "hunt" });
  const shown = el(
    "div", {}, shows,
    el(
      "div", { class: "panel" },
      LN.choice(view, "norm", { label: "The norm", options: KEYS.map((key) => [key, NORMS[key].name]) }),
      LN.slider(view, "by", { label: "added to the number", min: -9, max: 9, step: 0.5, mean: () => `${changed(known(view.state), view.state).length} of 24 outputs change` }),
      LN.toggle(view, "turned", "Turn the picture: tokens as columns"),
    ),
    el("div", { class: "pair" },
      el("div", {}, el("h3", {}, "The numbers"), el("p", { class: "small" }, "Walk to a number to see its group outlined; Enter or a click pokes it."), inputs),
      el("div", {}, el("h3", {}, "The outputs"), el("p", { class: "small" }, "● changed when the number was poked. Dashed: marked by you."), outputs)),
    sum, el("h3", {}, "Poke under each norm, and compare the counts"), hunt,
    el("div", { class: "buttons" }, LN.redraw(view, { picks: "", done: null, tried: [""] })),
  );
  view.ondraw((s) => {
    const open = s.done !== null, [, state] = judge(s), norm = known(s);
    shown.hidden = !open;
    shows.hidden = s.done !== "committed" || !state;
    const { of, members } = groups(norm), x = poked(s), k = number(s.at), mine = members[of[k]].map((m) => x[m]);
    const { mean, variance } = LN.moments(mine), root = Math.sqrt(norm === "rms" ? variance + mean * mean : variance);
    const root2 = norm === "rms" ? `root of the mean square ${say(root, 4)}` : `mean ${say(mean, 4)}, spread ${say(root, 4)}`;
    sum.textContent = `${capital(named(k))}: its group, number ${of[k] + 1} of ${members.length}, is ${LN.row(mine)}; ${root2}. So ${say(x[k])} becomes ${say(output(norm, x)[k], 3)}.`;
    if (open && s.by !== 0) s.tried = KEYS.filter((key) => s.tried.includes(key) || key === norm);
    if (s.tried.length === 0) s.tried = [""];
    hunt.replaceChildren(...KEYS.map((key) => {
      const tried = s.tried.includes(key);
      return el("li", { class: tried ? "done" : "open" }, `${capital(NORMS[key].name)}: ${tried ? `${changed(key, { ...s, by: s.by || 3 }).length} of 24 outputs changed; group: ${NORMS[key].group}` : "not poked yet"}`);
    }));
  });
  return [asked, shown];
};

LN.view({
  id: "rows", title: "Row or column?",
  ask: "One number of one token changes. Which outputs notice?",
  start: { norm: "layer", cell: [0, 1, 2], at: [0, 1, 2], by: 3, turned: false, seed: 1, picks: "", tried: [""], done: null },
  build,
  notice: ({ state: s }) => {
    const norm = known(s), { name, group } = NORMS[norm], moved = changed(norm, s), { of, members } = groups(norm), whole = members[of[number(s.cell)]].length;
    if (s.by === 0) return "Nothing was added to the number, so no output changes.";
    const turned = s.turned ? " The picture is turned and the group is not: a token is now a column, and the same numbers belong together. Row and column are ways to draw." : "";
    const few = moved.length < whole ? ` ${whole - moved.length} of the group came out as before, by chance.` : "";
    const scaler = norm === "data" ? " The table stands for the training data here; a fitted scaler then keeps its means." : "";
    return `${capital(name)}: one number of 24 changed, and ${moved.length} outputs changed, ${moved.every((k) => of[k] === of[number(s.cell)]) ? "all in its group" : "not all in its group"} (${group}). The other ${24 - moved.length} are the same to the last bit.${few}${scaler}${turned}`;
  },
  code: ({ state: s }) => {
    const cell = place(s.cell).join(", ");
    return `${LN.HEAD}x = np.array(${LN.py(LN.nested(LN.small(s.seed), SHAPE))})\nbefore = ${NORMS[known(s)].code}\nx[${cell}] += ${LN.py(s.by)}\nafter = ${NORMS[known(s)].code}\nprint(np.round(after, 3))\nprint((before != after).sum(), "of", x.size, "outputs changed")\n`;
  },
  calls: ({ state: s }) => {
    const norm = known(s), { call, options } = NORMS[norm];
    return [LN.small(s.seed), poked(s)].map((x) => ({ call, x: LN.nested(x, SHAPE), options, expected: LN.nested(output(norm, x), SHAPE) }));
  },
  because: "Layer norm computes a mean and a spread from one token's own numbers. Change one of them and both move, so all four outputs of that token move; nothing of any other token enters the sum, so nothing else can.",
});
})();
