// Models with their state and memory, crashes of engines, cache hits, and usage of keys.
import { useEffect, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { bytes, count, percent } from "../base/numbers.js";
import { ApiError, call } from "../api/client.js";
import { caches, connection, hello, memoryBytes, models, restarts } from "./stream.js";
import { clock } from "./words.js";

const USAGE_MS = 10_000;

export function Models() {
  return html`<section class="control-card" aria-labelledby="control-models">
    <header class="control-head"><h2 id="control-models">Models and memory</h2>${memoryBytes.value > 0 && html`<span class="soft">${bytes(memoryBytes.value)} in total</span>`}</header>
    <div class="control-scroll" tabindex="0" role="region" aria-label="Models"><table>
      <thead><tr><th>Model</th><th>State</th><th class="number">Memory</th><th class="number">KV pool</th><th class="number">Restarts</th></tr></thead>
      <tbody>${models.value.map((one) => html`<tr key=${one.name}>
        <td>${one.name}<span class="soft control-sub">${[one.quantisation, one.kind !== "generates" && one.kind].filter(Boolean).join(" · ")}</span><${Device} placed=${one.placement} /><${Device} placed=${one.draft_placement} of="draft model: " /></td>
        <td><${State} one=${one} /></td>
        <td class="number">${one.memory_bytes ? bytes(one.memory_bytes) : "–"}</td>
        <td class="number">${one.kv_tokens ? percent(one.kv_tokens_used / one.kv_tokens) : "–"}</td>
        <td class="number">${count(one.restarts)}</td>
      </tr>`)}</tbody></table></div>
  </section>`;
}

const GOOD = ["ready", "asleep"];

function State({ one }) {
  const kind = GOOD.includes(one.state) ? "good" : one.state === "failed" ? "bad" : "warn";
  const loading = one.state === "loading" ? ` ${percent(one.loaded)}` : "";
  return html`<span class=${`control-state ${kind}`} title=${one.reason ?? ""}>${one.state}${loading}</span>
    ${one.reason && one.state !== "ready" && html`<span class="soft control-sub">${one.reason}</span>`}
    ${one.state === "ready" && (one.is_throttled || one.threads_computing < one.threads) && html`<span class="soft control-sub">${one.threads_computing} of ${one.threads} threads: ${one.is_throttled ? "the CPU quota is used up" : "other processes use the cores"}</span>`}`;
}

function Device({ placed, of = "" }) {
  if (!placed) return null;
  if (!placed.device || !(placed.layers || placed.weights_bytes)) return html`<span class="soft control-sub control-device">${of}all on the CPU${placed.why && `: ${placed.why}`}</span>`;
  const { device, layers, num_layers: all, cpu_expert_layers: experts } = placed;
  const taken = placed.weights_bytes + placed.cells_bytes + placed.compute_bytes;
  const rest = [experts > 0 && `experts of ${experts} on the CPU`, placed.cells_on_cpu && "KV pool on the CPU"].filter(Boolean);
  return html`<span class="soft control-sub control-device" title=${placed.why ?? device.description}>${of}${[`${bytes(taken)} on ${device.name}`, `${layers} of ${all} layers`, ...rest].join(" · ")}</span>`;
}

export function Restarts() {
  const list = restarts.value;
  return html`<section class="control-card" aria-labelledby="control-restarts">
    <h2 id="control-restarts">Restarts</h2>
    ${list.length
      ? html`<ol class="control-restarts">${list.map((one) => html`<li key=${`${one.model} ${one.restarts}`}>
          <span>${clock(one.at)}</span> <strong>${one.cause}</strong> <span>${one.model}</span>
          <span class="soft control-sub">${one.reason}</span></li>`)}</ol>`
      : html`<p class="soft">No engine has crashed.</p>`}
  </section>`;
}

export function Hits() {
  const cacheStats = caches.value;
  if (!cacheStats || hello.value?.sees !== "all") return null;
  const prompts = cacheStats.models.map((one) => one.prompts).filter(Boolean);
  const read = prompts.reduce((sum, one) => sum + one.prompt_tokens, 0);
  const saved = prompts.reduce((sum, one) => sum + one.cached_tokens, 0);
  return html`<section class="control-card" aria-labelledby="control-hits">
    <h2 id="control-hits">Saved work</h2>
    <${Hit} label="Prefix cache and shared cells" share=${read ? saved / read : null} text=${`${count(saved)} of ${count(read)} prompt tokens were not computed`} />
    ${cacheStats.answers
      ? html`<${Hit} label="Answer cache" share=${cacheStats.answers.hit_rate} text=${`${count(cacheStats.answers.exact + cacheStats.answers.semantic)} hits (${count(cacheStats.answers.semantic)} semantic), ${count(cacheStats.answers.misses)} misses, ${count(cacheStats.answers.bypasses)} bypassed`} />`
      : html`<p class="soft">The answer cache is off or has not been used yet.</p>`}
  </section>`;
}

function Hit({ label, share, text }) {
  return html`<div class="control-hit">
    <div class="control-head"><h3>${label}</h3><strong>${share === null ? "–" : percent(share)}</strong></div>
    <div class="control-meter" aria-hidden="true"><span style=${{ width: `${100 * (share ?? 0)}%` }}></span></div>
    <p class="soft">${text}</p>
  </div>`;
}

/** Today's usage of keys, if the server counts it. */
export function Usage() {
  const [usage, setUsage] = useState(null);
  const isLive = connection.value.state === "live" && hello.value.usage;
  useEffect(() => {
    if (!isLive) return undefined;
    const look = () => call("GET", `/v1/usage?group_by=key&start=${new Date().toISOString().slice(0, 10)}`).then(setUsage, (error) => setUsage(error instanceof ApiError ? { refused: error.status } : usage));
    look();
    const timer = setInterval(look, USAGE_MS);
    return () => clearInterval(timer);
  }, [isLive]);
  if (!usage || usage.refused) return null;
  return html`<section class="control-card" aria-labelledby="control-usage">
    <h2 id="control-usage">Usage by key, today</h2>
    <div class="control-scroll" tabindex="0" role="region" aria-label="Usage by key"><table>
      <thead><tr><th>Key</th><th class="number">Requests</th><th class="number">Prompt tokens</th><th class="number">Output tokens</th></tr></thead>
      <tbody>${usage.data.map((one) => html`<tr key=${one.key}><td>${one.key || "unnamed"}</td><td class="number">${count(one.requests)}</td>
        <td class="number">${count(one.input_tokens)}</td><td class="number">${count(one.output_tokens)}</td></tr>`)}</tbody></table></div>
  </section>`;
}
