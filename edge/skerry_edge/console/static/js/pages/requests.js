// Requests as they end, and one of them: where its time went, and why it ran where it did.
import { $, attr, clock, copyButton, count, h, icon, ms, notice, short, state, text, visible } from "../dom.js";
import { apiPath, get, me } from "../api.js";
import { waitBar, waterfall, whyHere } from "../charts.js";
import { follow } from "../live.js";
import { longTable } from "../table.js";

const KEPT = 600;
const ROLES = ["viewer", "developer", "operator"];
const EXAMPLES = ["failed", "resumed", ">5s"];
const COLUMNS = ["Time", "Status", "Model", "Ran at", "Until the first token", "First token", "Tokens", "Total"];

const failed = (row) => row.status === null || row.status >= 400 || ["abort", "error"].includes(row.outcome);
const stateOf = (row) => (failed(row) ? (row.status === 429 ? "degraded" : "down") : row.attempts > 1 ? "progressing" : "ready");

/** What a filter wants of a row: `model:llama node:fra status:429 >2s failed resumed`, or part of an id. */
export function matcher(query) {
  const wants = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [, field, value] = /^(model|node|status):(.*)$/.exec(word) ?? [];
    if (field === "model") return (row) => row.model.toLowerCase().includes(value);
    if (field === "node") return (row) => row.nodes.some((each) => each.toLowerCase().includes(value));
    if (field === "status") return (row) => String(row.status ?? 499).startsWith(value);
    const slower = /^>([\d.]+)(ms|s)?$/.exec(word);
    if (slower) return (row) => row.seconds > Number(slower[1]) / (slower[2] === "ms" ? 1000 : 1);
    if (word === "failed") return failed;
    if (word === "resumed") return (row) => row.attempts > 1;
    return (row) => row.id.startsWith(word) || row.model.toLowerCase().includes(word);
  });
  return (row) => wants.every((each) => each(row));
}

