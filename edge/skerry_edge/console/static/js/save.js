// Files that a page gives to the browser.
import { h } from "./dom.js";

/** A table's rows as CSV: what a spreadsheet would take for a formula is a text. */
export const csv = (rows) => rows.map((row) => row.map((cell) => {
  const told = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : String(cell);
  return /[",\r\n]/.test(told) ? `"${told.replaceAll('"', '""')}"` : told;
}).join(",")).join("\r\n");

export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
