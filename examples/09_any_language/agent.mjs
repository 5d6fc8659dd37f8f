// A shop assistant of two agents in Node.js, with its own fetch and no package.
//
// In: one JSON object on standard input, {"question", "item", "prices"}. Out: the answer.
// OPENAI_BASE_URL and OPENAI_API_KEY say where the models are. While a run is on, that is the
// gateway, and the URL says whose attempt this is.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";

const BASE = process.env.OPENAI_BASE_URL;
const KEY = process.env.OPENAI_API_KEY;
const LOOKUP = {
  type: "function",
  function: {
    name: "lookup",
    description: "Look up what an item costs.",
    parameters: {
      type: "object",
      properties: { item: { type: "string" } },
      required: ["item"],
    },
  },
};

async function post(url, body) {
  const answer = await fetch(url, {
    method: "POST",
    headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

// Whoever has several agents says in the URL which one speaks.
function as(agent) {
  return BASE.replace(/\/v1$/, `/agent/${encodeURIComponent(agent)}/v1`);
}

async function plan(question) {
  const reply = await post(`${as("planner")}/chat/completions`, {
    model: "gpt-4o-mini",
    messages: [
      { role: "system", content: "You are the planner. Call one tool." },
      { role: "user", content: question },
    ],
    tools: [LOOKUP],
  });
  try {
    return JSON.parse(reply.choices[0].message.tool_calls[0].function.arguments).item;
  } catch {
    return null;
  }
}

async function write(question, item, price) {
  const result = `{"item": "${item}", "price": "${price}"}`;
  const reply = await post(`${as("writer")}/responses`, {
    model: "gpt-4o-mini",
    instructions: "You are the writer. One short sentence: item, exact price, unit.",
    input: `Question: ${question}\nResult: ${result}`,
  });
  const said = reply.output.find((item) => item.type === "message");
  return said ? said.content[0].text : "";
}

function now() {
  return `${BigInt(Date.now()) * 1_000_000n}`;
}

// A span in OTLP's JSON form; any OpenTelemetry exporter sends the same.
async function tell(agent, name, start, attributes) {
  const span = {
    traceId: randomBytes(16).toString("hex"),
    spanId: randomBytes(8).toString("hex"),
    name,
    startTimeUnixNano: start,
    endTimeUnixNano: now(),
    attributes: Object.entries(attributes).map(([key, value]) => ({
      key,
      value: { stringValue: value },
    })),
  };
  await post(`${as(agent)}/traces`, { resourceSpans: [{ scopeSpans: [{ spans: [span] }] }] });
}

async function reward(value, target) {
  await post(`${BASE}/rewards`, { value, ...target });
}

const task = JSON.parse(readFileSync(0, "utf-8"));
const item = await plan(task.question);
const start = now();
const price = task.prices[item];
await tell("planner", "lookup", start, {
  "gen_ai.operation.name": "execute_tool",
  "gen_ai.tool.name": "lookup",
  "gen_ai.tool.call.arguments": JSON.stringify({ item }),
  "gen_ai.tool.call.result": price ?? "no such item",
});
if (price === undefined) {
  await reward(0);
  console.log("Sorry, I could not find that item.");
} else {
  const answer = await write(task.question, item, price);
  const right = answer.includes(task.item) && answer.includes(task.prices[task.item]);
  const short = answer.trim().split(/\s+/).length <= 9;
  await reward(Number(right && short));
  console.log(answer);
}
