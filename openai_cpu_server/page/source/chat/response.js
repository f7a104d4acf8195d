// An answer whose tools the server runs, as a list of parts: how it grows from a response's events, and which parts
// are sent again. Pure: each function returns a new object.
//
// A part is {kind: "text" | "thoughts", text}, {kind: "function", id, name, arguments}, {kind: "unlisted", server, error},
// {kind: "call", id, server, name, arguments, state, output, error, durationMs, approvalId}, or {kind: "approval", id,
// server, name, arguments, isApproved}: null until a person has decided. `state` of a call: writing, running, completed, failed, stopped.

import { waiting } from "./answer.js";

/** Adds several events at once. */
export function grown(message, events) {
  const after = { ...message, status: "streaming", beat: Date.now(), parts: [...message.parts] };
  for (const event of events) take(after, event);
  const texts = after.parts.filter((part) => part?.kind === "text" && part.text);
  const functions = after.parts.filter((part) => part?.kind === "function");
  after.content = texts.map((part) => part.text).join("\n\n");
  after.toolCalls = functions.map(({ id, name, arguments: text }) => ({ id, name, arguments: text }));
  return after;
}

function take(message, event) {
  message.lastEvent = event.sequence_number;
  const at = message.firstPart + event.output_index;
  const part = message.parts[at];
  const put = (fields) => (message.parts[at] = { ...part, ...fields });
  switch (event.type) {
    case "response.created":
    case "response.queued":
    case "response.in_progress":
      message.callId = event.response.id;
      message.model = event.response.model;
      message.wait = event.prompt_progress && waiting(event.prompt_progress);
      return;
    case "response.output_item.added":
      message.wait = undefined;
      message.firstTokenMs ??= Date.now() - message.begun;
      return put(partOf(event.item));
    case "response.output_text.delta":
    case "response.reasoning_text.delta":
      return put({ text: part.text + event.delta });
    case "response.mcp_call_arguments.delta":
    case "response.function_call_arguments.delta":
      return put({ arguments: part.arguments + event.delta });
    case "response.mcp_call_arguments.done":
      return put({ state: "running" });
    case "response.mcp_call.completed":
    case "response.mcp_call.failed":
      return put({ durationMs: event.duration_ms });
    case "response.output_item.done":
      return put(partOf(event.item));
    case "response.completed":
    case "response.incomplete":
      message.usage = summed(message.usage, usageOf(event.response.usage));
      message.finish = event.type === "response.completed" ? "stop" : (event.response.incomplete_details?.ended_by ?? "length");
  }
}

/** Fields of an item's part. Undefined fields keep the old value. */
function partOf(item) {
  switch (item.type) {
    case "message":
      return { kind: "text", text: item.content.map((one) => one.text ?? "").join("") };
    case "reasoning":
      return { kind: "thoughts", text: (item.content ?? []).map((one) => one.text).join("") };
    case "function_call":
      return { kind: "function", id: item.call_id, name: item.name, arguments: item.arguments };
    case "mcp_list_tools":
      return { kind: "unlisted", server: item.server_label, error: item.error };
    case "mcp_approval_request":
      return { kind: "approval", id: item.id, server: item.server_label, name: item.name, arguments: item.arguments, isApproved: null };
    case "mcp_call":
      return { kind: "call", id: item.id, server: item.server_label, name: item.name, arguments: item.arguments, state: stateOf(item), output: item.output, error: item.error, approvalId: item.approval_request_id };
    default:
      return { kind: "text", text: "" };
  }
}

function stateOf({ status }) {
  if (status === "completed" || status === "failed") return status;
  return status === "in_progress" ? "writing" : "stopped";
}

/** Usage as in chat completions. Several generations read more tokens than the conversation takes of the context. */
function usageOf(usage) {
  if (!usage) return undefined;
  return {
    prompt_tokens: usage.input_tokens,
    completion_tokens: usage.output_tokens,
    prompt_tokens_details: usage.input_tokens_details,
    completion_tokens_details: usage.output_tokens_details,
  };
}

function summed(before, usage) {
  if (!before || !usage) return usage ?? before;
  return { ...usage, completion_tokens: before.completion_tokens + usage.completion_tokens };
}

export function isPending(part) {
  return part.kind === "approval" && part.isApproved === null;
}

/** True if a call of it waits for a person's decision. */
export function isWaitingForApproval(message) {
  return Boolean(message?.parts?.some(isPending));
}

/** True if an approved call was made. Its page may have been closed before. */
export function isMade(parts, approval) {
  return parts.some((part) => part.kind === "call" && part.approvalId === approval.id);
}

/** The same parts, with unfinished calls marked as stopped. */
export function settled(parts) {
  return parts.map((part) => (part.kind === "call" && (part.state === "writing" || part.state === "running") ? { ...part, state: "stopped" } : part));
}

const UNKNOWN = "it is not known what came of this call: it was stopped";

/**
 * Items of an answer, to be sent again. `isToRun`: its approved calls are to run now. Otherwise none is requested a
 * second time, whatever the result of the first.
 */
export function itemsOf({ parts }, isToRun) {
  return parts.flatMap((part) => itemsOfPart(part, parts, isToRun));
}

function itemsOfPart(part, parts, isToRun) {
  const call = { id: part.id, server_label: part.server, name: part.name, arguments: part.arguments };
  switch (part.kind) {
    case "text":
      return part.text ? [{ type: "message", role: "assistant", content: part.text }] : [];
    case "thoughts":
      return part.text ? [{ type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: part.text }] }] : [];
    case "function":
      return [{ type: "function_call", call_id: part.id, name: part.name, arguments: part.arguments }];
    case "call": {
      const error = part.state === "completed" ? null : part.error || UNKNOWN;
      return [{ type: "mcp_call", ...call, output: error ? null : part.output, error, approval_request_id: part.approvalId ?? null }];
    }
    case "approval": {
      const request = { type: "mcp_approval_request", ...call };
      if (part.isApproved === null) return [request];
      const response = { type: "mcp_approval_response", approval_request_id: part.id, approve: part.isApproved };
      if (!part.isApproved || isToRun || isMade(parts, part)) return [request, response];
      return [{ type: "mcp_call", ...call, output: null, error: UNKNOWN, approval_request_id: null }];
    }
    default:
      return [];
  }
}
