// Days as stacked columns, from zero. What they show is in a table beside them, too.
import { h } from "./dom.js";
import { ticks } from "./charts.js";

/** `days` have a `day` and a number for each of `phases`, `[key, word]`; `unit` writes a number. */
export function columns(days, phases, unit) {
  const sum = (day) => phases.reduce((total, [key]) => total + day[key], 0);
  const most = Math.max(1e-9, ...days.map(sum)) * 1.08, at = (value) => `${100 * value / most}%`;
  const step = Math.ceil(days.length / (innerWidth < 700 ? 4 : 8));
  const legend = phases.map(([key, word]) => h("span", {}, h("i", { data: { phase: key } }), `${word} ${unit(days.reduce((total, day) => total + day[key], 0))}`));
  return h("figure", { class: "columns" },
    h("div", { class: "col-plot", role: "img", "aria-label": `${days.length} days from zero; at most ${unit(most / 1.08)} a day. The table has the figures.` },
      h("div", { class: "col-grid" }, ticks(most, 4).map((tick) => h("u", { style: { bottom: at(tick) } }, h("span", {}, unit(tick))))),
      days.map((day, place) => h("div", { class: "col", title: `${day.day}: ${unit(sum(day))}` },
        h("div", {}, [...phases].reverse().map(([key]) => h("i", { data: { phase: key }, style: { height: at(day[key]) } }))),
        place % step === 0 && h("b", {}, day.day.slice(5))))),
    h("figcaption", { class: "legend" }, legend));
}
