// The chart of regions: land is drawn once, lights are buttons whose ring is the busy share.
import { attr, h, ms, s, text, visible } from "./dom.js";
import { HEIGHT, WIDTH, coastPath, project } from "./coast.js";

const SPOTS = [[13, -8], [-75, -8], [-31, -28], [-31, 12], [11, -22], [11, 7], [-73, -22], [-73, 7]]; // of a label
const LABEL = [62, 16];

/** Makes the chart; `pick` gets the name of a light that was chosen. */
export function chart(pick) {
  const lines = [];
  for (let each = -150; each <= 180; each += 30) lines.push(`M${project(each, 0)[0].toFixed(1)} 0V${HEIGHT}`);
  for (let each = -30; each <= 60; each += 30) lines.push(`M0 ${project(0, each)[1].toFixed(1)}H${WIDTH}`);
  const coast = coastPath(), routes = s("g", {}), lights = h("div", { class: "lights" });
  const sheet = s("svg", { class: "sheet", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("path", { class: "grat", d: lines.join("") }),
    ["s3", "s2", "s1"].map((each) => s("path", { class: `shoal ${each}`, d: coast })),
    s("path", { class: "land", d: coast, "fill-rule": "evenodd" }), routes);
  const element = h("div", { class: "chart", role: "group", "aria-label": "Chart of the regions" }, h("div", { class: "neat" }, sheet, lights));
  const known = new Map(); // by name

  function light(region) {
    const ring = s("circle", { class: "busy", cx: 11, cy: 11, r: 8, pathLength: 100, "stroke-dasharray": "0 100" });
    const sounding = h("em", {}), label = h("span", { class: "light-label" }, h("b", {}, visible(region.name)), " ", sounding);
    const [x, y] = project(region.place[1], region.place[0]);
    const button = h("button", { type: "button", class: "light", data: { region: region.name }, style: { left: `${100 * x / WIDTH}%`, top: `${100 * y / HEIGHT}%` }, on: { click: () => pick(region.name) } },
      s("svg", { viewBox: "0 0 22 22", "aria-hidden": "true" }, s("circle", { class: "track", cx: 11, cy: 11, r: 8 }), ring,
        s("circle", { class: "dot", cx: 11, cy: 11, r: 3.2 }), s("path", { class: "cross", d: "M7 7l8 8M15 7l-8 8" })), label);
    lights.append(button);
    return { button, ring, sounding, label, x, y };
  }

  /** Puts labels where they hide least. */
  function place() {
    const { clientWidth: wide, clientHeight: high } = lights;
    if (!wide) return;
    const marks = [...known.values()], taken = marks.map(({ x, y }) => [x * wide / WIDTH - 11, y * high / HEIGHT - 11, 22, 22]);
    for (const mark of marks) {
      const [x, y] = [mark.x * wide / WIDTH, mark.y * high / HEIGHT];
      const costs = SPOTS.map(([dx, dy], rank) => {
        const [left, top] = [x + dx, y + dy];
        const over = taken.reduce((sum, each) => sum
          + Math.max(0, Math.min(each[0] + each[2], left + LABEL[0]) - Math.max(each[0], left))
          * Math.max(0, Math.min(each[1] + each[3], top + LABEL[1]) - Math.max(each[1], top)), 0);
        const outside = left < 2 || left + LABEL[0] > wide - 2 || top < 2 || top + LABEL[1] > high - 2;
        return over + (outside ? 900 : 0) + rank * 0.1;
      });
      const best = costs.indexOf(Math.min(...costs)), [dx, dy] = SPOTS[best];
      mark.label.style.setProperty("left", `${dx + 11}px`);
      mark.label.style.setProperty("top", `${dy + 11}px`);
      mark.label.dataset.side = dx < -50 ? "end" : dx < 0 ? "mid" : "start";
      taken.push([x + dx, y + dy, ...LABEL]);
    }
  }

  function route(from, to) {
    const span = Math.hypot(to.x - from.x, to.y - from.y);
    const bend = Math.max(6, (from.y + to.y) / 2 - span * 0.22);
    return s("path", { class: "route", d: `M${from.x} ${from.y}Q${(from.x + to.x) / 2} ${bend} ${to.x} ${to.y}` });
  }

  /** Shows regions, of which one is the edge's own; `busyOf` gives percent, or null. */
  function draw(regions, own, busyOf) {
    const placed = regions.filter((each) => each.place);
    const names = placed.map((each) => each.name).join("\n");
    if (names !== [...known.keys()].join("\n")) {
      lights.replaceChildren();
      known.clear();
      for (const each of placed) known.set(each.name, light(each));
      const home = known.get(own);
      routes.replaceChildren(...(home ? [...known].filter(([name]) => name !== own).map(([, mark]) => route(home, mark)) : []));
      place();
    }
    for (const each of placed) {
      const mark = known.get(each.name), busy = busyOf(each.name), isDown = each.state === "down";
      const word = isDown ? "out" : each.queue === null ? "" : each.queue < 100 ? String(Math.round(each.queue)) : ms(each.queue);
      attr(mark.ring, "stroke-dasharray", `${busy ?? 0} 100`);
      attr(mark.button, "data-state", each.state);
      if (each.name === own) attr(mark.button, "data-home", "true");
      text(mark.sounding, word);
      attr(mark.button, "aria-label", `${each.name} ${word}: ${isDown ? "no connection" : `round trip ${each.rtt === null ? "not known" : ms(each.rtt)}, queue ${each.queue === null ? "not known" : ms(each.queue)}, ${each.nodes} nodes`}`);
    }
    element.hidden = !placed.length;
  }

  const watcher = new ResizeObserver(place);
  watcher.observe(lights);
  return { element, draw, stop: () => watcher.disconnect() };
}
