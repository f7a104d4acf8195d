// Answers whose tools the server runs. They run in the background, so that a reloaded page can resume them. The page
// deletes them after their end. On a server that stores nothing they end with their page.
import { amongFewInTurn } from "../base/alone.js";
import { ApiError, Unreachable, call, events } from "./client.js";
import { MOST_STREAMS } from "./socket.js";

const ROUTE = "/v1/responses";
const NOT_STORED = new Set(["storage_quota_exceeded", "disk_full", "jobs_unavailable"]);
const urlOf = (id) => `${ROUTE}/${encodeURIComponent(id)}`;

/**
 * Sends the request. `onNews` gets {chunk}: an event with its `type`, and {resumable, responseId}: whether the stream
 * can be resumed. Returns at the end of the answer. Raises Unreachable, ApiError; an AbortError after `signal`.
 */
export function send(body, onNews, signal) {
  return amongFewInTurn("stream", MOST_STREAMS, signal, async () => {
    try {
      await listen(ROUTE, { method: "POST", body: { ...body, background: true } }, onNews, signal);
    } catch (error) {
      if (!(error instanceof ApiError) || (error.param !== "background" && !NOT_STORED.has(error.code))) throw error;
      await listen(ROUTE, { method: "POST", body: { ...body, store: false } }, onNews, signal);
    }
  });
}

/** Resumes after the event of this number, or from the beginning if undefined. Raises like `send`, or an ApiError if the
 * response does not exist. */
export function resume(id, lastEvent, onNews, signal) {
  const behind = lastEvent === undefined ? "" : `&starting_after=${lastEvent}`;
  return listen(`${urlOf(id)}?stream=true${behind}`, {}, onNews, signal);
}

/** Ends the response if necessary, and deletes it on the server. */
export function discard(id) {
  return call("DELETE", urlOf(id)).catch(() => {}); // it was not stored, or the server is down
}

async function listen(path, options, onNews, signal) {
  for await (const { data } of events(path, { ...options, signal })) {
    const event = JSON.parse(data);
    if (event.type === "response.created") onNews({ resumable: event.response.background === true, responseId: event.response.id });
    onNews({ chunk: event });
    if (event.type === "response.failed") throw failureOf(event.response);
    if (event.type === "response.completed" || event.type === "response.incomplete") return;
  }
  throw new Unreachable(); // it was cut before its end
}

function failureOf({ error }) {
  return new ApiError(500, error ?? { message: "The request was cancelled on the server.", code: "request_cancelled" });
}
