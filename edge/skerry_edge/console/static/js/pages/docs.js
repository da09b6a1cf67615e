// The docs are rendered by the server. Here is what calls the API from a page of its reference.
import { $, asking, copyButton, h, ms, state, visible } from "../dom.js";
import { attempt, me, pieces } from "../api.js";
import { shell } from "../code.js";

const MOST = 1_000_000; // characters of an answer that are shown

export function mount(main) {
  const form = $(".try", main);
  return { update() {}, ...(form && trying(form)) };
}

function trying(form) {
  const { method, path, media } = form.dataset, inputs = [...form.querySelectorAll("[data-in]")];
  const [area, streams, token, send, told, shown] = ["[name=body]", "[name=stream]", "[name=token]", ".primary", ".lane-note", "pre"].map((each) => $(each, form));
  const model = me.models.find((each) => each.task === "text-generation")?.id ?? "";
  const given = (place) => inputs.filter((each) => each.dataset.in === place && each.value).map((each) => [each.name, each.files?.[0] ?? each.value]);
  const headers = () => ({ ...Object.fromEntries(given("header")), ...(area && { "content-type": media }) });
  const known = { account_id: me.account, model };
  let stopper = null;

  /** Changes fields of the body, as long as it is JSON. */
  function change(fields) {
    try {
      area.value = JSON.stringify({ ...JSON.parse(area.value), ...fields }, null, 2);
    } catch { /* what is no JSON is the API's to name */ }
  }

  function target() {
    const query = new URLSearchParams(given("query")), values = Object.fromEntries(given("path"));
    return path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name] ?? "")) + (query.size ? `?${query}` : "");
  }

  function content() {
    if (area || !media) return area?.value;
    const made = new FormData();
    for (const [name, value] of given("form")) made.append(name, value);
    return made;
  }

  function run() {
    if (stopper) return stopper.abort();
    if (!inputs.every((each) => each.reportValidity())) return;
    if (method === "DELETE") asking("Send it?", h("p", {}, "DELETE ", h("code", {}, target())), "Send", () => void call(), "danger");
    else call();
  }

  async function call() {
    const began = performance.now();
    stopper = new AbortController();
    send.textContent = "Stop";
    shown.hidden = false;
    shown.replaceChildren();
    told.replaceChildren("Waiting for the answer…");
    try {
      const reply = await attempt(method, target(), token?.value.trim(), headers(), { body: content(), signal: stopper.signal });
      const say = (word) => told.replaceChildren(state(reply.ok ? "ready" : "down", `${reply.status}, ${word} after ${ms(performance.now() - began)}`));
      say("begun");
      await read(reply);
      say("whole");
    } catch (error) {
      told.replaceChildren(error.name === "AbortError" ? "Stopped." : state("down", "Nothing answers. Is it still running?"));
    }
    stopper = null;
    send.textContent = "Send";
  }

  /** Shows an answer as it comes. */
  async function read(reply) {
    let whole = "";
    for await (const piece of pieces(reply)) {
      whole += piece;
      shown.append(visible(piece));
      if (whole.length > MOST) return shown.append("\n… and more");
    }
    if (reply.headers.get("content-type")?.startsWith("application/json")) shown.textContent = visible(JSON.stringify(JSON.parse(whole), null, 2));
  }

  const curl = () => [`curl -N -X ${method} "$SKERRY_${me.site === "edge" ? "BASE" : "CONTROL"}_URL"${shell(target())}`,
    token && '-H "authorization: Bearer $SKERRY_API_TOKEN"', ...Object.entries(headers()).map((each) => `-H ${shell(each.join(": "))}`), area && `-d ${shell(area.value)}`,
    ...given("form").map(([name, value]) => `-F ${shell(`${name}=${value.name ? `@${value.name}` : value}`)}`)].filter(Boolean).join(" \\\n  ");

  for (const each of inputs) each.value ||= known[each.name] ?? "";
  if (area?.value.includes('"model"')) change({ model });
  streams?.addEventListener("change", () => change({ stream: streams.checked || undefined }));
  send.addEventListener("click", run);
  send.after(copyButton(curl, "Copy as curl"));
  form.disabled = false;
  return {
    stop: () => stopper?.abort(),
    key(event) {
      if (event.key === "Enter" && event.ctrlKey) run();
    },
  };
}