export function mount(main, opened) {
  if (!ROLES.includes(me.role)) {
    main.append(notice("empty", "This login has no role", "Traces are for those who run an account. Make a token with one:",
      h("code", { class: "cmd" }, "skerry tokens create --role viewer")));
    return {};
  }
  const known = new Map(); // by id, the newest first
  let rows = [], held = 0, isPaused = false, cursor = -1, turn = 0, matches = () => true, due = 0;
  const filter = h("input", { type: "search", id: "filter", placeholder: "model:llama  node:fra  status:429  >2s  failed", spellcheck: "false",
    "aria-label": "Filter", on: { input: () => { matches = matcher(filter.value); cursor = -1; soon(); } } });
  const tally = h("span", { class: "tally", role: "status" });
  const pause = h("button", { type: "button", class: "live", "aria-pressed": "true", on: { click: toggle } }, h("i", { "aria-hidden": "true" }), h("span", {}, "live"));
  const table = longTable(COLUMNS, "Table of requests", soon), scroll = table.box;
  scroll.firstChild.className = "requests";
  const empty = h("div", { class: "blank", hidden: true }, h("p", {}, "No request has ended here yet. Ask something in the ", h("a", { href: "/console/playground" }, "playground"), "."));
  const detail = h("section", { class: "detail", "aria-label": "One request", tabindex: "-1" });
  const split = h("div", { class: "split" },
    h("section", { class: "list", "aria-label": "Requests" },
      h("div", { class: "tools" }, filter, h("span", { class: "chips" }, EXAMPLES.map((each) => h("button", { type: "button", class: "chip", on: { click: () => { filter.value = each; filter.dispatchEvent(new Event("input")); } } }, each))), pause, tally),
      scroll, empty), detail);
  main.append(split);

  function soon() {
    due ||= requestAnimationFrame(() => { due = 0; draw(); });
  }

  function draw() {
    rows = [...known.values()].filter(matches);
    empty.hidden = known.size > 0;
    scroll.hidden = known.size === 0;
    scroll.style.setProperty("--most", String(Math.max(0.05, ...rows.map((row) => row.first_token ?? 0))));
    table.draw(rows, (row) => [
      h("td", {}, clock(row.at)),
      h("td", {}, state(stateOf(row), String(row.status ?? "gone"))),
      h("th", { scope: "row" }, h("a", { href: `/console/requests/${row.id}` }, visible(short(row.model)) || "—")),
      h("td", { class: "nodes" }, visible(row.nodes.join(" → "))),
      h("td", { class: "bars" }, row.first_token === null ? "" : waitBar(row)),
      h("td", { class: "num" }, row.first_token === null ? "—" : ms(row.first_token * 1000)),
      h("td", { class: "num" }, count(row.tokens)),
      h("td", { class: "num" }, ms(row.seconds * 1000))]);
    for (const element of table.body.children) {
      const id = element.dataset.name;
      element.classList.toggle("cursor", id === rows[cursor]?.id);
      if (id === opened) attr(element, "aria-current", "true");
      else element.removeAttribute("aria-current");
    }
    const all = `${rows.length === known.size ? "" : `${count(rows.length)} of `}${count(known.size)} kept`;
    text(tally, held ? `${all} · ${count(held)} new` : all);
  }

  function toggle() {
    isPaused = !isPaused;
    attr(pause, "aria-pressed", String(!isPaused));
    text(pause.lastChild, isPaused ? "paused" : "live");
    if (!isPaused) release();
  }

  let waiting = []; // the newest first

  function release() {
    const fresh = waiting;
    waiting = [];
    held = 0;
    merge(fresh);
  }

  function merge(fresh) {
    const ids = new Set(fresh.map((row) => row.id)), old = [...known.values()].filter((row) => !ids.has(row.id));
    known.clear();
    for (const row of [...fresh, ...old].slice(0, KEPT)) known.set(row.id, row);
    soon();
  }

  /** Adds rows, the newest first; what is being read does not move. */
  function take(fresh, more = 0) {
    if (!isPaused && scroll.scrollTop <= 8) {
      merge(fresh);
      return;
    }
    waiting = [...fresh, ...waiting].slice(0, KEPT);
    held += fresh.length + more;
    soon();
  }

  scroll.addEventListener("scroll", () => { if (!isPaused && held && scroll.scrollTop <= 8) release(); });
  table.body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a")) $("a", row).click();
  });

  // --- one request --------------------------------------------------------------------------------

  async function open(id) {
    opened = id;
    const mine = ++turn;
    split.classList.toggle("open", Boolean(id));
    soon();
    if (!id) {
      detail.replaceChildren();
      return;
    }
    let trace;
    try {
      trace = (await get(apiPath(`/traces/${encodeURIComponent(id)}`))).result;
    } catch (error) {
      if (mine === turn) {
        detail.replaceChildren(header(id, ""), notice("error", "This request is not known here", `${error.message} An edge remembers its last 2,048 requests; another edge may have this one.`,
          h("a", { class: "button", href: "/console/requests" }, "Back to the list")));
      }
      return;
    }
    if (mine !== turn) return;
    show(trace);
    detail.focus({ preventScroll: true });
  }

  const header = (id, model) => h("header", {}, h("div", {}, h("h2", {}, visible(short(model)) || "Request"), h("code", {}, visible(id))),
    copyButton(() => id, "Copy id"), h("a", { class: "quiet", href: "/console/requests", "aria-label": "Close" }, icon("close")));

  function show(trace) {
    const of = (name) => trace.spans.filter((each) => each.name === name);
    const said = of("generate")[0]?.attributes ?? of("tokenise")[0]?.attributes ?? {}, attempts = of("attempt");
    const began = attempts.find((each) => each.attributes.first_token_seconds !== undefined);
    const first = began ? began.start + began.attributes.first_token_seconds : null;
    const decode = of("decode").reduce((sum, each) => sum + (each.seconds ?? 0), 0);
    const lost = attempts.length > 1 ? attempts[0] : null;
    const last = attempts.at(-1)?.attributes;
    const facts = [["Prompt", `${count(of("tokenise").reduce((sum, each) => sum + (each.attributes?.tokens ?? 0), 0))} tokens`],
      ["Answer", `${count(said.tokens ?? 0)} tokens`], ["Ran at", last?.nodes.join(" → ") ?? "—"], ["Edge", trace.edge || "—"], ["Began", `${clock(trace.started_at)} UTC`]];
    const routes = of("route").filter((each) => each.candidates?.length);
    detail.replaceChildren(header(trace.request_id, said.model ?? ""),
      h("p", { class: "lead" }, state(trace.status === null || trace.status >= 400 ? "down" : "ready", `${trace.status ?? (trace.seconds === null ? "running" : "gone")} ${said.outcome ?? ""}`), " ",
        first === null ? "" : `First token after ${ms(first * 1000)}. `, trace.seconds === null ? "It still runs." : `Done after ${ms(trace.seconds * 1000)}. `,
        trace.seconds && decode ? `${Math.round(100 * decode / trace.seconds)} % of it was decode. ` : "",
        lost && h("b", {}, `${visible(lost.attributes.nodes.join(" → "))} was lost on the way; it went on at ${visible(last.nodes.join(" → "))}${last.resume === "exact" ? " with the same tokens" : ""}.`)),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(value))))),
      h("h3", {}, "Where the time went"), waterfall(trace, first),
      h("h3", {}, "Why here ", h("small", {}, "seconds that each placement would have cost")),
      ...(routes.length ? routes.map((each) => whyHere(each.candidates))
        : [h("p", { class: "hint" }, "There was nothing to choose: the platform has one node for this model, or the edge chose by a plain rule.")]));
  }

  const stop = follow("requests", {
    snapshot(frame) { // also in the middle, where the page was slower than the frames
      const held = new Set(waiting.map((each) => each.id));
      take(frame.requests.filter((each) => !known.has(each.id) && !held.has(each.id)));
    },
    delta: (frame) => { if (frame.requests) take(frame.requests, frame.more); },
    refused: (message) => text(tally, message),
    state(age) {
      const banner = $(".banner");
      banner.hidden = age === null;
      if (age !== null) text(banner, `No word from this edge for ${age} s. What is shown is as old; trying again.`);
    },
  });
  open(opened);

  function move(by) {
    if (!isPaused) toggle();
    cursor = Math.max(0, Math.min(rows.length - 1, cursor + by));
    table.reveal(cursor);
    draw();
  }

  return {
    update: open,
    stop() {
      stop();
      cancelAnimationFrame(due);
      $(".banner").hidden = true;
    },
    key(event, isField) {
      if (isField) return;
      if (event.key === ".") toggle();
      else if (event.key === "j") move(1);
      else if (event.key === "k") move(-1);
      else if (event.key === "Enter" && cursor >= 0 && event.target === document.body) $(".cursor a", table.body).click();
      else if (event.key === "Escape" && opened) $(".detail header a").click();
    },
  };
}
