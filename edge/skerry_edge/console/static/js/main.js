// The shell: who is logged in, which page is shown, and the keys that work everywhere.
import { $, attr, dialog, h, icon, notice, setting } from "./dom.js";
import { Refused, issuers, login, logout, me, session } from "./api.js";

const PAGES = [
  { id: "playground", name: "Playground", key: "p", question: "What does a model say, and how fast?" },
  { id: "requests", name: "Requests", key: "r", question: "What happened to this request, and why here?" },
  { id: "regions", name: "Regions", key: "m", question: "How far, how busy, and is all of it there?" },
  { id: "models", name: "Models", key: "o", question: "What can be asked, and what does it take?" },
  { id: "usage", name: "Usage & caps", key: "u", question: "Who spent what?" },
  { id: "batches", name: "Batches", key: "b", question: "What waits, and what came of it?" },
  { id: "control", site: "control", name: "Control plane", key: "c", question: "Is what runs what is wanted?" },
  { id: "stock", site: "control", name: "Models", key: "m", question: "What is on this machine, and what does it take?" },
  { id: "tokens", site: "control", name: "API tokens", key: "t", question: "Who may do what, and for how much?" },
  { id: "audit", site: "control", name: "Audit", key: "a", question: "Who did what?" },
  // For whoever sees a console at all; the server renders it, so it is loaded as a whole.
  { id: "docs", isOpen: true, name: "Docs", key: "d", question: "How is it called, and how does it work?" },
];
const root = document.documentElement;
const main = $("#main");
const title = h("h1", {});
const question = h("span", { class: "question" });
let page = null;
let turn = 0; // of the page that was wanted last

// --- the shell ----------------------------------------------------------------------------------

let links = [];
const who = h("div", { class: "who" }), there = h("div", {});

/** The pages of whoever serves this console, an edge or the control plane, for whoever looks. */
const offered = () => PAGES.filter((each) => each.isOpen || (me.account && (each.site ?? "edge") === me.site));

function offer() {
  links = offered().map((each) =>
    h("a", { href: `/console/${each.id}`, data: { page: each.id }, "aria-keyshortcuts": `g ${each.key}` },
      icon(each.id), h("span", {}, each.name)));
  $(".nav").replaceChildren(...links);
}

$(".rail-foot").append(
  h("button", { type: "button", class: "quiet", on: { click: theme } }, icon("sun"), h("span", {}, "Day / night")),
  h("button", { type: "button", class: "quiet", id: "logout", on: { click: leave } }, icon("out"), h("span", {}, "Log out")),
  there,
  who,
);
$(".bar").append(h("div", { class: "titles" }, title, question));

function theme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  setting("theme", root.dataset.theme);
  dispatchEvent(new Event("themechange"));
}

async function leave() {
  await logout().catch(() => {});
  location.assign("/console/"); // nothing of the session stays in memory
}

// --- pages --------------------------------------------------------------------------------------

function wanted() {
  const [id, ...rest] = location.pathname.slice("/console/".length).split("/");
  return { entry: offered().find((each) => each.id === id) ?? (me.account ? offered()[0] : null), rest: rest.join("/") };
}

export function go(path) {
  if (/^\/console\/docs\b/.test(path)) {
    location.assign(path);
    return;
  }
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  show();
}

