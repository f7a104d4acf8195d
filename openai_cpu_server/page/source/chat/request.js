// From what a conversation says and how it is set to the body of a request. Pure.
import { optionFields } from "./options.js";
import { soundPart } from "./sounds.js";

/** What a new conversation begins with. */
export const FRESH = {
  model: null, // the server's default
  priority: "interactive",
  system: "",
  options: {},
  form: "text", // "schema"
  schema: "",
  strict: true,
  usesTools: false,
  tools: [], // [{name, description, parameters (text)}]
  toolChoice: "auto",
};

/** `path`: the messages so far. `begun`: an answer that was cut and goes on where it was. */
export function bodyOf(settings, path, begun = null) {
  const body = {
    messages: messagesOf(settings, path, begun),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    priority: settings.priority,
    ...optionFields(settings.options),
  };
  if (settings.model) body.model = settings.model;
  if (settings.form === "schema") body.response_format = formatOf(settings);
  if (settings.usesTools && settings.tools.length) Object.assign(body, toolFields(settings));
  return body;
}

function messagesOf(settings, path, begun) {
  const messages = path.map(messageOf).filter(Boolean);
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  if (begun) messages.push(messageOf(begun));
  return messages;
}

function messageOf(message) {
  switch (message.role) {
    case "user":
      return { role: "user", content: contentOf(message) };
    case "tool":
      return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
    default:
      return assistantMessage(message);
  }
}

/** Null for one that has said nothing: it failed before. */
function assistantMessage({ content, reasoning, toolCalls }) {
  if (!content && !reasoning && !toolCalls?.length) return null;
  const said = { role: "assistant", content: content || null };
  if (reasoning) said.reasoning_content = reasoning;
  if (toolCalls?.length) {
    said.tool_calls = toolCalls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return said;
}

/** Pictures and sounds stand before what is said about them, in the order in which they were given. */
function contentOf(message) {
  const text = contentWithFiles(message);
  const parts = (message.files ?? []).map(partOf).filter(Boolean);
  if (!parts.length) return text;
  return text ? [...parts, { type: "text", text }] : parts;
}

function partOf({ picture, sound }) {
  if (picture) return { type: "image_url", image_url: { url: picture } };
  return sound ? soundPart(sound) : null;
}

/** Attached texts stand before the question, each under its name. */
export function contentWithFiles({ content, files }) {
  const texts = (files ?? []).filter((file) => file.text !== undefined);
  const parts = texts.map((file) => `File ${file.name}:\n${fence(file.text)}`);
  return [...parts, content].filter(Boolean).join("\n\n");
}

/** A fence that is longer than any in the text. */
function fence(text) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((ticks) => ticks.length));
  const marks = "`".repeat(longest + 1);
  return `${marks}\n${text}\n${marks}`;
}

function formatOf(settings) {
  if (!settings.schema.trim()) return { type: "json_object" };
  return { type: "json_schema", json_schema: { name: "answer", strict: settings.strict, schema: JSON.parse(settings.schema) } };
}

function toolFields(settings) {
  const tools = settings.tools.map((tool) => ({
    type: "function",
    function: {
      name: tool.name,
      ...(tool.description.trim() ? { description: tool.description } : {}),
      parameters: JSON.parse(tool.parameters.trim() || '{"type":"object","properties":{}}'),
    },
  }));
  const named = tools.some((tool) => tool.function.name === settings.toolChoice);
  const choice = named ? { type: "function", function: { name: settings.toolChoice } } : settings.toolChoice;
  return { tools, tool_choice: choice };
}

/** Why no request can be made as it is set; null: one can. */
export function obstacle(settings, problemOfJson) {
  if (settings.form === "schema" && settings.schema.trim()) {
    const wrong = problemOfJson(settings.schema);
    if (wrong) return `The schema is no JSON yet. ${wrong}`;
  }
  for (const tool of settings.usesTools ? settings.tools : []) {
    if (!/^[\w-]{1,64}$/.test(tool.name)) return "A function needs a name of letters, digits, _ and -.";
    const wrong = tool.parameters.trim() && problemOfJson(tool.parameters);
    if (wrong) return `The parameters of ${tool.name} are no JSON yet. ${wrong}`;
  }
  return null;
}
