// Why nothing comes yet, in words for people.
import { html } from "../base/html.js";
import { percent, seconds } from "../base/numbers.js";
import { serverState } from "../api/server.js";

export function Waiting({ message, now }) {
  const { text, share } = reason(message, now);
  if (text === null) return null; // the text itself shows that it grows
  return html`<div class="waiting" role="status">
    <span class="pulse" aria-hidden="true"></span>
    <span>${text}</span>
    ${share !== undefined && html`<progress max="1" value=${share} aria-label="Loaded"></progress>`}
  </div>`;
}

function reason({ wait, status }, now) {
  if (serverState.value === "restarting") return { text: "The engine is restarting; this answer then goes on." };
  if (!wait) return { text: status === "waiting" ? "Reading your message …" : null };
  const left = wait.until ? Math.max(0, Math.ceil((wait.until - now) / 1000)) : null;
  switch (wait.why) {
    case "gone":
      return { text: "The server does not answer. This goes on when it is back." };
    case "loading":
      return { text: `The model is loading: ${percent(wait.share)}`, share: wait.share };
    case "queue":
      return { text: `${place(wait.position)} in the queue${left ? `, first words in about ${seconds(left)}` : ""}` };
    case "queue_full":
      return { text: `The queue is full. The next try is in ${seconds(left)}.` };
    default:
      return { text: `${wait.text} The next try is in ${seconds(left)}.` };
  }
}

function place(position) {
  return position === 1 ? "Next" : `Number ${position}`;
}
