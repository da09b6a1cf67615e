// What is wanted against what is there; what can be drained, and what can be gone back to.
import { $, asking, attr, clock, count, h, state, text, visible } from "../dom.js";
import { control, me } from "../api.js";
import { changed } from "../changes.js";
import { looking } from "../look.js";
import { keepRows, observes, table } from "../table.js";

const LOOK_MS = 2000, REVISIONS = 50, MOST = 500;
const PHASES = { ready: "ready", progressing: "progressing", degraded: "degraded", draining: "draining", pending: "pending" };
const STATES = { ready: "ready", starting: "progressing", draining: "draining", failed: "down" };
const KINDS = [["region", "regions"], ["edge node", "edge_nodes"], ["pool", "pools"], ["deployment", "deployments"]];

const all = (collection) => control("GET", `/${collection}?limit=${MOST}`).then((page) => page.items);

/** How many nodes there are of those that are wanted, where that is said. */
function counted({ status }) {
  if (status.desired_replicas !== undefined) return `${status.ready_replicas} of ${status.desired_replicas}`;
  return status.desired_nodes === undefined ? "" : `${status.ready_nodes} of ${status.desired_nodes}`;
}

const amiss = ({ status }) => status.conditions.filter((each) => !each.status && each.message).map((each) => each.message).join("; ");

