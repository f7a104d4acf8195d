// Answers whose tools the server runs. They run in the background, so that a reloaded page can resume them. The page
// deletes them after their end. On a server that stores nothing they end with their page.
import { amongFewInTurn } from "../base/alone.js";
import { ApiError, Unreachable, call, events } from "./client.js";
import { MOST_STREAMS } from "./socket.js";

const ROUTE = "/v1/responses";
const NOT_STORED = new Set(["storage_quota_exceeded", "disk_full", "jobs_unavailable"]);
const of = (id) => `${ROUTE}/${encodeURIComponent(id)}`;

/**
 * Sends the request. `hear` gets {chunk}: an event with its `type`, and {kept, responseId}: whether the stream can be
 * resumed. Returns at the end of the answer. Raises Unreachable, ApiError; an AbortError after `signal`.
 */
export function ask(body, hear, signal) {
  return amongFewInTurn("stream", MOST_STREAMS, signal, async () => {
    try {
      await listen(ROUTE, { method: "POST", body: { ...body, background: true } }, hear, signal);
    } catch (error) {
      if (!(error instanceof ApiError) || (error.param !== "background" && !NOT_STORED.has(error.code))) throw error;
      await listen(ROUTE, { method: "POST", body: { ...body, store: false } }, hear, signal);
    }
  });
}

/** Resumes after the event of this number, or from the beginning if undefined. Raises like `ask`, or an ApiError if the
 * response does not exist. */
export function takeUp(id, lastEvent, hear, signal) {
  const behind = lastEvent === undefined ? "" : `&starting_after=${lastEvent}`;
  return listen(`${of(id)}?stream=true${behind}`, {}, hear, signal);
}

/** Ends the response if necessary, and deletes it on the server. */
export function letGo(id) {
  return call("DELETE", of(id)).catch(() => {}); // it was not stored, or the server is down
}

async function listen(path, options, hear, signal) {
  for await (const { data } of events(path, { ...options, signal })) {
    const event = JSON.parse(data);
    if (event.type === "response.created") hear({ kept: event.response.background === true, responseId: event.response.id });
    hear({ chunk: event });
    if (event.type === "response.failed") throw failureOf(event.response);
    if (event.type === "response.completed" || event.type === "response.incomplete") return;
  }
  throw new Unreachable(); // it was cut before its end
}

function failureOf({ error }) {
  return new ApiError(500, error ?? { message: "The request was cancelled on the server.", code: "request_cancelled" });
}
