// Who changed what, or was denied it: the newest lines of the control plane's log.
import { $, clock, count, h, state, text, visible } from "../dom.js";
import { control } from "../api.js";
import { changed } from "../changes.js";
import { looking } from "../look.js";
import { keepRows, observes, table } from "../table.js";

const SHOWN = 200, LOOK_MS = 5000;

const when = (at) => `${new Date(at * 1000).toISOString().slice(0, 10)} ${clock(at)}`;
const words = (each) => `${each.actor} ${each.outcome} ${each.action} ${each.kind} ${each.id} ${JSON.stringify(each.changes)}`.toLowerCase();

export function mount(main) {
  if (!observes(main)) return {};
  let known = [], at = 0;
  const filter = h("input", { type: "search", id: "filter", placeholder: "denied  pool  fra-decode", spellcheck: "false", "aria-label": "Filter", on: { input: () => draw() } });
  const tally = h("span", { class: "tally", role: "status" }), body = h("tbody", {});
  main.append(h("div", { class: "tools" }, filter, tally), table(["Time", "Who", "Outcome", "What"], body, "Table of the audit"),
    h("p", { class: "hint" }, "Who is a token's id, or a login. Times are UTC. ", h("code", {}, "skerry audit"), " has what was done with ", h("code", {}, "skerry tokens"), " as well."));

  function draw() {
    const wants = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const listed = known.filter((each) => wants.every((want) => words(each).includes(want)));
    keepRows(body, listed.map((each) => ({ id: String(each.sequence), entry: each })), ({ entry: each }) => [
      h("th", { scope: "row" }, when(each.at)), h("td", {}, h("code", {}, visible(each.actor))),
      h("td", {}, state(each.outcome === "granted" ? "ready" : "down", visible(each.outcome))), h("td", {}, changed(each))]);
    text(tally, `${listed.length === known.length ? "" : `${count(listed.length)} of `}the newest ${count(known.length)}, as of ${clock(at)} UTC`);
  }

  const looks = looking(async (isWanted) => {
    const { items } = await control("GET", `/audit?newest=1&limit=${SHOWN}`);
    if (!isWanted()) return;
    known = items.reverse();
    at = Date.now() / 1000;
    draw();
  }, LOOK_MS, (error) => {
    $(".banner").hidden = error === null;
    if (error) text($(".banner"), error.message);
  });

  return {
    stop() {
      looks.stop();
      $(".banner").hidden = true;
    },
  };
}
