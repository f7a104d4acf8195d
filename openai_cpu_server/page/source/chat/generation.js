// Requests for answers: several at once, each until it ends, is stopped, or fails. Temporary failures (a server
// that is down, a full queue, an engine that restarts) are shown, and the request continues afterwards.
import { effect } from "@preact/signals";
import { ApiError, Unreachable, call } from "../api/client.js";
import { look, reachable, refused } from "../api/server.js";
import * as chats from "../api/socket.js";
import * as responses from "../api/responses.js";
import { loadMcpServers, mcpServers } from "../api/server.js";
import { alone } from "../base/alone.js";
import { announce } from "../shell/announce.js";
import { blank, canContinue, grown } from "./answer.js";
import { add, change, current, live, messages, update } from "./conversations.js";
import { bodyOf, needsResponse, responseBodyOf } from "./request.js";
import * as response from "./response.js";
import { pathTo } from "./tree.js";

const STORE_EVERY_MS = 400;
const HIDDEN_FRAME_MS = 250;
const LONGEST_PAUSE_MS = 86_400_000; // timers of more than 24 days would end at once
const PASSING = new Set(["queue_full", "engine_unavailable", "rate_limit_exceeded", "too_many_connections", "too_many_bodies", "answers_unavailable"]);

/** Reason why a stream cannot be resumed. */
const NOT_RESUMABLE = new Set(["request_not_found", "events_lost"]);

/** The rest of an answer is lost. */
class Cut extends Error {}

/** Request of an answer whose functions, if any, people run. */
const CHAT = {
  send: ({ id }, body, onNews, signal) => chats.send(id, body, onNews, signal),
  resume: ({ id, lastEvent }, onNews, signal) => chats.resume(id, lastEvent, onNews, signal),
  discard: ({ id }) => chats.discard(id),
  grown,
};

/** Request of an answer whose tools the server runs. It is sent only once, because tools must not run twice. */
const RESPONSE = {
  send: (_, body, onNews, signal) => responses.send(body, onNews, signal),
  resume: ({ responseId, lastEvent }, onNews, signal) => responses.resume(responseId, lastEvent, onNews, signal),
  discard: ({ responseId }) => responses.discard(responseId),
  grown: response.grown,
};

/** Adds a message of the user, with files, and requests an answer. */
export async function say(parent, content, files) {
  const conversation = current.peek();
  const message = await add(conversation, { role: "user", parent, content, files, status: "done" });
  if (!conversation.title) await change(conversation.id, { title: titleOf(content, files) });
  await answer(message.id);
}

function titleOf(content, files) {
  const line = (content.trim() || files?.[0]?.name || "Untitled").split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}

/** Adds the results of tools, in the order of the calls, and requests the next answer. */
export async function giveResults(message, results) {
  let parent = message.id;
  for (const [index, call] of message.toolCalls.entries()) {
    const fields = { role: "tool", parent, content: results[index], toolCallId: call.id, name: call.name, status: "done" };
    parent = (await add(current.peek(), fields)).id;
  }
  await answer(parent);
}

/** Requests an answer to this message, in addition to existing ones. */
export async function answer(parent) {
  const conversation = current.peek();
  const { settings } = conversation;
  const path = pathTo(messages.peek(), parent).map((one) => messages.peek().get(one.id));
  const hasParts = needsResponse(settings, path, mcpServers.peek());
  const message = await add(conversation, blank(parent, settings, hasParts));
  new Generation(message, settings, path).run();
}

/** Continues an answer that was cut. */
export function continueAnswer(message) {
  const { settings } = current.peek();
  const path = pathTo(messages.peek(), message.parent).map((one) => messages.peek().get(one.id));
  new Generation({ ...message, status: "waiting", isKept: false, error: undefined, finish: undefined, beat: Date.now() }, settings, path).run();
}

/** Decides once whether a call may run. After the last decision, the answer continues. */
export async function approve(message, id, isApproved) {
  const parts = message.parts.map((part) => (part.id === id && response.isPending(part) ? { ...part, isApproved } : part));
  const after = { ...message, parts };
  if (live.has(message.id)) return;
  const stored = update(after); // shown at once, so that people do not decide twice
  if (!response.isWaitingForApproval(after)) continueAnswer({ ...after, firstPart: parts.length });
  await stored;
}

/** Resumes an answer whose tab was closed or reloaded, unless another tab does. */
export function resume(message) {
  if (message.isKept && !live.has(message.id)) new Generation(message, null, null).run();
}

export function stop(id) {
  live.get(id)?.stop();
}

/** Makes the model end its thoughts and begin its answer. Returns the reason if that fails, else null. */
export async function stopThinking({ callId }) {
  try {
    await call("POST", `/v1/chat/completions/${encodeURIComponent(callId)}/control`, { body: { action: "stop_thinking" } });
    return null;
  } catch (error) {
    if (error instanceof ApiError || error instanceof Unreachable) return error.message;
    throw error;
  }
}

/** Generation of an answer, from the request to its end. Only one tab receives it. */
class Generation {
  /** `settings`, `path`: null if the answer can be resumed but not requested again. */
  constructor(message, settings, path) {
    this.message = message;
    this.settings = settings;
    this.path = path;
    this.stopping = new AbortController();
    this.pending = [];
    this.drawing = 0;
    this.storedAt = 0;
  }

  get api() {
    return this.message.parts ? RESPONSE : CHAT;
  }

  get stopped() {
    return this.stopping.signal.aborted;
  }

  stop() {
    this.stopping.abort();
    if (this.message.isKept) this.api.discard(this.message);
  }

