// What a revision, a line of the audit, or a trial says of fields: before, and after.
import { h, visible } from "./dom.js";

const LONGEST = 120; // characters of a value that are shown

const shown = (value) => {
  const word = typeof value === "string" ? value : JSON.stringify(value) ?? "—";
  return visible(word.length > LONGEST ? `${word.slice(0, LONGEST)}…` : word);
};

const isNothing = (value) => value === null || value === undefined || value.length === 0;

/** A field as it was and is; one that was nothing and is nothing says nothing. */
function field([name, value]) {
  if (!Array.isArray(value) || value.length !== 2) return h("li", {}, `${visible(name)}: `, h("code", {}, shown(value)));
  const [before, after] = value;
  if (isNothing(before) && isNothing(after)) return null;
  return h("li", {}, `${visible(name)}: `, !isNothing(before) && [h("del", {}, shown(before)), " → "],
    isNothing(after) ? "none" : h("ins", {}, shown(after)));
}

/** One resource that changed: what was done to it, and its fields. */
export const changed = ({ action, kind, id, changes }) =>
  h("div", { class: "change" }, h("b", {}, `${visible(action)} ${visible(kind)} `), h("code", {}, visible(id)),
    action !== "delete" && changes && Object.keys(changes).length > 0 && h("ul", {}, Object.entries(changes).map(field)));
