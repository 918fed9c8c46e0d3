// SPDX-License-Identifier: MIT
// This view asks, one question at a time, and tells a wrong answer what it believes; nothing is counted or sent.
"use strict";

(() => {
const { el, layer, moments, say, apart } = LN, ONE = [2, 4, 6, 8], ICONS = { none: "○ not answered", right: "✓ right", miss: "✗ missed", shown: "◇ shown, not tried" };
const to = (id, state) => LN.link(id, { done: "passed", ...state }), row = (x) => LN.row(x, 4), three = (v) => say(v, 3);
const near = (a, b, by = 0.006) => a.length === b.length && apart(a, b) <= by;
const mean = (x) => moments(x).mean, spread = (x) => Math.sqrt(moments(x).variance), off = (x) => moments(x).centered, times = (x, k) => x.map((v) => k * v), plus = (x, c) => x.map((v) => v + c);
const skew = (x) => say(mean(layer(x, { eps: 0 }).map((v) => v ** 3)), 5);
/** The first example of a batch, normalized in its company. */
const norm = (name, x) => { const shape = [x.length / 12, 3, 4]; return LN.overGroups(x, LN.groups(shape, LN.SHARED[name](shape)).members).slice(0, 12); };

// -- the questions: a key is computed when asked for; ways are [value, text, what it believes, where to see] --

const typed = (name, x, ask, options = {}, show = to("recipe", { x }), slips = []) => ({
  name, x, ask, options, show, kind: "typed", key: () => layer(x, options),
  why: () => `Mean ${say(mean(x))}, differences ${row(off(x))}, variance ${say(moments(x).variance)}, spread ${say(spread(x), 4)}; out comes ${row(layer(x, options))}.`,
  slips: [...slips, [times(layer(x), Math.sqrt(1 - 1 / x.length)), "That divides by n − 1 on the way to the variance; layer norm divides by n."], [off(x), "Now divide by the spread."],
    [times(off(x), 1 / moments(x).variance), "The spread is the root of the variance."], [LN.rms(x), "That is RMS norm: the mean is still in."]],
});
const pick = (name, ask, key, ways, why, x = ONE) => ({ name, ask, key, ways, why, x, kind: "pick" });
const STEPS = [["subtract the mean", off], ["divide by √(variance + ε)", (x) => times(x, 1 / Math.sqrt(moments(x).variance + 1e-5))], ["multiply by γ = 2", (x) => times(x, 2)], ["add β = 1", (x) => plus(x, 1)]];
const follow = (order) => order.reduce((x, i) => STEPS[i][1](x), ONE);

const asked = (seed) => {
  const x = LN.small(seed), i = seed % 3, j = (seed * 7) % 4, own = x.slice(0, 4).map((v, n) => v + n), alone = x.slice(0, 12), plain = norm("layer", x), poked = x.map((v, k) => (k === i * 4 + j ? v + 3 : v));
  const next = LN.uniform(seed), tail = Array.from({ length: 2000 }, () => -Math.log(1 - next())), tiny = times(ONE, 0.001), equal = [5, 5, 5, 5], both = { gamma: [2, 2, 2, 2], beta: [1, 1, 1, 1] };
  const by = (name, other) => apart(norm(name, x), norm(name, other)), other = [...alone, ...LN.small(seed + 1).slice(12)], doubled = layer([1, 3, 5], { gamma: [2], beta: [1] }), wide = by("layer over tokens too", x) + apart(plain, norm("layer over tokens too", x));
  const poke = (name) => to("rows", { seed, norm: name, cell: [0, i, j], at: [0, i, j] }), yes = (is) => (is ? "yes" : "no"), same = (a, b) => (near(a, b, 1e-9) ? "same" : ""), batch = to("family", { seed, norm: "batch" }), rms = to("family", { seed, norm: "rms" });
  return [
    typed("two numbers", [0, 3], "Normalize the token [0, 3], with γ = 1 and β = 0. Leave ε out.", { eps: 0 }),
    pick("equal numbers", "What does layer normalization give for [5, 5, 5, 5], and why does ε matter here?", () => row(layer(equal)), [
      ["[0, 0, 0, 0]", "zeros; without ε, 0 / 0"], ["nan", "NaN: the spread is 0", "0 is divided by √ε. NaN comes only where ε was rounded to 0.", to("precision", { shape: "[5, 5, 5, 5]", eps: 1e-12, type: "float16" })],
      ["ones", "ones: all are the same size", "The mean is taken off first, and nothing is left.", to("recipe", { x: equal })],
    ], () => `0 / √(0 + ε): ${row(layer(equal))}. Then the output is just β.`, equal),
    pick("the other token", "Two tokens sit in the same batch. Does the normalized value of token 1 depend on token 2?", () => yes(by("layer", other)), [
      ["no", "no"], ["yes", "yes: it normalizes columns, over the batch", "That is batch norm.", poke("batch")],
    ], () => `With others beside it, it changes by ${three(by("layer", other))}; with batch norm by up to ${three(by("batch", other))}.`),
    typed("γ and β", ONE, "Training has set γ = [2, 2, 2, 2] and β = [1, 1, 1, 1]. What does the token [2, 4, 6, 8] become?", both, to("affine", { x: ONE, ...both }), [[layer(ONE), "γ and β are still to come."], [times(plus(layer(ONE), 1), 2), "γ does not multiply β."]]),
    typed("ten times", times(ONE, 10), "[2, 4, 6, 8] gives [−1.342, −0.447, 0.447, 1.342]. And [20, 40, 60, 80]?", {}, to("shift", { k: 10 }), [[times(layer(ONE), 10), "A larger token gives no larger output: the spread grew too."]]),
    pick("plus 100", "And what does [102, 104, 106, 108] give?", () => same(layer(plus(ONE, 100)), layer(ONE)), [
      ["same", "the same four numbers again"], ["up", "the same, each plus 100", "The mean grew by 100 too.", to("shift", { c: 100 })], ["near", "four numbers near 1", "That is RMS norm, which does not remove the mean.", rms],
    ], () => `The differences stay ${row(off(plus(ONE, 100)))}, and the outputs ${row(layer(plus(ONE, 100)))}.`, plus(ONE, 100)),
    pick("k and c", "Does any of these change visibly what comes out for k × [2, 4, 6, 8] + c?", () => String([-1, 7.5, 0.25].filter((k) => !near(layer(times(ONE, k)), layer(ONE), 1e-4))), [
      ["-1", "k = −1"], ["10", "c = 10", "An offset moves the mean as far.", to("shift", { c: 10 })], ["7.5", "k = 7.5", "The spread grows with k.", to("shift", { k: 7.5 })], ["none", "none: a negative k does nothing either", "It turns the outputs over.", to("shift", { k: -1 })],
    ], () => `k = −1 gives ${row(layer(times(ONE, -1)))}: a spread is never negative. (So change k = 0, to zeros, and a tiny k.)`, times(ONE, -1)),
    pick("the final mean", "After normalization, a vector is multiplied by γ = 2 and shifted by β = 1. Must its final mean remain zero?", () => three(mean(doubled)), [
      ["1", "no: it becomes 1"], ["0", "yes: normalized numbers have mean 0", "Until β is added.", to("affine", { gamma: [2, 2, 2], beta: [1, 1, 1] })],
    ], () => `[1, 3, 5] becomes ${row(doubled)}, of mean ${three(mean(doubled))}.`, [1, 3, 5]),
    pick("a large batch", "Does layer norm require a large batch?", () => yes(by("layer", alone)), [
      ["no", "no: one example is enough"], ["yes", "yes: it averages over the batch", "That is batch norm.", batch], ["two", "two, or the spread is 0", "The spread is that of one token's features.", poke("layer")],
    ], () => `Alone, an example changes by ${three(by("layer", alone))}; with batch norm by up to ${three(by("batch", alone))}.`),
    pick("in use", "Does it behave differently at prediction time?", () => yes(by("layer", x) + by("layer", other)), [
      ["no", "no: it uses the token at hand"], ["yes", "yes: it uses averages from training", "That is batch norm; layer norm is not batch norm in use.", batch],
    ], () => `It keeps nothing: ${row(x.slice(0, 4))} gives ${row(plain.slice(0, 4))} each time.`, x.slice(0, 4)),
    pick("without γ and β", "Are γ and β always present?", () => yes(apart(layer(ONE), layer(ONE, { gamma: [1], beta: [0] }))), [
      ["no", "no: they may be left out"], ["mean", "yes: β makes the mean 0", "β moves it away from 0.", to("affine", { beta: [1, 1, 1] })], ["std", "yes: γ makes the spread 1", "γ may make it anything.", to("affine", { gamma: [2, 2, 2] })],
    ], () => `Without them [2, 4, 6, 8] gives ${row(layer(ONE))}, as with γ = 1 and β = 0.`),
    pick("the shape", `2000 numbers with a long tail have skew ${skew(tail)}. And after layer normalization?`, () => (skew(tail) === skew(layer(tail)) ? "same" : ""), [
      ["same", "the same"], ["zero", "0: they become Gaussian", "Mean and spread are set; the tail stays.", to("family", { seed })],
    ], () => `Before ${skew(tail)}, after ${skew(layer(tail))}: moved and stretched, no more.`),
    typed("a tiny token", tiny, "With ε = 0.00001, what does [0.002, 0.004, 0.006, 0.008] give?", {}, to("shift", { k: 0.001, log: true }), [[layer(ONE), `ε is not always negligible: the spread is ${three(spread(tiny))}, √ε is ${three(Math.sqrt(1e-5))}.`]]),
    pick("a spread of 1?", "ε is 0.00001. What spread do the outputs for [2, 4, 6, 8] have?", () => (spread(layer(ONE)) < 1 - 1e-9 ? "below" : "one"), [["below", "a little below 1"], ["one", "exactly 1", "Only without ε.", to("precision", { sigma: 0.0032 })]], () => `√5 / √(5 + ε) = ${say(spread(layer(ONE)), 8)}.`),
    { name: "pick a cell", kind: "cell", x: x.slice(i * 4, i * 4 + 4), tensor: x, i, j, ask: "One row a token. The framed number grows by 3. Pick another cell whose layer norm output changes.", show: poke("layer"),
      column: poke("data"), key: () => norm("layer", poked).flatMap((v, k) => (v !== plain[k] && k !== i * 4 + j ? [k] : [])), why: () => `All of token ${i + 1} changes: it shares one mean and spread. No other token does.` },
    { name: "order the steps", kind: "order", x: ONE, options: both, ask: "Put the steps of layer normalization in order.", key: () => layer(ONE, both), show: to("affine", { x: ONE, ...both }), why: () => `Subtract, divide, multiply, add: ${row(follow([0, 1, 2, 3]))}. Dividing first comes to the same.` },
    pick("the same shape", "A converted layer norm gives the same shape as before. Is it the same layer?", () => yes(wide === 0), [["no", "perhaps not"], ["yes", "yes: the shape tells", "Other axes give the same shape.", to("axes", { token: true })]], () => `Over tokens too, the shape is the same, and values are up to ${three(wide)} off.`),
    typed("numbers of this link", own, `Normalize ${row(own)}, with γ = 1 and β = 0.`),
  ];
};

// -- reading an answer --

const mix = (list, seed) => { const next = LN.uniform(seed); return list.map((v) => [next(), v]).sort(([a], [b]) => a - b).map(([, v]) => v); };
let held = {};
const all = ({ seed }) => { if (held.seed !== seed) held = { seed, list: mix(asked(Math.abs(Math.trunc(seed))), seed) }; return held.list; };
const place = (s) => Math.min(Math.max(Math.trunc(s.at), 1), all(s).length) - 1, now = (s) => all(s)[place(s)];
const entries = (s, q) => s.tried.map((t) => t.split("|")).filter(([name]) => name === q.name).map(([, kind, said]) => ({ kind, said }));
const status = (s, q) => ["shown", "right", "miss"].find((kind) => entries(s, q).some((e) => e.kind === kind)) ?? "none";
const parsed = (text) => text.replaceAll("−", "-").split(/[\s,;[\]]+/).filter(Boolean).map(Number);
const order = (said) => (/^(?!.*(\d).*\1)[0-3](\.[0-3]){3}$/.test(said) ? said.split(".").map(Number) : [3, 1, 0, 2]);
const wanting = (q) => `${q.x.length} numbers with commas between, such as −1.25, 0`;
const flaw = (q, said) => (q.kind !== "typed" ? (said === "" && "Pick one first, or ask to be shown.") : (parsed(said).length !== q.x.length || !parsed(said).every(Number.isFinite)) && `Write ${wanting(q)}.`);

/** Look at an answer: nothing if it is right, or else [what it believes, where to see]. */
const missed = (q, said) => {
  if (q.kind === "pick") return said === q.key() ? null : q.ways.find(([value]) => value === said)?.slice(2) ?? [""];
  if (q.kind === "cell") return q.key().includes(Number(said)) ? null : said % 4 === q.j ? ["That is its column, as in normalizing data.", q.column] : ["That is another token, with a mean of its own.", q.show];
  const y = q.kind === "order" ? follow(order(said)) : parsed(said);
  if (near(y, q.key())) return null;
  return [q.kind === "order" ? `So it comes out as ${row(y)}: γ and β come after the norm.` : q.slips.find(([slip]) => near(y, slip))?.[1] ?? `Off by up to ${say(apart(y, q.key()), 2)}: mean, differences, spread, quotients.`, q.show];
};

// -- the list for tomorrow, in this browser alone --

const day = (later = 0) => new Date(Date.now() + later * 864e5).toISOString().slice(0, 10);
const due = () => { try { return { ...JSON.parse(LN.page.kept("again")) }; } catch { return {}; } };

const fields = (view, q) => {
  const put = (text) => view.set({ say: text }), { tensor, i: row0, j: column0 } = q;
  const box = q.kind === "pick" ? LN.choice(view, "say", { label: q.ask, options: mix(q.ways, view.state.seed + q.name.length) }) : el("fieldset", { class: "choice" }, el("legend", {}, q.ask));
  box.classList.add("list");
  if (q.kind === "typed") {
    const id = LN.id("typed"), field = el("input", { type: "text", id, autocomplete: "off", oninput: () => put(field.value) });
    view.ondraw((s) => { if (document.activeElement !== field) field.value = s.say; });
    box.append(el("div", { class: "numbers" }, el("label", { for: id }, `Your answer: ${wanting(q)}; two decimals are enough`), field));
  } else if (q.kind === "cell") {
    box.append(LN.grid(view, {
      label: "Tokens and features", rows: () => 3, columns: () => 4, head: (i) => `token ${i + 1}`, act: (i, j) => { if (i !== row0 || j !== column0) put(String(i * 4 + j)); },
      cell: (i, j) => {
        const mine = view.state.say === String(i * 4 + j), framed = i === row0 && j === column0;
        return { text: `${tensor[i * 4 + j]}${framed ? " + 3" : mine ? " ✓" : ""}`, name: `token ${i + 1}, feature ${j + 1}, ${tensor[i * 4 + j]}${framed ? ", grows by 3" : mine ? ", picked" : ""}`, class: framed ? "changed" : mine ? "poked" : "" };
      },
    }));
  } else if (q.kind === "order") {
    const items = [0, 1, 2, 3].map((i) => el("li", {}, [-1, 1].map((by, n) => LN.button("↑↓"[n], () => {
      const steps = order(view.state.say), k = Math.min(Math.max(i + by, 0), 3);
      [steps[i], steps[k]] = [steps[k], steps[i]];
      put(steps.join("."));
      items[k].querySelectorAll("button")[n].focus();
    })), " ", el("span", {})));
    view.ondraw((s) => items.forEach((item, i) => {
      const text = STEPS[order(s.say)[i]][0];
      item.querySelector("span").textContent = text;
      item.querySelectorAll("button").forEach((b, n) => b.setAttribute("aria-label", `${"↑↓"[n]} ${text}, ${n ? "later" : "earlier"}`));
    }));
    box.append(el("ol", {}, items));
  }
  return box;
};

const build = (view) => {
  const st = () => view.state, result = el("p", { class: "verdict", id: LN.id("result") }), worked = el("p", {}), slot = el("div", {}), count = el("p", { class: "small" }), later = el("p", {});
  let missing = "", drawn = null, drawers = [];
  const add = (kind, said) => view.set({ tried: [...st().tried.slice(-60), `${now(st()).name}|${kind}|${said}`] });
  const keep = (list) => LN.page.keep("again", JSON.stringify(list));
  const check = () => {
    const q = now(st()), said = q.kind === "order" ? order(st().say).join(".") : st().say, list = due();
    missing = flaw(q, said);
    if (missing) { view.draw(); return; }
    const right = !missed(q, said);
    if (right && list[q.name] <= day()) { delete list[q.name]; keep(list); }
    add(right ? "right" : "miss", said);
  };
  const look = LN.button("Show me where that is so", () => LN.page.go(missed(now(st()), entries(st(), now(st())).at(-1).said)[1]));
  const move = (at) => { missing = ""; view.set({ at, say: entries(st(), all(st())[at - 1]).at(-1)?.said ?? "" }); };
  const step = (by) => move(((place(st()) + by + all(st()).length) % all(st()).length) + 1);
  const tomorrow = LN.button("", () => { const list = due(), { name } = now(st()); if (list[name]) delete list[name]; else list[name] = day(1); keep(list); view.draw(); });
  const places = all(st()).map((_, i) => LN.button("", () => move(i + 1), { class: "chip" }));
  view.ondraw((s) => {
    const q = now(s), last = entries(s, q).at(-1), list = due(), found = last?.kind === "miss" && missed(q, last.said), misses = entries(s, q).filter((e) => e.kind === "miss").length;
    if (drawn !== q) {
      const old = view.drawers.length, box = fields(view, drawn = q);
      box.setAttribute("aria-describedby", result.id);
      slot.replaceChildren(box);
      drawers = view.drawers.splice(old); // this question's controls are drawn while it is shown
    }
    drawers.forEach((draw) => draw(s));
    count.textContent = `Question ${place(s) + 1} of ${all(s).length}: ${q.name}`;
    result.textContent = missing ? `⚠ ${missing}` : { right: `✓ Right. ${q.why()}`, miss: `✗ Not yet. ${found?.[0] ?? ""}`, shown: "◇ Shown, not tried." }[last?.kind] ?? "";
    worked.textContent = !missing && (last?.kind === "shown" || (found && misses > 1)) ? `Worked solution: ${q.why()}` : "";
    look.hidden = Boolean(missing) || !found?.[1];
    tomorrow.textContent = list[q.name] ? "Not again tomorrow" : "Again tomorrow";
    places.forEach((button, i) => {
      const one = all(s)[i], kind = ICONS[status(s, one)], again = list[one.name] && (list[one.name] <= day() ? " due" : " again");
      button.textContent = `${i + 1} ${kind[0]}${again ?? ""}`;
      button.setAttribute("aria-label", `${i + 1} ${kind[0]}${again ?? ""}, ${kind.slice(2)}: ${one.name}`);
      button.setAttribute("aria-current", String(one === q));
    });
    later.textContent = `On the list for another day, in this browser only: ${Object.keys(list).join(", ") || "nothing"}.`;
  });
  return [
    el("div", { class: "predict" }, count, slot, el("div", { class: "buttons" }, LN.button("Check", check, { class: "main" }), LN.button("Show me (not tried)", () => { missing = ""; add("shown", st().say); }), look), result, worked),
    el("div", { class: "buttons" }, LN.button("Previous", () => step(-1)), LN.button("Next", () => step(1)), tomorrow),
    el("h3", {}, "All questions"), el("div", { class: "chips", role: "group", "aria-label": "All questions" }, places), el("p", { class: "small" }, Object.values(ICONS).join(" · ")), later,
    el("div", { class: "buttons" }, LN.button("Another order, other numbers", () => { missing = ""; view.set({ seed: (Math.abs(Math.trunc(st().seed)) % 999) + 1, at: 1, say: "", tried: [""] }); }), LN.button("Forget what this page keeps", () => { LN.page.forget(); view.draw(); })),
  ];
};

LN.view({
  id: "questions", title: "Check yourself",
  ask: "What do you know by now? Nothing is counted, and nothing leaves this browser.",
  start: { seed: 1, at: 1, say: "", tried: [""] },
  build,
  notice: ({ state: s }) => `Question ${place(s) + 1}, ${now(s).name}: ${ICONS[status(s, now(s))].slice(2)}. ${all(s).filter((q) => status(s, q) === "none").length} of ${all(s).length} not looked at yet.`,
  code: ({ state: s }) => {
    const { x, options = {} } = now(s), given = Object.keys(options).map((k) => `, ${k}=${LN.py(options[k])}`).join("");
    return `import layernorm as ln\n\nx = ${LN.py(x)}\n${["right", "shown"].includes(status(s, now(s))) ? `print(ln.layer_norm(x${given}))` : "print(x)  # once answered, this prints what comes out"}\n`;
  },
  calls: ({ state: s }) => { const { x, options = {} } = now(s); return [{ call: "layer_norm", x, options, expected: layer(x, options) }]; },
});
})();
