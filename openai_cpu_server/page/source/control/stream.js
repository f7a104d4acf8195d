// The stream that feeds the room: it connects, stores events, and reconnects by itself.
import { batch, signal } from "@preact/signals";
import { ApiError, Unreachable, events } from "../api/client.js";
import { look, refused } from "../api/server.js";
import { forgetSteps, takeSteps } from "./steps.js";

const MOST_RATES = 300; // ten minutes
const MOST_RESTARTS = 50;
const LONGEST_WAIT_MS = 10_000;

/** {state: "connecting" | "live" | "lost" | "refused" | "resting", error, sinceMs} */
export const connection = signal({ state: "connecting", error: null, sinceMs: Date.now() });
export const hello = signal(null);
export const models = signal([]);
export const memoryBytes = signal(0);
export const queue = signal(null);
export const running = signal(null);
export const caches = signal(null);
/** Events of type rate with their times of arrival: [{at, ...}], the newest last. */
export const rates = signal([]);
/** Newest first. */
export const restarts = signal([]);
/** Steps that this page was too slow for. */
export const dropped = signal(0);

let offsetS = 0;

/** Estimate of the server's clock. */
export function serverNow() {
  return Date.now() / 1000 + offsetS;
}

/** Listens until the returned function is called. Pauses while the page is hidden. */
export function listen() {
  let ended = false;
  let attempt = null;
  const begin = () => {
    attempt?.abort();
    attempt = null;
    if (ended) return;
    if (document.hidden) return move("resting");
    attempt = new AbortController();
    keepListening(attempt.signal);
  };
  document.addEventListener("visibilitychange", begin);
  begin();
  return {
    again: begin,
    end() {
      ended = true;
      document.removeEventListener("visibilitychange", begin);
      attempt?.abort();
    },
  };
}

async function keepListening(stop) {
  let waitMs = 500;
  while (!stop.aborted) {
    const began = Date.now();
    const error = await once(stop);
    if (stop.aborted) return;
    if (error instanceof ApiError && error.status < 500) return move("refused", error);
    move("lost", error);
    look();
    if (Date.now() - began > LONGEST_WAIT_MS) waitMs = 500;
    await rest(error?.retryAfterS ? 1000 * error.retryAfterS : waitMs, stop);
    waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
  }
}

/** One connection, to its end. Returns the reason for its end, or null if the server ended it. */
async function once(stop) {
  try {
    for await (const { event, data } of events("/v1/events", { signal: stop })) {
      const payload = JSON.parse(data);
      if (event === "error") throw new ApiError(payload.error.code === "invalid_api_key" ? 401 : 403, payload.error);
      batch(() => receive(event, payload));
    }
    return null;
  } catch (error) {
    if (stop.aborted) return null;
    if (error instanceof ApiError && error.status === 401) refused();
    if (error instanceof ApiError || error instanceof Unreachable) return error;
    throw error;
  }
}

function rest(ms, stop) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    stop.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

function move(state, error = null) {
  connection.value = { state, error, sinceMs: Date.now() };
}

function receive(event, payload) {
  switch (event) {
    case "hello":
      return receiveHello(payload);
    case "step":
      dropped.value += payload.dropped;
      return takeSteps(payload.steps, serverNow());
    case "queue":
      return void (queue.value = payload);
    case "request":
      return void (running.value = payload.running);
    case "cache":
      return void (caches.value = payload);
    case "rate":
      return void (rates.value = [...rates.value, { at: serverNow(), ...payload }].slice(-MOST_RATES));
    case "model":
      models.value = payload.models;
      memoryBytes.value = payload.memory_bytes;
      return;
    case "restart":
      restarts.value = [payload, ...restarts.value].slice(0, MOST_RESTARTS);
  }
}

function receiveHello(payload) {
  offsetS = payload.at - Date.now() / 1000;
  hello.value = payload;
  models.value = payload.models;
  restarts.value = [...payload.restarts].reverse();
  queue.value = running.value = caches.value = null;
  forgetSteps(serverNow());
  move("live");
}
