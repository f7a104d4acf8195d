// Answers come in streams of events that continue without a listener, so that a reloaded page can resume them.
// Browsers open at most six HTTP/1.1 connections to a server, so eight streams would wait for each other. Streams
// beyond the first few share one WebSocket, and end with it.
import { amongFew } from "../base/alone.js";
import { ApiError, Unreachable, address, call, events, key } from "./client.js";

const OPEN = 1;
const CLOSED = 3;
const TOO_LARGE = 1009;
const TOO_MANY = 429;
const IDLE_MS = 20_000;
const BLOCKED_MS = 60_000;
export const MOST_STREAMS = 3; // of all tabs
const ROUTE = "/v1/chat/completions";

let socket = null;
let blockedUntil = 0; // end of the pause after something between browser and server blocked a WebSocket
let closing = 0;
let number = 0;
const live = new Map();

/**
 * Sends the request. `onNews` gets {chunk}, {loading: share}, and {resumable}: whether the stream can be resumed as `name`.
 * Then chunks have an `event_id`. Returns at the end of the answer. Raises Unreachable, ApiError; an AbortError after
 * `signal`.
 */
export async function send(name, body, onNews, signal) {
  const storedStream = () => {
    onNews({ resumable: true });
    return overHttp(ROUTE, { method: "POST", body, headers: { "x-conversation-id": name } }, onNews, signal);
  };
  try {
    if (await amongFew("stream", MOST_STREAMS, storedStream)) return;
  } catch (error) {
    if (error.status !== TOO_MANY) throw error; // too many stored streams of clients without a key
    onNews({ resumable: false });
  }
  if (Date.now() > blockedUntil) {
    const open = await opened();
    if (open) return onSocket(open, body, onNews, signal);
    await call("GET", "/v1/models", { signal }); // its error shows whether the key or the server is the reason
    blockedUntil = Date.now() + BLOCKED_MS;
  }
  return overHttp(ROUTE, { method: "POST", body }, onNews, signal);
}

/** Resumes a stream after the last event, or from its beginning if undefined. Raises like `send`, and an
 * ApiError if the stream does not exist. */
export function resume(name, lastEvent, onNews, signal) {
  const headers = lastEvent === undefined ? {} : { "last-event-id": lastEvent };
  return overHttp(`${ROUTE}/${encodeURIComponent(name)}/stream`, { headers }, onNews, signal);
}

/** Ends the stream of this name, which would otherwise continue. */
export function discard(name) {
  return call("DELETE", `${ROUTE}/${encodeURIComponent(name)}`).catch(() => {}); // it has ended, or the server is down
}

/** The open socket, or null if none is possible. */
async function opened() {
  if (socket?.usedKey === key.value && socket.readyState === OPEN) return socket;
  if (socket?.usedKey !== key.value || socket.readyState > OPEN) socket = fresh();
  return (await socket.ready) ? socket : null;
}

function fresh() {
  const url = address(ROUTE);
  url.protocol = url.protocol.replace("http", "ws");
  let created;
  try {
    created = new WebSocket(url, ["openai-chat-completions", ...(key.value ? [`openai-insecure-api-key.${key.value}`] : [])]);
  } catch {
    created = new EventTarget(); // the browser has no WebSockets, or the key has characters that a subprotocol cannot have
    created.readyState = CLOSED;
    queueMicrotask(() => created.dispatchEvent(new Event("close")));
  }
  created.usedKey = key.value;
  created.ready = new Promise((resolve) => {
    created.addEventListener("open", () => resolve(true));
    created.addEventListener("close", () => resolve(false));
  });
  created.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  created.addEventListener("close", ({ code }) => lost(created, code));
  return created;
}

function onSocket(open, body, onNews, signal) {
  const id = `q${++number}`;
  const message = JSON.stringify({ request_id: id, ...body });
  clearTimeout(closing);
  return new Promise((resolve, reject) => {
    const cancel = () => {
      if (open.readyState === OPEN) open.send(JSON.stringify({ cancel: id }));
      live.get(id)?.fail();
    };
    const end = (settle, value) => {
      live.delete(id);
      signal?.removeEventListener("abort", cancel);
      if (!live.size) closing = setTimeout(() => live.size || open.close(), IDLE_MS);
      settle(value);
    };
    live.set(id, {
      open,
      size: message.length,
      onNews,
      done: () => end(resolve),
      fail: (error) => end(reject, signal?.aborted ? stopped() : error),
    });
    if (signal?.aborted) return end(reject, stopped());
    signal?.addEventListener("abort", cancel);
    open.send(message);
  });
}

function stopped() {
  return new DOMException("stopped", "AbortError");
}

function receive(message) {
  const request = live.get(message.request_id);
  if (!request) return;
  if (message.done) request.done();
  else if (message.error) request.fail(new ApiError(message.status ?? 500, message.error, message.headers));
  else request.onNews(news(message));
}

function news(message) {
  return message.object === "model.loading" ? { loading: message.loaded } : { chunk: message };
}

function lost(closed, code) {
  if (socket === closed) socket = null;
  const cut = [...live.values()].filter((request) => request.open === closed).sort((a, b) => b.size - a.size);
  // The server closed the socket because of one message, which can only be the largest. The others use a new socket.
  if (code === TOO_LARGE) cut.shift()?.fail(new ApiError(413, { message: "This conversation is larger than the server accepts.", code: "request_too_large" }));
  for (const request of cut) request.fail(new Unreachable());
}

async function overHttp(path, options, onNews, signal) {
  for await (const { event, data, id } of events(path, { ...options, signal, comments: true })) {
    if (event === "comment") reportLoading(data, onNews);
    else if (event === "error") throw new ApiError(500, JSON.parse(data).error);
    else if (data === "[DONE]") return;
    else onNews({ chunk: { ...JSON.parse(data), event_id: id } });
  }
  throw new Unreachable(); // it was cut before its end
}

function reportLoading(text, onNews) {
  const loading = text.match(/model is loading \((\d+) %\)/);
  if (loading) onNews({ loading: Number(loading[1]) / 100 });
}
