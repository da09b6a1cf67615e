// Tables of figures whose rows stay: only what differs is drawn again.
import { attr, h, notice } from "./dom.js";
import { me } from "./api.js";

const WORDS = new Set(["State", "Role", "Model", "Region", "Of", "What is amiss", "Who", "Outcome", "What", "Status", "Ran at", "Step", "Wanted by", "Scopes", "Models", "Stays in", "US$ at most", "Ends", "Until the first token", ""]); // columns that are no figures

/** Whether the login reads the platform; the page says what to do where it does not. */
export function observes(main) {
  const may = me.rights.includes("observe");
  if (!may) main.append(notice("empty", "This is for the platform's own people", "Log in with a token of the platform's account that has a role.", h("code", { class: "cmd" }, "skerry tokens create --role viewer")));
  return may;
}

/** A table in a box of its own that scrolls; its first column names the rows. */
export const table = (names, body, label) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
  h("table", { class: "figures" }, h("thead", {}, h("tr", {}, names.map((name, place) => h("th", { scope: "col", class: place > 0 && !WORDS.has(name) ? "num" : null }, name || h("span", { class: "vh" }, "Actions"))))), body));

/** Keeps the rows of a table by id or name, and changes only those that differ. */
export function keepRows(body, list, cells) {
  const old = new Map([...body.children].map((row) => [row.dataset.name, row]));
  list.forEach((each, place) => {
    const name = each.id ?? each.name, key = JSON.stringify(each);
    let row = old.get(name);
    old.delete(name);
    if (row?.dataset.key !== key) {
      const fresh = h("tr", { data: { name, key, state: each.state } }, cells(each));
      if (row) row.replaceWith(fresh);
      row = fresh;
    }
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
  });
  for (const row of old.values()) row.remove();
}

const SPARE = 8; // rows that are made above those in view, and below

/** A table of which only the rows in view are made: margins are as high as the others. `changed` is called when others come into view. */
export function longTable(names, label, changed) {
  const body = h("tbody", {}), box = table(names, body, label), sheet = box.firstChild;
  const row = () => body.rows[0]?.offsetHeight || 32;
  box.classList.add("long");
  box.addEventListener("scroll", changed);
  return {
    box,
    body,
    draw(list, cells) {
      const each = row(), number = Math.ceil(innerHeight / each) + 2 * SPARE; // no box is higher than the window
      const from = Math.max(0, Math.min(list.length - number, Math.floor(box.scrollTop / each) - SPARE));
      keepRows(body, list.slice(from, from + number), cells);
      sheet.style.setProperty("margin", `${from * each}px 0 ${Math.max(0, list.length - from - number) * each}px`);
      attr(sheet, "aria-rowcount", String(list.length + 1));
    },
    /** Scrolls no further than it needs to have a row in view. */
    reveal(place) {
      const each = row(), room = box.clientHeight - 2 * each; // the head's, and one to spare
      box.scrollTop = Math.max(place * each - room, Math.min(place * each, box.scrollTop));
    },
  };
}
