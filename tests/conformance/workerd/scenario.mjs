// A real Worker in workerd, whose `env.AI` leads straight to the platform.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

const { BASE_URL, ACCOUNT_ID, API_TOKEN, CHAT_MODEL, EMBED_MODEL } = process.env;
const ROOT = BASE_URL.replace(/\/+$/, "");
const PROMPT = "What colour is the sky?";
const START_MS = 30_000;

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

async function rest(model, inputs) {
  const answer = await fetch(`${ROOT}/client/v4/accounts/${ACCOUNT_ID}/ai/run/${model}`, {
    method: "POST",
    headers: { authorization: `Bearer ${API_TOKEN}` },
    body: JSON.stringify(inputs),
  });
  return (await answer.json()).result;
}

async function answered(url, body) {
  for (const end = Date.now() + START_MS; ; await sleep(100)) {
    try {
      return await (await fetch(url, { method: "POST", body })).json();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
  }
}

const port = await freePort();
const values = { ADDRESS: new URL(ROOT).host, TOKEN: API_TOKEN, PORT: port };
const template = readFileSync("config.capnp", "utf8").replace(/^#.*\n/gm, "");
writeFileSync("filled.capnp", template.replace(/ADDRESS|TOKEN|PORT/g, (name) => values[name]), { mode: 0o600 });

const greedy = { prompt: PROMPT, temperature: 0, max_tokens: 24 };
await rest(CHAT_MODEL, greedy); // so that the prompt is in the cache, as it will be for the Worker
const text = await rest(CHAT_MODEL, greedy);
const vectors = await rest(EMBED_MODEL, { text: ["a", "b"] });
const asked = {
  url: ROOT, account: ACCOUNT_ID, chat: CHAT_MODEL, embedding: EMBED_MODEL, prompt: PROMPT,
  text: text.response, usage: text.usage, vectors: vectors.data,
};

const worker = spawn("node_modules/.bin/workerd", ["serve", "filled.capnp"], { stdio: ["ignore", "inherit", "inherit"] });
let results;
try {
  results = await answered(`http://127.0.0.1:${port}/`, JSON.stringify(asked));
} finally {
  worker.kill();
}
if (process.env.VERBOSE) for (const [name, failure] of results) console.error(`  ${name}: ${failure ?? "ok"}`);
const failed = results.filter(([, failure]) => failure !== null);
const { version } = JSON.parse(readFileSync("node_modules/workerd/package.json", "utf8"));
const told = failed.map(([name, failure]) => ` | ${name}: ${failure.slice(0, 400)}`).join("");
console.log(`${failed.length ? "FAIL" : "PASS"} workerd ${version} ${results.length - failed.length}/${results.length}${told}`);
process.exit(failed.length ? 1 : 0);
