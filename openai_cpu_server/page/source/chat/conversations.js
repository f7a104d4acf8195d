// State of the conversations: in memory, in the store, and in messages to other tabs.
import { computed, signal } from "@preact/signals";
import { newId } from "../base/ids.js";
import { inBrowser } from "../base/storage.js";
import { FRESH } from "./request.js";
import * as store from "./store.js";
import { below, newestLeaf, pathTo } from "./tree.js";

/** All conversations, newest first, without their messages. */
export const conversations = signal([]);
/** Open conversation: {id, title, settings, leaf, ...}. An empty one is not stored. */
export const current = signal(fresh());
/** Messages of the open conversation, by id. The map is replaced when messages come or go, not when one grows. */
export const messages = signal(new Map());
/** Changing message as a signal of its own, so that only this message is drawn again. */
const texts = new Map();

export const path = computed(() => pathTo(messages.value, current.value.leaf));
/** Error of the store, in words. */
export const keepingProblem = signal(null);

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("openai-cpu-server");

function fresh() {
  const now = Date.now();
  const settings = { ...FRESH, ...lastSettings() };
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings, isFresh: true };
}

/** Copies the last choices to a new conversation, except the system prompt and the schema. */
function lastSettings() {
  try {
    return JSON.parse(inBrowser.get("settings") ?? "{}");
  } catch {
    return {};
  }
}

// -- opening -----------------------------------------------------------------------------------------

export async function loadConversations() {
  const all = await store.allConversations();
  const newer = conversations.peek(); // conversations that were added while the store was read
  const known = new Set(newer.map((one) => one.id));
  const others = all.filter((one) => !known.has(one.id) && !discarded.has(one.id));
  conversations.value = [...newer, ...others].sort((a, b) => b.updated - a.updated);
}

/** Returns false if the conversation does not exist. */
export async function open(id) {
  if (current.peek().id === id) return true;
  const [found, its] = await Promise.all([store.conversationOf(id), store.messagesOf(id)]);
  if (!found || discarded.has(id)) return false;
  const known = its.map((message) => live.get(message.id)?.message ?? message);
  messages.value = new Map(known.map((message) => [message.id, message]));
  current.value = found;
  texts.clear();
  return true;
}

export function openNew() {
  messages.value = new Map();
  texts.clear();
  current.value = fresh();
}

// -- messages ----------------------------------------------------------------------------------------

/** Answers that this tab is requesting, in any conversation: by id {message, stop()}. */
export const live = new Map();

/** Deleted messages, by id. An answer in progress must not restore them. */
const gone = new Set();

/** Ids of conversations deleted here or in another tab. One that was being read or changed must stay deleted. */
const discarded = new Set();

function forget(ids) {
  for (const id of ids) {
    gone.add(id);
    live.get(id)?.stop();
  }
}

const liveIn = (conversation) => [...live.values()].map((one) => one.message).filter((one) => one.conversation === conversation).map((one) => one.id);

/** Current state of the message. A component that reads it is drawn again when it changes. */
export function watched(id) {
  if (!texts.has(id)) texts.set(id, signal(messages.peek().get(id)));
  return texts.get(id);
}

function show(message) {
  if (message.conversation !== current.peek().id) return;
  messages.peek().set(message.id, message);
  if (texts.has(message.id)) texts.get(message.id).value = message;
}

/** Adds a message under `parent` and shows it. */
export async function add(conversation, fields) {
  const message = { id: newId(), conversation: conversation.id, created: Date.now(), ...fields };
  if (current.peek().id === conversation.id) {
    messages.value = new Map(messages.peek()).set(message.id, message);
  }
  await change(conversation.id, { leaf: message.id, updated: Date.now() }, [message]);
  return message;
}

/** Shows the current state of a message. `lasting`: also stores it and informs other tabs. */
export async function update(message, { lasting = true } = {}) {
  if (gone.has(message.id) || discarded.has(message.conversation)) return;
  show(message);
  if (lasting) await save({ puts: { messages: [message] } }, { message });
}

