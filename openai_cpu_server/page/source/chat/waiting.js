// Explains why an answer has not begun.
import { html } from "../base/html.js";
import { count, percent, seconds } from "../base/numbers.js";
import { visible } from "../text/visible.js";
import { isMade } from "./response.js";
import { health, models, serverState } from "../api/server.js";

export function Waiting({ message, now }) {
  const { text, share, detail } = reason(message, now);
  if (text === null) return null; // the growing text shows progress itself
  return html`<div class="waiting">
    <span class="pulse" aria-hidden="true"></span>
    <span role="status">${text}</span>
    ${share !== undefined && html`<progress max="1" value=${share} aria-label=${text}></progress>`}
    ${detail && html`<span class="soft">${detail}</span>`}
  </div>`; // screen readers get only the text, because the figures change all the time
}

function reason({ wait, status, model, parts }, now) {
  if (serverState.value === "restarting") return { text: "The engine is restarting. This answer continues afterwards." };
  if (!wait && parts?.length) return { text: ofParts(parts) };
  if (!wait && status === "waiting" && isLoading(model)) return loading(health.value.loaded);
  if (!wait) return { text: status === "waiting" ? "Reading your message …" : null };
  const left = wait.until ? Math.max(0, Math.ceil((wait.until - now) / 1000)) : null;
  switch (wait.why) {
    case "gone":
      return { text: "The server is not responding. This answer continues when it is back." };
    case "loading":
      return loading(wait.share);
    case "queue":
      return { text: `${place(wait.position)} in the queue`, detail: left && `first words in about ${seconds(left)}` };
    case "prompt":
      return { text: "Reading your message", share: wait.processed / wait.total, detail: howFar(wait, left) };
    case "queue_full":
      return { text: `The queue is full. The next attempt is in ${seconds(left)}.` };
    default:
      return { text: `${wait.text} The next attempt is in ${seconds(left)}.` };
  }
}

/** Text for the state of calls. */
function ofParts(parts) {
  const running = parts.filter((part) => part.kind === "call" && part.state === "running");
  const approved = parts.filter((part) => part.kind === "approval" && part.isApproved && !isMade(parts, part));
  const called = [...running, ...approved].map((part) => `${part.server}: ${visible(part.name)}`);
  if (called.length) return `Calling ${called.join(", ")} …`;
  return parts.at(-1).kind === "call" && parts.at(-1).state !== "writing" ? "Reading the result …" : null;
}

/** Resumable streams do not report it. */
function isLoading(model) {
  return models.value?.find((one) => one.id === (model ?? health.value?.model))?.state === "loading" && health.value;
}

function loading(share) {
  return { text: "The model is loading", share, detail: percent(share) };
}

/** "1,200 of 4,000 tokens, 800 of them from the cache, about 3 s left" */
function howFar({ processed, total, cached }, left) {
  const parts = [`${count(processed)} of ${count(total)} tokens`];
  if (cached) parts.push(`${count(cached)} of them from the cache`);
  if (left) parts.push(`about ${seconds(left)} left`);
  return parts.join(", ");
}

function place(position) {
  return position === 1 ? "Next" : `Number ${position}`;
}
