// The last minute of steps: a picture with pointer and keyboard access, and a table.
import { useEffect, useRef, useState } from "preact/hooks";
import { useSignalEffect } from "@preact/signals";
import { html } from "../base/html.js";
import { Button, Choice } from "../base/controls.js";
import { count, counted, milliseconds } from "../base/numbers.js";
import { useShortcuts } from "../shell/shortcuts.js";
import { useCanvas } from "./canvas.js";
import { LAYERS, WINDOW_S, between, changes, steps, summary } from "./steps.js";
import { serverNow } from "./stream.js";
import { drawTimeline, frame } from "./timeline_picture.js";
import { clock, kindsOf, nameOf, stepNotes, stepText, stepTitle, REASONS } from "./words.js";

const SPANS = [
  { value: "10", label: "10 s" },
  { value: "60", label: "1 min" },
];
const TABLE_STEPS = 20;

export function Timeline() {
  const [span, setSpan] = useState("60");
  const [frozen, setFrozen] = useState(null);
  const [chosen, setChosen] = useState(null);
  const shown = useRef(null);
  const view = () => {
    const toS = frozen?.nowS ?? serverNow();
    return { fromS: toS - Number(span), toS, all: frozen?.steps ?? steps };
  };
  const [canvas, ask] = useCanvas((context, width, height) => {
    const { fromS, toS, all } = view();
    const some = between(all, fromS, toS);
    shown.current = { at: frame(some, width, height, fromS, toS), steps: some };
    drawTimeline(context, shown.current.at, some, some.find((step) => step.number === chosen?.number));
  });
  useSignalEffect(() => {
    changes.value;
    if (!frozen) ask();
  });
  useEffect(ask, [span, frozen, chosen]);
  useEffect(() => {
    const timer = setInterval(() => !frozen && steps.length && ask(), 1000);
    return () => clearInterval(timer);
  }, [frozen]);
  const pause = () => setFrozen(frozen ? null : { nowS: serverNow(), steps: [...steps] });
  useShortcuts("Control room", [{ keys: "P", label: "Pause or resume", run: pause }]);
  return html`<section class="control-card control-timeline" aria-labelledby="control-steps">
    <header class="control-head">
      <h2 id="control-steps">Steps</h2>
      <span class="bar-space"></span>
      <${Choice} label="Time shown" value=${span} options=${SPANS} onChange=${setSpan} />
      <${Button} onClick=${pause} aria-pressed=${Boolean(frozen)}>${frozen ? "Resume" : "Pause"}</${Button}>
    </header>
    <${Legend} />
    <div
      class="control-canvas-box"
      role="slider"
      tabindex="0"
      aria-label="Steps, newest last. The left and right arrow keys move between them"
      aria-valuemin="0"
      aria-valuemax="1000"
      aria-valuenow=${chosen ? placeOf(chosen, shown.current) : 1000}
      aria-valuetext=${chosen ? stepText(chosen) : "No step is selected"}
      onKeyDown=${(event) => walk(event, shown.current, chosen, setChosen)}
      onPointerMove=${(event) => setChosen(stepUnder(event, shown.current))}
      onPointerLeave=${() => setChosen(null)}
      onBlur=${() => setChosen(null)}
    >
      <canvas ref=${canvas} class="control-steps" aria-hidden="true"></canvas>
      ${chosen && html`<${StepNote} step=${chosen} view=${shown.current} />`}
    </div>
    <p class="control-axis soft">Above: tokens of each step, stacked (heights on a square-root scale). Below: its duration (bars) and the predicted duration (line).</p>
    <${Words} frozen=${frozen} span=${Number(span)} />
  </section>`;
}

function Legend() {
  return html`<ul class="control-legend" aria-label="Colours, from the bottom of a column to its top">
    ${LAYERS.map((layer) => html`<li><span class=${`control-swatch layer-${layer.key}`}></span>${layer.label}</li>`)}
    <li><span class="control-swatch layer-picture"></span>Encoding of a picture (below)</li>
    <li><span class="control-swatch layer-sound"></span>Encoding of a sound (below)</li>
    <li><span class="control-swatch layer-interrupted"></span>Discarded</li>
  </ul>`;
}

function placeOf(step, view) {
  return view ? Math.round((1000 * (step.at - view.at.fromS)) / (view.at.toS - view.at.fromS)) : 0;
}

