// Asking for answers: several at once, each until it ends, is stopped, or fails for good. What passes by itself (a
// server that is gone, a full queue, an engine that restarts) is waited for and said.
import { effect } from "@preact/signals";
import { ApiError, Unreachable, call } from "../api/client.js";
import { look, reachable, refused } from "../api/server.js";
import { ask, letGo, takeUp } from "../api/socket.js";
import { alone } from "../base/alone.js";
import { announce } from "../shell/announce.js";
import { blank, canGoOn, grown } from "./answer.js";
import { add, change, current, live, messages, update } from "./conversations.js";
import { bodyOf } from "./request.js";
import { pathTo } from "./tree.js";

const KEEP_EVERY_MS = 400;
const HIDDEN_FRAME_MS = 250;
const LONGEST_PAUSE_MS = 86_400_000; // timers of more than 24 days would end at once
const PASSING = new Set(["queue_full", "engine_unavailable", "rate_limit_exceeded", "too_many_connections", "too_many_bodies", "answers_unavailable"]);

/** Why a stream cannot be taken up. */
const NOT_KEPT = new Set(["request_not_found", "events_lost"]);

/** Nobody knows the rest of an answer. */
class Cut extends Error {}

/** Says something as the user, with files, and asks for an answer. */
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

/** Gives the results of tools, in the order of the calls, and asks for what comes next. */
export async function giveResults(message, results) {
  let parent = message.id;
  for (const [index, call] of message.toolCalls.entries()) {
    const fields = { role: "tool", parent, content: results[index], toolCallId: call.id, name: call.name, status: "done" };
    parent = (await add(current.peek(), fields)).id;
  }
  await answer(parent);
}

/** Asks for an answer under this message: another one, if it has some already. */
export async function answer(parent) {
  const conversation = current.peek();
  const { settings } = conversation;
  const asked = pathTo(messages.peek(), parent).map((one) => messages.peek().get(one.id));
  const message = await add(conversation, blank(parent, settings));
  new Answering(message, settings, asked).run();
}

/** Goes on with an answer that was cut. */
export function goOn(message) {
  const { settings } = current.peek();
  const asked = pathTo(messages.peek(), message.parent).map((one) => messages.peek().get(one.id));
  new Answering({ ...message, status: "waiting", isKept: false, error: undefined, finish: undefined, beat: Date.now() }, settings, asked).run();
}

/** Goes on with an answer that was being written when its tab was closed or loaded again, unless another tab does. */
export function resume(message) {
  if (message.isKept && !live.has(message.id)) new Answering(message, null, null).run();
}

export function stop(id) {
  live.get(id)?.stop();
}

/** Has the model end its thoughts and begin its answer. Returns why it does not; null: it does. */
export async function stopThinking({ callId }) {
  try {
    await call("POST", `/v1/chat/completions/${encodeURIComponent(callId)}/control`, { body: { action: "stop_thinking" } });
    return null;
  } catch (error) {
    if (error instanceof ApiError || error instanceof Unreachable) return error.message;
    throw error;
  }
}

/** One answer, from the question to its end. Only one tab hears it. */
class Answering {
  /** `settings`, `asked`: null, it can be taken up where it is, but not asked for anew. */
  constructor(message, settings, asked) {
    this.message = message;
    this.settings = settings;
    this.asked = asked;
    this.stopping = new AbortController();
    this.held = [];
    this.drawing = 0;
    this.keptAt = 0;
  }

  get stopped() {
    return this.stopping.signal.aborted;
  }

  stop() {
    this.stopping.abort();
    if (this.message.isKept) letGo(this.message.id);
  }

  run() {
    return alone(`answer-${this.message.id}`, () => this.toItsEnd());
  }

  async toItsEnd() {
    live.set(this.message.id, this);
    const beating = setInterval(() => this.set({ beat: Date.now() }), 2000);
    await this.set({});
    try {
      while (!(await this.tried()));
    } finally {
      clearInterval(beating);
      this.flush();
      live.delete(this.message.id);
      await this.set({ beat: undefined, wait: undefined });
      announce(this.message.status === "failed" ? `The answer failed: ${this.message.error.text}` : "The answer is complete.");
    }
  }

  /** True when there is nothing more to try. */
  async tried() {
    try {
      if (!(await this.takenUp())) await this.askedFor();
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

  /** False: its stream is not there any more, or never was. */
  async takenUp() {
    const { id, isKept, lastEvent } = this.message;
    if (!isKept) return false;
    try {
      await takeUp(id, lastEvent, (news) => this.hear(news), this.stopping.signal);
      return true;
    } catch (error) {
      if (!(error instanceof ApiError) || !NOT_KEPT.has(error.code)) throw error;
      this.flush();
      this.message = { ...this.message, isKept: false };
      return false;
    }
  }

  async askedFor() {
    if (!this.asked) throw new Cut();
    try {
      await ask(this.message.id, this.body(), (news) => this.hear(news), this.stopping.signal);
    } catch (error) {
      if (error instanceof ApiError) this.message = { ...this.message, isKept: false }; // it has ended
      throw error;
    }
  }

  body() {
    const begun = this.message.content || this.message.reasoning;
    if (begun && !canGoOn(this.message)) this.message = { ...this.message, content: "", reasoning: "", toolCalls: [] };
    return bodyOf(this.settings, this.asked, canGoOn(this.message) ? this.message : null);
  }

  /** Waits for what passes by itself; all else is the end. */
  async after(error) {
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

  fail(error) {
    return this.set({ status: "failed", error });
  }

  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.min(ms, LONGEST_PAUSE_MS));
      this.stopping.signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
    });
  }

  /** A socket that closes is often the first to know. */
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

  hear(news) {
    if (news.chunk) return this.hold(news.chunk);
    if (news.kept !== undefined) return void this.set({ isKept: news.kept, lastEvent: undefined });
    this.set({ status: "waiting", wait: { why: "loading", share: news.loading }, beat: Date.now() });
  }

  /** Chunks that come within one frame are drawn together. A tab that is hidden has no frames. */
  hold(chunk) {
    this.held.push(chunk);
    if (this.drawing > 0 && document.hidden) cancelAnimationFrame(this.drawing);
    else if (this.drawing) return;
    this.drawing = document.hidden ? -setTimeout(() => this.flush(), HIDDEN_FRAME_MS) : requestAnimationFrame(() => this.flush());
  }

  flush() {
    if (this.drawing < 0) clearTimeout(-this.drawing);
    else cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    if (!this.held.length) return;
    this.message = grown(this.message, this.held.splice(0));
    const lasting = Date.now() - this.keptAt > KEEP_EVERY_MS;
    if (lasting) this.keptAt = Date.now();
    update(this.message, { lasting });
  }

  async set(fields) {
    this.message = { ...this.message, ...fields };
    await update(this.message);
  }
}
