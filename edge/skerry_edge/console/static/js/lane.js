// One answer as it comes: its text, the sounder under it, figures, and how it ended.
import { count, h, icon, ms, s, short, state, text, visible } from "./dom.js";
import { Refused, call, events } from "./api.js";

const WIDTH = 600, DEPTH = 42, STEP = 2.5; // of the sounder
const INLINE = /(\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*|`[^`\n]+`)/;

/** The markdown that is ours: bold, italic, code. Links and images stay the text that they are. */
function inline(source) {
  return visible(source).split(INLINE).map((part) => {
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 2 && /^\*[^*]/.test(part) && part.endsWith("*")) return h("em", {}, part.slice(1, -1));
    return part;
  });
}

/** Writes a text piece by piece: only its last paragraph is laid out again, once a frame. */
function writer(box) {
  const caret = h("i", { class: "caret", "aria-hidden": "true" });
  let open = h("p", {}, caret), whole = "", from = 0, due = 0;
  box.append(open);
  const draw = () => {
    due = 0;
    const low = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    for (let cut = whole.indexOf("\n\n", from); cut >= 0; cut = whole.indexOf("\n\n", from)) {
      open.replaceChildren(...inline(whole.slice(from, cut)));
      open = h("p", {});
      box.append(open);
      from = cut + 2;
    }
    open.replaceChildren(...inline(whole.slice(from)), caret);
    if (low) box.scrollTop = box.scrollHeight;
  };
  return {
    add(piece) {
      whole += piece;
      due ||= requestAnimationFrame(draw);
    },
    end() {
      cancelAnimationFrame(due);
      draw();
      caret.remove();
    },
    get whole() { return whole; },
  };
}

/** The sounder: a tick for each step, as deep as the time since the one before; a mark where it moved. */
function sounder() {
  const ticks = s("path", { class: "tick" }), marks = s("path", { class: "mark" });
  const svg = s("svg", { class: "echo", viewBox: `0 0 ${WIDTH} 44`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("path", { class: "base", d: `M0 .5H${WIDTH}` }), ticks, marks);
  let d = "", dm = "", x = 0;
  return {
    svg,
    tick(gap) {
      if (x >= WIDTH) {
        x = 0;
        d = dm = "";
        marks.setAttribute("d", "");
      }
      d += `M${(x + 0.5).toFixed(1)} 0V${Math.min(DEPTH, 3 + gap / 4).toFixed(1)}`;
      x += STEP;
      ticks.setAttribute("d", d);
    },
    mark() {
      dm += `M${x} 0V44`;
      marks.setAttribute("d", dm);
    },
  };
}

/** What a stream adds to calls of tools, merged by index. */
function merge(calls, deltas) {
  for (const each of deltas) {
    const call = (calls[each.index ?? 0] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= each.id ?? "";
    call.function.name += each.function?.name ?? "";
    call.function.arguments += each.function?.arguments ?? "";
  }
}

/**
 * Runs one request and shows it. `body` is what is sent; `done` gets the lane when it is over.
 * Returns `{element, stop, promise}`; the lane has `text`, `calls`, `id`, `failed`.
 */
export function lane({ body, model, note, history }) {
  const box = h("div", { class: "answer", tabindex: "0", role: "log", "aria-label": `Answer of ${short(body.model)}` });
  for (const each of history) {
    box.append(h("p", { class: "asked" }, visible(each.question)), ...(each.answer ? [h("p", { class: "former" }, inline(each.answer))] : []));
  }
  const out = writer(box), echo = sounder(), stopper = new AbortController();
  const figures = Object.fromEntries(["First token", "Tokens/s", "Tokens", "Cached", "Cost"].map((name) => [name, h("b", {}, "—")]));
  const foot = h("p", { class: "lane-note", role: "status" }, "Waiting for the first token…");
  const tools = h("div", { class: "calls" });
  const me = { text: "", calls: [], id: "", failed: null, usage: null, stopped: false, moved: 0, body };
  const element = h("article", { class: "lane", "aria-label": `Answer of ${short(body.model)}` },
    h("header", {}, h("h2", {}, short(body.model)), h("span", { class: "mono" }, `seed ${body.seed}`),
      note && h("span", { class: "tag" }, note)),
    box, tools,
    h("div", { class: "sounder" }, echo.svg,
      h("dl", { class: "meters" }, Object.entries(figures).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
    foot);

  const began = performance.now();
  let first = 0, last = began, steps = 0;

  function step(now) {
    if (!first) {
      first = now;
      text(figures["First token"], ms(now - began));
      text(foot, "");
    }
    steps++;
    echo.tick(now - last);
    last = now;
    text(figures.Tokens, count(steps));
    if (steps > 3) text(figures["Tokens/s"], (1000 * (steps - 1) / (last - first)).toFixed(1));
  }

  function take(chunk) {
    if (chunk.error) throw new Refused(chunk.error.message, 0);
    const choice = chunk.choices?.[0];
    if (choice?.delta?.content) {
      step(performance.now());
      out.add(choice.delta.content);
    }
    if (choice?.delta?.tool_calls) {
      step(performance.now());
      merge(me.calls, choice.delta.tool_calls);
      tools.replaceChildren(...me.calls.map((each) =>
        h("p", { class: "call" }, h("b", {}, visible(each.function.name)), h("code", {}, visible(each.function.arguments)))));
    }
    if (choice?.finish_reason) me.reason = choice.finish_reason;
    if (chunk.usage) account(chunk.usage);
  }

  function account(usage) {
    me.usage = usage;
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0, made = usage.completion_tokens ?? 0;
    text(figures.Tokens, count(made));
    if (made > 1 && last > first) text(figures["Tokens/s"], (1000 * (made - 1) / (last - first)).toFixed(1));
    text(figures.Cached, `${count(cached)} of ${count(usage.prompt_tokens)}`);
    const [prompt, kept, output] = model.price;
    const cost = ((usage.prompt_tokens - cached) * prompt + cached * kept + made * output) / 1e6;
    text(figures.Cost, cost ? `$${cost.toFixed(6)}` : "free");
  }

  async function run() {
    const reply = await call("/v1/chat/completions", body, { signal: stopper.signal, headers: { "x-skerry-explain": "1" } });
    me.id = reply.headers.get("cf-ai-req-id") ?? "";
    for await (const event of events(reply)) {
      if (event.comment?.startsWith("x-skerry-explain")) {
        me.moved++;
        echo.mark();
        text(foot, "A node was lost, or gave the stream up. Another one goes on with the same tokens.");
      }
      if (event.data && event.data !== "[DONE]") take(JSON.parse(event.data));
    }
  }

  function conclude() {
    const made = me.usage?.completion_tokens ?? steps;
    if (me.stopped) return [`Stopped after ${count(steps)} steps. The engine's work ended with it.`];
    if (me.failed) return [state("down", me.failed.message)];
    const link = h("a", { href: `/console/requests/${me.id}` }, "what it did");
    const how = me.moved ? `It moved ${times(me.moved)}: ${count(made)} tokens, none twice and none missing.`
      : `Done: ${count(made)} tokens, finish reason “${me.reason ?? "none"}”.`;
    return [state("ready", how), me.id && traced() ? [" ", link] : ""];
  }

  const promise = run().catch((error) => {
    if (error.name === "AbortError") me.stopped = true;
    else me.failed = error;
  }).then(() => {
    out.end();
    me.text = out.whole;
    foot.replaceChildren(...conclude().flat());
    return me;
  });
  return { element, promise, say: (...words) => foot.replaceChildren(...words), stop: () => stopper.abort() };
}

/** How often, in words. */
export const times = (number) => (number === 1 ? "once" : `${number} times`);

const traced = () => document.querySelector('.nav [data-page="requests"]') !== null;
