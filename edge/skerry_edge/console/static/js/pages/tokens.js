// API tokens: made, capped, rotated, revoked. A secret is shown once, and kept nowhere in this page.
import { $, asking, clock, copyButton, count, dialog, field, h, notice, state, text, visible } from "../dom.js";
import { control, me } from "../api.js";
import { keepRows, table } from "../table.js";

const ROLES = ["viewer", "developer", "operator"];
const SCOPES = [["run", "run models"], ["read", "read models, usage"], ["steer", "read what DNS steers by"], ["metrics", "read metrics of all accounts"]];
const ENDS = [["90", "in 90 days"], ["7", "in 7 days"], ["365", "in a year"], ["", "never"]];
const CAPS = [["per_day", "day"], ["per_month", "month"]];
const PAGE = 500, SOON_SECONDS = 7 * 86_400, GRACE_SECONDS = 3600;

const dollars = (token) => CAPS.map(([name, word]) => field(name, `US$ a ${word}`, null, { type: "number", min: "0", step: "any", placeholder: "no cap", value: token?.[name] ?? "" }));
const capsOf = (each) => CAPS.filter(([name]) => each[name] !== null).map(([name, word]) => `${each[name]} a ${word}`).join(", ") || "no cap";
const number = (values, name) => (values.get(name) === "" ? null : Number(values.get(name)));