  run() {
    return alone(`answer-${this.message.id}`, () => this.untilEnd());
  }

  async untilEnd() {
    live.set(this.message.id, this);
    const beating = setInterval(() => this.set({ beat: Date.now() }), 2000);
    await this.set({});
    try {
      while (!(await this.attempt()));
    } finally {
      clearInterval(beating);
      this.flush();
      live.delete(this.message.id);
      await this.set({ beat: undefined, wait: undefined, ...this.closed() });
      announce(this.ending());
    }
  }

  ending() {
    if (this.message.status === "failed") return `The answer failed: ${this.message.error.text}`;
    return response.isWaitingForApproval(this.message) ? "A call is waiting for your approval." : "The answer is complete.";
  }

  /** Changes of a response that is no longer requested. */
  closed() {
    const { parts, isKept } = this.message;
    if (!parts) return {};
    if (isKept && !this.stopped) this.api.discard(this.message);
    loadMcpServers();
    return { parts: response.settled(parts), isKept: false };
  }

  /** True if nothing is left to try. */
  async attempt() {
    try {
      if (!(await this.resumed())) await this.requested();
      this.flush();
      await this.set({ status: this.stopped ? "stopped" : "done" });
      return true;
    } catch (error) {
      this.flush();
      if (this.stopped) {
        await this.set({ status: "stopped" });
        return true;
      }
      return this.after(error);
    }
  }

  /** Returns false if its stream does not exist. */
  async resumed() {
    if (!this.message.isKept) return false;
    try {
      await this.api.resume(this.message, (news) => this.receive(news), this.stopping.signal);
      return true;
    } catch (error) {
      if (this.message.parts && error.status === 404) throw new Cut();
      if (!(error instanceof ApiError) || !NOT_RESUMABLE.has(error.code)) throw error;
      this.flush();
      this.message = { ...this.message, isKept: false };
      return false;
    }
  }

  async requested() {
    if (!this.path) throw new Cut();
    try {
      await this.api.send(this.message, this.body(), (news) => this.receive(news), this.stopping.signal);
    } catch (error) {
      if (error instanceof ApiError && !this.message.parts) this.message = { ...this.message, isKept: false }; // ended
      throw error;
    }
  }

  body() {
    if (this.message.parts) return responseBodyOf(this.settings, this.path, this.message, mcpServers.peek());
    const hasText = this.message.content || this.message.reasoning;
    if (hasText && !canContinue(this.message)) this.message = { ...this.message, content: "", reasoning: "", toolCalls: [] };
    return bodyOf(this.settings, this.path, canContinue(this.message) ? this.message : null);
  }

  /** Waits after temporary failures. Any other failure is final. */
  async after(error) {
    if (this.message.parts && !this.message.isKept && this.mayHaveCalled(error)) {
      await this.fail({ text: `${error.message} Tools may already have been called, so the request is not repeated automatically.`, code: error.code ?? null, param: error.param });
      return true;
    }
    if (error instanceof Unreachable) {
      await this.set({ status: "waiting", wait: { why: "gone" } });
      await this.serverIsBack();
      return false;
    }
    if (error instanceof Cut) {
      await this.set({ status: "cut" });
      return true;
    }
    if (!(error instanceof ApiError)) {
      await this.fail({ text: error.message, code: null });
      throw error;
    }
    if (error.status === 401) refused();
    if (PASSING.has(error.code) && error.retryAfterS !== null) {
      const seconds = Math.max(1, error.retryAfterS);
      await this.set({ status: "waiting", wait: { why: error.code, text: error.message, until: Date.now() + 1000 * seconds } });
      await this.pause(1000 * seconds);
      return false;
    }
    await this.fail({ text: error.message, code: error.code, param: error.param });
    return true;
  }

  /** True if a tool may have been called for a response that cannot be resumed. */
  mayHaveCalled(error) {
    return error instanceof Unreachable || (this.message.firstPart > 0 && error instanceof ApiError);
  }

  fail(error) {
    return this.set({ status: "failed", error });
  }

  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.min(ms, LONGEST_PAUSE_MS));
      this.stopping.signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
    });
  }

  /** Polls at once, because a closing socket is often the first sign. */
  async serverIsBack() {
    await look();
    await new Promise((resolve) => {
      const settle = () => (end(), resolve());
      const end = effect(() => {
        if (reachable.value) queueMicrotask(settle);
      });
      this.stopping.signal.addEventListener("abort", settle);
    });
    await this.pause(300);
  }

  receive(news) {
    if (news.chunk) return this.hold(news.chunk);
    if (news.resumable !== undefined) return void this.set({ isKept: news.resumable, lastEvent: undefined, responseId: news.responseId });
    this.set({ status: "waiting", wait: { why: "loading", share: news.loading }, beat: Date.now() });
  }

  /** Chunks of one frame are drawn together. A hidden tab has no frames. */
  hold(chunk) {
    this.pending.push(chunk);
    if (this.drawing > 0 && document.hidden) cancelAnimationFrame(this.drawing);
    else if (this.drawing) return;
    this.drawing = document.hidden ? -setTimeout(() => this.flush(), HIDDEN_FRAME_MS) : requestAnimationFrame(() => this.flush());
  }

  flush() {
    if (this.drawing < 0) clearTimeout(-this.drawing);
    else cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    if (!this.pending.length) return;
    this.message = this.api.grown(this.message, this.pending.splice(0));
    const lasting = Date.now() - this.storedAt > STORE_EVERY_MS;
    if (lasting) this.storedAt = Date.now();
    update(this.message, { lasting });
  }

  async set(fields) {
    this.message = { ...this.message, ...fields };
    await update(this.message);
  }
}
