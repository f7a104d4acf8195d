// Rates and latencies over time, drawn by uPlot, with the last values in words beside each.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../base/html.js";
import { count, milliseconds } from "../base/numbers.js";
import { isDark } from "../shell/theme.js";
import { colour } from "./canvas.js";
import { hello, rates } from "./stream.js";

const HEIGHT = 150;

const PLOTS = [
  {
    title: "Tokens per second",
    shown: (value) => count(Math.round(10 * value) / 10),
    lines: [
      { label: "output", colour: "--step-interactive", value: (one) => one.output_tokens_per_s },
      { label: "computed", colour: "--forced", dash: [4, 4], value: (one) => one.computed_tokens_per_s },
    ],
  },
  { title: "Time to first token", shown: milliseconds, lines: byPriority("ttft_ms") },
  { title: "Time between tokens", shown: milliseconds, lines: byPriority("inter_token_ms") },
];

function byPriority(name) {
  return ["interactive", "batch"].flatMap((priority) => [
    { label: `${priority} p50`, colour: `--step-${priority}`, value: (one) => one.priorities[priority][name].p50 },
    { label: `${priority} p95`, colour: `--step-${priority}`, dash: [4, 4], value: (one) => one.priorities[priority][name].p95 },
  ]);
}

export function Plots() {
  if (hello.value && !hello.value.types.includes("rate")) {
    return html`<section class="control-card"><h2>Rates and latencies</h2><p class="soft">Only keys with the scope <code>metrics</code> or <code>admin</code> can see them.</p></section>`;
  }
  return PLOTS.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} />`);
}

function Plot({ plot }) {
  const box = useRef(null);
  const chart = useRef(null);
  const samples = rates.value;
  const dark = isDark.value;
  useEffect(() => {
    const place = box.current;
    const drawn = new uPlot(options(plot, place.clientWidth), data(plot, rates.peek()), place);
    chart.current = drawn;
    const resized = new ResizeObserver(() => place.clientWidth && drawn.setSize({ width: place.clientWidth, height: HEIGHT }));
    resized.observe(place);
    return () => {
      resized.disconnect();
      drawn.destroy();
      chart.current = null;
    };
  }, [dark]);
  useEffect(() => void chart.current?.setData(data(plot, samples)), [samples]);
  const last = samples.at(-1);
  return html`<section class="control-card control-plot" aria-label=${plot.title}>
    <h2>${plot.title}</h2>
    <dl class="control-values">${plot.lines.map((line) => html`<div>
      <dt><span class=${`control-stroke ${line.dash ? "dashed" : ""} stroke${line.colour}`}></span>${line.label}</dt>
      <dd>${shownValue(last && line.value(last), plot.shown)}</dd>
    </div>`)}</dl>
    <div ref=${box} class="control-chart" aria-hidden="true"></div>
  </section>`;
}

function shownValue(value, shown) {
  return value === null || value === undefined ? "–" : shown(value);
}

function data(plot, samples) {
  return [samples.map((one) => one.at), ...plot.lines.map((line) => samples.map((one) => line.value(one)))];
}

function options(plot, width) {
  const axis = { stroke: colour("--text-soft"), font: `11px ${colour("--font")}`, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
    axes: [
      { ...axis, size: 24, space: 70, values: (_, splits) => splits.map((at) => new Date(1000 * at).toLocaleTimeString("en-GB")) },
      { ...axis, size: 52, space: 32, values: (_, splits) => splits.map((value) => (value ? plot.shown(value) : "0")) },
    ],
    series: [{}, ...plot.lines.map((line) => ({ label: line.label, stroke: colour(line.colour), width: 1.75, dash: line.dash, spanGaps: false, points: { show: false } }))],
  };
}