async function show() {
  const { entry, rest } = wanted();
  if (!entry) return showLogin();
  if (page?.id === entry.id && page.update) return page.update(decodeURIComponent(rest));
  if (entry.isOpen && main.dataset.page !== entry.id) return location.reload(); // somebody went back to it
  const mine = ++turn;
  let module;
  try {
    module = await import(`./pages/${entry.id}.js`);
  } catch {
    main.replaceChildren(notice("error", "This page is of an older version",
      "What serves it was updated since it was loaded.",
      h("button", { type: "button", class: "primary", on: { click: () => location.reload() } }, "Load it again")));
    return;
  }
  if (mine !== turn) return;
  page?.stop?.();
  title.textContent = entry.name;
  question.textContent = entry.question;
  for (const link of links) {
    if (link.dataset.page === entry.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!entry.isOpen) {
    document.title = `${entry.name} · Skerry`;
    main.replaceChildren();
    main.dataset.page = entry.id;
    scrollTo(0, 0);
  }
  page = { id: entry.id, ...module.mount(main, decodeURIComponent(rest)) };
}

addEventListener("popstate", show);
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/console/']");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

// --- logging in ---------------------------------------------------------------------------------

addEventListener("loggedout", () => {
  me.account = "";
  if (wanted().entry) visit();
  else showLogin();
});

const REFUSALS = {
  over: "This login took too long, or another browser began it. Try again.",
  denied: "The provider lets nobody in for that, or grants nothing here.",
  away: "The provider does not answer now. Try again, or log in with a token.",
};

function showLogin(why = "") {
  turn++;
  page?.stop?.();
  page = null;
  root.dataset.out = "";
  title.textContent = "Log in";
  document.title = "Log in · Skerry";
  question.textContent = "";
  const field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const fault = h("p", { class: "fault", data: { bad: "true" }, role: "alert", id: "login-fault", hidden: !why }, why);
  attr(field, "aria-describedby", "login-fault");
  const submit = async (event) => {
    event.preventDefault();
    const token = field.value.trim();
    field.value = "";
    await enter({ token }, (message) => {
      fault.textContent = message;
      fault.hidden = false;
      field.focus();
    });
  };
  const elsewhere = h("div", { class: "row" });
  issuers().then((names) => elsewhere.replaceChildren(...names.map((name) =>
    h("button", { type: "button", class: "button", on: { click: () => location.assign(`/console/oidc/${encodeURIComponent(name)}`) } }, `Log in at ${name}`))));
  main.replaceChildren(h("form", { class: "login", on: { submit } },
    h("label", { for: "token" }, "API token, or a login's token of your OpenID provider"), field, fault,
    h("div", { class: "row" }, h("button", { class: "primary" }, "Log in"), elsewhere),
    h("p", { class: "hint" }, "On the platform's machine ", h("code", {}, "skerry console"),
      " prints an address that logs you in. The token is exchanged for a session of eight hours and kept nowhere.")));
  main.dataset.page = "login";
  field.focus();
}

async function enter(credentials, failed) {
  try {
    await login(credentials);
  } catch (error) {
    failed(error instanceof Refused ? error.message : String(error));
    return;
  }
  welcome();
}

/** Somebody reads what is open, and is not logged in. */
function visit() {
  delete root.dataset.out;
  root.dataset.guest = "";
  offer();
  who.replaceChildren(h("a", { href: "/console/" }, "Log in"));
  show();
}

function welcome() {
  delete root.dataset.out;
  delete root.dataset.guest;
  offer();
  there.replaceChildren(me.elsewhere ? h("a", { class: "quiet", id: "elsewhere", href: `${me.elsewhere}/console/` },
    icon(me.site === "edge" ? "control" : "playground"), h("span", {}, me.site === "edge" ? "Control plane" : "Edge")) : "");
  who.replaceChildren(h("b", {}, me.role ?? "no role"),
    h("span", {}, `account ${me.account.slice(0, 8)}… · ${me.site === "edge" ? `edge ${me.edge || "?"}` : "control plane"}`));
  show();
}

async function begin() {
  const refused = /^#refused=(\w+)$/.exec(location.hash)?.[1];
  if (refused) {
    history.replaceState(null, "", location.pathname);
    showLogin(REFUSALS[refused] ?? "");
    return;
  }
  const code = /^#login=(.+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", location.pathname + location.search);
    await enter({ code }, async (message) => {
      await session().then(welcome, () => showLogin(message)); // another tab may have used the code
    });
    return;
  }
  try {
    await session();
  } catch (error) {
    if (error.status !== 401) showLogin(error.message);
    return;
  }
  welcome();
}

// --- keys ---------------------------------------------------------------------------------------

const keys = () => [
  [["g", ...offered().map((each) => each.key)], `then: ${offered().map((each) => each.name).join(", ")}`],
  [["/"], "filter, search"], [["j", "k"], "next, previous row"], [["Enter"], "open the row"], [["."], "pause, go on"],
  [["n"], "day, night"], [["?"], "these keys"], [["Esc"], "leave a field, close what is open"],
  [["Ctrl", "Enter"], "run (playground)"], [["Ctrl", "Shift", "Enter"], "replay with the same seed"],
];
let after = 0; // when `g` was pressed

addEventListener("keydown", (event) => {
  const field = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "Escape" && field && field.tagName !== "DIALOG") { field.blur(); return; }
  const plain = !(event.ctrlKey || event.metaKey || event.altKey);
  if (field || !plain || setting("keys") === "off" || "out" in root.dataset) { page?.key?.(event, true); return; }
  if (after && event.timeStamp - after < 1500) {
    after = 0;
    const to = offered().find((each) => each.key === event.key);
    if (to) { go(`/console/${to.id}`); return; }
  }
  if (event.key === "g") after = event.timeStamp;
  else if (event.key === "/" && $("#filter")) {
    event.preventDefault();
    $("#filter").focus();
  } else if (event.key === "n") theme();
  else if (event.key === "?") help();
  else page?.key?.(event, false);
});

function help() {
  const on = h("input", { type: "checkbox", checked: setting("keys") !== "off",
    on: { change: (event) => setting("keys", event.target.checked ? "on" : "off") } });
  dialog("Keys", h("div", {},
    h("dl", { class: "keys" }, keys().map(([keys, word]) =>
      [h("dt", {}, keys.map((key) => [h("kbd", {}, key), " "])), h("dd", {}, word)])),
    h("label", { class: "check" }, on, "Single keys are shortcuts")), h("button", { class: "primary" }, "Close"));
}

begin();
