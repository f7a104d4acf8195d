// Body of a request, from a conversation and its settings. Pure.
import { optionFields } from "./options.js";
import { itemsOf } from "./response.js";
import { soundPart } from "./sounds.js";

/** Settings of a new conversation. */
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
  mcp: {}, // by server: {tools: names, or null for all of them; ask: "always", "writes", "never"}
  mcpChoice: "", // a server, or "server/tool", that must be called
};

/** `path`: the messages so far. `begun`: an answer that was cut and continues. */
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

/** Available MCP servers that this conversation may use: [name, its settings] each. */
export function usedServers(settings, servers) {
  return Object.entries(settings.mcp ?? {}).filter(([name]) => servers?.some((one) => one.name === name));
}

/** Whether the server runs tools for the next answer, or has run some. Chat completions cannot express that. */
export function needsResponse(settings, path, servers) {
  return usedServers(settings, servers).length > 0 || path.some((message) => message.parts);
}

/** Like `bodyOf`, for a response. `begun`: the answer; it has parts if it continues after decided calls. */
export function responseBodyOf(settings, path, begun, servers) {
  const { max_tokens: most, reasoning_effort: effort, stop: _, ...options } = optionFields(settings.options);
  const body = {
    input: [...path.flatMap(inputOf), ...itemsOf(begun, true)],
    stream: true,
    return_progress: true,
    priority: settings.priority,
    ...options,
  };
  if (most !== undefined) body.max_output_tokens = most;
  if (effort !== undefined) body.reasoning = { effort };
  if (settings.system.trim()) body.instructions = settings.system;
  if (settings.model) body.model = settings.model;
  if (settings.form === "schema") body.text = { format: flat(formatOf(settings), "json_schema") };
  const functions = settings.usesTools && settings.tools.length ? toolFields(settings) : { tools: [], tool_choice: "auto" };
  const tools = [...functions.tools.map((tool) => flat(tool, "function")), ...usedServers(settings, servers).map(mcpTool)];
  if (!tools.length) return body;
  return { ...body, tools, tool_choice: begun.parts.length ? "auto" : choiceOf(settings, functions, servers) };
}

function mcpTool([name, { tools, ask }]) {
  const approval = { always: "always", writes: { never: { read_only: true } }, never: "never" }[ask];
  return { type: "mcp", server_label: name, require_approval: approval, ...(tools ? { allowed_tools: tools } : {}) };
}

/** A required tool of an MCP server takes precedence over a required function. */
function choiceOf(settings, functions, servers) {
  const [label, ...tool] = (settings.mcpChoice ?? "").split("/");
  if (!usedServers(settings, servers).some(([name]) => name === label)) return flat(functions.tool_choice, "function");
  return { type: "mcp", server_label: label, ...(tool.length ? { name: tool.join("/") } : {}) };
}

/** Responses have the fields of a named object beside its type. */
function flat(value, name) {
  return value[name] ? { type: value.type, ...value[name] } : value;
}

function inputOf(message) {
  if (message.role === "user") return [{ role: "user", content: inputContent(contentOf(message)) }];
  if (message.role === "tool") return [{ type: "function_call_output", call_id: message.toolCallId, output: message.content }];
  if (message.parts) return itemsOf(message, false);
  const calls = (message.toolCalls ?? []).map((call) => ({ kind: "function", ...call }));
  return itemsOf({ parts: [{ kind: "thoughts", text: message.reasoning }, { kind: "text", text: message.content }, ...calls] }, false);
}

function inputContent(content) {
  return typeof content === "string" ? content : content.map(inputPart);
}

function inputPart(part) {
  if (part.type === "text") return { type: "input_text", text: part.text };
  if (part.type === "file") return { type: "input_file", ...part.file };
  return part.type === "image_url" ? { type: "input_image", image_url: part.image_url.url } : part;
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

/** Null for an empty message, whose answer failed. */
function assistantMessage({ content, reasoning, toolCalls }) {
  if (!content && !reasoning && !toolCalls?.length) return null;
  const message = { role: "assistant", content: content || null };
  if (reasoning) message.reasoning_content = reasoning;
  if (toolCalls?.length) {
    message.tool_calls = toolCalls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return message;
}

/** Pictures, sounds and documents come before the text, in the order in which they were added. */
function contentOf(message) {
  const text = contentWithFiles(message);
  const parts = (message.files ?? []).map(partOf).filter(Boolean);
  if (!parts.length) return text;
  return text ? [...parts, { type: "text", text }] : parts;
}

function partOf({ name, picture, sound, document }) {
  if (picture) return { type: "image_url", image_url: { url: picture } };
  if (document) return { type: "file", file: { filename: name, file_data: document } };
  return sound ? soundPart(sound) : null;
}

/** Attached texts come before the question, each under its name. */
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

/** Reason why these settings allow no request, or null. */
export function obstacle(settings, problemOfJson, servers) {
  if (settings.options.stop && usedServers(settings, servers).length) return "“Stop at” cannot be used with tools of MCP servers: clear it.";
  if (settings.form === "schema" && settings.schema.trim()) {
    const wrong = problemOfJson(settings.schema);
    if (wrong) return `The schema is not valid JSON yet. ${wrong}`;
  }
  for (const tool of settings.usesTools ? settings.tools : []) {
    if (!/^[\w-]{1,64}$/.test(tool.name)) return "A function needs a name of letters, digits, _ and -.";
    const wrong = tool.parameters.trim() && problemOfJson(tool.parameters);
    if (wrong) return `The parameters of ${tool.name} are not valid JSON yet. ${wrong}`;
  }
  return null;
}
