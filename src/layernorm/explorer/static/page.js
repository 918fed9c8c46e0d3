// SPDX-License-Identifier: MIT
// This file is the page: which view is shown, its state in the link, who computed its numbers, light and dark.
"use strict";

LN.VIEWS = [];

/**
 * Enter a view.
 *   id, title      its name in links and in the list
 *   ask            the question it opens with
 *   start          its state; what differs from it is kept in the link
 *   build(view)    gives the elements between the question and what to notice
 *   notice(view)   says in words what the state shows
 *   waits(state)   whether there is nothing to notice before an answer; unless it is said, as long as `done` is null
 *   code(view)     gives a Python snippet that computes and prints what is shown, with `layernorm` alone
 *   calls(view)    gives what the installed library is to compute too: [{call, x, options, expected, type}]
 *   because        what someone might answer to "because …", to compare one's own words with; optional
 */
LN.view = (described) => LN.VIEWS.push(described);

class View {
  constructor(described) {
    this.described = described;
    this.state = structuredClone(described.start);
    this.drawers = [];
  }

  /** Add what is done at each change of the state. */
  ondraw(draw) { this.drawers.push(draw); }

  /** Change the state, draw, and keep it in the link. */
  set(changes) {
    Object.assign(this.state, changes);
    this.draw();
    LN.page.changed();
  }

  draw() {
    for (const draw of this.drawers) draw(this.state);
  }

  /** Give what differs from the start, as the link has it. */
  get link() {
    const changed = Object.entries(this.state).filter(([k, v]) => JSON.stringify(v) !== JSON.stringify(this.described.start[k]));
    return `#${LN.link(this.described.id, Object.fromEntries(changed))}`;
  }

  /** Take a state from a link; what is no JSON or of another type than at the start is passed over. */
  take(words) {
    const state = structuredClone(this.described.start);
    for (const word of words.split("&").filter(Boolean)) {
      const [key, text] = [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)];
      if (!Object.hasOwn(state, key)) continue;
      try {
        const value = JSON.parse(decodeURIComponent(text));
        if (state[key] === null || sameKind(value, state[key])) state[key] = value;
      } catch { /* a link cut off half way still opens the view */ }
    }
    this.state = state;
  }
}

function sameKind(value, model) {
  if (Array.isArray(model)) return Array.isArray(value) && value.length > 0 && value.length <= 64 && value.every((v) => sameKind(v, model[0]));
  if (typeof model === "number") return typeof value === "number" && Number.isFinite(value);
  return typeof value === typeof model && (value === null) === (model === null);
}