export function mount(main) {
  if (!me.rights.includes("list")) {
    main.append(notice("empty", "This login has no role", "API tokens are listed for those who have a role. Make a token with one on the platform's machine:",
      h("code", { class: "cmd" }, "skerry tokens create --role developer")));
    return {};
  }
  const mints = me.rights.includes("mint"), operates = me.rights.includes("operate"), observes = me.rights.includes("observe");
  let tokens = [], isOver = false;
  const filter = h("input", { type: "search", id: "filter", "aria-label": "Filter tokens", placeholder: "Filter by name, role, scope, model", on: { input: draw } });
  const said = h("span", { class: "tally", role: "status" }), body = h("tbody", {});
  const accountRows = h("tbody", {}), fault = h("p", { class: "fault", role: "alert" });
  const add = () => mints && h("button", { type: "button", class: "primary", on: { click: create } }, "New token…");
  const blank = h("div", { class: "blank" }, "Waiting for the list…"), box = table(["Token", "Role", "Scopes", "Models", "Stays in", "US$ at most", "Ends", ""], body, "Table of tokens");
  main.append(h("div", { class: "tools" }, filter, h("span", { class: "spacer" }), said, add()), blank, box,
    h("p", { class: "hint" }, "Those that the control plane made; ", h("code", {}, "skerry tokens list"), " on its machine shows all, with what they have spent."),
    h("section", { class: "stack", "aria-label": "Accounts", hidden: !observes }, h("h2", {}, "Accounts"), table(["Account", "US$ at most", ""], accountRows, "Table of accounts"), fault));

  async function load() {
    const found = [];
    try {
      for (let after = ""; after !== null;) {
        const page = await control("GET", `/api_tokens?limit=${PAGE}&after=${encodeURIComponent(after)}`);
        found.push(...page.items);
        after = page.next;
      }
    } catch (error) {
      blank.hidden = false;
      blank.replaceChildren(notice("error", "The tokens cannot be listed", error.message, h("button", { type: "button", class: "primary", on: { click: load } }, "Try again")));
      return;
    }
    const { items } = observes ? await control("GET", `/accounts?limit=${PAGE}`).catch((error) => { fault.textContent = error.message; return { items: [] }; }) : { items: [] };
    if (isOver) return;
    keepRows(accountRows, items, (each) => [h("th", { scope: "row" }, h("code", {}, each.id), each.id === me.account && h("small", {}, "the platform’s own")), h("td", {}, capsOf(each)),
      h("td", {}, operates && act("Cap…", each.id, () => capped("the account", "its tokens", `/accounts/${each.id}`, each)))]);
    tokens = found.sort((a, b) => (a.meta.created_at < b.meta.created_at ? 1 : -1));
    draw();
  }

  function draw() {
    const wants = filter.value.toLowerCase();
    const shown = tokens.filter((each) => `${each.name} ${each.id} ${each.account_id} ${each.role} ${each.scopes} ${each.models}`.toLowerCase().includes(wants));
    box.hidden = !(blank.hidden = tokens.length > 0);
    if (box.hidden) blank.replaceChildren(notice("empty", "The control plane has made no token yet", "Give each program one of its own, with no more rights than it uses.", add()));
    keepRows(body, shown.slice(0, PAGE), row);
    text(said, `${shown.length > PAGE ? `the newest ${PAGE} of ` : ""}${count(shown.length)}, as of ${clock(Date.now() / 1000)} UTC`);
  }

  const act = (word, name, does) => h("button", { type: "button", class: "quiet", "aria-label": `${word} ${visible(name)}`, on: { click: does } }, word);

  function row(token) {
    const left = token.expires_at ? (Date.parse(token.expires_at) - Date.now()) / 1000 : Infinity;
    return [h("th", { scope: "row" }, h("b", {}, visible(token.name)), h("small", {}, `${token.id}, made ${token.meta.created_at.slice(0, 10)}`),
      token.account_id && token.account_id !== me.account && h("small", {}, `account ${token.account_id}`)),
    h("td", {}, token.role ?? "none"), h("td", {}, token.scopes.join(", ")), h("td", {}, visible(token.models?.join(", ") ?? "all")), h("td", {}, token.residency ?? "anywhere"),
    h("td", {}, capsOf(token)), h("td", {}, left === Infinity ? "never" : state(left <= 0 ? "down" : left < SOON_SECONDS ? "degraded" : "ready", token.expires_at.slice(0, 10))),
    h("td", {}, mints && [["Cap…", cap], ["Rotate…", rotate], ["Revoke…", revoke]].map(([word, does]) => act(word, token.name, () => does(token))))];
  }

  // --- what is done with them ----------------------------------------------------------------------

  function create() {
    const scopes = SCOPES.filter(([id]) => operates || me.scopes.includes(id)).map(([id, word], place) => h("label", { class: "check" },
      h("input", { type: "checkbox", name: "scope", value: id, checked: place < 2 }), h("span", {}, h("b", {}, id), ` ${word}`)));
    const made = asking("New token", [
      field("name", "Name", "What it is for: usage and the audit show it.", { required: true, maxlength: 128 }),
      field("role", "Role at the control plane", null, { options: [["", "none"], ...ROLES.slice(0, 1 + ROLES.indexOf(me.role)).map((each) => [each, each])] }),
      h("fieldset", {}, h("legend", {}, "Scopes at edges"), scopes),
      field("models", "Models", "Ids, aliases, or beginnings with * behind them.", { placeholder: "all" }),
      h("div", { class: "pair" }, dollars(), field("ends", "Ends", null, { options: ENDS }), field("residency", "Stays in the zone", null, { placeholder: "anywhere" })),
      operates && field("account_id", "Account", null, { placeholder: me.account, pattern: "[0-9a-f]{32}" })], "Make it", async (values) => {
      const given = (name) => values.get(name)?.trim() || undefined, days = given("ends");
      once(await control("POST", "/api_tokens", {
        name: given("name"), role: given("role"), scopes: values.getAll("scope"), models: given("models")?.split(/[\s,]+/), residency: given("residency"), account_id: given("account_id"),
        per_day: number(values, "per_day"), per_month: number(values, "per_month"),
        expires_at: days && `${new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 19)}Z`,
      }));
    });
    $("select", made).addEventListener("change", (event) => { $("[value=run]", made).checked = event.target.value !== "viewer"; }); // a viewer runs nothing
  }

  function once({ secret }) {
    load();
    dialog("Store it now", h("div", {}, h("p", {}, "It is shown this once: Skerry keeps a hash of it."), h("code", { class: "cmd secret" }, secret), copyButton(() => secret)),
      h("button", { class: "primary" }, "I have stored it"), true);
  }

  const capped = (name, whose, path, each, headers) => asking(`What may ${name} spend?`, [h("div", { class: "pair" }, dollars(each)),
    h("p", {}, `In UTC, with all ${whose}. What it spent while it had no cap does not count.`)], "Set", async (values) => {
    await control("PATCH", path, { per_day: number(values, "per_day"), per_month: number(values, "per_month") }, headers);
    load();
  });

  const cap = (token) => capped(`“${visible(token.name)}”`, "that was made with it", `/api_tokens/${token.id}`, token, { "if-match": `"${token.meta.etag}"` });

  const rotate = (token) => asking(`Give “${visible(token.name)}” another secret?`, h("p", {}, "Its id, its bounds, and what was made with it stay. The secret of now works for another hour."), "Rotate",
    async () => once(await control("POST", `/api_tokens/${token.id}/rotate`, { grace_seconds: GRACE_SECONDS })));

  const revoke = (token) => asking(`Revoke “${visible(token.name)}”?`, h("p", {}, "It is refused from its next request on, with all that was made with it; what they run ends within about a second. This cannot be taken back."), "Revoke", async () => {
    await control("DELETE", `/api_tokens/${token.id}`);
    load();
  }, "danger");

  load();
  return { stop() { isOver = true; } };
}
