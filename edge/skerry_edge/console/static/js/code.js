// The same call in other words. Addresses and tokens are those of the environment: none is written here.
const ENDPOINT = "$SKERRY_BASE_URL/client/v4/accounts/$SKERRY_ACCOUNT_ID/ai";

export const shell = (value) => `'${value.replaceAll("'", "'\\''")}'`;
const js = (value, indent = 0) => JSON.stringify(value, null, 2).replaceAll("\n", `\n${" ".repeat(indent)}`);

/** A value as Python writes it. */
export function python(value, indent = 0) {
  const inner = " ".repeat(indent + 4), end = " ".repeat(indent);
  if (value === null) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((each) => `${inner}${python(each, indent + 4)},\n`).join("")}${end}]`;
  }
  const fields = Object.entries(value);
  if (!fields.length) return "{}";
  return `{\n${fields.map(([key, each]) => `${inner}${JSON.stringify(key)}: ${python(each, indent + 4)},\n`).join("")}${end}}`;
}

/** The body of Workers AI's own route, where the page asks in OpenAI's form: it takes the schema bare. */
function native({ model, stream_options, ...body }) {
  const form = body.response_format;
  if (form?.type !== "json_schema") return body;
  return { ...body, response_format: { ...form, json_schema: form.json_schema.schema } };
}

const keywords = (body) => {
  const { model, messages, ...rest } = body;
  return { model, messages, ...rest };
};

const CHAT = {
  curl: (body) => `curl -N "${ENDPOINT}/run/${body.model}" \\
  -H "authorization: Bearer $SKERRY_API_TOKEN" \\
  -H "content-type: application/json" \\
  -d ${shell(js(native(body)))}`,
  skerry: (body) => `from skerry import AI

ai = AI()  # SKERRY_BASE_URL, SKERRY_ACCOUNT_ID and SKERRY_API_TOKEN
for chunk in ai.run(
    ${python(body.model)},
    ${python(without(native(body), "stream"), 4)},
    stream=True,
):
    print(chunk.response or "", end="", flush=True)
print()`,
  openai: (body) => `import os

from openai import OpenAI

account = os.environ["SKERRY_ACCOUNT_ID"]
client = OpenAI(
    base_url=f"{os.environ['SKERRY_BASE_URL']}/client/v4/accounts/{account}/ai/v1",
    api_key=os.environ["SKERRY_API_TOKEN"],
)
stream = client.chat.completions.create(
${Object.entries(keywords(without(body, "stream_options"))).map(([key, value]) => `    ${key}=${python(value, 4)},`).join("\n")}
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()`,
  JavaScript: (body) => `const { SKERRY_BASE_URL, SKERRY_ACCOUNT_ID, SKERRY_API_TOKEN } = process.env;
const reply = await fetch(
  \`\${SKERRY_BASE_URL}/client/v4/accounts/\${SKERRY_ACCOUNT_ID}/ai/v1/chat/completions\`,
  {
    method: "POST",
    headers: { authorization: \`Bearer \${SKERRY_API_TOKEN}\`, "content-type": "application/json" },
    body: JSON.stringify(${js(without(without(body, "stream"), "stream_options"), 4)}),
  },
);
const answer = await reply.json();
console.log(answer.choices[0].message.content);`,
  Worker: (body) => `export default {
  async fetch(request, env) {
    const stream = await env.AI.run(${JSON.stringify(body.model)}, ${js(native(body), 4)});
    return new Response(stream, { headers: { "content-type": "text/event-stream" } });
  },
};`,
};

const EMBED = {
  curl: ({ model, input }) => `curl "${ENDPOINT}/run/${model}" \\
  -H "authorization: Bearer $SKERRY_API_TOKEN" \\
  -H "content-type: application/json" \\
  -d ${shell(js({ text: input }))}`,
  skerry: ({ model, input }) => `from skerry import AI

ai = AI()  # SKERRY_BASE_URL, SKERRY_ACCOUNT_ID and SKERRY_API_TOKEN
result = ai.run(${python(model)}, ${python({ text: input })})
print(result.shape)`,
  openai: ({ model, input }) => `import os

from openai import OpenAI

account = os.environ["SKERRY_ACCOUNT_ID"]
client = OpenAI(
    base_url=f"{os.environ['SKERRY_BASE_URL']}/client/v4/accounts/{account}/ai/v1",
    api_key=os.environ["SKERRY_API_TOKEN"],
)
result = client.embeddings.create(model=${python(model)}, input=${python(input)})
print(len(result.data), len(result.data[0].embedding))`,
  JavaScript: (body) => `const { SKERRY_BASE_URL, SKERRY_ACCOUNT_ID, SKERRY_API_TOKEN } = process.env;
const reply = await fetch(
  \`\${SKERRY_BASE_URL}/client/v4/accounts/\${SKERRY_ACCOUNT_ID}/ai/v1/embeddings\`,
  {
    method: "POST",
    headers: { authorization: \`Bearer \${SKERRY_API_TOKEN}\`, "content-type": "application/json" },
    body: JSON.stringify(${js(body, 4)}),
  },
);
const { data } = await reply.json();
console.log(data.length, data[0].embedding.length);`,
  Worker: ({ model, input }) => `export default {
  async fetch(request, env) {
    return Response.json(await env.AI.run(${JSON.stringify(model)}, ${js({ text: input }, 4)}));
  },
};`,
};

function without(body, name) {
  const { [name]: _, ...rest } = body;
  return rest;
}

export const LANGUAGES = Object.keys(CHAT);

/** The code of a call: `body` is what the page itself sends. */
export const code = (language, body) => ("input" in body ? EMBED : CHAT)[language](body);
