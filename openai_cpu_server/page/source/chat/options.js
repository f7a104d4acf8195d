// All that a request can say of how its answer is made: one table, which the panel shows and requests are made by.

/** `kind`: number (with a slider), integer, text, lines (a text each), json, switch, choice. Absent: the model's own value, which its card has
 * in `sampling` under the option's name or `own`, else `usual`. */
export const OPTIONS = [
  { group: "Sampling", name: "temperature", label: "Temperature", kind: "number", min: 0, max: 2, step: 0.05, usual: 1,
    help: "0 always takes the likeliest token; above 1 gets wild." },
  { group: "Sampling", name: "top_p", label: "Top p", kind: "number", min: 0, max: 1, step: 0.01, usual: 1,
    help: "Only the likeliest tokens that together have this probability." },
  { group: "Sampling", name: "top_k", label: "Top k", kind: "integer", min: 0, max: 200, usual: 0, help: "Only the k likeliest tokens; 0: all." },
  { group: "Sampling", name: "min_p", label: "Min p", kind: "number", min: 0, max: 1, step: 0.01, usual: 0,
    help: "No token below this share of the likeliest one's probability." },
  { group: "Sampling", name: "typical_p", label: "Typical p", kind: "number", min: 0.01, max: 1, step: 0.01, usual: 1,
    help: "Tokens about as surprising as the text usually is; 1: off." },
  { group: "Sampling", name: "seed", label: "Seed", kind: "integer", help: "The same seed and prompt give the same answer." },
  { group: "Repetition", name: "repeat_penalty", label: "Repeat penalty", kind: "number", min: 0.5, max: 2, step: 0.05, usual: 1,
    help: "Above 1: tokens of the last text get less likely." },
  { group: "Repetition", name: "repeat_last_n", label: "Repeat window", kind: "integer", min: 0, max: 4096, usual: 64,
    help: "How many last tokens the repeat penalty looks at." },
  { group: "Repetition", name: "presence_penalty", label: "Presence penalty", kind: "number", min: -2, max: 2, step: 0.1, usual: 0,
    help: "Above 0: what was said once gets less likely." },
  { group: "Repetition", name: "frequency_penalty", label: "Frequency penalty", kind: "number", min: -2, max: 2, step: 0.1, usual: 0,
    help: "Above 0: less likely with each time that it was said." },
  { group: "Length", name: "max_tokens", own: "max_output_tokens", label: "Most tokens", kind: "integer", min: 1, help: "The answer is cut there, thoughts included." },
  { group: "Length", name: "stop", label: "Stop at", kind: "lines", help: "One text a line; the answer ends before any of them. Not beside a schema." },
  { group: "Length", name: "ignore_eos", label: "Go on behind the end", kind: "switch", help: "The model's end mark does not end the answer." },
  { group: "Length", name: "timeout", label: "Time limit", kind: "number", min: 1, help: "Seconds, waiting included." },
  { group: "Reasoning", name: "reasoning_effort", label: "Effort", kind: "choice", values: ["none", "minimal", "low", "medium", "high", "xhigh"],
    help: "How hard a model that thinks is to think." },
  { group: "Reasoning", name: "thinking_budget", label: "Most tokens of thoughts", kind: "integer", min: 0, help: "Then the server closes the thoughts, and the answer begins." },
  { group: "Other", name: "logit_bias", label: "Bias", kind: "json", help: 'Token id to a number from -100 to 100: {"50256": -100}.' },
  { group: "Other", name: "cache_salt", label: "Cache salt", kind: "text", help: "Computed prompts are shared with requests of the same salt only." },
  { group: "Other", name: "cache", label: "Cache of answers", kind: "off", help: "Off: neither take the answer from it nor keep it there." },
];

/** What is wrong with a value as typed, in words; null: nothing. */
export function problem(option, value) {
  if (value === undefined || value === null || value === "") return null;
  if (option.kind === "json") return jsonProblem(value);
  if (option.kind !== "number" && option.kind !== "integer") return null;
  const number = Number(value);
  if (!Number.isFinite(number)) return "This is no number.";
  if (option.kind === "integer" && !Number.isInteger(number)) return "Whole numbers only.";
  if (option.min !== undefined && number < option.min) return `At least ${option.min}.`;
  if (option.max !== undefined && option.step && number > option.max) return `At most ${option.max}.`;
  return null;
}

export function jsonProblem(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? null : "This must be an object: { … }.";
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

/** The fields of a request's body. Wrong values are left out: the panel shows what is wrong with them. */
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
