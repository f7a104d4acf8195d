// Draws steps: above, the work of each; below, its real and predicted time.
import { milliseconds } from "../base/numbers.js";
import { colour } from "./canvas.js";
import { LAYERS } from "./steps.js";
import { encodingOf } from "./words.js";

export const MARGIN = { left: 52, right: 8, top: 10, bottom: 20, between: 22 };
const TIME_SHARE = 0.3;

/** Layout: {tokens: {top, bottom, most}, times: {top, bottom, most}, x(s), s(x)}. */
export function frame(steps, width, height, fromS, toS) {
  const inside = height - MARGIN.top - MARGIN.bottom - MARGIN.between;
  const split = MARGIN.top + inside * (1 - TIME_SHARE);
  const scale = (width - MARGIN.left - MARGIN.right) / (toS - fromS);
  return {
    width,
    height,
    tokens: { top: MARGIN.top, bottom: split, most: nextPower(most(steps, (step) => step.total / (step.merged ?? 1))) },
    times: {
      top: split + MARGIN.between,
      bottom: height - MARGIN.bottom,
      most: niceMost(most(steps, (step) => Math.max(step.ms, step.predicted_ms) / (step.merged ?? 1)), 10),
    },
    x: (s) => MARGIN.left + (s - fromS) * scale,
    s: (x) => fromS + (x - MARGIN.left) / scale,
    fromS,
    toS,
  };
}

function most(steps, of) {
  let found = 0;
  for (const step of steps) found = Math.max(found, of(step));
  return found;
}

/** 1, 2 or 5 times a power of ten, so that the scale rarely changes. */
function niceMost(value, least) {
  const wanted = Math.max(value, least);
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted);
}

/** Heights grow with the square root of the tokens, because steps have a few tokens or hundreds. */
function nextPower(tokens) {
  return Math.max(16, 4 ** Math.ceil(Math.log(Math.max(1, tokens)) / Math.log(4)));
}

function yOf(strip, tokens) {
  return strip.bottom - (strip.bottom - strip.top) * Math.sqrt(tokens / strip.most);
}

export function drawTimeline(context, at, steps, chosen) {
  axes(context, at);
  context.save();
  context.beginPath();
  context.rect(MARGIN.left, 0, at.width - MARGIN.left - MARGIN.right, at.height);
  context.clip();
  columns(context, at, steps);
  predictions(context, at, steps);
  if (chosen) mark(context, at, chosen);
  context.restore();
}

function axes(context, at) {
  context.font = `11px ${colour("--font")}`;
  context.fillStyle = colour("--text-soft");
  context.strokeStyle = colour("--line");
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tokens of [0, at.tokens.most / 16, at.tokens.most / 4, at.tokens.most]) tick(context, at, yOf(at.tokens, tokens), tokens === at.tokens.most ? `${tokens} tok` : String(tokens));
  for (const share of [0, 0.5, 1]) {
    const y = at.times.bottom - share * (at.times.bottom - at.times.top);
    tick(context, at, y, share ? milliseconds(share * at.times.most) : "0");
  }
  seconds(context, at);
}

function tick(context, at, y, text) {
  const sharp = Math.round(y) + 0.5;
  line(context, MARGIN.left, sharp, at.width - MARGIN.right, sharp);
  context.fillText(text, MARGIN.left - 6, sharp);
}

