// Vectors of texts: their sizes, and how near each is to each.
import { h, ms, short, state, visible } from "./dom.js";
import { call } from "./api.js";

const dot = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
const cut = (value) => (value.length > 40 ? `${value.slice(0, 39)}…` : value);

/** Shows the vectors of a request's texts in `place`, or what the edge said instead. */
export async function embedding(place, body) {
  const began = performance.now();
  let data;
  try {
    ({ data } = await (await call("/v1/embeddings", body)).json());
  } catch (error) {
    place.replaceChildren(h("p", { class: "lane-note", role: "alert" }, state("down", error.message)));
    return;
  }
  const vectors = data.map((each) => each.embedding), texts = body.input.map((each) => visible(cut(each)));
  place.replaceChildren(h("article", { class: "lane", "aria-label": "Vectors" },
    h("header", {}, h("h2", {}, short(body.model)), h("span", { class: "mono" }, `${vectors[0].length} dimensions · ${ms(performance.now() - began)}`)),
    h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "near" },
      h("caption", {}, "Cosine of the angle between each two: 1 is the same direction."),
      h("thead", {}, h("tr", {}, h("td", {}), texts.map((each, number) => h("th", { scope: "col", class: "num", title: each }, number + 1)))),
      h("tbody", {}, texts.map((each, row) => h("tr", {}, h("th", { scope: "row" }, `${row + 1} · ${each}`),
        vectors.map((other) => {
          const near = cosine(vectors[row], other);
          return h("td", { class: "num", style: { "--near": Math.max(0, near).toFixed(3) } }, near.toFixed(3));
        }))))))));
}
