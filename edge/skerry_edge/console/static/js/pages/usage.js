// What was used, what it cost by phase, and how much of each cap is spent.
import { attr, clock, count, h, notice, short, state, text, visible } from "../dom.js";
import { apiPath, get, me } from "../api.js";
import { columns } from "../columns.js";
import { csv, save } from "../save.js";

const TIMES = [["24h", "24 hours", 1], ["7d", "7 days", 7], ["30d", "30 days", 30], ["90d", "90 days", 90]];
const DIMENSIONS = [["model", "Model"], ["token", "Token"], ["day", "Day"], ["edge", "Edge"], ["tenant", "Account"]];
const PHASES = [["prompt_cost", "prefill", "prompt"], ["written_cost", "queue", "prompt, kept"], ["cached_cost", "cached", "cached prompt"], ["output_cost", "decode", "answers"]];
const COLUMNS = [
  ["Requests", (row) => count(row.requests)],
  ["Failed", (row) => (row.failed ? state("degraded", count(row.failed)) : "0")],
  ["Prompt", (row) => count(row.prompt_tokens)],
  ["of it cached", (row) => (row.prompt_tokens ? `${Math.round(100 * row.cached_tokens / row.prompt_tokens)} %` : "—")],
  ["Answers", (row) => count(row.output_tokens)],
  ["Prompt, $", (row) => usd(row.prompt_cost + row.written_cost)],
  ["Cached, $", (row) => usd(row.cached_cost)],
  ["Answers, $", (row) => usd(row.output_cost)],
  ["Cost", (row) => h("b", {}, usd(row.cost))],
];
const DAY_SECONDS = 86_400;

export function usd(value) {
  if (value >= 1000) return `$${count(value)}`;
  if (value >= 0.995 || value === 0) return `$${value.toFixed(2)}`;
  return `$${Number(value.toPrecision(2))}`;
}

