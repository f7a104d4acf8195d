// The conversations as the page shows them: state, what is kept of it, and what other tabs are told.
import { computed, signal } from "@preact/signals";
import { newId } from "../base/ids.js";
import { kept } from "../base/storage.js";
import { FRESH } from "./request.js";
import * as store from "./store.js";
import { below, newestLeaf, pathTo } from "./tree.js";

/** All conversations, newest first, without their messages. */
export const conversations = signal([]);
/** The one that is open: {id, title, settings, leaf, ...}. One that nobody has written in yet is kept nowhere. */
export const current = signal(fresh());
/** Messages of the open one, by id. The map is replaced when messages come and go, not when one gets longer. */
export const messages = signal(new Map());
/** How a message is while it changes often, as a signal of its own: only that message is drawn again. */
const texts = new Map();

export const path = computed(() => pathTo(messages.value, current.value.leaf));
/** What went wrong with keeping, in words. */
export const keepingProblem = signal(null);

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("openai-cpu-server");

function fresh() {
  const now = Date.now();
  const settings = { ...FRESH, ...lastSettings() };
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings, isFresh: true };
}

/** What was last chosen is likely to be wanted again; a system prompt or a schema is not. */
function lastSettings() {
  try {
    return JSON.parse(kept.get("settings") ?? "{}");
  } catch {
    return {};
  }
}

// -- opening -----------------------------------------------------------------------------------------

export async function loadConversations() {
  const all = await store.allConversations();
  conversations.value = all.sort((a, b) => b.updated - a.updated);
}

/** False: there is no such conversation. */
export async function open(id) {
  if (current.peek().id === id) return true;
  const [found, its] = await Promise.all([store.conversationOf(id), store.messagesOf(id)]);
  if (!found) return false;
  const known = its.map((message) => live.get(message.id)?.message ?? message);
  messages.value = new Map(known.map((message) => [message.id, message]));
  current.value = found;
  texts.clear();
  return true;
}

export function startAnew() {
  messages.value = new Map();
  texts.clear();
  current.value = fresh();
}

// -- messages ----------------------------------------------------------------------------------------

/** Answers that this tab is asking for, whichever conversation is open: by id {message, stop()}. */
export const live = new Map();

/** The message as it is now; a component that reads it is drawn again when it changes. */
export function watched(id) {
  if (!texts.has(id)) texts.set(id, signal(messages.peek().get(id)));
  return texts.get(id);
}

function show(message) {
  if (message.conversation !== current.peek().id) return;
  messages.peek().set(message.id, message);
  if (texts.has(message.id)) texts.get(message.id).value = message;
}

/** Adds a message under `parent` and goes there. */
export async function add(conversation, fields) {
  const message = { id: newId(), conversation: conversation.id, created: Date.now(), ...fields };
  if (current.peek().id === conversation.id) {
    messages.value = new Map(messages.peek()).set(message.id, message);
  }
  await change(conversation.id, { leaf: message.id, updated: Date.now() }, [message]);
  return message;
}

/** Shows a message as it is by now; `lasting`: keeps it too, and tells other tabs. */
export async function update(message, { lasting = true } = {}) {
  show(message);
  if (lasting) await keep({ puts: { messages: [message] } }, { message });
}

export async function remove(id) {
  const all = messages.peek();
  const gone = below(all, id);
  const { parent } = all.get(id);
  const left = new Map([...all].filter(([key]) => !gone.includes(key)));
  messages.value = left;
  const siblings = [...left.values()].filter((one) => one.parent === parent).sort((a, b) => a.created - b.created);
  const leaf = siblings.length ? newestLeaf(left, siblings.at(-1).id) : parent;
  await change(current.peek().id, { leaf });
  await keep({ deletes: { messages: gone } }, { opened: current.peek().id });
}

// -- conversations -----------------------------------------------------------------------------------

/** Changes fields of a conversation, be it open or not, and keeps it with these messages. */
export async function change(id, fields, itsMessages = []) {
  const isOpen = current.peek().id === id;
  const before = isOpen ? current.peek() : (conversations.peek().find((one) => one.id === id) ?? (await store.conversationOf(id)));
  if (!before) return;
  const { isFresh, ...after } = { ...before, ...fields };
  const wasKept = !isFresh || itsMessages.length > 0;
  if (isOpen) current.value = wasKept ? after : { ...after, isFresh };
  if (!wasKept) return;
  listed(after);
  await keep({ puts: { conversations: [after], messages: itsMessages } }, { conversation: after, added: itsMessages });
}

function listed(conversation) {
  const others = conversations.peek().filter((one) => one.id !== conversation.id);
  conversations.value = [conversation, ...others].sort((a, b) => b.updated - a.updated);
}

export async function changeSettings(fields) {
  const settings = { ...current.peek().settings, ...fields };
  await change(current.peek().id, { settings });
  const { model, priority, options } = settings;
  kept.set("settings", JSON.stringify({ model, priority, options }));
}

