// Meanings of the scheduler's words.
import { count, milliseconds } from "../base/numbers.js";

export const WAITS = {
  slot: "all slots are in use",
  cells: "the KV pool is full",
  prefix: "another request is computing their shared prefix",
  engine: "its model is loading or restarting",
};

export const REASONS = {
  decode: "its next token",
  forced: "the only tokens that its grammar allows",
  prompt: "its prompt, within the time of the step",
  least: "beyond the time of the step, so that it is not starved",
  tile: "tokens that add almost no time",
  "batch-floor": "batch work's share of the time",
  draft: "drafted tokens",
  picture: "encoding of a picture, one slice at a time",
  sound: "encoding of a sound, one part at a time",
};

const KINDS = ["prompt", "decode", "forced", "draft"];

/** Milliseconds of encoders in a step, or in a part of one. */
export function encodingOf({ encoding_ms: all = 0, sound_ms: sound = 0 }) {
  return { picture: all - sound, sound };
}

/** "64 prompt tokens" or "1 decode, 4 draft tokens". */
export function kindsOf(part) {
  const kinds = KINDS.filter((kind) => part[kind]);
  const isOne = kinds.reduce((sum, kind) => sum + part[kind], 0) === 1;
  const found = kinds.length ? [`${kinds.map((kind) => `${count(part[kind])} ${kind}`).join(", ")} ${isOne ? "token" : "tokens"}`] : [];
  const { picture, sound } = encodingOf(part);
  if (picture) found.push(`${milliseconds(picture)} of a picture`);
  if (sound) found.push(`${milliseconds(sound)} of a sound`);
  return found.join(", ") || "no tokens";
}

/** "batch-1" or "3 other requests": the owner of a part of a step. */
export function nameOf(part) {
  if (part.id) return part.id;
  return part.sequences === 1 || part.sequences === undefined ? "another request" : `${part.sequences} other requests`;
}

export function stepTitle(step) {
  const many = step.merged > 1 ? `${step.merged} steps, ` : "";
  return `${many}${count(step.tokens ?? 0)} tokens in ${milliseconds(step.ms)}, predicted ${milliseconds(step.predicted_ms)}`;
}

/** Activity of a request, by its part in a step. */
export function doingOf(part) {
  if (part.prompt) return "reading";
  const { picture, sound } = encodingOf(part);
  return sound ? "listening" : picture ? "looking" : "writing";
}

export function stepNotes(step) {
  const notes = [];
  if (step.interrupted) notes.push("discarded for a new interactive request");
  if (step.preemptions) notes.push(`${count(step.preemptions)} preempted for it`);
  if (step.padding) notes.push(`${count(step.padding)} padding`);
  if (step.adapter) notes.push(`adapter ${step.adapter}`);
  return notes;
}

/** The whole step in a sentence, for people who do not see the picture. */
export function stepText(step) {
  const parts = (step.parts ?? []).map((part) => `${nameOf(part)}, ${part.priority}: ${kindsOf(part)}`);
  return [stepTitle(step), ...stepNotes(step), ...parts].join(". ");
}

/** Ids differ at their end. */
export function shortId(id) {
  const [call, index] = id.split("/");
  const dash = call.indexOf("-");
  const kind = dash > 0 ? call.slice(0, dash) : "";
  const short = call.length > 16 ? `${kind ? `${kind}-` : ""}…${call.slice(-6)}` : call;
  return index && index !== "0" ? `${short}/${index}` : short;
}

export function clock(atS) {
  return new Date(1000 * atS).toLocaleTimeString("en-GB");
}