function seconds(context, at) {
  const span = at.toS - at.fromS;
  const every = span > 30 ? (at.width < 500 ? 20 : 10) : at.width < 500 ? 5 : 2;
  context.textBaseline = "alphabetic";
  for (let ago = 0; ago <= span; ago += every) {
    context.textAlign = ago === 0 ? "right" : ago === span ? "left" : "center";
    context.fillText(ago ? `−${ago} s` : "now", at.x(at.toS - ago), at.height - 5);
  }
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

function columns(context, at, steps) {
  const perMs = (at.times.bottom - at.times.top) / at.times.most;
  const drawn = steps.map((step) => ({ step, x: at.x(step.at), width: columnWidth(at, step) }));
  LAYERS.forEach((layer, index) => {
    context.fillStyle = colour(layer.colour);
    for (const { step, x, width } of drawn) {
      if (!step.layers[index]) continue;
      const many = step.merged ?? 1;
      let below = 0;
      for (let under = 0; under < index; under++) below += step.layers[under];
      const foot = yOf(at.tokens, below / many);
      const head = Math.min(foot - 1, yOf(at.tokens, (below + step.layers[index]) / many));
      context.globalAlpha = step.interrupted ? 0.35 : 1;
      context.fillRect(x, head, width, foot - head);
    }
  });
  context.globalAlpha = 1;
  context.fillStyle = colour("--step-time");
  for (const { step, x, width } of drawn) {
    const height = Math.max(1, (step.ms / (step.merged ?? 1)) * perMs);
    context.fillRect(x, at.times.bottom - height, width, height);
  }
  encodings(context, at, drawn, perMs);
  sequences(context, at, drawn);
  interrupted(context, at, drawn);
}

/** Within the time of a step: pictures below, sounds above them, striped, because colours alone do not suffice. */
function encodings(context, at, drawn, perMs) {
  for (const { step, x, width } of drawn) {
    const { picture, sound } = encodingOf(step);
    const scale = perMs / (step.merged ?? 1);
    if (picture) bar(context, "--step-picture", x, at.times.bottom - picture * scale, width, picture * scale);
    if (sound) striped(context, x, at.times.bottom - (picture + sound) * scale, width, sound * scale, at.times.bottom);
  }
}

function bar(context, name, x, y, width, height) {
  context.fillStyle = colour(name);
  context.fillRect(x, y, width, height);
}

/** Stripes continue from one step to the next. */
function striped(context, x, y, width, height, bottom) {
  bar(context, "--step-sound", x, y, width, height);
  for (let stripe = bottom - 4; stripe > y; stripe -= 4) if (stripe < y + height) bar(context, "--surface", x, stripe, width, 1);
}

/** Wide columns show where one sequence ends and the next begins. */
function sequences(context, at, drawn) {
  context.fillStyle = colour("--surface");
  for (const { step, x, width } of drawn) {
    if (width < 6 || step.merged > 1) continue;
    let before = at.tokens.bottom;
    for (const tokens of boundaries(step)) {
      const y = yOf(at.tokens, tokens);
      if (before - y >= 4) context.fillRect(x, y, width, 1);
      before = y;
    }
  }
}

function boundaries(step) {
  const found = [];
  let below = 0;
  for (const layer of LAYERS.slice(0, 4)) {
    for (const part of step.parts ?? []) {
      if (part.priority !== layer.priority || !part[layer.kind]) continue;
      below += part[layer.kind];
      found.push(below);
    }
  }
  return found;
}

/** A discarded step is crossed out, because a pale one could be mistaken for an old one. */
function interrupted(context, at, drawn) {
  context.strokeStyle = colour("--bad");
  context.lineWidth = 1.5;
  for (const { step, x, width } of drawn) {
    if (step.interrupted) line(context, x, at.tokens.bottom, x + Math.max(width, 4), at.tokens.top + 0.6 * (at.tokens.bottom - at.tokens.top));
  }
}

function columnWidth(at, step) {
  const width = at.x(step.end) - at.x(step.at);
  return Math.max(1, width > 3 ? width - 1 : width);
}

function predictions(context, at, steps) {
  const perMs = (at.times.bottom - at.times.top) / at.times.most;
  context.strokeStyle = colour("--step-predicted");
  context.lineWidth = 1.5;
  context.beginPath();
  for (const step of steps) {
    const y = at.times.bottom - (step.predicted_ms / (step.merged ?? 1)) * perMs;
    const x = at.x(step.at);
    context.moveTo(x, y);
    context.lineTo(Math.max(x + 1.5, at.x(step.end)), y);
  }
  context.stroke();
}

function mark(context, at, step) {
  const x = at.x(step.at);
  const width = Math.max(3, columnWidth(at, step));
  context.strokeStyle = colour("--text");
  context.lineWidth = 1.5;
  context.strokeRect(x - 1.5, at.tokens.top - 4, width + 3, at.times.bottom - at.tokens.top + 6);
}
