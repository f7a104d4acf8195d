// Steps of the last minute, in the form in which they are drawn and read out.
import { signal } from "@preact/signals";

export const WINDOW_S = 60;
const MOST_STEPS = 8000;

/** From bottom to top of a column. `colour` names a custom property. */
export const LAYERS = [
  { key: "interactive-decode", priority: "interactive", kind: "decode", label: "Interactive: decode", colour: "--step-interactive" },
  { key: "interactive-prompt", priority: "interactive", kind: "prompt", label: "Interactive: prompt", colour: "--step-interactive-prompt" },
  { key: "batch-decode", priority: "batch", kind: "decode", label: "Batch: decode", colour: "--step-batch" },
  { key: "batch-prompt", priority: "batch", kind: "prompt", label: "Batch: prompt", colour: "--step-batch-prompt" },
  { key: "forced", kind: "forced", label: "Forced by a grammar", colour: "--forced" },
  { key: "draft", kind: "draft", label: "Draft", colour: "--draft" },
  { key: "padding", kind: "padding", label: "Padding", colour: "--padding" },
];

/** Oldest first. The list is changed in place, and `changes` grows with each change. */
export const steps = [];
export const changes = signal(0);
/** Last step of each request: {at, kind, tokens, why}. */
export const lastParts = new Map();
let number = 0;

export function takeSteps(newSteps, nowS) {
  for (const step of newSteps) {
    step.number = number++;
    step.end = step.at + step.ms / 1000;
    step.layers = layersOf(step);
    step.total = step.layers.reduce((sum, tokens) => sum + tokens, 0);
    for (const part of step.parts ?? []) if (part.id) lastParts.set(part.id, { at: step.end, ...part });
    steps.push(step);
  }
  trim(nowS);
  changes.value += 1;
}

/** Events during a pause are unknown. */
export function forgetSteps(nowS) {
  lastParts.clear();
  trim(nowS);
  changes.value += 1;
}

function trim(nowS) {
  let gone = Math.max(0, steps.length - MOST_STEPS);
  while (gone < steps.length && steps[gone].end < nowS - WINDOW_S - 5) gone += 1;
  if (gone) steps.splice(0, gone);
  for (const [id, part] of lastParts) if (part.at < nowS - 600) lastParts.delete(id);
}

function layersOf(step) {
  const layers = LAYERS.map(() => 0);
  for (const part of step.parts ?? []) {
    const first = part.priority === "batch" ? 2 : 0;
    layers[first] += part.decode ?? 0;
    layers[first + 1] += part.prompt ?? 0;
    layers[4] += part.forced ?? 0;
    layers[5] += part.draft ?? 0;
  }
  layers[6] = step.padding ?? 0;
  return layers;
}

/** Sums over steps, for a sentence. */
export function summary(some) {
  const sums = { steps: 0, tokens: 0, ms: 0, predicted: 0, interrupted: 0, preemptions: 0, layers: LAYERS.map(() => 0) };
  for (const step of some) {
    sums.steps += step.merged ?? 1;
    sums.tokens += step.tokens ?? 0;
    sums.ms += step.ms;
    sums.predicted += step.predicted_ms;
    sums.interrupted += step.interrupted ? 1 : 0;
    sums.preemptions += step.preemptions ?? 0;
    step.layers.forEach((tokens, index) => (sums.layers[index] += tokens));
  }
  return sums;
}

/** Steps that end after `fromS` and begin before `toS`. */
export function between(some, fromS, toS) {
  let low = 0;
  let high = some.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (some[middle].end < fromS) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (let at = low; at < some.length && some[at].at <= toS; at++) found.push(some[at]);
  return found;
}