export async function discard(id) {
  const its = await store.messagesOf(id);
  for (const message of its) live.get(message.id)?.stop();
  conversations.value = conversations.peek().filter((one) => one.id !== id);
  if (current.peek().id === id) startAnew();
  await keep({ deletes: { conversations: [id], messages: its.map((one) => one.id) } }, { discarded: id });
}

// -- export and import -------------------------------------------------------------------------------

const FORMAT = "openai-cpu-server.conversations";

/** Conversations with their messages, as an object for a file. */
export async function exported(ids) {
  const entries = await Promise.all(
    ids.map(async (id) => ({ conversation: await store.conversationOf(id), messages: await store.messagesOf(id) })),
  );
  return { format: FORMAT, version: 1, exported: new Date().toISOString(), conversations: entries };
}

/** Adds what a file has, beside what is there. Raises an Error that says what is wrong with it. */
export async function imported(text) {
  const entries = entriesOf(text);
  for (const { conversation, messages: its } of entries) {
    const renamed = new Map(its.map((message) => [message.id, newId()]));
    const id = newId();
    const copies = its.map((one) => ({
      ...cleaned(one),
      id: renamed.get(one.id),
      parent: renamed.get(one.parent) ?? null,
      conversation: id,
    }));
    const leaf = renamed.get(conversation.leaf) ?? copies.at(-1)?.id ?? null;
    const whole = {
      id,
      title: String(conversation.title ?? "").slice(0, 200),
      created: Number(conversation.created) || Date.now(),
      updated: Date.now(),
      leaf,
      settings: { ...FRESH, ...settingsOf(conversation.settings) },
    };
    listed(whole);
    await keep({ puts: { conversations: [whole], messages: copies } }, { conversation: whole });
  }
  return entries.length;
}

function entriesOf(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file was not exported by this page.");
  const isEntry = (entry) =>
    entry?.conversation && Array.isArray(entry.messages) && entry.messages.every((one) => one && typeof one.id === "string" && ROLES.includes(one.role));
  if (!file.conversations.every(isEntry)) throw new Error("Something is missing in this file.");
  return file.conversations;
}

const ROLES = ["user", "assistant", "tool"];

/** Whoever made the file may have written anything: only what is shown is taken, as what it should be. */
function cleaned(message) {
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  const object = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : undefined);
  return {
    role: message.role,
    content: text(message.content),
    reasoning: text(message.reasoning) || undefined,
    created: Number(message.created) || 0,
    status: message.status === "streaming" || message.status === "waiting" ? "cut" : (["done", "stopped", "cut", "failed"].includes(message.status) ? message.status : "done"),
    files: list(message.files).map((file) => ({ name: text(file?.name), text: text(file?.text) })),
    toolCalls: list(message.toolCalls).map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) })),
    toolCallId: text(message.toolCallId) || undefined,
    name: text(message.name) || undefined,
    model: text(message.model) || undefined,
    finish: text(message.finish) || undefined,
    usage: object(message.usage),
    timings: object(message.timings),
    schema: text(message.schema) || undefined,
  };
}

function settingsOf(given) {
  const known = Object.entries(FRESH).filter(([name, usual]) => given && name in given && (usual === null || typeof given[name] === typeof usual));
  return Object.fromEntries(known.map(([name]) => [name, given[name]]));
}

// -- keeping, and other tabs -------------------------------------------------------------------------

async function keep(what, told) {
  channel?.postMessage(told);
  try {
    await store.write(what);
    keepingProblem.value = store.isForgetful ? "This browser keeps nothing for this page: conversations are gone when you close it." : null;
  } catch (error) {
    keepingProblem.value = `This browser could not keep the conversation: ${error?.message ?? "its storage is full"}`;
  }
}

channel?.addEventListener("message", ({ data }) => {
  if (data.conversation) hearOf(data.conversation, data.added ?? []);
  if (data.message) hearMessage(data.message);
  if (data.discarded) hearEnd(data.discarded);
  if (data.opened === current.peek().id) reopen();
});

function hearOf(conversation, added) {
  listed(conversation);
  if (conversation.id !== current.peek().id) return;
  if (added.length) {
    const all = new Map(messages.peek());
    for (const message of added) all.set(message.id, message);
    messages.value = all;
  }
  current.value = conversation;
}

function hearMessage(message) {
  if (message.conversation !== current.peek().id || live.has(message.id)) return;
  if (messages.peek().has(message.id)) show(message);
  else messages.value = new Map(messages.peek()).set(message.id, message);
}

function hearEnd(id) {
  conversations.value = conversations.peek().filter((one) => one.id !== id);
  if (current.peek().id === id) startAnew();
}

async function reopen() {
  const its = await store.messagesOf(current.peek().id);
  messages.value = new Map(its.map((message) => [message.id, live.get(message.id)?.message ?? message]));
}
