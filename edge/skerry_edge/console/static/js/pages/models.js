// Models that can be asked here: what they take and cost, and for the platform's people where they run.
import { bytes, clock, copyButton, count, h, notice, short, state, text, visible } from "../dom.js";
import { me } from "../api.js";
import { follow } from "../live.js";

const TASKS = { "text-generation": "makes text", "text-embeddings": "makes vectors", "text-classification": "ranks and classifies" };
const COMMANDS = [
  ["Pull one, with its progress", "skerry models pull @cf/meta/llama-3.2-1b-instruct"],
  ["What one takes: memory by context and streams, and whether it fits", "skerry models show ID"],
  ["Serve a file of your own", "skerry models add FILE --as @my/model"],
  ["Take one away, and what was downloaded", "skerry models remove ID"],
];

export function mount(main) {
  if (!me.models.length) {
    main.append(notice("empty", "No model can be asked here", "Install one on the platform's machine, and start it again.",
      h("code", { class: "cmd" }, COMMANDS[0][1])));
    return {};
  }
  const nodes = new Map(), isOurs = me.sees_platform;
  let due = 0, at = 0;
  const filter = h("input", { type: "search", id: "filter", "aria-label": "Filter models", placeholder: "Filter by name or task", on: { input: soon } });
  const age = h("span", { class: "tally" });
  const names = ["Model", "Context", "Files", ...(isOurs ? ["Nodes", "Streams", "KV"] : []), "Own sampling", "US$ a million: in · cached · out", ""];
  const rows = me.models.map((model) => {
    const here = isOurs ? ["Nodes", "Streams", "KV"].map(() => h("td", { class: "num" }, "—")) : [];
    const [prompt, cached, output] = model.price, { temperature, top_p } = model.sampling ?? {};
    const element = h("tr", { data: { name: model.id } },
      h("th", { scope: "row" }, h("b", {}, visible(short(model.id))), h("small", {}, `${visible(model.id)} · ${TASKS[model.task] ?? model.task}`),
        model.capabilities.length > 0 && h("small", {}, model.capabilities.join(", "))),
      h("td", { class: "num" }, count(model.context)),
      h("td", { class: "num" }, bytes(model.bytes)),
      here,
      h("td", { class: "mono" }, model.task === "text-generation" ? `t ${temperature}  p ${top_p}` : "—"),
      h("td", { class: "mono" }, prompt || output ? [prompt, cached, output].join(" · ") : "free"),
      h("td", {}, model.task !== "text-classification" && me.scopes.includes("run")
        && h("a", { class: "button", href: `/console/playground?model=${encodeURIComponent(model.id)}`, "aria-label": `Try ${visible(short(model.id))}` }, "Try")));
    return { model, element, here };
  });
  const none = h("p", { class: "hint", hidden: true }, "No model of that name is served here.");
  main.append(h("div", { class: "tools" }, filter, h("span", { class: "spacer" }), age),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of models" },
      h("table", { class: "figures models" },
        h("thead", {}, h("tr", {}, names.map((name, place) => h("th", { scope: "col", class: place && place < names.length - 3 ? "num" : null }, name || h("span", { class: "vh" }, "Actions"))))),
        h("tbody", {}, rows.map((each) => each.element)))), none,
    h("section", { class: "commands", "aria-labelledby": "more-models" }, h("h2", { id: "more-models" }, "More models"),
      h("p", { class: "hint" }, "Models are files of the platform's machines, so they come and go by commands there, or at the control plane’s console; what changed is served from the next start on."),
      COMMANDS.map(([word, command]) => h("div", { class: "command" }, h("span", {}, word), h("code", { class: "cmd" }, command), copyButton(() => command)))));

  function soon() {
    due ||= requestAnimationFrame(() => { due = 0; draw(); });
  }

  function draw() {
    const wants = filter.value.toLowerCase();
    for (const { model, element, here } of rows) {
      element.hidden = !`${model.id} ${model.task}`.toLowerCase().includes(wants);
      if (!at) continue;
      const own = [...nodes.values()].filter((each) => each.model === model.id), ready = own.filter((each) => each.state === "ready").length;
      const kv = own.filter((each) => each.kv !== null).map((each) => each.kv);
      const nodesWord = `${count(ready)} of ${count(own.length)}`;
      if (here[0].dataset.word !== nodesWord) {
        here[0].dataset.word = nodesWord;
        here[0].replaceChildren(own.length ? state(ready === own.length ? "ready" : ready ? "degraded" : "down", nodesWord) : "none");
      }
      text(here[1], count(own.reduce((sum, each) => sum + each.streams, 0)));
      text(here[2], kv.length ? `${Math.round(kv.reduce((sum, each) => sum + each, 0) / kv.length)} %` : "—");
    }
    none.hidden = rows.some((each) => !each.element.hidden);
    if (at) text(age, `nodes as of ${clock(at)} UTC`);
  }

  const stop = isOurs ? follow("regions", {
    snapshot(frame) {
      nodes.clear();
      this.delta(frame);
    },
    delta(frame) {
      at = frame.at;
      for (const each of frame.nodes ?? []) nodes.set(each.id, each);
      for (const name of frame.gone_nodes ?? []) nodes.delete(name);
      soon();
    },
    refused: (message) => text(age, message),
    state(seconds) {
      if (seconds !== null) text(age, `no word from this edge for ${seconds} s`);
    },
  }) : () => {};

  return {
    stop() {
      stop();
      cancelAnimationFrame(due);
    },
  };
}
