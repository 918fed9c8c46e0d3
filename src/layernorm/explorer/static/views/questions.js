// SPDX-License-Identifier: MIT
// This view asks, one question at a time, and answers what a wrong answer believes; nothing is counted or sent.
"use strict";

(() => {
  const ONE = [2, 4, 6, 8], SHAPE = [2, 3, 4], ICONS = { none: "○ not answered", right: "✓ right", miss: "✗ missed", shown: "◇ shown, not tried" };
  const to = (id, state = {}) => LN.link(id, { done: "passed", ...state });
  const apart = (a, b) => Math.max(...a.map((v, i) => Math.abs(v - b[i])));
  const row = (x) => LN.row(x, 4), mean = (x) => LN.moments(x).mean, spread = (x) => Math.sqrt(LN.moments(x).variance), off = (x) => LN.moments(x).centered;
  const times = (x, k) => x.map((v) => k * v), plus = (x, c) => x.map((v) => v + c), norm = (name, x, examples = 2) => LN.normed(name, x, [examples, 3, 4]).slice(0, 12);

  // -- the questions: each key is computed when it is asked for; a wrong answer is [value, text, belief, where to look] --

  const solved = (x, y) => `Mean ${LN.say(mean(x))}, differences ${row(off(x))}, variance ${LN.say(LN.moments(x).variance)}, spread ${LN.say(spread(x), 4)}; the answer is ${row(y)}.`;
  const typed = (id, name, x, ask, { options = {}, slips = [], show = to("recipe", { x }), key = () => LN.layer(x, options) } = {}) => ({
    id, name, x, ask, options, key, show, kind: "typed", why: () => solved(x, key()),
    slips: [
      ...slips, [times(LN.layer(x, { eps: 0 }), Math.sqrt(1 - 1 / x.length)), "That divides the squares by n − 1; layer normalization divides by n."],
      [off(x), "The mean is off; now divide by the spread."], [times(off(x), 1 / LN.moments(x).variance), "That divides by the variance; the spread is its root."], [LN.rms(x), "That is RMS normalization, which leaves the mean in."],
    ],
  });
  const pick = (id, name, ask, key, ways, why, x = ONE) => ({ id, name, ask, key, ways, why, x, kind: "pick" });
  const STEPS = [
    ["subtract the mean", off], ["divide by √(variance + ε)", (x) => times(x, 1 / Math.sqrt(LN.moments(x).variance + 1e-5))], ["multiply by γ = 2", (x) => times(x, 2)], ["add β = 1", (x) => plus(x, 1)],
  ];
  const follow = (order) => order.reduce((x, i) => STEPS[i][1](x), ONE);

  const asked = (seed) => {
    const x = LN.small(seed), own = x.slice(0, 4).map((v, i) => v + i), [i, j] = [seed % 3, (seed * 7) % 4], equal = [5, 5, 5, 5], tiny = times(ONE, 0.001), tail = LN.tailed(seed, 400);
    const poked = x.map((v, k) => (k === i * 4 + j ? v + 3 : v)), other = [...x.slice(0, 12), ...LN.small(seed + 1).slice(12)], plain = norm("layer", x);
    const by = (name) => apart(norm(name, x), norm(name, other)), alone = (name) => apart(norm(name, x), norm(name, x.slice(0, 12), 1)), both = { gamma: [2, 2, 2, 2], beta: [1, 1, 1, 1] };
    const doubled = LN.layer([1, 3, 5], { gamma: [2], beta: [1] }), skews = [tail, LN.layer(tail)].map((v) => LN.say(LN.skew(v), 5)), far = apart(plain, norm("layer over tokens too", x));
    const poke = (n) => to("rows", { seed, norm: n, cell: [0, i, j], at: [0, i, j] }), loud = ["−1", "0.25", "7.5"].filter((k) => apart(LN.layer(times(ONE, Number(k.replace("−", "-")))), LN.layer(ONE)) > 1e-3);
    return [
      typed("two", "two numbers", [0, 3], "Normalize the token [0, 3], with γ = 1 and β = 0. Leave ε out.", { options: { eps: 0 } }),
      pick("equal", "equal numbers", "What does layer normalization give for [5, 5, 5, 5], and why does ε matter here?", () => (LN.layer(equal).every((v) => v === 0) ? "zeros" : ""), [
        ["zeros", "[0, 0, 0, 0]; without ε it would be 0 / 0"],
        ["nan", "NaN: the spread is 0", "0 is divided by √ε. NaN comes only where ε is missing or was rounded to 0.", to("precision", { shape: "[5, 5, 5, 5]", eps: 1e-12, type: "float16" })],
        ["ones", "[1, 1, 1, 1]: all are the same size", "That is RMS norm; here the mean is taken off first.", to("recipe", { x: equal })],
      ], () => "Every difference is 0, and 0 / √ε is 0. Then the output is just β.", equal),
      pick("other", "the other token", "Two tokens sit in the same batch. Does the normalized value of token 1 depend on token 2?", () => (by("layer") === 0 ? "no" : "yes"), [
        ["no", "No"], ["yes", "Yes: the mean is taken down a column, over the batch", "That is batch normalization.", poke("batch")],
        ["train", "Only in training", "Batch norm is what differs in training.", to("family", { look: "mode" })],
      ], () => `With other numbers beside it, its outputs change by ${LN.say(by("layer"))}; with batch norm they would by up to ${LN.say(by("batch"), 3)}.`),
      typed("affine", "γ and β", ONE, "Training has set γ = [2, 2, 2, 2] and β = [1, 1, 1, 1]. What does the token [2, 4, 6, 8] become?", {
        options: both, show: to("affine", { x: ONE, ...both }), slips: [[LN.layer(ONE), "So it is before γ and β."], [times(plus(LN.layer(ONE), 1), 2), "γ does not multiply β, which is added last."]],
      }),
      typed("tens", "ten times", times(ONE, 10), "[2, 4, 6, 8] gives [−1.342, −0.447, 0.447, 1.342]. What does layer normalization give for [20, 40, 60, 80]?", {
        show: to("shift", { k: 10 }), slips: [[times(LN.layer(ONE), 10), "A larger token does not give a larger output: the spread grew tenfold too."]],
      }),
      pick("hundred", "plus 100", "And for [102, 104, 106, 108]?", () => (apart(LN.layer(plus(ONE, 100)), LN.layer(ONE)) < 1e-9 ? "same" : ""), [
        ["same", "The same four numbers again"], ["up", "The same, each plus 100", "The mean grew by 100 too, and is taken off.", to("shift", { c: 100 })],
        ["near", "Four numbers near 1", "That is RMS norm, which does not remove the mean.", to("family", { look: "offset" })],
      ], () => solved(plus(ONE, 100), LN.layer(plus(ONE, 100))), plus(ONE, 100)),
      pick("search", "k and c", "Is there any setting of k and c that changes what comes out for k × [2, 4, 6, 8] + c? Pick one.", () => loud.join(), [
        ["−1", "k = −1, c = 0"], ["10", "k = 1, c = 10", "An offset moves the mean as far.", to("shift", { c: 10 })],
        ["7.5", "k = 7.5, c = 0", "A larger token, no larger output: the spread grows with k.", to("shift", { k: 7.5 })], ["none", "None: even a negative k does nothing", "A negative k turns the outputs over.", to("shift", { k: -1 })],
      ], () => `k = −1 gives ${row(LN.layer(times(ONE, -1)))}: a spread is never negative, so the sign stays. k = 0 gives zeros, and a tiny k meets ε.`, times(ONE, -1)),
      pick("mean", "the final mean", "After normalization, a vector is multiplied by γ = 2 and shifted by β = 1. Must its final mean remain zero?", () => LN.say(mean(doubled), 3), [
        ["1", "No: it becomes 1"], ["0", "Yes: normalized numbers have mean 0", "They have, until β is added to each.", to("affine", { gamma: [2, 2, 2], beta: [1, 1, 1] })],
        ["2", "No: it becomes 2", "γ times a mean of 0 is 0.", to("affine", { gamma: [2, 2, 2] })],
      ], () => `[1, 3, 5] becomes ${row(doubled)}, with mean ${LN.say(mean(doubled), 3)}.`, [1, 3, 5]),
      pick("large", "a large batch", "Does layer norm require a large batch?", () => (alone("layer") === 0 ? "no" : "yes"), [
        ["no", "No: one example is enough"], ["yes", "Yes: its mean is an average over the batch", "That is batch norm.", to("family", { look: "alone" })],
        ["two", "At least two, or the spread is 0", "The spread is that of one token's features.", poke("layer")],
      ], () => `Alone in its batch, an example's outputs change by ${LN.say(alone("layer"))}; with batch norm by up to ${LN.say(alone("batch"), 3)}.`),
      pick("predict", "in use", "Does it behave differently at prediction time?", () => (apart(plain, norm("layer", x)) === 0 && alone("layer") === 0 ? "no" : "yes"), [
        ["no", "No: it uses the token at hand, always"], ["kept", "Yes: it uses averages kept from training", "Batch norm does; layer norm is not batch norm in use either.", to("family", { look: "mode" })],
        ["batch", "Yes, when the batch is smaller", "The batch does not matter.", to("family", { look: "alone" })],
      ], () => `It has no memory: ${row(x.slice(0, 4))} gives ${row(plain.slice(0, 4))} each time.`, x.slice(0, 4)),
      pick("always", "without γ and β", "Are γ and β always present?", () => (apart(LN.layer(ONE), LN.layer(ONE, { gamma: [1], beta: [0] })) === 0 ? "no" : "yes"), [
        ["no", "No: they may be left out"], ["mean", "Yes: β makes the mean 0", "Subtracting does; β moves it away again.", to("affine", { beta: [1, 1, 1] })], ["std", "Yes: γ makes the spread 1", "Dividing does; γ may make it anything.", to("affine", { gamma: [2, 2, 2] })],
      ], () => `Without them [2, 4, 6, 8] gives ${row(LN.layer(ONE))}, as with γ = 1 and β = 0.`),
      pick("gauss", "the shape", `400 numbers with a long tail have skew ${skews[0]}. And after layer normalization?`, () => (Math.abs(LN.skew(tail) - LN.skew(LN.layer(tail))) < 1e-5 ? "same" : ""), [
        ["same", "The same"], ["zero", "0: the outputs are Gaussian", "Mean and spread are set; the tail stays.", to("family", { seed })], ["half", "About half", "All are divided by one number; the tail no more than the rest.", to("family", { seed })],
      ], () => `Before ${skews[0]}, after ${skews[1]}: moved and stretched, the shape stays.`),
      typed("tiny", "a tiny token", tiny, "With ε = 0.00001, what comes out for [0.002, 0.004, 0.006, 0.008]?", {
        show: to("shift", { k: 0.001, log: true }), slips: [[LN.layer(ONE), `ε is not always negligible: the spread is ${LN.say(spread(tiny), 3)}, √ε is ${LN.say(Math.sqrt(1e-5), 3)}.`]],
      }),
      pick("exact", "a spread of 1?", "ε is 0.00001. What is the spread of the outputs for [2, 4, 6, 8]?", () => (spread(LN.layer(ONE)) < 1 - 1e-9 ? "below" : "one"), [
        ["below", "A little below 1"], ["one", "Exactly 1", "Without ε it would be.", to("precision", { sigma: Math.sqrt(1e-5) })], ["above", "A little above 1", "ε makes the divisor larger.", to("recipe")],
      ], () => `√5 / √(5 + ε) = ${LN.say(spread(LN.layer(ONE)), 8)}.`),
      { id: "cell", name: "pick a cell", kind: "cell", x: x.slice(i * 4, i * 4 + 4), tensor: x, i, j, ask: `One row a token. ${x[i * 4 + j]}, the framed number, is made larger by 3. Pick another cell whose layer norm output changes.`, show: poke("layer"), column: poke("data"),
        key: () => norm("layer", poked).flatMap((v, k) => (v !== plain[k] && k !== i * 4 + j ? [k] : [])), why: () => `All of token ${i + 1} changes: it shares one mean and one spread. No other token does.` },
      { id: "order", name: "order the steps", kind: "order", x: ONE, options: both, ask: "Put the steps of layer normalization in order.", key: () => LN.layer(ONE, both), show: to("affine", { x: ONE, ...both }),
        why: () => `Subtract, divide, multiply, add: ${row(follow([0, 1, 2, 3]))}. (Dividing first comes to the same: the mean shrinks too.)` },
      pick("shape", "the same shape", "A converted model's layer norm gives the same shape as before. Is it the same layer?", () => (far === 0 ? "yes" : "no"), [
        ["no", "Not for that"], ["yes", "Yes: the shape tells", "Other axes give the same shape and other values.", to("axes", { token: true })], ["name", "Yes, if both are called LayerNorm", "Two layers of that name can average over other axes.", to("axes", { part: "cases" })],
      ], () => `Over features, or over tokens too: one shape, and values up to ${LN.say(far, 3)} apart.`),
      typed("own", "numbers of this link", own, `Normalize ${row(own)}, with γ = 1 and β = 0.`),
    ];
  };

  // -- how an answer is read -----------------------------------------------------------------------------------------

  const mix = (list, seed) => {
    const next = LN.uniform(seed), out = [...list];
    for (let i = out.length - 1; i > 0; i -= 1) {
      const j = Math.floor(next() * (i + 1));
      [out[i], out[j]] = [out[j], out[i]];
    }
    return out;
  };
  let held = { seed: null };
  const all = ({ seed }) => {
    if (held.seed !== seed) held = { seed, list: mix(asked(Math.abs(Math.trunc(seed))), seed) };
    return held.list;
  };
  const place = (s) => Math.min(Math.max(Math.trunc(s.at), 1), all(s).length) - 1;
  const now = (s) => all(s)[place(s)];
  const entries = (s, id) => s.tried.map((t) => t.split("|")).filter(([of]) => of === id).map(([, kind, said]) => ({ kind, said }));
  const status = (s, id) => ["shown", "right", "miss"].find((kind) => entries(s, id).some((e) => e.kind === kind)) ?? "none";
  const parsed = (text) => text.replaceAll("−", "-").split(/[\s,;[\]]+/).filter(Boolean).map(Number);
  const order = (said) => (/^[0-3](\.[0-3]){3}$/.test(said) && new Set(said.split(".")).size === 4 ? said.split(".").map(Number) : [3, 1, 0, 2]);

  const wanting = (q) => { const n = q.key().length; return n === 1 ? "one number" : `${n} numbers with commas between, such as ${[-1.25, 0, 1.25, 2].slice(0, n).map((v) => LN.say(v)).join(", ")}`; };
  const flaw = (q, said) => {
    if (q.kind !== "typed") return said === "" ? "Pick one first, or ask to be shown." : "";
    return parsed(said).length === q.key().length && parsed(said).every(Number.isFinite) ? "" : `Write ${wanting(q)}.`;
  };

  /** Look at an answer: is it right, and if not, what does it believe and where can one see it. */
  const judge = (q, said) => {
    const missed = (why, show = q.show) => ({ why, show }), near = (a, b) => a.length === b.length && apart(a, b) <= 0.006;
    if (q.kind === "pick") return said === q.key() ? { right: true } : missed(...(q.ways.find(([value]) => value === said) ?? []).slice(2));
    if (q.kind === "cell") {
      const k = Number(said);
      if (q.key().includes(k)) return { right: true };
      if (k === q.i * 4 + q.j) return missed("That is the number itself.");
      return k % 4 === q.j ? missed("That is its column, as in normalizing data.", q.column) : missed("That is another token, with a mean of its own.");
    }
    if (q.kind === "order") return near(follow(order(said)), q.key()) ? { right: true } : missed(`So it comes out as ${row(follow(order(said)))}: a norm after γ or β undoes them.`);
    if (near(parsed(said), q.key())) return { right: true };
    return missed((q.slips.find(([y]) => near(parsed(said), y)) ?? [0, `Off by up to ${LN.say(apart(parsed(said), q.key()), 2)}. Go step by step: mean, differences, spread, quotients.`])[1]);
  };

  // -- the list for tomorrow: kept in this browser alone -------------------------------------------------------------

  const day = (later = 0) => new Date(Date.now() + later * 864e5).toISOString().slice(0, 10);
  const due = () => {
    try { return Object.fromEntries(Object.entries(JSON.parse(LN.page.kept("again") ?? "{}")).filter(([, d]) => typeof d === "string")); } catch { return {}; }
  };

  // -- the page ------------------------------------------------------------------------------------------------------

  const fields = (view, q) => {
    const say = (said) => view.set({ say: said });
    if (q.kind === "pick") {
      const box = LN.choice(view, "say", { label: q.ask, options: mix(q.ways, view.state.seed + q.id.length).map(([value, text]) => [value, text]) });
      box.classList.add("list");
      return box;
    }
    const box = LN.el("fieldset", { class: "choice list" }, LN.el("legend", {}, q.ask));
    if (q.kind === "typed") {
      const id = LN.id("typed");
      const field = LN.el("input", { type: "text", id, autocomplete: "off", spellcheck: "false", oninput: () => say(field.value), onkeydown: (e) => { if (e.key === "Enter") box.closest(".predict").querySelector("button.main").click(); } });
      view.ondraw((s) => { if (now(s) === q && document.activeElement !== field) field.value = s.say; });
      box.append(LN.el("div", { class: "numbers" }, LN.el("label", { for: id }, `Your answer: ${wanting(q)}; two decimals are enough`), field));
    } else if (q.kind === "cell") {
      box.append(LN.el("div", { class: "scroll" }, LN.grid(view, {
        label: "Three tokens with four features", rows: () => 3, columns: () => 4, head: (i) => `token ${i + 1}`, act: (i, j) => say(String(i * 4 + j)),
        cell: (i, j) => {
          const k = i * 4 + j, mine = view.state.say === String(k), framed = i === q.i && j === q.j;
          return { text: `${q.tensor[k]}${framed ? " + 3" : ""}${mine ? " ✓" : ""}`, name: `token ${i + 1}, feature ${j + 1}, ${q.tensor[k]}${framed ? ", made larger by 3" : ""}${mine ? ", picked" : ""}`, class: framed ? "changed" : mine ? "poked" : "" };
        },
      })));
    } else {
      const list = LN.el("ol", {}), button = (i, by) => LN.button(by < 0 ? "↑" : "↓", () => {
        const steps = order(view.state.say);
        if (i + by < 0 || i + by > 3) return;
        [steps[i], steps[i + by]] = [steps[i + by], steps[i]];
        say(steps.join("."));
        items[i + by].querySelectorAll("button")[by < 0 ? 0 : 1].focus();
      });
      const items = [0, 1, 2, 3].map((i) => LN.el("li", {}, button(i, -1), " ", button(i, 1), " ", LN.el("span", {})));
      list.append(...items);
      view.ondraw((s) => items.forEach((item, i) => {
        const text = STEPS[order(s.say)[i]][0];
        item.querySelector("span").textContent = text;
        item.querySelectorAll("button").forEach((b, n) => b.setAttribute("aria-label", `Move “${text}” ${n ? "down" : "up"}`));
      }));
      box.append(list);
    }
    return box;
  };

  const build = (view) => {
    const st = () => view.state, result = LN.el("p", { class: "verdict", id: LN.id("result") }), worked = LN.el("p", {}), slot = LN.el("div", {});
    const count = LN.el("p", { class: "small" });
    let missing = "", drawn = null, drawers = [];
    const add = (kind) => { const q = now(st()); view.set({ tried: [...st().tried.slice(-60), `${q.id}|${kind}|${st().say}`] }); };
    const check = LN.button("Check", () => {
      const q = now(st());
      if (q.kind === "order") st().say = order(st().say).join(".");
      missing = flaw(q, st().say.replaceAll("|", ""));
      if (missing) { view.draw(); return; }
      const { right } = judge(q, st().say), list = due();
      if (right && list[q.id] <= day()) { delete list[q.id]; LN.page.keep("again", JSON.stringify(list)); }
      add(right ? "right" : "miss");
    }, { class: "main" });
    const pass = LN.button("Show me (not tried)", () => { missing = ""; add("shown"); });
    const look = LN.button("Show me where that is so", () => LN.page.go(judge(now(st()), entries(st(), now(st()).id).at(-1).said).show));
    const move = (at) => { missing = ""; view.set({ at, say: entries(st(), all(st())[at - 1].id).at(-1)?.said ?? "" }); };
    const step = (by) => move(((place(st()) + by + all(st()).length) % all(st()).length) + 1);
    const tomorrow = LN.button("", () => {
      const list = due(), { id } = now(st());
      if (list[id]) delete list[id]; else list[id] = day(1);
      LN.page.keep("again", JSON.stringify(list));
      view.draw();
    });
    const places = all(st()).map((_, i) => LN.button("", () => move(i + 1), { class: "chip" }));
    const later = LN.el("p", {}), kept = LN.el("div", { class: "chips" });
    view.ondraw((s) => {
      const q = now(s), last = entries(s, q.id).at(-1), misses = entries(s, q.id).filter((e) => e.kind === "miss").length, list = due(), found = last?.kind === "miss" ? judge(q, last.said) : {};
      if (drawn !== q) {
        drawn = q;
        const old = view.drawers.length, box = fields(view, q);
        box.setAttribute("aria-describedby", result.id);
        slot.replaceChildren(box);
        drawers = view.drawers.splice(old); // this question's controls are drawn while it is shown
      }
      drawers.forEach((draw) => draw(s));
      count.textContent = `Question ${place(s) + 1} of ${all(s).length}: ${q.name}`;
      result.textContent = missing ? `⚠ ${missing}` : { right: `✓ Right. ${q.why()}`, miss: `✗ Not yet. ${found.why}`, shown: "◇ Shown, not tried." }[last?.kind] ?? "";
      worked.textContent = !missing && (last?.kind === "shown" || (misses >= 2 && last?.kind === "miss")) ? `Worked solution: ${q.why()}` : "";
      look.hidden = Boolean(missing) || !found.show;
      tomorrow.textContent = list[q.id] ? "Not again tomorrow" : "Again tomorrow";
      places.forEach((button, i) => {
        const kind = status(s, all(s)[i].id);
        button.textContent = `${i + 1} ${ICONS[kind][0]}`;
        button.setAttribute("aria-label", `${i + 1} ${ICONS[kind]}: ${all(s)[i].name}`);
        if (i === place(s)) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
      });
      const ids = all(s).filter((one) => list[one.id]), ready = ids.filter((one) => list[one.id] <= day());
      later.textContent = ids.length === 0 ? "Nothing is on the list. It is kept in this browser only." : `${ids.length} on the list, ${ready.length} due today; kept in this browser only.`;
      if (kept.dataset.ids !== ids.map((one) => one.id).join()) {
        kept.dataset.ids = ids.map((one) => one.id).join();
        kept.replaceChildren(...ids.map((one) => LN.button(`${list[one.id] <= day() ? "due: " : ""}${one.name}`, () => move(all(st()).indexOf(one) + 1), { class: "chip" })));
      }
    });
    return [
      LN.el("div", { class: "predict" }, count, slot, LN.el("div", { class: "buttons" }, check, pass, look), result, worked),
      LN.el("div", { class: "buttons" }, LN.button("Previous", () => step(-1)), LN.button("Next", () => step(1)), tomorrow),
      LN.el("h3", {}, "All questions"), LN.el("div", { class: "chips", role: "group", "aria-label": "All questions" }, places),
      LN.el("p", { class: "small" }, Object.values(ICONS).join(" · ")),
      LN.button("Another order, other numbers", () => { missing = ""; view.set({ seed: (Math.abs(Math.trunc(st().seed)) % 999) + 1, at: 1, say: "", tried: [""] }); }),
      LN.el("h3", {}, "Again tomorrow"), later, kept,
      LN.button("Forget all that this page keeps", () => { LN.page.forget(); view.draw(); }),
    ];
  };

  LN.view({
    id: "questions", title: "Check yourself",
    ask: "What do you know by now? Nothing is counted, and nothing leaves this browser.",
    start: { seed: 1, at: 1, say: "", tried: [""] },
    build,
    notice: ({ state: s }) => {
      const open = all(s).filter(({ id }) => status(s, id) === "none").length;
      return `Question ${place(s) + 1} of ${all(s).length}, ${now(s).name}: ${ICONS[status(s, now(s).id)].slice(2)}. ${open === 0 ? "All have been looked at." : `${open} not answered yet.`}`;
    },
    code: ({ state: s }) => {
      const { x, options = {} } = now(s), given = Object.entries(options).map(([k, v]) => `, ${k}=${LN.py(v)}`).join("");
      return `import layernorm as ln\n\nx = ${LN.py(x)}\n${["right", "shown"].includes(status(s, now(s).id)) ? `print(ln.layer_norm(x${given}))` : "print(x)  # once answered, this prints what comes out"}\n`;
    },
    calls: ({ state: s }) => { const { x, options = {} } = now(s); return [{ call: "layer_norm", x, options, expected: LN.layer(x, options) }]; },
  });
})();