function stepUnder(event, view) {
  if (!view) return null;
  const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
  const s = view.at.s(x);
  const slack = 2 / (view.at.x(1) - view.at.x(0));
  const near = between(view.steps, s - slack, s + slack);
  return near.find((step) => step.at <= s && s <= step.end) ?? near[0] ?? null;
}

function walk(event, view, chosen, choose) {
  if (!view || !view.steps.length) return;
  const last = view.steps.length - 1;
  const at = chosen ? view.steps.findIndex((step) => step.number === chosen.number) : last + 1;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, PageUp: at - 10, PageDown: at + 10 }[event.key];
  if (event.key === "Escape") choose(null);
  else if (to !== undefined) choose(view.steps[Math.min(last, Math.max(0, to))]);
  else return;
  event.preventDefault();
}

/** Contents of the step under the pointer, beside the step and inside the picture. */
function StepNote({ step, view }) {
  const x = view.at.x(step.at);
  const right = x > view.at.width / 2;
  const parts = [...(step.parts ?? [])];
  const style = right ? { right: `${view.at.width - x + 8}px` } : { left: `${x + 10}px` };
  return html`<div class="control-note" style=${style}>
    <strong>${stepTitle(step)}</strong>
    <span class="soft">${clock(step.at)} · ${step.model}</span>
    ${stepNotes(step).map((note) => html`<span class="soft">${note}</span>`)}
    <ul>${parts.slice(0, 12).map((part) => html`<li>
      <span class=${`control-dot ${part.priority}`}></span><span>${short(nameOf(part))}</span>
      <span class="control-right">${kindsOf(part)}</span>
      ${part.why && !["decode", "prompt"].includes(part.why) && html`<span class="soft control-why">${REASONS[part.why] ?? part.why}</span>`}
    </li>`)}</ul>
    ${parts.length > 12 && html`<span class="soft">and ${parts.length - 12} more</span>`}
  </div>`;
}

function short(name) {
  return name.length > 18 ? `…${name.slice(-10)}` : name;
}

/** The picture in words, and as a table on request. */
function Words({ frozen, span }) {
  const [open, setOpen] = useState(false);
  const [, again] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => again((n) => n + 1), open ? 2000 : 5000);
    return () => clearInterval(timer);
  }, [open]);
  const nowS = frozen?.nowS ?? serverNow();
  const some = between(frozen?.steps ?? steps, nowS - span, nowS);
  return html`<details class="control-words" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>${sentence(some, span)}</summary>
    ${open && html`<div class="control-scroll" tabindex="0" role="region" aria-label="The last steps as a table"><table>
      <thead><tr><th>Start</th><th>Model</th><th class="number">Tokens</th><th class="number">Duration</th><th class="number">Predicted</th><th>Requests</th></tr></thead>
      <tbody>${some.slice(-TABLE_STEPS).reverse().map((step) => html`<tr key=${step.number}>
        <td>${clock(step.at)}</td><td>${step.model}</td><td class="number">${count(step.tokens ?? 0)}</td>
        <td class="number">${milliseconds(step.ms)}</td><td class="number">${milliseconds(step.predicted_ms)}</td>
        <td>${[...stepNotes(step), ...(step.parts ?? []).map((part) => `${short(nameOf(part))} (${part.priority}): ${kindsOf(part)}`)].join("; ")}</td>
      </tr>`)}</tbody>
    </table></div>`}
  </details>`;
}

function sentence(some, span) {
  if (!some.length) return `No steps in the last ${span === WINDOW_S ? "minute" : `${span} seconds`}`;
  const sums = summary(some);
  const off = sums.predicted ? Math.round((100 * (sums.ms - sums.predicted)) / sums.predicted) : 0;
  const busy = Math.min(100, Math.round(sums.ms / (10 * span)));
  const text = [counted(sums.steps, "step"), counted(sums.tokens, "token"), `computing ${busy} % of the time`];
  text.push(`${off === 0 ? "as long as" : `${Math.abs(off)} % ${off > 0 ? "longer" : "shorter"} than`} predicted`);
  if (sums.interrupted) text.push(`${count(sums.interrupted)} discarded`);
  if (sums.preemptions) text.push(`${count(sums.preemptions)} preempted`);
  return text.join(", ");
}
