// An answer whose tools the server runs: text, thoughts and calls in order of arrival.
import { html } from "../base/html.js";
import { Button } from "../base/controls.js";
import { Icon } from "../base/icons.js";
import { milliseconds } from "../base/numbers.js";
import { Markdown } from "../text/markdown_view.js";
import { visible } from "../text/visible.js";
import { approve } from "./generation.js";
import { isMade, isPending } from "./response.js";

const STATES = { writing: "being written", running: "running", completed: "done", failed: "failed", stopped: "stopped" };

export function Parts({ message, growing, isLast }) {
  return message.parts.map((part, index) => html`<${Part} key=${index} part=${part} message=${message} grows=${growing && index === message.parts.length - 1} growing=${growing} isLast=${isLast} />`);
}

function Part({ part, message, grows, growing, isLast }) {
  switch (part?.kind) {
    case "text":
      return message.schema === undefined && part.text ? html`<${Markdown} text=${part.text} growing=${grows} />` : null;
    case "thoughts":
      return part.text ? html`<div class="thoughts"><details><summary>${grows ? "Thinking …" : "Thoughts"}</summary><${Markdown} text=${part.text} growing=${grows} /></details></div>` : null;
    case "unlisted":
      return part.error ? html`<div class="ending"><${Icon} name="warning" /><p>The tools of ${part.server} are not available: ${visible(part.error)}</p></div>` : null;
    case "call":
      return html`<${Call} part=${part} />`;
    case "approval":
      return html`<${Approval} part=${part} message=${message} growing=${growing} isLast=${isLast} />`;
    default:
      return null; // functions are shown below, where people enter their results
  }
}

/** Folded: its first line is the summary. */
function Call({ part }) {
  const { server, name, state, durationMs, output, error } = part;
  const isBad = state === "failed" || state === "stopped";
  return html`<details class="call mcp-call">
    <summary>
      <${Icon} name="tool" size=${14} /><span class="mcp-name">${server}: <code>${visible(name)}</code></span>
      <span class=${isBad ? "badge bad" : state === "completed" ? "badge good" : "badge"}>${state === "completed" && html`<${Icon} name="check" size=${14} />`}${STATES[state]}${durationMs !== undefined && `, ${milliseconds(durationMs)}`}</span>
    </summary>
    <${Words} label="Arguments" text=${pretty(part.arguments)} />
    ${output != null && html`<${Words} label="Result" text=${output} />`}
    ${error != null && html`<${Words} label="Error" text=${error} />`}
  </details>`;
}

function Words({ label, text }) {
  return html`<div class="mcp-part"><p>${label}</p><pre tabindex="0" role="region" aria-label=${label}>${visible(text) || "(nothing)"}</pre></div>`;
}

/** A call that waits for approval. Its arguments are shown completely, and not folded. */
function Approval({ part, message, growing, isLast }) {
  const needsApproval = isPending(part) && isLast && !growing;
  if (part.isApproved && isMade(message.parts, part)) return null; // the call itself shows it
  const say = (isApproved) => {
    approve(message, part.id, isApproved);
    if (matchMedia("(pointer: fine)").matches) document.getElementById("composer")?.focus(); // the buttons disappear
  };
  return html`<div class=${needsApproval ? "call mcp-asks" : "call"} role="group" aria-label=${`Call of ${visible(part.name)}`}>
    <header><${Icon} name="tool" size=${14} /><span class="mcp-name">${part.server}: <code>${visible(part.name)}</code></span><span class="badge">${stateOf(part, growing, isLast)}</span></header>
    <${Words} label="Arguments" text=${pretty(part.arguments)} />
    ${needsApproval && html`<p>Allow this call?</p><div class="row"><${Button} icon="check" kind="main" onClick=${() => say(true)}>Approve</${Button}><${Button} icon="close" onClick=${() => say(false)}>Deny</${Button}></div>`}
  </div>`;
}

function stateOf({ isApproved }, growing, isLast) {
  if (isApproved === null) return isLast ? "waiting for you" : "not answered";
  if (!isApproved) return "denied";
  return growing ? "approved" : "approved; its result is unknown";
}

/** The original text if parsing would change it, because numbers here have 15 digits. */
function pretty(text) {
  if (/\d{16}/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