LN.page = (() => {
  let view = null, timers = {};
  const later = (name, act, wait) => { clearTimeout(timers[name]); timers[name] = setTimeout(act, wait); };
  const parts = {};

  function start() {
    for (const name of ["views", "main", "theme", "who"]) parts[name] = document.getElementById(name);
    parts.views.replaceChildren(...LN.VIEWS.map((v) => el("li", {}, el("a", { href: `#${v.id}` }, v.title))));
    dark(kept("theme") ?? "auto");
    LN.library.start().then(() => { parts.who.textContent = LN.library.said; view.draw(); check(); });
    parts.who.textContent = LN.library.said;
    window.addEventListener("hashchange", () => show(location.hash, true));
    show(location.hash, false);
    document.documentElement.dataset.drawn = String(performance.now());
  }

  function show(hash, move) {
    if (hash === "#main") { parts.main.focus(); return; }
    const [id, words = ""] = hash.slice(1).split("?");
    const described = LN.VIEWS.find((v) => v.id === id) ?? LN.VIEWS[0];
    view = new View(described);
    view.take(words);
    document.title = `${described.title} – layer normalization`;
    for (const a of parts.views.querySelectorAll("a")) {
      if (a.getAttribute("href") === `#${described.id}`) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    const heading = el("h2", { tabindex: -1 }, described.title);
    parts.main.replaceChildren(
      heading, el("p", { class: "ask" }, described.ask), ...[described.build(view)].flat(), ...frame(described),
    );
    view.draw();
    tell();
    later("check", check, 0);
    if (move) heading.focus();
  }

  /** Build what every view ends with: what to notice, who computed it, the link and the snippet. */
  function frame(described) {
    parts.notice = el("p", { role: "status", class: "notice" });
    parts.badge = el("p", { class: "badge" });
    parts.code = el("code", {});
    parts.copied = el("span", { role: "status", class: "copied" });
    const buttons = [
      LN.button("Reset", () => { view.set(structuredClone(described.start)); }),
      LN.button("Copy link", () => copy(location.href.split("#")[0] + view.link, "The link")),
      LN.button("Copy as code", () => copy(described.code(view), "The snippet")),
    ];
    const why = described.because ? [because(described)] : [];
    return [
      el("h3", {}, "What to notice"), parts.notice, parts.badge, ...why,
      el("div", { class: "buttons" }, buttons, parts.copied),
      el("details", { class: "snippet" }, el("summary", {}, "This state in Python"), el("pre", { tabindex: 0 }, parts.code)),
    ];
  }

  function because(described) {
    const id = LN.id("because"), model = el("p", { hidden: true, class: "model" }, described.because);
    return el(
      "details", { class: "because" }, el("summary", {}, "Say why, in your own words"),
      el("label", { for: id }, "This happens because …"), el("textarea", { id, rows: 2 }),
      LN.button("Compare with another answer", () => { model.hidden = false; }), model,
    );
  }

  function changed() {
    later("link", () => history.replaceState(null, "", view.link), 150);
    later("tell", tell, 300); // a screen reader is not to speak at each step of a drag
    later("check", check, 250);
  }

  function tell() {
    const { notice, waits = ({ done }) => done === null } = view.described;
    const words = waits(view.state) ? "Nothing is shown until you have answered; “Show me” costs nothing." : notice(view);
    if (parts.notice.textContent !== words) parts.notice.textContent = words;
    parts.code.textContent = view.described.code(view);
  }

  /** Ask the installed library for the same numbers, and say whether both agree. */
  async function check() {
    const asked = view, calls = asked.described.calls(asked);
    const say = (kind, words) => { if (asked === view) { parts.badge.dataset.kind = kind; parts.badge.textContent = words; } };
    if (!LN.library.there || calls.length === 0) { say("page", `Computed in this page. ${LN.library.said}`); return; }
    try {
      const answers = await LN.library.compute(calls.map(({ call, x, options, type = "float64" }) => ({ call, x, options, type })));
      const worst = Math.max(...answers.map((y, i) => apart(y, calls[i].expected, calls[i].type ?? "float64")));
      if (worst <= 4) say("agrees", `Computed in this page; ${LN.library.name} agrees to ${LN.say(worst, 2)} in the last place.`);
      else say("differs", `Computed in this page; ${LN.library.name} differs by ${LN.say(worst, 3)} in the last place.`);
    } catch (error) {
      say("page", `Computed in this page. ${error.message}`);
      parts.who.textContent = LN.library.said;
    }
  }

  /** Measure how far two arrays are apart, in units of the last place of the larger values. */
  function apart(y, expected, type) {
    const a = y.flat(Infinity), b = expected.flat(Infinity), { digits, least } = LN.TYPES[type];
    if (a.length !== b.length) return Infinity;
    const size = Math.max(...b.map(Math.abs), 2 ** least), unit = 2 ** (Math.floor(Math.log2(size)) - digits + 1);
    return Math.max(...a.map((v, i) => (Object.is(v, b[i]) || v === b[i] ? 0 : Math.abs(v - b[i]) / unit)));
  }

  async function copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      parts.copied.textContent = `${what} is copied.`;
    } catch {
      parts.copied.textContent = `${what} could not be copied: ${text}`;
    }
  }

  const kept = (name) => { try { return localStorage.getItem(`layernorm.${name}`); } catch { return null; } };
  const keep = (name, value) => { try { localStorage.setItem(`layernorm.${name}`, value); } catch { /* nothing is kept then */ } };
  const forget = () => { try { Object.keys(localStorage).filter((k) => k.startsWith("layernorm.")).forEach((k) => localStorage.removeItem(k)); } catch { /* likewise */ } };

  function dark(theme) {
    document.documentElement.dataset.theme = theme;
    const names = { auto: "as the system", light: "light", dark: "dark" };
    const input = ([value, text]) => {
      const id = `theme-${value}`;
      return el("span", { class: "option" }, el("input", {
        type: "radio", name: "theme", id, checked: value === theme, onchange: () => { keep("theme", value); document.documentElement.dataset.theme = value; },
      }), el("label", { for: id }, text));
    };
    parts.theme.replaceChildren(el("legend", {}, "Colours"), ...Object.entries(names).map(input));
  }

  return { start, changed, kept, keep, forget, get view() { return view; }, go: (hash) => { location.hash = hash; } };
})();

// -- the installed library, where a server stands behind the page --

LN.library = (() => {
  let token = null, name = null, lost = false, why = "open the link that layernorm explore printed.";
  const served = location.protocol.startsWith("http");

  async function ask(path, options = {}) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: { "X-Token": token ?? "", ...options.headers } });
    } catch {
      lost = true;
      throw new Error("The server has gone: what is in the page goes on working, the installed library is not asked.");
    }
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  async function start() {
    if (!served) return;
    const given = /^#token=([\w-]+)(.*)$/.exec(location.hash);
    if (given) {
      sessionStorage.setItem("layernorm.token", given[1]);
      history.replaceState(null, "", `${location.pathname}${given[2].replace(/^&/, "#")}`);
    }
    token = sessionStorage.getItem("layernorm.token");
    if (token === null) return;
    why = "it has been asked, and has not answered yet.";
    try { name = `layernorm ${(await ask("api/about")).version}`; } catch (error) { why = error.message; }
  }

  return {
    start, ask,
    compute: (calls) => ask("api/compute", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(calls) }).then((a) => a.results),
    get there() { return name !== null && !lost; },
    get name() { return name ?? "layernorm"; },
    get said() {
      if (!served) return "No server stands behind this file; every number is computed in it.";
      if (lost) return "The server has gone; start it again with: layernorm explore";
      if (name === null) return `The installed library is not asked: ${why}`;
      return `${name} stands behind this page and computes the same numbers.`;
    },
  };
})();

document.addEventListener("DOMContentLoaded", () => LN.page.start());