export function mount(main) {
  if (!observes(main)) return {};
  const operates = me.rights.includes("operate");
  let nodes = [], wanted = 0;
  const said = h("p", { class: "lead", role: "status" }), age = h("span", { class: "tally" }), fault = h("p", { class: "fault", role: "alert" });
  const resourceRows = h("tbody", {}), nodeRows = h("tbody", {}), past = h("ol", { class: "past" });
  const waiting = h("div", { class: "blank" }, h("p", {}, "Waiting for the first look…"));
  const board = h("div", { class: "over", hidden: true },
    h("div", { class: "stack" },
      h("section", { "aria-label": "Resources" }, h("div", { class: "tools" }, h("h2", {}, "Wanted"), age), said, fault,
        table(["Resource", "State", "Ready", "What is amiss", ""], resourceRows, "Table of resources")),
      h("section", { "aria-label": "Processes" }, h("h2", {}, "There"),
        table(["Process", "State", "Of", "Region", "Streams", ""], nodeRows, "Table of processes"))),
    h("section", { class: "stack", "aria-label": "History" }, h("h2", {}, "History"), past));
  main.append(waiting, board);

  /** A button for who operates the platform; others see what it needs. */
  const act = (word, name, does) => h("button", { type: "button", class: "quiet", "aria-label": `${word} ${name}`, disabled: !operates,
    title: operates ? null : "This needs the role operator.", on: { click: () => attempt(does) } }, word);

  async function attempt(does) {
    text(fault, "");
    try {
      await does();
    } catch (error) {
      text(fault, error.message);
    }
    looks.now();
  }

  const streamsOf = (ids) => nodes.filter((each) => ids(each)).reduce((sum, each) => sum + each.streams, 0);

  function drain(kind, each) {
    const streams = streamsOf((node) => (kind === "region" ? node.region === each.id : node.owner === each.id));
    const says = `${count(streams)} streams run there now. They finish, there or elsewhere; what runs there ends, and nothing starts until it is taken back.`;
    asking(`Drain ${kind} ${visible(each.id)}?`, h("p", {}, says), "Drain", () => put(kind, each, true).then(looks.now), "danger");
  }

  const put = (kind, each, draining) => control("PATCH", `/${kind === "region" ? "regions" : "edge_nodes"}/${encodeURIComponent(each.id)}`, { draining }, { "if-match": `"${each.meta.etag}"` });

  function replace(node) {
    const says = `${count(node.streams)} streams run there now. Its successor starts first; when that is ready, ${visible(node.id)} takes no more, and its streams finish, there or elsewhere.`;
    asking(`Drain ${visible(node.id)}?`, h("p", {}, says), "Drain", () => control("POST", `/nodes/${encodeURIComponent(node.id)}/drain`).then(looks.now), "danger");
  }

  async function goBack(revision) {
    const trial = await control("POST", "/rollback", { revision, dry_run: true });
    const body = trial.changes.length
      ? h("div", { class: "changes" }, h("p", {}, "This would change, as a revision of its own:"), trial.changes.map(changed))
      : h("p", {}, "That is what is wanted now: nothing would change.");
    asking(`Want again what was wanted at revision ${revision}?`, body, "Roll back", () => control("POST", "/rollback", { revision }).then(looks.now), "danger");
  }

  function draw(status, resources, history) {
    waiting.hidden = true;
    board.hidden = false;
    const isBehind = status.observed_revision < status.revision, failing = status.failing.length;
    text(said, `Revision ${status.revision} is wanted${isBehind ? `; the last look was at ${status.observed_revision}` : ""}. ${
      failing ? `${count(failing)} cannot keep running.` : resources.every((each) => each.status.phase === "ready") ? "All of it is there." : "It is not all there yet."}`);
    keepRows(resourceRows, resources, (each) => [
      h("th", { scope: "row" }, visible(each.shown), h("small", {}, ` ${each.kind}`)), h("td", {}, state(PHASES[each.status.phase] ?? "pending", each.status.phase)),
      h("td", { class: "num" }, counted(each)), h("td", { class: "amiss" }, visible(amiss(each))),
      h("td", {}, each.draining === undefined ? "" : each.draining ? act("Take back", each.shown, () => put(each.kind, each.resource, false))
        : act("Drain", each.shown, () => drain(each.kind, each.resource)))]);
    keepRows(nodeRows, nodes, (each) => [
      h("th", { scope: "row" }, visible(each.id)), h("td", {}, state(STATES[each.state] ?? "pending", each.state, each.updated ? "" : ", to be replaced")),
      h("td", {}, visible(each.owner)), h("td", {}, visible(each.region)), h("td", { class: "num" }, count(each.streams)),
      h("td", {}, ["node", "edge"].includes(each.kind) && each.state !== "draining" ? act("Drain", each.id, () => replace(each)) : "")]);
    if (past.dataset.revision === String(wanted)) return;
    attr(past, "data-revision", String(wanted));
    past.replaceChildren(...history.map((each, place) => h("li", {}, h("header", {}, h("b", {}, `Revision ${each.revision}`),
      h("span", {}, `${new Date(each.at * 1000).toISOString().slice(0, 10)} ${clock(each.at)} by `, h("code", {}, visible(each.actor))),
      place ? act("Roll back", `to revision ${each.revision}`, () => goBack(each.revision)) : h("span", { class: "tag" }, "now")), each.changes.map(changed))));
  }

  const looks = looking(async (isWanted) => {
    const [status, running, ...lists] = await Promise.all([control("GET", "/status"), all("nodes"), ...KINDS.map(([, collection]) => all(collection))]);
    const history = status.revision === wanted ? [] : (await control("GET", `/history?limit=${REVISIONS}`)).items;
    if (!isWanted()) return;
    nodes = running;
    wanted = status.revision;
    const resources = lists.flatMap((list, place) => list.map((each) => ({
      id: `${KINDS[place][0]} ${each.id}`, shown: each.id, kind: KINDS[place][0], state: each.status.phase, status: each.status, draining: each.draining, resource: each })));
    draw(status, resources, history);
    text(age, `as of ${clock(Date.now() / 1000)} UTC`);
  }, LOOK_MS, (error) => {
    const banner = $(".banner");
    banner.hidden = error === null;
    attr(document.documentElement, "data-stale", String(error !== null));
    if (error) text(banner, `${error.message} What is shown is older; trying again.`);
  });

  return {
    stop() {
      looks.stop();
      $(".banner").hidden = true;
      attr(document.documentElement, "data-stale", "false");
    },
  };
}
