// All parameters of a request that people may set: one table for the panel and for requests.

/**
 * `kind`: number (with a slider), integer, text, lines (a text each), json, switch, off, choice. `usual`: the server's
 * value if the model has none of its own. `own`: name of the model's value in the model's card. Absent: the
 * server decides.
 */
export const OPTIONS = [
  { group: "Sampling", name: "temperature", label: "Temperature", kind: "number", min: 0, max: 2, step: 0.05, usual: 1,
    help: "0 always takes the most likely token; above 1, answers get erratic." },
  { group: "Sampling", name: "top_p", label: "Top p", kind: "number", min: 0, max: 1, step: 0.01, usual: 1,
    help: "Keeps the most likely tokens that together reach this probability." },
  { group: "Sampling", name: "top_k", label: "Top k (tokens)", kind: "integer", min: 0, max: 200, usual: 0,
    help: "Keeps only this many of the most likely tokens; 0 keeps all." },
  { group: "Sampling", name: "min_p", label: "Min p", kind: "number", min: 0, max: 1, step: 0.01, usual: 0,
    help: "Drops tokens below this fraction of the top token's probability." },
  { group: "Sampling", name: "typical_p", label: "Typical p", kind: "number", min: 0.01, max: 1, step: 0.01, usual: 1,
    help: "Keeps tokens about as surprising as the text usually is; 1 is off." },
  { group: "Sampling", name: "seed", label: "Seed", kind: "integer", help: "The same seed and prompt give the same answer." },
  { group: "Repetition", name: "repeat_penalty", label: "Repeat penalty", kind: "number", min: 0.5, max: 2, step: 0.05, usual: 1,
    help: "Above 1, recent tokens become less likely." },
  { group: "Repetition", name: "repeat_last_n", label: "Repeat window (tokens)", kind: "integer", min: 0, max: 4096, usual: 64,
    help: "How far back the repeat penalty looks." },
  { group: "Repetition", name: "presence_penalty", label: "Presence penalty", kind: "number", min: -2, max: 2, step: 0.1, usual: 0,
    help: "Above 0, tokens that the answer already contains become less likely." },
  { group: "Repetition", name: "frequency_penalty", label: "Frequency penalty", kind: "number", min: -2, max: 2, step: 0.1, usual: 0,
    help: "Above 0, a token becomes less likely each time it is used." },
  { group: "Length", name: "max_tokens", own: "max_output_tokens", label: "Maximum length (tokens)", kind: "integer", min: 1,
    help: "The answer, thoughts included, is cut off there." },
  { group: "Length", name: "stop", label: "Stop at", kind: "lines",
    help: "One text per line; the answer ends before the first one that appears. Not available with a schema." },
  { group: "Length", name: "ignore_eos", label: "Ignore the end mark", kind: "switch",
    help: "The answer goes on to its maximum length, even if the model ends it." },
  { group: "Length", name: "timeout", label: "Time limit (seconds)", kind: "number", min: 1, help: "Includes the time in the queue." },
  { group: "Reasoning", name: "reasoning_effort", label: "Effort", kind: "choice", values: ["none", "minimal", "low", "medium", "high", "xhigh"],
    help: "How much a reasoning model thinks before it answers." },
  { group: "Reasoning", name: "thinking_budget", label: "Thinking budget (tokens)", kind: "integer", min: 0,
    help: "After this many tokens of thoughts, the answer begins." },
  { group: "Other", name: "logit_bias", label: "Logit bias", kind: "json", help: 'Maps token ids to numbers from -100 to 100: {"50256": -100}.' },
  { group: "Other", name: "cache_salt", label: "Cache salt", kind: "text", help: "Cached prompts are shared only with requests that have the same salt." },
  { group: "Other", name: "cache", label: "Use the answer cache", kind: "off", help: "If off, the answer is neither taken from the cache nor stored in it." },
];

/** Value of an option that is not set: the model's own, else the server's. */
export function usualOf(option, card) {
  return card?.sampling?.[option.own ?? option.name] ?? option.usual;
}

/** Returns what is wrong with a typed value, or null. */
export function problem(option, value) {
  if (value === undefined || value === null || value === "") return null;
  if (option.kind === "json") return jsonProblem(value);
  if (option.kind !== "number" && option.kind !== "integer") return null;
  const number = Number(value);
  if (!Number.isFinite(number)) return "This is not a number.";
  if (option.kind === "integer" && !Number.isInteger(number)) return "Enter a whole number.";
  if (option.min !== undefined && number < option.min) return `The minimum is ${option.min}.`;
  if (option.max !== undefined && option.step && number > option.max) return `The maximum is ${option.max}.`;
  return null;
}

export function jsonProblem(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? null : "It must be an object: { … }.";
  } catch (error) {
    return `${where(text, error)}${error.message.replace(/ in JSON at.*$| is not valid JSON$|\(line.*$/, "").replace(/, ?"?[\s\S]*?"\.\.\. ?/, "")}`;
  }
}

function where(text, error) {
  const position = error.message.match(/position (\d+)/)?.[1];
  if (position === undefined) return "";
  const before = text.slice(0, Number(position)).split("\n");
  return `Line ${before.length}, column ${before.at(-1).length + 1}: `;
}

/** Fields of a request's body. Wrong values are left out, and the panel shows the error. */
export function optionFields(values) {
  const fields = {};
  for (const option of OPTIONS) {
    const value = values?.[option.name];
    if (value === undefined || value === null || value === "" || problem(option, value)) continue;
    fields[option.name] = field(option, value);
  }
  return fields;
}

function field(option, value) {
  switch (option.kind) {
    case "text":
      return String(value);
    case "number":
    case "integer":
      return Number(value);
    case "lines":
      return String(value).split("\n").filter(Boolean);
    case "json":
      return JSON.parse(value);
    default:
      return value;
  }
}
