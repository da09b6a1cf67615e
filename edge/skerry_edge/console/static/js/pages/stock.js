// Models of the control plane's machine: what is there and who wants it, jobs that get more, and what one takes.
import { $, asking, bytes, clock, count, dialog, field, h, state, text, visible } from "../dom.js";
import { control, me } from "../api.js";
import { looking } from "../look.js";
import { keepRows, observes, table } from "../table.js";

const LOOK_MS = 1000, OLD_MS = 10_000, MOST = 500, JOBS = 20;
const STATES = { installed: "ready", done: "ready", installing: "progressing", running: "progressing", cancelling: "draining", failed: "down" };
const ACTIONS = [["pull", "fetch it: an id, or hf:OWNER/REPOSITORY[@REVISION][:FILE]"], ["add", "enter what is here: another model’s id, or the path of a file"]];

export function mount(main) {
  if (!observes(main)) return {};
  const operates = me.rights.includes("operate");
  let models = [], known = "", at = 0;
  const filter = h("input", { type: "search", id: "filter", "aria-label": "Filter models", placeholder: "Filter by name, state or pool", on: { input: draw } });
  const said = h("span", { class: "tally", role: "status" }), jobRows = h("tbody", {}), modelRows = h("tbody", {});
  const jobs = h("section", { class: "stack", "aria-label": "Jobs", hidden: true }, h("h2", {}, "Jobs"), table(["Job", "State", "Step", ""], jobRows, "Table of jobs"));
  main.append(h("div", { class: "tools" }, filter, h("span", { class: "spacer" }), said, operates && h("button", { type: "button", class: "primary", on: { click: () => install() } }, "New model…")),
    jobs, table(["Model", "State", "Files", "Context", "Wanted by", ""], modelRows, "Table of models"),
    h("p", { class: "hint" }, "What a pool or a deployment names is fetched by itself. ", h("code", {}, "skerry up"), " without a topology serves what is installed from its next start on."));

  const act = (word, name, does, isFor = operates) => isFor && h("button", { type: "button", class: "quiet", "aria-label": `${word} ${name}`, on: { click: does } }, word);

  const begin = (body) => control("POST", "/models", body).then(() => looks.now());

  const install = () => asking("New model", [field("action", "How", null, { options: ACTIONS }), field("source", "What", null, { required: true }),
    field("name", "Call it", "Needed where it is entered; else its own id.", { pattern: "@?[\\w.\\/\\-]+" }),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "replace" }), "in the place of one that comes with Skerry")], "Begin",
  (values) => begin({ action: values.get("action"), source: values.get("source").trim(), name: values.get("name").trim() || null, replace: values.has("replace") }));

  const remove = ({ id }) => asking(`Remove ${id}?`, h("p", {}, "What was downloaded is deleted; a file that was added where it lies stays there. What serves it now does so until it ends."), "Remove",
    async () => { await control("DELETE", `/models/${id}`); at = 0; looks.now(); }, "danger");

  async function show({ id }) {
    const { takes } = await control("GET", `/models/${id}`), names = Object.keys(takes.needed?.[0] ?? {});
    dialog(`What ${id} takes`, h("div", { class: "form" }, h("p", {}, `${bytes(takes.disk)} on disk, ${bytes(takes.weights)} of memory for weights${takes.kv_per_token ? `, ${bytes(takes.kv_per_token)} for each token` : ""}.`),
      names.length > 0 && h("div", { class: "scroll" }, h("table", { class: "figures" }, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: "num" }, name)))),
        h("tbody", {}, takes.needed.map((row) => h("tr", {}, names.map((name, place) => h("td", { class: "num" }, place ? bytes(row[name]) : count(row[name])))))))),
      takes.free && h("p", {}, `${takes.fits ? "It fits" : "It does not fit"} this machine with the first of these: ${bytes(takes.free)} are free.`)), h("button", { class: "primary" }, "Close"));
  }

  function draw() {
    const wants = filter.value.toLowerCase();
    keepRows(modelRows, models.filter((each) => `${each.id} ${each.aliases} ${each.state} ${each.wanted_by}`.toLowerCase().includes(wants)), (each) => [
      h("th", { scope: "row" }, h("b", {}, each.id), h("small", {}, [...each.aliases, each.source].join(", "))),
      h("td", {}, state(STATES[each.state] ?? "pending", each.state), each.message && h("small", { class: "fault" }, visible(each.message))),
      h("td", { class: "num" }, each.num_bytes === null ? "—" : bytes(each.num_bytes)), h("td", { class: "num" }, count(each.context_window)), h("td", {}, each.wanted_by.join(", ") || "—"),
      h("td", {}, each.state === "installed" ? act("Memory", each.id, () => show(each).catch((error) => text(said, error.message)), true)
        : each.state !== "installing" && act("Pull", each.id, () => begin({ source: each.id }).catch((error) => text(said, error.message))),
      each.state !== "installing" && (each.is_own || each.state === "installed") && act("Remove…", each.id, () => remove(each)))]);
  }

  /** Progress is written into rows that stay: a button that has the focus keeps it. */
  function drawJobs(all) {
    jobs.hidden = !all.length;
    keepRows(jobRows, all.slice(-JOBS).reverse().map((each) => ({ ...each, share: 0, doing: "", num_bytes: 0 })), (each) => [
      h("th", { scope: "row" }, `${each.action} ${each.model}`, h("small", {}, `${each.started_at.slice(0, 16).replace("T", " ")} by ${each.actor}`)), h("td", {}, state(STATES[each.state] ?? "pending", each.state)),
      h("td", { class: "step" }, each.ended_at ? visible(each.message) : [h("progress", { max: 1, "aria-label": `How far: ${each.model}` }), h("small", {})]),
      h("td", {}, each.state === "running" && each.actor !== "skerry" && act("Cancel", each.model, () => control("DELETE", `/model_jobs/${each.id}`).then(() => looks.now())))]);
    for (const each of all) {
      const bar = $(`[data-name="${each.id}"] progress`, jobRows);
      if (!bar) continue;
      bar.value = each.share;
      text(bar.nextSibling, `${each.doing || "begins"}: ${Math.floor(each.share * 100)} %${each.num_bytes ? ` of ${bytes(each.num_bytes)}` : ""}`);
    }
  }

  const looks = looking(async (isWanted) => {
    const { items } = await control("GET", `/model_jobs?limit=${MOST}`), now = items.map((each) => each.id + each.state).join();
    const seen = now === known && Date.now() - at < OLD_MS ? null : await control("GET", `/models?known=1&limit=${MOST}`);
    if (!isWanted()) return;
    known = now;
    if (seen) {
      models = seen.items.sort((a, b) => (a.state === "absent") - (b.state === "absent"));
      at = Date.now();
      draw();
    }
    drawJobs(items);
    text(said, `as of ${clock(Date.now() / 1000)} UTC`);
  }, LOOK_MS, (error) => error && text(said, error.message));

  return { stop: looks.stop };
}
