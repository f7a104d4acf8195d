// The control room: running requests, waiting requests with reasons, and shared cells. One stream feeds all of it.
import { useEffect, useRef } from "preact/hooks";
import { html } from "../base/html.js";
import { Button } from "../base/controls.js";
import { Icon } from "../base/icons.js";
import { count, milliseconds, percent } from "../base/numbers.js";
import { key } from "../api/client.js";
import { returns } from "../api/server.js";
import { Hits, Models, Restarts, Usage } from "./cards.js";
import { Plots } from "./plots.js";
import { Pools } from "./pool.js";
import { Requests } from "./requests.js";
import { caches, connection, dropped, hello, listen, queue, rates } from "./stream.js";
import { Timeline } from "./timeline.js";
import { clock } from "./words.js";

export function ControlRoom() {
  const listening = useRef(null);
  useEffect(() => {
    listening.current = listen();
    return () => listening.current.end();
  }, []);
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) listening.current?.again(); // another key, or the server has returned
    first.current = false;
  }, [key.value, returns.value]);
  const stale = connection.value.state !== "live" && hello.value;
  return html`<div class="control-room" tabindex="0" role="region" aria-label="Control room">
    <h1 class="hidden-text">Control room</h1>
    <${Trouble} onAgain=${() => listening.current?.again()} />
    <div class=${stale ? "control-inside stale" : "control-inside"}>
      <${Now} />
      <${Timeline} />
      <div class="control-columns"><${Requests} /><div class="control-stack"><${Pools} /><${Hits} /></div></div>
      <div class="control-plots"><${Plots} /></div>
      <div class="control-columns"><${Models} /><div class="control-stack"><${Restarts} /><${Usage} /></div></div>
    </div>
  </div>`;
}

/** Key figures. */
function Now() {
  const sizes = queue.value?.sizes;
  const rate = rates.value.at(-1);
  const pools = caches.value?.models ?? [];
  const used = pools.reduce((sum, one) => sum + one.pool.used_blocks, 0);
  const blocks = pools.reduce((sum, one) => sum + one.pool.blocks, 0);
  const next = queue.value?.waiting.find((one) => one.first_token_ms !== null);
  return html`<dl class="control-now">
    <${Tile} label="Running" value=${sizes ? count(sizes.interactive.running + sizes.batch.running) : "–"} note=${sizes && html`<${Split} sizes=${sizes} name="running" />`} />
    <${Tile} label="Waiting" value=${sizes ? count(sizes.interactive.waiting + sizes.batch.waiting) : "–"} note=${sizes && html`<${Split} sizes=${sizes} name="waiting" />`} />
    <${Tile} label="Next first token" value=${next ? `≈ ${milliseconds(next.first_token_ms)}` : "–"} note=${next ? "among waiting requests" : "no request is waiting"} />
    <${Tile} label="Output" value=${rate ? count(Math.round(rate.output_tokens_per_s)) : "–"} note="tokens per second" />
    <${Tile} label="KV pool" value=${blocks ? percent(used / blocks) : "–"} note=${blocks ? `${count(used)} of ${count(blocks)} blocks` : "no model is loaded"} />
  </dl>`;
}

function Split({ sizes, name }) {
  return html`<span class="control-split"><span><i class="control-dot interactive"></i>${count(sizes.interactive[name])} interactive</span> <span><i class="control-dot batch"></i>${count(sizes.batch[name])} batch</span></span>`;
}

function Tile({ label, value, note }) {
  return html`<div class="control-tile"><dt>${label}</dt><dd><strong>${value}</strong><span class="soft">${note}</span></dd></div>`;
}

/** Reason why the room is not live, and a remedy. */
function Trouble({ onAgain }) {
  const { state, error, sinceMs } = connection.value;
  const banner = trouble(state, error, sinceMs);
  return html`<div role="status" aria-live="polite">
    ${banner && html`<div class="banner ${banner.kind}"><${Icon} name=${banner.kind === "calm" ? "info" : "warning"} />
      <div class="banner-text"><strong>${banner.title}</strong> ${banner.text}</div>
      ${banner.again && html`<${Button} icon="again" onClick=${onAgain}>Try now</${Button}>`}</div>`}
    ${state === "live" && dropped.value > 0 && html`<p class="soft control-dropped">${count(dropped.value)} steps were skipped because this page was too slow.</p>`}
  </div>`;
}

function trouble(state, error, sinceMs) {
  if (state === "refused" && error.status === 401) return { kind: "warn", title: "The control room requires a key.", text: "Enter one above." };
  if (state === "refused" && error.code === "missing_scope") {
    return { kind: "warn", title: "This key may not use the control room.", text: `${error.message} Give it the scope inference to see its own requests, and admin to see all.` };
  }
  if (state === "refused") return { kind: "bad", title: "The server refused the request.", text: error.message, again: true };
  if (state === "lost" && error?.code === "too_many_event_streams") return { kind: "warn", title: "Too many control rooms are open.", text: "Close one; this one retries by itself.", again: true };
  if (state === "lost") return { kind: "warn", title: "The connection was lost.", text: `You see the state at ${clock(sinceMs / 1000)}. Updates resume by themselves.`, again: true };
  return null;
}
