// Who serves the console, as whoever is logged in: a cookie that no script reads, and a header that no other page sends.
const HEADERS = { "x-skerry-console": "1" };

/** What it said went wrong: its sentence, not our guess. */
export class Refused extends Error {
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param ?? "";
  }
}

/** Who is logged in, and what there is to call; set by `session` and `login`. */
export const me = { site: document.documentElement.dataset.site, account: "", role: null, scopes: [], models: [], holder: "", edge: "", version: "" };

const server = () => (me.site === "edge" ? "This edge" : "The control plane");

async function send(method, path, body, more = {}) {
  const content = body === undefined ? {} : { "content-type": "application/json" };
  let reply;
  try {
    reply = await fetch(path, {
      method,
      headers: { ...HEADERS, ...content, ...more.headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      redirect: "error",
      signal: more.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(`${server()} does not answer. Is it still running?`, 0);
  }
  if (!reply.ok) throw await refusal(reply);
  return reply;
}

async function refusal(reply) {
  const told = await reply.json().catch(() => ({}));
  const message = (reply.status === 412 ? "Somebody changed it meanwhile. Look again, then decide." : told.error?.message) ?? told.errors?.[0]?.message ?? `${server()} answered ${reply.status}.`;
  const isLogin = new URL(reply.url).pathname === "/console/login";
  if (reply.status === 401 && !isLogin) dispatchEvent(new Event("loggedout"));
  return new Refused(message, reply.status, told.error?.param);
}

export async function session() {
  return Object.assign(me, await (await send("GET", "/console/session")).json());
}

export async function login(credentials) {
  return Object.assign(me, await (await send("POST", "/console/login", credentials)).json());
}

/** Names of OpenID providers to which one can go to log in. */
export const issuers = () => get("/console/issuers").then((told) => told.issuers).catch(() => []);

export const logout = () => send("POST", "/console/logout");
export const get = (path) => send("GET", path).then((reply) => reply.json());

/** A path of the API, for the account that is logged in. */
export const apiPath = (path) => `/console/api/client/v4/accounts/${me.account}/ai${path}`;

export const call = (path, body, more) => send("POST", apiPath(path), body, more);

export const download = (path) => send("GET", apiPath(path));
/** A call of the control plane's API, and its answer; null of one without a body. */
export const control = (method, path, body, headers) =>
  send(method, `/console/api/control/v1${path}`, body, { headers }).then((reply) => (reply.status === 204 ? null : reply.json()));

export const stream = (view, signal) => send("GET", `/console/live?view=${view}`, undefined, { signal });

/** Calls the API with a token, which is kept nowhere, or else as the session; returns what it answers. */
export function attempt(method, path, token, headers, more) {
  const isOwn = me.account && !token, own = isOwn ? HEADERS : token ? { authorization: `Bearer ${token}` } : {};
  return fetch(isOwn ? `/console/api${path}` : path, { method, headers: { ...headers, ...own }, credentials: isOwn ? "same-origin" : "omit", redirect: "error", ...more });
}

/** Yields the text of an answer as it comes. */
export async function* pieces(reply) {
  if (!reply.body) return;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Yields the events of a stream: `{event, data}`, and `{comment}` of its comments. */
export async function* events(reply) {
  let rest = "";
  for await (const piece of pieces(reply)) {
    const frames = (rest + piece).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) yield* parsed(frame);
  }
}

function* parsed(frame) {
  const data = [];
  let event = "message";
  for (const line of frame.split("\n")) {
    if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
    else if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  if (data.length) yield { event, data: data.join("\n") };
}
