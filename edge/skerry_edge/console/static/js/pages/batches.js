// Batches of this account: how far each is, what came of it, and an end to it.
import { asking, clock, count, h, notice, short, state, text, visible } from "../dom.js";
import { Refused, apiPath, call, download, get, me } from "../api.js";
import { save } from "../save.js";

const STATES = { in_progress: "progressing", finalizing: "progressing", completed: "ready", failed: "down", expired: "degraded", cancelling: "draining", cancelled: "pending" };
const RUNNING = ["in_progress", "finalizing", "cancelling"];
const LOOK_MS = 2000; // between looks while something runs
const PAGE = 50, MOST = 100; // of a list
const COLUMNS = ["Batch", "State", "Progress", "Began", "Until", ""];

const when = (seconds) => `${new Date(seconds * 1000).toISOString().slice(5, 10)} ${clock(seconds).slice(0, 5)}`;

export function mount(main) {
  if (!me.scopes.includes("run")) {
    main.append(notice("empty", "This login may not run models", "Batches are for tokens with the scope ‘run’.",
      h("code", { class: "cmd" }, "skerry tokens create --scope run")));
    return {};
  }
  let known = [], hasMore = false, due = 0, isOver = false, seen = 0;
  const age = h("span", { class: "tally" }), said = h("span", { class: "tally", role: "status" });
  const body = h("tbody", {});
  const more = h("button", { type: "button", class: "button", id: "more", hidden: true, on: { click: () => load(known.at(-1).id) } }, "Older ones");
  const board = h("div", { class: "stack", hidden: true },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of batches" },
      h("table", { class: "figures batches" }, h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name || h("span", { class: "vh" }, "Actions"))))), body)),
    more,
    h("p", { class: "hint" }, "A batch runs on what is idle, behind everybody who waits for an answer. Times are UTC."));
  const blank = h("div", { class: "blank" }, h("p", {}, "Waiting for the list…"));
  main.append(h("div", { class: "tools" }, said, h("span", { class: "spacer" }), age), blank, board);

  /** Asks for the newest batches, or for those after one; looks again while one of them runs. */
  async function load(after = "") {
    clearTimeout(due);
    try {
      const limit = after ? PAGE : Math.min(MOST, Math.max(PAGE, known.length));
      const page = await get(apiPath(`/v1/batches?limit=${limit}${after ? `&after=${after}` : ""}`));
      if (isOver) return;
      const fresh = new Set(page.data.map((each) => each.id));
      if (after || !seen) hasMore = page.has_more;
      known = after ? [...known, ...page.data] : [...page.data, ...known.filter((each) => !fresh.has(each.id))];
      seen = Date.now() / 1000;
      draw();
    } catch (error) {
      if (isOver) return;
      if (!seen) blank.replaceChildren(notice("error", "There are no batches here", error.message));
      else text(said, error.message);
      if (error.status) return;
    }
    if (known.some((each) => RUNNING.includes(each.status)) || !seen) due = setTimeout(load, LOOK_MS);
  }

  function draw() {
    text(age, `as of ${clock(seen)} UTC`);
    board.hidden = !known.length;
    blank.hidden = known.length > 0;
    more.hidden = !hasMore;
    if (!known.length) {
      blank.replaceChildren(notice("empty", "No batch was ever sent", "A file of requests is answered within its window, by what is idle. OpenAI's clients send one: the file first, then a batch that names it.",
        h("code", { class: "cmd" }, "POST …/ai/v1/files, then POST …/ai/v1/batches")));
      return;
    }
    const rows = new Map([...body.children].map((row) => [row.dataset.name, row]));
    known.forEach((each, place) => {
      const key = JSON.stringify(each);
      let row = rows.get(each.id);
      if (row?.dataset.key !== key) {
        const had = row?.contains(document.activeElement) && document.activeElement.dataset.act;
        const fresh = h("tr", { data: { name: each.id, key } }, cells(each));
        if (row) row.replaceWith(fresh);
        row = fresh;
        if (had) row.querySelector(`[data-act="${had}"]`)?.focus();
      }
      if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
    });
  }

  function cells(batch) {
    const counts = batch.request_counts, done = counts.completed + counts.failed;
    const act = (name, word, does) => h("button", { type: "button", class: "quiet", data: { act: name }, "aria-label": `${word} ${batch.id}`, on: { click: does } }, word);
    return [
      h("th", { scope: "row" }, h("b", {}, visible(short(batch.model ?? "no model"))), h("small", { class: "mono" }, batch.id), h("small", {}, batch.endpoint)),
      h("td", {}, state(STATES[batch.status] ?? "pending", batch.status.replace("_", " ")), faults(batch)),
      h("td", { class: "done" }, counts.total ? [h("progress", { max: counts.total, value: done, "aria-label": `${batch.id}: requests done` }),
        h("small", {}, `${count(done)} of ${count(counts.total)}${counts.failed ? `, ${count(counts.failed)} failed` : ""}`)] : "—"),
      h("td", {}, when(batch.created_at)),
      h("td", {}, when(batch.expires_at)),
      h("td", {}, h("span", { class: "row" },
        batch.output_file_id && act("output", "Results", () => keep(batch.output_file_id)),
        batch.error_file_id && act("errors", "Errors", () => keep(batch.error_file_id)),
        ["in_progress", "finalizing"].includes(batch.status) && act("cancel", "Cancel…", () => cancel(batch)))),
    ];
  }

  const faults = (batch) => (batch.errors?.data ?? []).slice(0, 3).map((each) =>
    h("small", { class: "fault" }, visible(`${each.line ? `line ${each.line}: ` : ""}${each.message}`)));

  function cancel(batch) {
    const left = batch.request_counts.total - batch.request_counts.completed - batch.request_counts.failed;
    asking("Cancel this batch?", h("p", {}, `${count(left)} of its requests are not done. What runs is broken off; what is done stays, and is paid for.`), "Cancel it", async () => {
      const changed = await (await call(`/v1/batches/${batch.id}/cancel`)).json();
      known = known.map((each) => (each.id === changed.id ? changed : each));
      draw();
      load();
    }, "danger");
  }

  const keep = (file) => told(async () => save(`${file}.jsonl`, await (await download(`/v1/files/${file}/content`)).blob()));

  /** Does something, and says what the edge said where it does not. */
  async function told(act) {
    text(said, "");
    try {
      await act();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      text(said, error.message);
    }
  }

  load();
  return {
    stop() {
      isOver = true;
      clearTimeout(due);
    },
  };
}
