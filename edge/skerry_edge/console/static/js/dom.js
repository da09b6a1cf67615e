// Elements are made here and nowhere else, and text is only ever a text node: nothing is parsed as
// HTML, whoever wrote it.
const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "hidden", "selected"]);

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value == null) continue;
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    } else if (name === "style") {
      for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (PROPERTIES.has(name)) {
      element[name] = value;
    } else if (value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat(9).filter((each) => each != null && each !== false));
  return element;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
export const $ = (selector, root = document) => root.querySelector(selector);

/** Sets a text node only where it differs: figures that stay cost nothing. */
export function text(element, value) {
  const node = element.firstChild;
  if (node?.nodeType === Node.TEXT_NODE) {
    if (node.data !== value) node.data = value;
  } else {
    element.textContent = value;
  }
}

export function attr(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

const PATHS = {
  playground: "M4 5h16v11H9l-5 4zM8 9h8M8 12.5h5",
  requests: "M3 5h7M3 10h12M8 15h10M13 20h8",
  regions: "M3 6l6-3 6 3 6-3v15l-6 3-6-3-6 3zM9 3v15M15 6v15",
  models: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  usage: "M4 20V10h4v10zM10 20V4h4v16zM16 20v-7h4v7z",
  batches: "M4 4h16v4H4zM4 10h16v4H4zM4 16h9v4H4z",
  control: "M12 3v18M3 12h18M6 6l12 12M18 6L6 18M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8z",
  stock: "M12 3v11M8 10l4 4 4-4M4 15v5h16v-5",
  tokens: "M9 8a4 4 0 1 1-3 7 4 4 0 0 1 3-7zM12 12h9v4M17 12v3",
  audit: "M6 3h12v18H6zM9 8h6M9 12h6M9 16h4",
  docs: "M12 6c-3-2-6-2-9-1v14c3-1 6-1 9 1 3-2 6-2 9-1V5c-3-1-6-1-9 1zM12 6v14",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19"
    + "M5 19l1.4-1.4M17.6 6.4L19 5",
  out: "M10 4H5v16h5M14 8l5 4-5 4M19 12H9",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  close: "M5 5l14 14M19 5L5 19",
  again: "M4 12a8 8 0 1 0 3-6.2M4 4v4h4",
  split: "M3 5h8v14H3zM13 5h8v14h-8z",
};

export const icon = (name) =>
  s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, s("path", { d: PATHS[name] }));

/** Milliseconds as a person reads them. */
export function ms(value) {
  if (value >= 9995) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 9.95 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];
export function bytes(value) {
  const power = value < 1 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${(value / 1000 ** power).toPrecision(3)} ${UNITS[power]}`;
}

export const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
export const short = (model) => model.replace(/^@[^/]+\/[^/]+\//, "");
export const count = (value) => Math.round(value).toLocaleString("en");

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Shows what would steer a terminal or turn a line around by its code point. */
export const visible = (value) =>
  value.replace(UNSEEN, (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

const GLYPHS = { ready: "●", progressing: "◐", degraded: "▲", down: "✕", draining: "◌", pending: "○" };

/** A state is a shape and a word; colour comes on top. */
export const state = (name, ...words) =>
  h("span", { class: "state", data: { state: name } }, h("i", { "aria-hidden": "true" }, GLYPHS[name] ?? "●"), words);

export function copyButton(read, label = "Copy") {
  const word = h("span", {}, label);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(read());
      word.textContent = "Copied";
    } catch {
      word.textContent = "Press Ctrl C";
    }
    setTimeout(() => { word.textContent = label; }, 1400);
  };
  return h("button", { class: "quiet", type: "button", on: { click: copy } }, icon("copy"), word);
}

/** What is empty, and what failed: alike everywhere, and each says what to do next. */
export const notice = (kind, title, say, action) =>
  h("div", { class: "notice", data: { kind }, role: kind === "error" ? "alert" : null },
    h("h2", {}, title), h("p", {}, say), action);

export function dialog(title, body, actions, isKept) {
  const made = h("dialog", { "aria-labelledby": "dialog-title" },
    h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), body,
      h("div", { class: "row end" }, actions)));
  document.body.append(made);
  made.addEventListener("close", () => made.remove());
  made.addEventListener(isKept ? "cancel" : "click", (event) => { if (isKept) event.preventDefault(); else if (event.target === made) made.close(); });
  made.showModal();
  return made;
}

/** A field with its label, and what it is for. */
export const field = (name, word, hint, more) => h("div", { class: "param" }, h("label", { for: `field-${name}` }, word),
  h(more?.options ? "select" : "input", { id: `field-${name}`, name, type: more?.options ? null : "text", autocomplete: "off", spellcheck: "false", ...more, options: null },
    more?.options?.map(([value, said]) => h("option", { value }, said))), hint && h("small", {}, hint));

/** A dialog that does something with its fields, once; what refuses it is said there. */
export function asking(title, body, word, does, kind = "primary") {
  const fault = h("p", { class: "fault", role: "alert" }), submit = h("button", { class: kind }, word);
  const made = dialog(title, h("div", { class: "form" }, body, fault), [h("button", { class: "button", type: "button", on: { click: () => made.close() } }, "Leave it"), submit]);
  $("form", made).addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    text(fault, "");
    try {
      await does(new FormData(event.target));
      made.close();
    } catch (error) {
      text(fault, error.message);
    }
    submit.disabled = false;
  });
  return made;
}

/** A setting of this browser; nothing of prompts or tokens is ever kept. */
export function setting(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`skerry.${name}`);
    localStorage.setItem(`skerry.${name}`, value);
  } catch { /* a private window keeps nothing */ }
  return null;
}
