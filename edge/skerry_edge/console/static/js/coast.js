// Coastlines, drawn by hand and simplified freely: rings of longitude,latitude in tenths of a degree.
const COAST = await (await fetch(new URL("../coast.json", import.meta.url))).json();

export const WIDTH = 1000;
const TOP = 78, BOTTOM = -56, WEST = -168; // degrees; it is cut in the Bering Strait, where no land is
const SCALE = WIDTH / (2 * Math.PI);
const SOFT = 0.22; // how much of each side a corner loses

/** Miller's projection: near enough to the shapes that people know. */
const miller = (latitude) => 1.25 * Math.log(Math.tan(Math.PI / 4 + 0.4 * latitude * Math.PI / 180));

export const HEIGHT = Math.round((miller(TOP) - miller(BOTTOM)) * SCALE);

export const project = (longitude, latitude) => [
  ((((longitude - WEST) % 360) + 360) % 360) * WIDTH / 360,
  (miller(TOP) - miller(latitude)) * SCALE,
];

const between = (a, b, share) => a.map((each, place) => (each * (1 - share) + b[place] * share).toFixed(1)).join(" ");

/** The path of all coastlines, with soft corners, as a pen draws them. */
export function coastPath() {
  return COAST.map((ring) => {
    const points = ring.split(" ").map((pair) => {
      const [longitude, latitude] = pair.split(",").map(Number);
      const [x, y] = project(longitude / 10, Math.min(latitude / 10, 83));
      return [longitude >= 1780 && x < 100 ? x + WIDTH : x, y];
    });
    const corners = points.flatMap((point, place) => {
      const next = points[(place + 1) % points.length];
      return [between(point, next, SOFT), between(point, next, 1 - SOFT)];
    });
    return `M${corners.join("L")}Z`;
  }).join("");
}
