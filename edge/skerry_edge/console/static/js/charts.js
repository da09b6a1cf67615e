// A request drawn: what it waited for, where its time went, and what each placement would have cost.
import { attr, h, ms, text, visible } from "./dom.js";

export const WAITS = ["edge", "network", "queue", "prefill", "handover"]; // in the order of a row's `waits`
const PHASES = {
  "hand-over": "handover", "await KV": "handover", queue: "queue", prefill: "prefill", decode: "decode",
  "replay": "cached", attempt: "attempt", route: "edge",
};
const TERM_COLOURS = {
  rtt: "network", network: "network", queue: "queue", fetch: "fetch", prefill: "prefill", transfer: "handover",
  handover: "handover", step_wait: "step", decode: "decode", stall: "stall", behind: "behind", evict: "evict",
  affinity: "affinity",
};
const SPARE = ["queue", "prefill", "decode", "cached", "step", "stall", "behind", "evict", "affinity", "network"];

/** A tiny waterfall up to the first token; `--most` seconds of what it is in are the whole width. */
export const waitBar = (row) =>
  h("span", { class: "phasebar", "aria-hidden": "true" }, row.waits.map((seconds, place) => seconds > 0.0004
    && h("i", { data: { phase: WAITS[place] }, style: { width: `calc(100% * clamp(.006, ${seconds} / var(--most), 1))` } })));

/** Round numbers from zero up to `most`. */
export function ticks(most, number) {
  const raw = most / number, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step).filter((each) => each <= most * 0.97);
}

/** Spans by their place in the tree, those of one parent in the order of time. */
function ordered(spans) {
  const children = new Map();
  for (const span of spans) children.set(span.parent, [...(children.get(span.parent) ?? []), span]);
  const walk = (span, depth) => [{ ...span, depth }, ...(children.get(span.id) ?? []).sort((a, b) => a.start - b.start).flatMap((each) => walk(each, depth + 1))];
  return walk(spans[0], 0);
}

function noteOf(span) {
  const said = span.attributes ?? {};
  if (span.name !== "attempt") {
    return Object.entries(said).filter(([name]) => name !== "model").map(([name, value]) => `${name} ${value}`).join(" · ");
  }
  const resumed = said.resumed_after_tokens ? ` · resumed ${said.resume} after ${said.resumed_after_tokens}` : "";
  return `${said.attempt} · ${said.nodes.join(" → ")} · ${said.outcome}${resumed}`;
}

/** Where a request's time went. Two scales: the whole, or until the first token, which decode would dwarf. */
export function waterfall(trace, first) {
  const spans = ordered(trace.spans), whole = trace.seconds ?? Math.max(...spans.map((each) => each.start + (each.seconds ?? 0)));
  const box = h("div", {}), isEarly = first !== null && first < whole * 0.5;
  const scales = h("div", { class: "seg", role: "group", "aria-label": "Scale" },
    [["until the first token", true], ["the whole request", false]].map(([word, zoom]) =>
      h("button", { type: "button", data: { zoom: String(zoom) }, on: { click: () => draw(zoom) } }, word)));

  function draw(zoom) {
    const most = Math.max(1e-6, zoom ? first * 1.1 : whole), at = (seconds) => `${Math.min(100, 100 * seconds / most)}%`;
    const lines = ticks(most, innerWidth < 700 ? 2 : 5);
    for (const each of scales.children) attr(each, "aria-pressed", String(each.dataset.zoom === String(zoom)));
    box.replaceChildren(h("div", { class: "waterfall", role: "table", "aria-label": "Spans of the request, from zero" },
      h("div", { class: "wf-axis", "aria-hidden": "true" }, h("span", {}), h("div", {}, lines.map((each) => h("b", { style: { left: at(each) } }, each ? ms(each * 1000) : "0"))), h("span", {})),
      spans.filter((each) => each.start < most).map((each) => {
        const seconds = each.seconds ?? whole - each.start, isCut = each.start + seconds > most * 1.001, note = visible(noteOf(each));
        return h("div", { class: "wf-row", role: "row", data: { kind: each.name } },
          h("span", { class: "wf-name", role: "rowheader", style: { "padding-left": `${each.depth * 12}px` } }, visible(each.name)),
          h("span", { class: "wf-lane", role: "cell", title: note, "aria-label": `begins at ${ms(each.start * 1000)}, takes ${ms(seconds * 1000)}. ${note}` },
            lines.map((line) => h("u", { style: { left: at(line) } })),
            h("i", { data: { phase: PHASES[each.name] ?? "edge", cut: String(isCut) }, style: { left: at(each.start), width: `max(2px, ${at(Math.min(seconds, most - each.start))})` } }),
            each.name === "attempt" && h("em", { style: each.start > most / 2 ? { right: "0" } : { left: at(each.start) } }, note)),
          h("span", { class: "wf-ms", role: "cell" }, ms(seconds * 1000)));
      })));
  }
  draw(isEarly);
  return h("div", {}, isEarly && h("div", { class: "wf-scale" }, scales), box);
}

