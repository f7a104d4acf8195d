// The cost of an answer: tokens, speed, time by phase, and the cached share of its prompt.
import { html } from "../base/html.js";
import { count, milliseconds, percent } from "../base/numbers.js";

export function Figures({ message }) {
  const { usage, timings, firstTokenMs, model, priority } = message;
  if (!usage) return null;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const { image_tokens: pictureTokens, audio_tokens: soundTokens } = usage.prompt_tokens_details ?? {};
  const shown = [["Pictures in it", pictureTokens], ["Sounds in it", soundTokens]].filter(([, tokens]) => tokens > 0);
  const share = usage.prompt_tokens ? cached / usage.prompt_tokens : 0;
  const thoughts = usage.completion_tokens_details?.reasoning_tokens;
  const rate = timings && timings.generation_ms > 0 ? (1000 * timings.tokens_generated) / timings.generation_ms : null;
  return html`<details class="figures">
    <summary><span>${count(usage.completion_tokens)} tokens</span>${rate && html`<span>${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s</span>`}${share > 0 && html`<span>${percent(share)} of the prompt cached</span>`}</summary>
    ${timings && html`<${Times} timings=${timings} />`}
    <dl>
      <${Figure} name="Prompt">${count(usage.prompt_tokens)} tokens</${Figure}>
      ${shown.map(([name, tokens]) => html`<${Figure} name=${name}>${count(tokens)} tokens</${Figure}>`)}
      <${Figure} name="Cached">${count(cached)} tokens (${percent(share)})</${Figure}>
      <${Figure} name="Answer">${count(usage.completion_tokens)} tokens</${Figure}>
      ${thoughts > 0 && html`<${Figure} name="Thoughts">${count(thoughts)} tokens</${Figure}>`}
      ${firstTokenMs !== undefined && html`<${Figure} name="Time to first token">${milliseconds(firstTokenMs)}</${Figure}>`}
      ${timings?.forced_tokens > 0 && html`<${Figure} name="Forced by the grammar">${count(timings.forced_tokens)} tokens</${Figure}>`}
      ${timings?.draft_n > 0 && html`<${Figure} name="Drafted">${count(timings.draft_n)} tokens (${percent(timings.draft_n_accepted / timings.draft_n)} accepted)</${Figure}>`}
      ${timings?.preemptions > 0 && html`<${Figure} name="Preempted">${times(timings.preemptions)}</${Figure}>`}
      ${timings?.interruptions > 0 && html`<${Figure} name="Interrupted">${times(timings.interruptions)}</${Figure}>`}
      ${model && html`<${Figure} name="Model">${model}</${Figure}>`}
      ${priority && html`<${Figure} name="Priority">${priority === "batch" ? "low" : "normal"}</${Figure}>`}
    </dl>
  </details>`;
}

function times(value) {
  return value === 1 ? "once" : `${count(value)} times`;
}

function Figure({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

const PARTS = [
  ["queue", "Queue", "queue_ms"],
  ["prompt", "Prompt", "prefill_ms"],
  ["answer", "Answer", "generation_ms"],
];

/** Time of each phase, drawn to scale. */
function Times({ timings }) {
  const all = Math.max(timings.latency_ms, 0.001);
  return html`<div class="times">
    <div class="times-bar" aria-hidden="true">${PARTS.map(([kind, , name]) => html`<span class=${kind} style=${{ flexGrow: timings[name] / all }}></span>`)}</div>
    <ul>${PARTS.map(([kind, label, name]) => html`<li><span class=${`key ${kind}`} aria-hidden="true"></span>${label} ${milliseconds(timings[name])}</li>`)}</ul>
  </div>`;
}
