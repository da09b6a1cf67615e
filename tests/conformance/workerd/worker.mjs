// The checks, as code of a Worker: `env.AI` is the runtime's own binding. Answers with a list of
// [name, failure or null]; `asked` has the models, and what the REST API said to the same prompts.

const GREEDY = { temperature: 0, max_tokens: 24 };
const GATEWAY = { id: "mine" };

function equal(got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) {
    throw new Error(`got ${JSON.stringify(got)}, wanted ${JSON.stringify(wanted)}`);
  }
}

async function refused(call, pattern) {
  try {
    await call();
  } catch (error) {
    const text = `${error.name} ${error.message}`;
    if (!pattern.test(text)) throw new Error(`another error: ${text}`);
    return;
  }
  throw new Error("no error");
}

async function streamed(stream) {
  const text = await new Response(stream).text();
  const events = text.split("\n\n").filter(Boolean).map((event) => event.replace(/^data: /, ""));
  equal(events.pop(), "[DONE]");
  return events.map((event) => JSON.parse(event).response).join("");
}

const checks = {
  async plain(ai, asked) {
    const answer = await ai.run(asked.chat, { ...GREEDY, prompt: asked.prompt });
    equal(answer.response, asked.text);
    equal(answer.usage, asked.usage);
  },
  async with_a_gateway(ai, asked) {
    const inputs = { ...GREEDY, prompt: asked.prompt };
    const answer = await ai.run(asked.chat, inputs, { gateway: GATEWAY });
    equal(answer.response, asked.text);
    equal(ai.aiGatewayLogId, null);
    const stream = await ai.run(asked.chat, { ...inputs, stream: true }, { gateway: GATEWAY });
    equal(await streamed(stream), asked.text);
  },
  async options_of_the_gateway(ai, asked) {
    const inputs = { prompt: `${asked.prompt} ${crypto.randomUUID()}`, temperature: 1, max_tokens: 24 };
    const run = (gateway) =>
      ai.run(asked.chat, inputs, { gateway: { ...GATEWAY, ...gateway }, returnRawResponse: true });
    const seen = [];
    for (const gateway of [
      { cacheTtl: 60 },
      { cacheTtl: 60 },
      { cacheTtl: 60, skipCache: true },
      { cacheKey: inputs.prompt },
      { cacheKey: inputs.prompt },
      {},
    ]) {
      const answer = await run(gateway);
      seen.push([answer.headers.get("cf-aig-cache-status"), (await answer.json()).response]);
    }
    equal(seen.map(([status]) => status), ["MISS", "HIT", null, "MISS", "HIT", null]);
    equal(seen[1][1], seen[0][1]);
    equal(seen[4][1], seen[3][1]);
    const noted = await run({ collectLog: true, metadata: { team: "AI" }, eventId: "e" });
    equal(noted.headers.get("x-skerry-ignored"), "cf-aig-collect-log");
    await refused(() => ai.run(asked.chat, inputs, { gateway: { ...GATEWAY, requestTimeoutMs: 1 } }), /3046/);
  },
  async objects_and_tools(ai, asked) {
    const properties = { name: { type: "string" }, age: { type: "integer" }, kind: { enum: ["cat", "dog"] } };
    const schema = { type: "object", properties, required: Object.keys(properties) };
    const format = { type: "json_schema", json_schema: schema };
    const inputs = { prompt: "Describe a pet.", temperature: 0, max_tokens: 120, response_format: format };
    const { response } = await ai.run(asked.chat, inputs, { gateway: GATEWAY });
    equal([typeof response.name, Number.isInteger(response.age), response.kind in { cat: 1, dog: 1 }],
      ["string", true, true]);
    const tool = { name: "add", description: "Add.", parameters: { type: "object",
      properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] } };
    const called = await ai.run(asked.chat, { messages: [{ role: "user", content: "Add 2 and 3." }],
      tools: [tool], tool_choice: "required", temperature: 0, max_tokens: 120 }, { gateway: GATEWAY });
    equal([called.tool_calls[0].name, Object.keys(called.tool_calls[0].arguments)], ["add", ["a", "b"]]);
  },
  async embeddings(ai, asked) {
    const answer = await ai.run(asked.embedding, { text: ["a", "b"] }, { gateway: GATEWAY });
    equal(answer.shape, [2, 384]);
    equal(answer.data, asked.vectors);
  },
  async a_gateways_own_requests(ai, asked) {
    const gateway = ai.gateway("mine");
    equal(await gateway.getUrl("workers-ai"), `${asked.url}/v1/${asked.account}/mine/workers-ai`);
    equal(await gateway.getUrl(), `${asked.url}/v1/${asked.account}/mine`);
    await refused(() => gateway.getUrl("openai"), /openai/);
    const query = { ...GREEDY, prompt: asked.prompt };
    const step = { provider: "workers-ai", endpoint: asked.chat, headers: {}, query };
    const first = await gateway.run(step);
    equal([first.status, first.headers.get("cf-aig-step")], [200, "0"]);
    equal((await first.json()).result.response, asked.text);
    const chat = { provider: "compat", endpoint: "chat/completions", headers: { "content-type": "application/json" },
      query: { model: `workers-ai/${asked.chat}`, messages: [{ role: "user", content: asked.prompt }], ...GREEDY } };
    const second = await gateway.run([{ ...step, provider: "openai" }, chat], { gateway: { cacheTtl: 60 } });
    equal([second.status, second.headers.get("cf-aig-step")], [200, "1"]);
    equal((await second.json()).choices[0].message.content, asked.text);
    await refused(() => gateway.getLog("none"), /AiGatewayLogNotFound/);
    await refused(() => gateway.patchLog("none", { score: 1 }), /AiGatewayLogNotFound/);
  },
  async what_is_refused_by_name(ai, asked) {
    const file = { name: "a.md", blob: new Blob(["# a"], { type: "text/markdown" }) };
    await refused(() => ai.toMarkdown([file]), /toMarkdown/);
    equal(await ai.toMarkdown().supported(), []);
    await refused(() => ai.autorag("mine").search({ query: "x" }), /autorag/i);
    await refused(() => ai.run("@cf/none/none", { prompt: "x" }, { gateway: GATEWAY }), /5007/);
    await refused(() => ai.run(asked.chat, {}, { gateway: GATEWAY }), /5006/);
    await refused(() => ai.run(asked.chat, { promt: "x" }, { gateway: GATEWAY }), /did you mean prompt/);
  },
  async models(ai, asked) {
    const names = (await ai.models()).map((model) => model.name);
    equal([asked.chat, asked.embedding].map((name) => names.includes(name)), [true, true]);
  },
};

export default {
  async fetch(request, env) {
    const asked = await request.json();
    const results = [];
    for (const [name, check] of Object.entries(checks)) {
      try {
        await check(env.AI, asked);
        results.push([name, null]);
      } catch (error) {
        results.push([name, `${error.name}: ${error.message}`]);
      }
    }
    return Response.json(results);
  },
};
