// Regions and nodes as this edge sees them: how far, how busy, what is in them.
import { $, attr, clock, count, h, ms, notice, short, state, text, visible } from "../dom.js";
import { me } from "../api.js";
import { chart } from "../chart.js";
import { follow } from "../live.js";
import { keepRows, longTable, table } from "../table.js";

const STATES = { ready: "ready", starting: "progressing", draining: "draining", failed: "down", down: "down" };

const percent = (value) => (value === null ? "—" : `${value} %`);
const meter = (value) => h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${value ?? 0}%` } }));

export function mount(main, chosen) {
  if (!me.sees_platform) {
    main.append(notice("empty", "This is for the platform's own people",
      "Regions and nodes are all tenants' together. Log in with a token of the platform's account that has a role; a tenant's requests are on the page beside.",
      h("a", { class: "button", href: "/console/requests" }, "Requests")));
    return {};
  }
  const nodes = new Map(), regions = new Map();
  let own = "", at = 0, due = 0, picked = chosen;
  const map = chart((name) => pick(name === picked ? "" : name));
  const age = h("span", { class: "tally" });
  const regionRows = h("tbody", {});
  const nodeTable = longTable(["Node", "State", "Role", "Model", "Streams", "Queue", "Busy", "KV", "Hits"], "Table of nodes", soon);
  const title = h("h2", {}, "Nodes");
  const all = h("button", { type: "button", class: "button", hidden: true, on: { click: () => pick("") } }, "All regions");
  const waiting = h("div", { class: "blank" }, h("p", {}, "Waiting for the first look…"));
  const board = h("div", { class: "over", hidden: true },
    h("div", { class: "stack" }, map.element,
      h("section", { "aria-label": "Nodes" }, h("div", { class: "tools" }, title, all),
        nodeTable.box,
        h("p", { class: "hint" }, "Busy is since the last look, half a second ago; KV of the blocks in memory; hits of the prompts' tokens since the node began. Of other regions an edge knows no single node."))),
    h("section", { class: "stack", "aria-label": "Regions" }, h("div", { class: "tools" }, h("h2", {}, "Regions"), h("span", { class: "hint" }, "as this edge sees them"), age),
      table(["Region", "State", "Trip", "Queue", "Nodes"], regionRows, "Table of regions"),
      h("p", { class: "hint" }, "Regions, edges and nodes are drained at the control plane, whose console ", h("code", {}, "skerry console --control"), " opens.")));
  main.append(waiting, board);

  function soon() {
    due ||= requestAnimationFrame(() => { due = 0; draw(); });
  }

  function pick(name) {
    picked = name;
    history.replaceState(null, "", `/console/regions${name ? `/${encodeURIComponent(name)}` : ""}`);
    soon();
  }

  const busyOf = (region) => {
    const known = [...nodes.values()].filter((each) => each.region === region && each.busy !== null);
    return known.length ? Math.round(known.reduce((sum, each) => sum + each.busy, 0) / known.length) : null;
  };

  function draw() {
    waiting.hidden = true;
    board.hidden = false;
    const listed = [...regions.values()].sort((a, b) => (a.rtt ?? 1e9) - (b.rtt ?? 1e9));
    map.draw(listed, own, busyOf);
    keepRows(regionRows, listed, (each) => [
      h("th", { scope: "row" }, h("button", { type: "button", class: "rowlink", on: { click: () => pick(each.name) } }, visible(each.name), each.name === own && h("small", {}, " here"))),
      h("td", {}, state(STATES[each.state] ?? "pending", each.state)),
      h("td", { class: "num" }, each.rtt === null ? "—" : ms(each.rtt)),
      h("td", { class: "num" }, each.queue === null ? "—" : ms(each.queue)),
      h("td", { class: "num" }, count(each.nodes))]);
    const shown = [...nodes.values()].filter((each) => !picked || each.region === picked).sort((a, b) => (a.id < b.id ? -1 : 1));
    nodeTable.draw(shown, (each) => [
      h("th", { scope: "row" }, visible(each.id)), h("td", {}, state(STATES[each.state] ?? "pending", each.state)),
      h("td", {}, visible(each.role)), h("td", {}, visible(short(each.model))), h("td", { class: "num" }, count(each.streams)),
      h("td", { class: "num" }, ms(each.queue)), h("td", { class: "num" }, meter(each.busy), percent(each.busy)),
      h("td", { class: "num" }, meter(each.kv), percent(each.kv)), h("td", { class: "num" }, percent(each.hits))]);
    text(title, picked ? `Nodes of ${visible(picked)}: ${count(shown.length)}` : `Nodes: ${count(shown.length)}`);
    all.hidden = !picked;
    text(age, `${clock(at)} UTC`);
  }

  const stop = follow("regions", {
    snapshot(frame) {
      nodes.clear();
      regions.clear();
      own = frame.region;
      this.delta(frame);
    },
    delta(frame) {
      at = frame.at;
      for (const each of frame.nodes ?? []) nodes.set(each.id, each);
      for (const each of frame.regions ?? []) regions.set(each.name, each);
      for (const name of frame.gone_nodes ?? []) nodes.delete(name);
      for (const name of frame.gone_regions ?? []) regions.delete(name);
      soon();
    },
    refused: (message) => waiting.replaceChildren(h("p", {}, message)),
    state(seconds) {
      const banner = $(".banner");
      banner.hidden = seconds === null;
      attr(document.documentElement, "data-stale", String(seconds !== null));
      if (seconds !== null) text(banner, `No word from this edge for ${seconds} s. Figures are those of ${clock(at)} UTC; trying again.`);
    },
  });

  return {
    update: pick,
    stop() {
      stop();
      map.stop();
      cancelAnimationFrame(due);
      $(".banner").hidden = true;
      attr(document.documentElement, "data-stale", "false");
    },
    key(event, isField) {
      if (event.key === "Escape" && !isField && picked) pick("");
    },
  };
}
