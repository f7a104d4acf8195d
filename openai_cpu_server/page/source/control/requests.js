// Running and waiting requests, each with its activity or the reason why it waits, and a button that ends it.
import { useEffect, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Button, IconButton } from "../base/controls.js";
import { count, milliseconds, seconds } from "../base/numbers.js";
import { call } from "../api/client.js";
import { announce } from "../shell/announce.js";
import { changes, lastParts } from "./steps.js";
import { hello, models, queue, running, serverNow } from "./stream.js";
import { WAITS, doingOf, kindsOf, shortId } from "./words.js";

const LEFT_OUT_S = 1.5;
const ASKS_MS = 5000;

export function Requests() {
  const [failure, setFailure] = useState(null);
  const several = models.value.length > 1;
  const waiting = queue.value?.waiting ?? [];
  const others = queue.value ? total("waiting") - waiting.length : 0;
  const end = (id) => cancel(id).then(setFailure);
  return html`<section class="control-card" aria-labelledby="control-requests">
    <header class="control-head"><h2 id="control-requests">Requests</h2>${hello.value?.sees === "own" && html`<span class="soft">only your own; others are counted</span>`}</header>
    ${failure && html`<p class="control-failure" role="alert">${failure}</p>`}
    <h3>Running</h3>
    <div class="control-list"><${Running} list=${running.value} several=${several} onEnd=${end} /></div>
    <h3>Waiting</h3>
    <div class="control-list waiting">${waiting.length
      ? html`<div class="control-scroll" tabindex="0" role="region" aria-label="Waiting requests"><table class="control-requests">
          <thead><tr><th class="number">Position</th><th>Request</th><th class="number">First token in</th><th>Waiting, because</th><th><span class="hidden-text">End it</span></th></tr></thead>
          <tbody>${waiting.map((one) => html`<tr key=${one.id}>
            <td class="number">${one.position ?? "–"}</td>
            <td><${Name} one=${one} several=${several} /></td>
            <td class="number">${one.first_token_ms === null ? "–" : `≈ ${milliseconds(one.first_token_ms)}`}</td>
            <td>${seconds(one.age_s)}${one.why ? html`, <span class="control-why-waits">${WAITS[one.why] ?? one.why}</span>` : ""}</td>
            <td><${EndButton} id=${one.id} onEnd=${end} /></td>
          </tr>`)}</tbody></table></div>`
      : !others && html`<p class="soft">No request is waiting.</p>`}
      ${others > 0 && html`<p class="soft">${count(others)} more are waiting.</p>`}</div>
  </section>`;
}

function total(name) {
  return Object.values(queue.value.sizes).reduce((sum, size) => sum + size[name], 0);
}

function Running({ list, several, onEnd }) {
  changes.value;
  const ordered = [...(list ?? [])].sort((a, b) => (a.priority === b.priority ? b.age_s - a.age_s : a.priority === "interactive" ? -1 : 1));
  if (!list?.length) return html`<p class="soft">${list ? "No request is running." : "Waiting for data."}</p>`;
  return html`<div class="control-scroll" tabindex="0" role="region" aria-label="Running requests"><table class="control-requests">
    <thead><tr><th>Request</th><th>Now</th><th class="number">Prompt tokens</th><th class="number">Output tokens</th><th class="number">Age</th><th><span class="hidden-text">End it</span></th></tr></thead>
    <tbody>${ordered.map((one) => html`<tr key=${one.id}>
      <td><${Name} one=${one} several=${several} /></td>
      <td><${Doing} one=${one} /></td>
      <td class="number">${count(one.prompt_tokens)}</td>
      <td class="number">${one.inputs === null ? count(one.output_tokens) : `${count(one.inputs_done)} of ${count(one.inputs)}`}</td>
      <td class="number">${seconds(one.age_s)}</td>
      <td><${EndButton} id=${one.id} onEnd=${onEnd} /></td>
    </tr>`)}</tbody></table></div>`;
}

function Name({ one, several }) {
  return html`<span class=${`control-badge ${one.priority}`}>${one.priority === "batch" ? "B" : "I"}<span class="hidden-text">${one.priority === "batch" ? "atch" : "nteractive"}</span></span>
    <span class="control-id" title=${one.id}>${one.client || shortId(one.id)}</span>
    <span class="soft control-sub">${[one.client && shortId(one.id), several && one.model].filter(Boolean).join(" · ")}</span>`;
}

/** Its activity in the last step, or the time since then. */
function Doing({ one }) {
  const part = lastParts.get(one.id);
  if (!part) return html`<span class="control-doing out">starting</span>`;
  const idleS = serverNow() - part.at;
  if (idleS > LEFT_OUT_S) return html`<span class="control-doing out">idle for ${seconds(idleS)}</span>`;
  const kind = part.prompt ? "prompt" : "decode";
  return html`<span class=${`control-doing ${kind} ${one.priority}`}>${doingOf(part)}</span> <span class="soft control-sub">${kindsOf(part)}</span>`;
}

/** The first press asks, and the second ends the request, because it may be another person's. */
function EndButton({ id, onEnd }) {
  const [asks, setAsks] = useState(false);
  useEffect(() => {
    if (!asks) return undefined;
    const timer = setTimeout(() => setAsks(false), ASKS_MS);
    return () => clearTimeout(timer);
  }, [asks]);
  if (asks) return html`<${Button} kind="danger control-end" onClick=${() => onEnd(id)} aria-label=${`Really end ${id}`}>End it</${Button}>`;
  return html`<${IconButton} icon="close" kind="small" label=${`End ${id}`} onClick=${() => setAsks(true)} />`;
}

/** Returns null if the request has ended, else the reason in words. */
async function cancel(id) {
  try {
    await call("DELETE", `/v1/requests/${id.split("/").map(encodeURIComponent).join("/")}`);
    announce(`${id} was ended.`);
    return null;
  } catch (error) {
    if (error.code === "request_not_found") return "It has already ended.";
    return `It could not be ended: ${error.message}`;
  }
}
