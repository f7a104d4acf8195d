// State of the server as the page knows it: reachable or not, state, models, and whether it needs a key.
import { computed, effect, signal } from "@preact/signals";
import { ApiError, Unreachable, call, key } from "./client.js";

const CALM_MS = 5000;
const BUSY_MS = 1000;

/** The last answer of /health, or null before the first. */
export const health = signal(null);
/** False while the server does not answer. */
export const reachable = signal(true);
/** Cards of /v1/models, or null while unknown. */
export const models = signal(null);
/** "needed": a key is required and missing; "wrong": the key is unknown; "ok"; "unknown". */
export const access = signal("unknown");

/** Cards of the MCP servers whose tools this key may use; empty while unknown. */
export const mcpServers = signal([]);

/** Number of times that the server has returned. Waiting work continues when it grows. */
export const returns = signal(0);

export const serverState = computed(() => (reachable.value ? (health.value?.status ?? "unknown") : "gone"));

let timer = 0;
let looking = false;

/** Polls the server: rarely while all is well, often otherwise. */
export function watchServer() {
  effect(() => {
    key.value; // another key may see other models and use other tools
    returns.value; // it may be another server now
    loadModels().then(() => access.peek() === "ok" && loadMcpServers());
  });
  document.addEventListener("visibilitychange", () => document.hidden || look());
  addEventListener("online", look);
  look();
}

/** Polls now. Called by code that has lost a connection. */
export async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  try {
    await poll();
  } finally {
    looking = false;
    timer = setTimeout(look, isCalm() ? CALM_MS : BUSY_MS);
  }
}

function isCalm() {
  return document.hidden || ["ready", "asleep", "degraded"].includes(serverState.value);
}

async function poll() {
  const before = JSON.stringify([serverState.value, health.value?.models]);
  try {
    health.value = await call("GET", "/health");
    comeBack();
  } catch (error) {
    if (error instanceof Unreachable) reachable.value = false;
    else if (!(error instanceof ApiError)) throw error;
  }
  if (before !== JSON.stringify([serverState.value, health.value?.models]) && reachable.value) await loadModels();
}

function comeBack() {
  if (reachable.value) return;
  reachable.value = true;
  returns.value += 1;
}

export async function loadModels() {
  try {
    models.value = (await call("GET", "/v1/models")).data;
    access.value = "ok";
  } catch (error) {
    if (error instanceof Unreachable) reachable.value = false;
    else if (error instanceof ApiError) access.value = accessAfter(error);
    else throw error;
  }
}

/** Lists the MCP servers without starting any. */
export async function loadMcpServers() {
  try {
    mcpServers.value = (await call("GET", "/v1/mcp")).data;
  } catch (error) {
    if (error instanceof ApiError) mcpServers.value = []; // a key without the right to request answers
    else if (!(error instanceof Unreachable)) throw error;
  }
}

/** Lists the tools of one server, which starts it. */
export async function loadMcpServer(name) {
  const card = await call("GET", `/v1/mcp/${encodeURIComponent(name)}`);
  mcpServers.value = mcpServers.peek().map((one) => (one.name === name ? card : one));
}

function accessAfter(error) {
  if (error.status === 401) return key.value ? "wrong" : "needed";
  return "ok"; // 403: a key for other uses, such as metrics
}

/** Called by code that gets a 401, because the key may have been revoked. */
export function refused() {
  access.value = key.value ? "wrong" : "needed";
}
