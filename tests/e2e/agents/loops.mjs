// Agent loop with two parallel tool calls, as in loops.py. Arguments: FRAMEWORK URL whole|streamed.
// The frameworks are loaded from OCS_AGENTS_NODE_MODULES.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [name, url, mode] = process.argv.slice(2);
const require = createRequire(pathToFileURL(process.env.OCS_AGENTS_NODE_MODULES + "/"));
const load = (module) => import(pathToFileURL(require.resolve(module)).href);
const isStreamed = mode === "streamed";
const calls = [];
const QUESTION = "How is the weather in Rome, and what time is it?";
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const noParameters = { type: "object", properties: {} };
const weather = ({ city }) => (calls.push(`weather ${city}`), "sunny");
const now = () => (calls.push("now"), "half past noon");

async function anthropic() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const tool = (name, description, input_schema, run) => ({
    type: "custom", name, description, input_schema, run, parse: (input) => input,
  });
  const runner = client.beta.messages.toolRunner({
    model: "fake",
    max_tokens: 200,
    messages: [{ role: "user", content: QUESTION }],
    tools: [tool("weather", "The weather in a city.", city, weather), tool("now", "The time.", noParameters, now)],
    stream: isStreamed,
  });
  let last;
  for await (const item of runner) last = isStreamed ? await item.finalMessage() : item;
  return last.content.filter((block) => block.type === "text").map((block) => block.text).join("");
}

async function vercel() {
  const { generateText, streamText, tool, stepCountIs, isStepCount, jsonSchema } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({ name: "ours", baseURL: `${url}/v1`, apiKey: "none" });
  const options = {
    model: provider("fake"),
    prompt: QUESTION,
    maxRetries: 0,
    stopWhen: (stepCountIs ?? isStepCount)(4),
    tools: {
      weather: tool({ description: "The weather in a city.", inputSchema: jsonSchema(city), execute: weather }),
      now: tool({ description: "The time.", inputSchema: jsonSchema(noParameters), execute: now }),
    },
  };
  return isStreamed ? await streamText(options).text : (await generateText(options)).text;
}

const answer = await { anthropic, vercel }[name]();
console.log(JSON.stringify({ calls, answer }));