function until(seconds) {
  const minutes = Math.max(1, Math.round(seconds / 60)), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

/** When a cap is reached, if money goes on being spent as it was since the period began. */
function pace(cap, now) {
  const left = cap.ends_at - now;
  if (cap.spent >= cap.cap * 0.999) return `reached; lifts in ${until(left)}`;
  const end = new Date(cap.ends_at * 1000);
  const length = cap.period === "day" ? DAY_SECONDS : (cap.ends_at - Date.UTC(end.getUTCFullYear(), end.getUTCMonth() - 1, 1) / 1000);
  const seconds = cap.spent ? (cap.cap - cap.spent) * (length - left) / cap.spent : Infinity;
  if (seconds >= left) return "will not be reached at this pace";
  return `at this pace, reached in ${until(seconds)}`;
}

export function capBar(cap, now) {
  const share = cap.spent / (cap.cap || 1), name = cap.payer === "account" ? "All tokens of this account" : visible(cap.name || cap.id);
  return h("div", { class: "cap", data: { full: String(share >= 0.999), near: String(share > 0.7) } },
    h("p", {}, h("b", {}, name), h("span", {}, `${usd(cap.spent)} of ${usd(cap.cap)} a ${cap.period}`)),
    h("progress", { max: cap.cap || 1, value: Math.min(cap.spent, cap.cap), "aria-label": `${name}: spent of its cap of a ${cap.period}` }),
    h("small", {}, pace(cap, now)));
}

/** Every day of a time, also those on which nothing was used. */
function filled(rows, number) {
  const known = new Map(rows.map((row) => [row.day, row])), now = Date.now();
  return Array.from({ length: number + 1 }, (_, place) => {
    const day = new Date(now - (number - place) * DAY_SECONDS * 1000).toISOString().slice(0, 10), row = known.get(day);
    return { day, ...Object.fromEntries(PHASES.map(([field, phase]) => [phase, row?.[field] ?? 0])) };
  });
}

export function mount(main) {
  if (!me.role && !me.scopes.includes("read")) {
    main.append(notice("empty", "This login reads nothing", "Usage is for tokens with the scope ‘read’ or a role. Make one:",
      h("code", { class: "cmd" }, "skerry tokens create --role viewer")));
    return {};
  }
  const asked = new URLSearchParams(location.search), isOperator = me.role === "operator";
  let by = DIMENSIONS.some(([id]) => id === asked.get("by")) ? asked.get("by") : "model";
  let shown = [], turn = 0;
  const since = h("select", { id: "since", "aria-label": "Since", on: { change: load } },
    TIMES.map(([id, word]) => h("option", { value: id, selected: id === (asked.get("since") ?? "30d") }, word)));
  const accounts = h("select", { id: "accounts", "aria-label": "Whose", on: { change: load } },
    [["own", "this account"], ["all", "all accounts"]].map(([id, word]) => h("option", { value: id, selected: id === asked.get("accounts") }, word)));
  const dimensions = DIMENSIONS.filter(([id]) => id !== "tenant" || isOperator);
  const sumBy = h("div", { class: "seg", role: "group", "aria-label": "Sum by" },
    dimensions.map(([id, word]) => h("button", { type: "button", data: { by: id }, on: { click: () => { by = id; load(); } } }, word.toLowerCase())));
  const age = h("span", { class: "tally", role: "status" });
  const download = h("button", { type: "button", class: "button", disabled: true, on: { click: keep } }, "CSV");
  const board = h("div", { class: "stack" }, h("div", { class: "blank" }, h("p", {}, "Waiting for the sums…")));
  main.append(h("div", { class: "tools" }, since, isOperator && accounts, sumBy, h("span", { class: "spacer" }), age,
    h("button", { type: "button", class: "button", id: "reload", on: { click: load } }, "Sum again"), download), board);

  async function load() {
    const mine = ++turn, all = isOperator && accounts.value === "all";
    if (by === "tenant" && !all) by = "model";
    for (const each of sumBy.children) {
      attr(each, "aria-pressed", String(each.dataset.by === by));
      each.hidden = each.dataset.by === "tenant" && !all;
    }
    const query = `since=${since.value}${all ? "&accounts=all" : ""}`;
    history.replaceState(null, "", `/console/usage?${query}&by=${by}`);
    const sums = (dimension) => get(apiPath(`/usage?${query}&by=${dimension}`)).then((reply) => reply.result);
    try {
      const [days, rows, caps] = await Promise.all([sums("day"), by === "day" ? null : sums(by), get(apiPath("/caps")).then((reply) => reply.result)]);
      if (mine === turn) draw(days, rows ?? days, caps);
    } catch (error) {
      if (mine === turn) board.replaceChildren(notice("error", "These sums cannot be had", error.message,
        h("button", { type: "button", class: "primary", on: { click: () => { since.value = "7d"; load(); } } }, "Show 7 days")));
    }
  }

  function draw(days, rows, caps) {
    const now = Date.now() / 1000, total = days.reduce((sum, each) => sum + each.cost, 0);
    const [, time, number] = TIMES.find(([id]) => id === since.value);
    shown = [...rows].sort((a, b) => (by === "day" ? (a.day < b.day ? 1 : -1) : b.cost - a.cost || b.requests - a.requests));
    download.disabled = !shown.length;
    text(age, `as of ${clock(now)} UTC`);
    const phases = PHASES.filter(([field], place) => place !== 1 || days.some((each) => each[field])).map(([, phase, word]) => [phase, word]);
    board.replaceChildren(
      h("div", { class: "usage" },
        h("section", { "aria-labelledby": "cost" }, h("h2", { id: "cost" }, usd(total), h("small", {}, ` in ${time}, by phase`)),
          total ? columns(filled(days, number), phases, usd)
            : h("p", { class: "hint" }, rows.length ? "Models without a price in the catalog cost nothing." : "")),
        h("section", { class: "caps", "aria-labelledby": "caps" }, h("h2", { id: "caps" }, "Caps"),
          caps.length ? caps.map((cap) => capBar(cap, now)) : h("p", { class: "hint" }, "Nothing is capped. A token's cap is set when it is made, or by ", h("code", {}, "skerry tokens cap"), "; an account's in ", h("code", {}, "limits.yaml"), "."),
          h("p", { class: "hint" }, "A request is let in when the most that it can cost still fits; so a cap is never exceeded, on any number of edges of a home."))),
      rows.length ? table() : notice("empty", "Nothing was used in this time", "Each request that a node takes has a row here within ten milliseconds.",
        h("a", { class: "primary", href: "/console/playground" }, "Ask something")));
  }

  const named = (row) => (by === "model" ? short(row.model) : row[by]) || "—";

  const cells = (row) => COLUMNS.map(([, cell]) => h("td", { class: "num" }, cell(row)));

  function table() {
    const word = dimensions.find(([id]) => id === by)[1];
    const all = Object.fromEntries(Object.entries(shown[0]).filter(([, value]) => typeof value === "number").map(([field]) => [field, shown.reduce((sum, row) => sum + row[field], 0)]));
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Usage by ${word.toLowerCase()}` },
      h("table", { class: "figures sums" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, word), COLUMNS.map(([name]) => h("th", { scope: "col", class: "num" }, name)))),
        h("tbody", {}, shown.map((row) => h("tr", { data: { name: row[by] } }, h("th", { scope: "row", class: by === "token" || by === "tenant" ? "mono" : null }, visible(named(row))), cells(row)))),
        h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "All"), cells(all)))));
  }

  function keep() {
    const fields = [by, ...Object.keys(shown[0]).filter((field) => typeof shown[0][field] === "number")];
    save(`usage-${by}-${since.value}.csv`, new Blob([csv([fields, ...shown.map((row) => fields.map((field) => row[field]))])], { type: "text/csv" }));
  }

  load();
  return { stop() { turn++; } };
}
