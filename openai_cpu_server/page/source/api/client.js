// Requests to the server: JSON with a key, errors with useful messages, event streams.
import { signal } from "@preact/signals";
import { inTab } from "../base/storage.js";

/** The API key, or "". It is in session storage, so other tabs and later sessions do not see it. */
export const key = signal(inTab.get("key") ?? "");

export function setKey(value) {
  inTab.set("key", value);
  key.value = value;
}

const GATEWAYS = [502, 503, 504];

/** Error that the server returned. */
export class ApiError extends Error {
  constructor(status, error, headers = {}) {
    super(error?.message || `The server answered with status ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
    this.type = error?.type ?? null;
    this.param = error?.param ?? null;
    this.retryAfterS = retryAfter(headers);
  }
}

/** No answer: the server is down, or the network is. */
export class Unreachable extends Error {
  constructor() {
    super("The server is not responding.");
  }
}

function retryAfter(headers) {
  const ms = Number(headers["retry-after-ms"]);
  const s = Number(headers["retry-after"]);
  if (ms > 0) return ms / 1000;
  return s > 0 ? s : null;
}

/** Addresses are relative, so that the page works behind a proxy that adds a prefix. */
export function address(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI);
}

function headersWith(body, more) {
  const headers = { ...more };
  if (key.value) headers.authorization = `Bearer ${key.value}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  return headers;
}

/** Raises Unreachable, ApiError; an AbortError after `signal`. */
async function request(method, path, { body, signal, headers } = {}) {
  let response;
  try {
    response = await fetch(address(path), {
      method,
      signal,
      headers: headersWith(body, headers),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted || !isPrintable(key.value)) throw error;
    throw new Unreachable();
  }
  if (response.ok) return response;
  const error = await apiError(response);
  // A gateway sends these if the server behind it is down. The server's own errors have a code.
  throw GATEWAYS.includes(error.status) && error.code === null ? new Unreachable() : error;
}

/** A text that cannot be in a header cannot be a key either. */
export function isPrintable(text) {
  return /^[\x20-\x7e\xa0-\xff]*$/.test(text);
}

async function apiError(response) {
  const body = await response.json().catch(() => null);
  return new ApiError(response.status, body?.error, Object.fromEntries(response.headers));
}

/** JSON of the answer, or null without a body. */
export async function call(method, path, options) {
  const response = await request(method, path, options);
  return response.status === 204 ? null : response.json();
}

/**
 * Server-sent events: yields {event, data, id} with `data` as text, until the server or `signal` ends the stream.
 * `comments`: also yields comments, as the event "comment".
 */
export async function* events(path, { method = "GET", body, signal, headers, comments = false } = {}) {
  const response = await request(method, path, { body, signal, headers });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let name = "message";
  let data = [];
  let id;
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        if (signal?.aborted) throw error;
        throw new Unreachable();
      });
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((ended) => ended.replace(/\r$/, ""))) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("id:")) id = line.slice(3).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith(":") && comments) yield { event: "comment", data: line.slice(1).trim() };
        else if (line === "") {
          if (data.length) yield { event: name, data: data.join("\n"), id };
          name = "message";
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
