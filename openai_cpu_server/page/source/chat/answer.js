// Growth of an answer from chunks. Pure: each function returns a new message.

/** A new answer without any content. `hasParts`: it is a response (response.js). */
export function blank(parent, settings, hasParts) {
  return {
    role: "assistant",
    parent,
    content: "",
    reasoning: "",
    toolCalls: [],
    parts: hasParts ? [] : undefined,
    firstPart: hasParts ? 0 : undefined, // first part of the current request
    status: "waiting",
    model: settings.model,
    priority: settings.priority,
    schema: settings.form === "schema" ? settings.schema || "{}" : undefined,
    begun: Date.now(),
    beat: Date.now(),
  };
}

/** Adds several chunks at once. */
export function grown(message, chunks) {
  const after = { ...message, status: "streaming", beat: Date.now() };
  for (const chunk of chunks) take(after, chunk);
  return after;
}

function take(message, chunk) {
  if (chunk.id) message.callId = chunk.id;
  message.lastEvent = chunk.event_id;
  if (chunk.model) message.model = chunk.model;
  if (chunk.usage) message.usage = summed(message.usage, chunk.usage);
  if (chunk.timings) message.timings = chunk.timings;
  message.wait = chunk.prompt_progress && waiting(chunk.prompt_progress);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { delta } = choice;
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) message.reasoning += delta.reasoning_content;
  for (const call of delta.tool_calls ?? []) message.toolCalls = withCall(message.toolCalls, call);
  if (delta.content || delta.reasoning_content || delta.tool_calls) message.firstTokenMs ??= Date.now() - message.begun;
  if (choice.finish_reason) message.finish = choice.ended_by ?? choice.finish_reason;
}

/** Reason for waiting: its place in the queue, or the progress of its prompt. */
export function waiting(progress) {
  const { place, processed, total, cache: cached, seconds_left: leftS } = progress;
  const until = Date.now() + 1000 * (leftS ?? 0);
  return place === null ? { why: "prompt", processed, total, cached, until } : { why: "queue", position: place, until };
}

function withCall(calls, { index, id, function: delta }) {
  const after = [...calls];
  const before = after[index] ?? { id: "", name: "", arguments: "" };
  after[index] = {
    id: id ?? before.id,
    name: before.name + (delta?.name ?? ""),
    arguments: before.arguments + (delta?.arguments ?? ""),
  };
  return after;
}

/** A cut and continued answer is one answer: output tokens add up, and the last prompt counts. */
function summed(before, usage) {
  if (!before) return usage;
  return { ...usage, completion_tokens: before.completion_tokens + usage.completion_tokens };
}

/** Whether it can continue after a cut: text without a schema, and without calls made since. */
export function canContinue(message) {
  return !message.parts && Boolean(message.content || message.reasoning) && !message.toolCalls.length && !message.schema;
}

/** Whether no tab requests it any longer, because its tab was closed or reloaded. */
export function isAbandoned(message, now) {
  return isRunning(message) && now - (message.beat ?? 0) > 5000;
}

/** Whether it has begun to think but not to answer. */
export function isThinking(message) {
  if (message.parts) return isRunning(message) && message.parts.at(-1)?.kind === "thoughts";
  return isRunning(message) && Boolean(message.reasoning && message.callId) && !message.content && !message.toolCalls.length;
}

export function isRunning(message) {
  return message.status === "waiting" || message.status === "streaming";
}