/** Why here: each candidate's seconds by term. A term can be struck out, to see whether it decided. */
export function whyHere(candidates) {
  const terms = [...new Set(candidates.flatMap((each) => Object.keys(each.terms)))];
  const colours = Object.fromEntries(terms.map((term, place) => [term, TERM_COLOURS[term] ?? SPARE[place % SPARE.length]]));
  const of = (candidate, term) => candidate.terms[term] ?? 0;
  const out = new Set(), verdict = h("p", { class: "verdict", role: "status" });
  const rows = candidates.map((candidate, place) => {
    const bars = terms.map((term) => h("i", { style: { background: `var(--${colours[term]})` } }));
    const bar = h("span", { class: "why-bar" }, h("u", {}), bars), sum = h("span", { class: "why-sum", role: "cell" });
    const from = candidate.fetched_from ? ` ← ${candidate.fetched_from}` : "";
    const element = h("div", { class: "why-row", role: "row", data: { chosen: String(place === 0) } },
      h("span", { class: "why-name", role: "rowheader" }, h("b", { "aria-hidden": "true" }, place === 0 ? "→" : ""), h("span", {}, visible(candidate.path + from)), place === 0 && h("span", { class: "vh" }, " (chosen)")),
      h("span", { class: "why-cached", role: "cell" }, candidate.cached_tokens ? `${candidate.cached_tokens} cached` : ""),
      h("span", { role: "cell", "aria-hidden": "true" }, bar), sum);
    return { candidate, element, bar, bars, sum };
  });
  const buttons = terms.map((term) => h("button", { type: "button", class: "term", "aria-pressed": "true", data: { term }, on: { click: (event) => strike(term, event.currentTarget) } },
    h("i", { "aria-hidden": "true", style: { background: `var(--${colours[term]})` } }), term.replaceAll("_", " ")));

  function strike(term, button) {
    if (!out.delete(term)) out.add(term);
    attr(button, "aria-pressed", String(!out.has(term)));
    draw();
  }

  function draw() {
    // What all of them cost is folded into a stub, so that the differences fill the width.
    const on = terms.filter((term) => !out.has(term));
    const sum = (candidate) => on.reduce((total, term) => total + of(candidate, term), 0);
    const least = Object.fromEntries(on.map((term) => [term, Math.min(...candidates.map((each) => of(each, term)))]));
    const common = on.reduce((total, term) => total + least[term], 0);
    const widest = Math.max(1e-6, ...candidates.map((each) => sum(each) - common));
    const best = [...rows].sort((a, b) => sum(a.candidate) - sum(b.candidate))[0], chosen = sum(rows[0].candidate);
    for (const row of rows) {
      terms.forEach((term, place) => {
        const seconds = out.has(term) ? 0 : of(row.candidate, term) - least[term];
        row.bars[place].style.setProperty("width", `${86 * seconds / widest}%`);
        row.bars[place].title = `${term}: ${ms(of(row.candidate, term) * 1000)}`;
      });
      row.bar.firstChild.title = `common to all: ${ms(common * 1000)}`;
      const over = sum(row.candidate) - chosen;
      text(row.sum, row === rows[0] ? ms(chosen * 1000) : `${over < 0 ? "−" : "+"}${ms(Math.abs(over) * 1000)}`);
      row.element.dataset.best = String(row === best);
    }
    text(verdict, sentence(best, common, sum));
  }

  function sentence(best, common, sum) {
    if (rows.length === 1) return "There was one placement to choose from.";
    if (out.size) {
      const names = [...out].map((each) => each.replaceAll("_", " ")).join(", ");
      return best === rows[0] ? `Without ${names} it would still run here.` : `Without ${names} it would have run at ${visible(best.candidate.path)}.`;
    }
    const [first, second] = [rows[0].candidate, rows[1].candidate], gap = sum(second) - sum(first);
    const most = terms.reduce((a, b) => (of(second, b) - of(first, b) > of(second, a) - of(first, a) ? b : a));
    return `Chosen by ${ms(gap * 1000)} over ${visible(second.path)}; most of that is ${most.replaceAll("_", " ")} (${ms((of(second, most) - of(first, most)) * 1000)}). ${ms(common * 1000)} would be the same everywhere.`;
  }

  draw();
  return h("div", { class: "why" }, verdict,
    h("div", { role: "table", "aria-label": "Candidate placements, the cheapest first" }, rows.map((row) => row.element)),
    h("div", { class: "why-legend", role: "group", "aria-label": "Terms; strike one out to see whether it decided" }, buttons));
}