export async function remove(id) {
  const all = messages.peek();
  const ids = below(all, id);
  forget(ids);
  const { parent } = all.get(id);
  const left = new Map([...all].filter(([key]) => !gone.has(key)));
  messages.value = left;
  const siblings = [...left.values()].filter((one) => one.parent === parent).sort((a, b) => a.created - b.created);
  const leaf = siblings.length ? newestLeaf(left, siblings.at(-1).id) : parent;
  await change(current.peek().id, { leaf });
  await save({ deletes: { messages: ids } }, { opened: current.peek().id, gone: ids });
}

// -- conversations -----------------------------------------------------------------------------------

/** Changes fields of any conversation, and stores it with these messages. */
export async function change(id, fields, itsMessages = []) {
  const isOpen = current.peek().id === id;
  const before = isOpen ? current.peek() : (conversations.peek().find((one) => one.id === id) ?? (await store.conversationOf(id)));
  if (!before || discarded.has(id)) return;
  const { isFresh, ...after } = { ...before, ...fields };
  const wasKept = !isFresh || itsMessages.length > 0;
  if (isOpen) current.value = wasKept ? after : { ...after, isFresh };
  if (!wasKept) return;
  listed(after);
  await save({ puts: { conversations: [after], messages: itsMessages } }, { conversation: after, added: itsMessages });
}

function listed(conversation) {
  const others = conversations.peek().filter((one) => one.id !== conversation.id);
  conversations.value = [conversation, ...others].sort((a, b) => b.updated - a.updated);
}

export async function changeSettings(fields) {
  const settings = { ...current.peek().settings, ...fields };
  await change(current.peek().id, { settings });
  const { model, priority, options } = settings;
  inBrowser.set("settings", JSON.stringify({ model, priority, options }));
}

export async function discard(id) {
  receiveDeletion(id);
  const its = (await store.messagesOf(id)).map((message) => message.id);
  forget(its);
  await save({ deletes: { conversations: [id], messages: its } }, { discarded: id });
}

/** Adds a complete conversation to the existing ones. */
export async function adopt(conversation, itsMessages) {
  listed(conversation);
  await save({ puts: { conversations: [conversation], messages: itsMessages } }, { conversation });
}

// -- keeping, and other tabs -------------------------------------------------------------------------

async function save(writes, notice) {
  try {
    await store.write(writes);
    keepingProblem.value = store.isForgetful ? "This browser stores nothing for this page: your conversations are lost when you close it." : null;
  } catch (error) {
    keepingProblem.value = `This browser could not save the conversation: ${error?.message ?? "its storage is full"}`;
  }
  channel?.postMessage(notice); // other tabs can read it from the store only now
}

channel?.addEventListener("message", ({ data }) => {
  if (data.conversation) receiveConversation(data.conversation, data.added ?? []);
  if (data.message) receiveMessage(data.message);
  if (data.gone) forget(data.gone);
  if (data.discarded) receiveDeletion(data.discarded);
  if (data.opened === current.peek().id) reopen();
});

function receiveConversation(conversation, added) {
  if (discarded.has(conversation.id)) return;
  listed(conversation);
  if (conversation.id !== current.peek().id) return;
  if (added.length) {
    const all = new Map(messages.peek());
    for (const message of added) all.set(message.id, message);
    messages.value = all;
  }
  current.value = conversation;
}

function receiveMessage(message) {
  if (message.conversation !== current.peek().id || live.has(message.id) || gone.has(message.id)) return;
  if (messages.peek().has(message.id)) show(message);
  else messages.value = new Map(messages.peek()).set(message.id, message);
}

function receiveDeletion(id) {
  discarded.add(id);
  forget(liveIn(id));
  conversations.value = conversations.peek().filter((one) => one.id !== id);
  if (current.peek().id === id) openNew();
}

async function reopen() {
  const its = await store.messagesOf(current.peek().id);
  messages.value = new Map(its.map((message) => [message.id, live.get(message.id)?.message ?? message]));
}
