// Asks models: a conversation that streams, one or two models side by side, vectors of texts.
import { $, attr, copyButton, h, icon, notice, short, state, text } from "../dom.js";
import { me } from "../api.js";
import { LANGUAGES, code } from "../code.js";
import { embedding } from "../embedding.js";
import { lane, times } from "../lane.js";

const QUESTION = "Why is the sky blue?"; // so that the first answer is one click away
const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, lit: { type: "integer" } },
  required: ["name", "lit"],
};
const TOOLS = [{
  type: "function",
  function: {
    name: "tide",
    description: "The height of the tide at a place.",
    parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
  },
}];
const TASKS = ["text-generation", "text-embeddings"];
const WORD = /("(?:[^"\\]|\\.)*"|`[^`]*`|\/\/.*|#\s.*|\b(?:from|import|for|in|await|const|new|export|default|async|return|print|curl|True|False|None|true|false|null)\b|\b\d+(?:\.\d+)?\b)/;

const coloured = (source) => source.split(WORD).map((part, place) => {
  if (place % 2 === 0) return part;
  const kind = /^["`]/.test(part) ? "string" : /^(#|\/\/)/.test(part) ? "comment" : /^\d/.test(part) ? "number" : "keyword";
  return h("span", { class: `c-${kind}` }, part);
});

const draw = () => crypto.getRandomValues(new Uint32Array(1))[0];
const labelled = (id, label, field, hint) =>
  h("div", { class: "param" }, h("label", { for: id }, label), field, hint && h("small", {}, hint));

function slider(id, label, range, changed) {
  const out = h("output", { for: id });
  const input = h("input", { id, type: "range", ...range, on: { input: () => { text(out, input.value); changed(); } } });
  return {
    box: h("div", { class: "param" }, h("label", { for: id }, label), out, input),
    set(value) { input.value = value; text(out, input.value); },
    get value() { return Number(input.value); },
    input,
  };
}

/** A box that is switched on, with JSON in it, and what is wrong with that. */
function jsonBox(id, label, example, changed) {
  const fault = h("p", { class: "fault", id: `${id}-fault`, role: "status" });
  const area = h("textarea", { id: `${id}-text`, class: "mono", rows: 8, spellcheck: "false", "aria-describedby": `${id}-fault`,
    "aria-label": label, on: { input: () => changed() } });
  area.value = JSON.stringify(example, null, 2);
  const inner = h("div", { hidden: true }, area, fault);
  const on = h("input", { id, type: "checkbox", on: { change: () => { inner.hidden = !on.checked; changed(); } } });
  const tell = (message) => {
    text(fault, message);
    fault.dataset.bad = String(message !== "");
    attr(area, "aria-invalid", String(message !== ""));
  };
  return {
    box: h("div", { class: "param" }, h("label", { class: "check", for: id }, on, label), inner),
    tell,
    get isOn() { return on.checked; },
    /** The value; undefined where the text is no JSON, which is told. */
    read() {
      try {
        const value = JSON.parse(area.value);
        tell("");
        return value;
      } catch (error) {
        tell(`This is no JSON: ${error.message}`);
        return undefined;
      }
    },
  };
}

export function mount(main) {
  const models = me.models.filter((each) => TASKS.includes(each.task));
  const chats = models.filter((each) => each.task === "text-generation");
  if (!models.length) {
    main.append(notice("empty", "No model can be asked here",
      "Install one on the platform's machine, and start it again.",
      h("code", { class: "cmd" }, "skerry models pull @cf/huggingfacetb/smollm2-135m-instruct")));
    return {};
  }
  const mayRun = me.scopes.includes("run");
  const named = new URLSearchParams(location.search).get("model");
  const select = h("select", { id: "model", on: { change: changeModel } },
    models.map((each) => h("option", { value: each.id, selected: each.id === named }, short(each.id))));
  const beside = h("select", { id: "beside", on: { change: showCode } },
    chats.map((each) => h("option", { value: each.id }, short(each.id))));
  const sideBySide = h("input", { id: "side", type: "checkbox",
    on: { change: () => { besideBox.hidden = !sideBySide.checked; reset(); } } });
  const besideBox = h("div", { hidden: true }, beside);
  attr(beside, "aria-label", "The second model");
  const system = h("textarea", { id: "system", rows: 2, placeholder: "Who the model is (optional)", on: { input: showCode } });
  const temperature = slider("temperature", "Temperature", { min: 0, max: 2, step: 0.05 }, showCode);
  const topP = slider("top-p", "Top p", { min: 0.05, max: 1, step: 0.05 }, showCode);
  const most = slider("most", "Most tokens", { min: 16, max: 2048, step: 16 }, showCode);
  const seed = h("input", { id: "seed", type: "text", inputmode: "numeric", pattern: "[0-9]*", placeholder: "drawn anew", on: { input: showCode } });
  const schema = jsonBox("schema", "Answer by a JSON schema", SCHEMA, showCode);
  const tools = jsonBox("tools", "Tools", TOOLS, showCode);
  const ask = h("textarea", { id: "ask", rows: 2, placeholder: "Ask something", on: { input: showCode } });
  ask.value = QUESTION;
  const run = h("button", { type: "button", class: "primary", id: "run", on: { click: () => (running.size ? stopAll() : go()) } }, "Run");
  const again = h("button", { type: "button", class: "button", id: "replay", disabled: true, on: { click: replay } }, icon("again"), "Replay, same seed");
  const fresh = h("button", { type: "button", class: "button", on: { click: () => { reset(); ask.focus(); } } }, "New chat");
  const lanes = h("div", { class: "lanes" });
  const pre = h("pre", { tabindex: "0", "aria-label": "Code" });
  const panel = h("div", { id: "code", role: "tabpanel" }, pre);
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Code for" },
    LANGUAGES.map((name, place) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "code",
      on: { click: () => choose(place), keydown: (event) => tabKey(event, place) } }, name)));
  const chatOnly = [labelled("system", "System", system), temperature.box, topP.box, most.box,
    labelled("seed", "Seed", seed, "One prompt and one seed give one answer, on any node."),
    h("div", { class: "param" }, h("label", { class: "check", for: "side" }, sideBySide, "Two models side by side"), besideBox),
    schema.box, tools.box];
  main.append(h("div", { class: "play" },
    h("section", { class: "talk", "aria-label": "Conversation" }, lanes,
      h("div", { class: "composer" }, h("label", { class: "vh", for: "ask" }, "Prompt"), ask,
        h("div", { class: "row" }, run, again, fresh, h("span", { class: "spacer" }),
          h("span", { class: "hint" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"), " runs")))),
    h("aside", { class: "params", "aria-label": "Parameters" }, labelled("model", "Model", select), chatOnly,
      h("div", { class: "param code" }, h("h2", {}, "Code"), copyButton(() => pre.textContent), tabs, panel))));

  const running = new Set();
  let turns = []; // of each lane: [{question, answer}]
  let last = null; // what the first lane made of its request
  let language = 0;

  const modelOf = (id) => models.find((each) => each.id === id);
  const isChat = () => modelOf(select.value).task === "text-generation";

  function changeModel() {
    const model = modelOf(select.value);
    for (const each of chatOnly) each.hidden = !isChat();
    for (const each of [again, fresh]) each.hidden = !isChat();
    ask.placeholder = isChat() ? "Ask something" : "Texts, one a line";
    if (isChat()) {
      temperature.set(model.sampling.temperature);
      topP.set(model.sampling.top_p);
      most.input.max = Math.min(8192, model.context);
      most.set(model.max_tokens);
      const other = chats.find((each) => each.id !== model.id) ?? model;
      beside.value = other.id;
    }
    reset();
  }

  function reset() {
    stopAll();
    turns = sideBySide.checked && isChat() ? [[], []] : [[]];
    last = null;
    lanes.replaceChildren(h("div", { class: "blank" }, h("p", {},
      isChat() ? "The answer streams in here, with a sounding of each token's time." : "Vectors of the texts, and how near they are to each other.")));
    buttons();
    showCode();
  }

  /** The request of a lane, as it is sent; undefined where a box is no JSON. */
  function request(place, seedOf) {
    if (!isChat()) return { model: select.value, input: ask.value.split("\n").filter((each) => each.trim()) };
    const said = (turns[place] ?? []).flatMap((turn) => [{ role: "user", content: turn.question }, ...turn.messages]);
    const body = {
      model: place ? beside.value : select.value,
      messages: [...(system.value ? [{ role: "system", content: system.value }] : []), ...said, { role: "user", content: ask.value }],
      temperature: temperature.value,
      top_p: topP.value,
      max_tokens: most.value,
      seed: seedOf,
    };
    if (schema.isOn) {
      const value = schema.read();
      if (value === undefined) return undefined;
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: value } };
    }
    if (tools.isOn) {
      body.tools = tools.read();
      if (body.tools === undefined) return undefined;
    }
    return { ...body, stream: true, stream_options: { include_usage: true } };
  }

  function showCode() {
    const body = request(0, seed.value ? Number(seed.value) : 4711);
    run.disabled = !running.size && (body === undefined || !ask.value.trim() || !mayRun);
    if (body !== undefined) pre.replaceChildren(...coloured(code(LANGUAGES[language], body)));
  }

  function start(place, body, note, history) {
    const made = lane({ body, model: modelOf(body.model), note, history });
    lanes.append(made.element);
    running.add(made);
    made.promise.then((result) => {
      running.delete(made);
      if (result.failed?.param.startsWith("response_format")) schema.tell(result.failed.message);
      if (result.failed?.param.startsWith("tools")) tools.tell(result.failed.message);
      buttons();
    });
    return made;
  }

  async function go() {
    if (running.size || run.disabled) return;
    if (!isChat()) {
      const stopper = { stop() {} };
      running.add(stopper);
      buttons();
      await embedding(lanes, request(0));
      running.delete(stopper);
      buttons();
      return;
    }
    const seedOf = seed.value ? Number(seed.value) : draw();
    const bodies = turns.map((_, place) => request(place, seedOf));
    const question = ask.value;
    lanes.replaceChildren();
    bodies.forEach((body, place) => {
      const history = [...turns[place], { question }];
      const made = start(place, body, place ? "beside" : "", history);
      made.promise.then((result) => {
        if (place === 0) last = result;
        if (!result.failed) {
          const answer = { role: "assistant", content: result.text || null };
          if (result.calls.length) answer.tool_calls = result.calls;
          turns[place] = [...turns[place], { question, answer: result.text, messages: [answer, ...results(result)] }];
        }
        buttons();
      });
    });
    ask.value = "";
    buttons();
  }

  /** Calls of tools are shown, not run: the model is told so where the chat goes on. */
  const results = (result) => result.calls.map((each) => ({ role: "tool", tool_call_id: each.id, content: "The playground runs no tools." }));

  function replay() {
    if (running.size || !last) return;
    const former = last;
    while (lanes.children.length > 1) lanes.lastChild.remove();
    const question = former.body.messages.at(-1).content;
    const made = start(0, former.body, "replay", [{ question }]);
    made.promise.then((result) => {
      if (result.failed || result.stopped || former.stopped) return;
      const same = result.text === former.text && JSON.stringify(result.calls.map((each) => each.function)) === JSON.stringify(former.calls.map((each) => each.function));
      made.say(state(same ? "ready" : "degraded", same ? `Identical, character by character.${result.moved ? ` It moved ${times(result.moved)}.` : ""}`
        : "Not the same: a node on the way computes by another numeric build, or is best-effort."));
    });
    buttons();
  }

  const stopAll = () => [...running].forEach((each) => each.stop());

  function buttons() {
    text(run, running.size ? "Stop" : "Run");
    again.disabled = running.size > 0 || !last || Boolean(last.failed);
    fresh.disabled = running.size > 0;
    run.disabled = !running.size && (!ask.value.trim() || !mayRun);
  }

  function choose(place) {
    language = place;
    [...tabs.children].forEach((tab, number) => {
      attr(tab, "aria-selected", String(number === place));
      attr(tab, "tabindex", number === place ? "0" : "-1");
    });
    attr(panel, "aria-labelledby", tabs.children[place].id);
    showCode();
  }

  function tabKey(event, place) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = (place + by + LANGUAGES.length) % LANGUAGES.length;
    choose(next);
    tabs.children[next].focus();
  }

  changeModel();
  choose(0);
  if (!mayRun) $(".hint", main).replaceChildren("This login may not run models: it lacks the scope ‘run’.");
  run.focus();
  return {
    stop: stopAll,
    update() {},
    key(event, isField) {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      if (event.shiftKey) replay();
      else go();
    },
  };
}
