// Conversations as files. A file may come from anywhere, so only known fields are taken, each with its proper type.
import { newId } from "../base/ids.js";
import { adopt } from "./conversations.js";
import { entriesOfMarkdown, isMarkdownOfOurs } from "./markdown_file.js";
import { DOCUMENT_URI } from "./files.js";
import { FRESH } from "./request.js";
import { SOUND_URI } from "./sounds.js";
import * as store from "./store.js";

const FORMAT = "openai-cpu-server.conversations";
const ROLES = ["user", "assistant", "tool"];
const ENDS = ["done", "stopped", "cut", "failed"];

/** Returns conversations with all their messages, as an object for a JSON file. */
export async function exported(ids) {
  const entries = await Promise.all(
    ids.map(async (id) => ({ conversation: await store.conversationOf(id), messages: await store.messagesOf(id) })),
  );
  return { format: FORMAT, version: 1, exported: new Date().toISOString(), conversations: entries };
}

/** Imports a file and returns the number of conversations. Raises an Error that describes the fault of the file. */
export async function imported(text) {
  const entries = entriesOf(text);
  for (const { conversation, messages } of entries) {
    const id = newId();
    const names = new Map(messages.map((message) => [message.id, newId()]));
    const parents = parentsOf(messages);
    const copies = messages.map((message) => ({
      ...cleaned(message),
      id: names.get(message.id),
      parent: names.get(parents.get(message.id)) ?? null,
      conversation: id,
    }));
    const leaf = names.get(conversation.leaf) ?? copies.at(-1)?.id ?? null;
    const created = number(conversation.created) ?? Date.now();
    const settings = settingsOf(record(conversation.settings) ?? {});
    await adopt({ id, title: string(conversation.title).slice(0, 200), created, updated: Date.now(), leaf, settings }, copies);
  }
  return entries.length;
}

function entriesOf(text) {
  if (isMarkdownOfOurs(text)) return entriesOfMarkdown(text);
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is neither JSON nor Markdown from this page.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file was not exported by this page.");
  if (!file.conversations.every(isEntry)) throw new Error("This file is incomplete.");
  return file.conversations;
}

function isEntry(entry) {
  const isMessage = (one) => record(one) && typeof one.id === "string" && ROLES.includes(one.role);
  return record(entry?.conversation) && Array.isArray(entry.messages) && entry.messages.every(isMessage);
}

/** Messages by id. A message that is its own ancestor would cause an endless loop, so it loses its parent. */
function parentsOf(messages) {
  const parents = new Map(messages.map((message) => [message.id, message.parent]));
  const sound = new Set();
  for (const { id } of messages) {
    const way = [];
    let at = id;
    while (parents.has(at) && !sound.has(at) && !way.includes(at)) {
      way.push(at);
      at = parents.get(at);
    }
    if (way.includes(at)) parents.set(at, null);
    for (const one of way) sound.add(one);
  }
  return parents;
}

const string = (value) => (typeof value === "string" ? value : "");
const number = (value) => (Number.isFinite(value) ? value : undefined);
const list = (value) => (Array.isArray(value) ? value.filter(record) : []);
const record = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : undefined);

function cleaned(message) {
  return {
    role: message.role,
    content: string(message.content),
    reasoning: string(message.reasoning) || undefined,
    created: number(message.created) ?? 0,
    status: ENDS.includes(message.status) ? message.status : "cut",
    error: record(message.error) && { text: string(message.error.text), code: string(message.error.code), param: string(message.error.param) },
    files: list(message.files).map(fileOf),
    toolCalls: list(message.toolCalls).map((call) => ({ id: string(call.id), name: string(call.name), arguments: string(call.arguments) })),
    parts: Array.isArray(message.parts) ? list(message.parts).map(partOf) : undefined,
    toolCallId: string(message.toolCallId) || undefined,
    name: string(message.name) || undefined,
    model: string(message.model) || undefined,
    priority: string(message.priority) || undefined,
    finish: string(message.finish) || undefined,
    firstTokenMs: number(message.firstTokenMs),
    usage: usageOf(record(message.usage)),
    timings: timingsOf(record(message.timings)),
    schema: typeof message.schema === "string" ? message.schema : undefined,
  };
}

function fileOf(file) {
  const name = string(file.name);
  const [picture, sound, document] = [string(file.picture), string(file.sound), string(file.document)];
  if (/^data:image\/(png|jpeg|webp|gif|bmp|hei[cf]|tiff);base64,/.test(picture)) return { name, picture };
  if (SOUND_URI.test(sound)) return { name, sound, seconds: Math.max(0, number(file.seconds) ?? 0) };
  if (DOCUMENT_URI.test(document)) return { name, document };
  return { name, text: string(file.text) };
}

/** Parts as in response.js. Pending approvals belonged to another server or another day, so they count as decided. */
function partOf(part) {
  const call = { id: string(part.id).slice(0, 64) || newId(), name: string(part.name), arguments: string(part.arguments) };
  const server = string(part.server);
  switch (part.kind) {
    case "call": {
      const state = ["completed", "failed"].includes(part.state) ? part.state : "stopped"; // the call will not be made
      const answers = { output: optionalString(part.output), error: optionalString(part.error), durationMs: number(part.durationMs), approvalId: optionalString(part.approvalId) };
      return { kind: "call", ...call, server, state, ...answers };
    }
    case "approval":
      return { kind: "approval", ...call, server, isApproved: part.isApproved === true };
    case "function":
      return { kind: "function", ...call };
    case "unlisted":
      return { kind: "unlisted", server, error: optionalString(part.error) };
    default:
      return { kind: part.kind === "thoughts" ? "thoughts" : "text", text: string(part.text) };
  }
}

const optionalString = (value) => (typeof value === "string" ? value : undefined);

/** Imports the choice of tools, but never calls without approval, because a file may come from anywhere. */
function mcpOf(servers) {
  const entries = Object.entries(record(servers) ?? {}).filter(([, one]) => record(one));
  return Object.fromEntries(entries.map(([name, { tools }]) => [name, { tools: Array.isArray(tools) ? tools.map(string) : null, ask: "always" }]));
}

function usageOf(usage) {
  if (!usage) return undefined;
  return {
    prompt_tokens: number(usage.prompt_tokens) ?? 0,
    completion_tokens: number(usage.completion_tokens) ?? 0,
    total_tokens: number(usage.total_tokens) ?? 0,
    prompt_tokens_details: {
      cached_tokens: number(usage.prompt_tokens_details?.cached_tokens) ?? 0,
      image_tokens: number(usage.prompt_tokens_details?.image_tokens),
      audio_tokens: number(usage.prompt_tokens_details?.audio_tokens),
    },
    completion_tokens_details: { reasoning_tokens: number(usage.completion_tokens_details?.reasoning_tokens) ?? 0 },
  };
}

function timingsOf(timings) {
  const needed = ["queue_ms", "prefill_ms", "generation_ms", "latency_ms", "tokens_generated"];
  if (!timings || !needed.every((name) => number(timings[name]) !== undefined)) return undefined;
  return Object.fromEntries(Object.entries(timings).filter(([, value]) => number(value) !== undefined));
}

function settingsOf(settings) {
  const options = Object.entries(record(settings.options) ?? {}).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value));
  const tools = list(settings.tools).map((tool) => ({ name: string(tool.name), description: string(tool.description), parameters: string(tool.parameters) }));
  return {
    ...FRESH,
    model: string(settings.model) || null,
    priority: settings.priority === "batch" ? "batch" : "interactive",
    system: string(settings.system),
    options: Object.fromEntries(options.map(([name, value]) => [name, typeof value === "number" ? String(value) : value])),
    form: settings.form === "schema" ? "schema" : "text",
    schema: string(settings.schema),
    strict: settings.strict !== false,
    usesTools: settings.usesTools === true,
    tools,
    toolChoice: string(settings.toolChoice) || "auto",
    mcp: mcpOf(settings.mcp),
    mcpChoice: string(settings.mcpChoice),
  };
}
