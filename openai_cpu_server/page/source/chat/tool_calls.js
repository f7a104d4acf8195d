// Calls of functions: people see them, run them, and enter the results.
import { useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Field } from "../base/controls.js";
import { Icon } from "../base/icons.js";
import { giveResults } from "./generation.js";
import { current } from "./conversations.js";
import { checked } from "./json_schema.js";

export function ToolCalls({ message, growing, isLast }) {
  const [results, setResults] = useState([]);
  const { toolCalls = [] } = message;
  if (!toolCalls.length) return null;
  const needsResults = isLast && !growing;
  const isWhole = toolCalls.every((_, index) => results[index]?.trim());
  const send = (event) => {
    event.preventDefault();
    if (isWhole) giveResults(message, results);
  };
  return html`<form class="calls" onSubmit=${send}>
    ${toolCalls.map(
      (call, index) => html`<div role="group" class="call" key=${index} aria-label=${`Call of ${call.name}`}>
        <header><${Icon} name="tool" size=${14} /><code>${call.name}</code>${!growing && html`<${Verdict} call=${call} />`}</header>
        <pre tabindex="0">${growing ? call.arguments : pretty(call.arguments)}</pre>
        ${needsResults &&
        html`<${Field} label="Result" help="Text or JSON, as the function would return it.">
          ${(field) => html`<textarea ...${field} class="code-input" rows="2" value=${results[index] ?? ""} onInput=${(event) => setResults(Object.assign([...results], { [index]: event.target.value }))}></textarea>`}
        </${Field}>`}
      </div>`,
    )}
    ${needsResults && html`<div class="dialog-foot"><button type="submit" class="button main" disabled=${!isWhole}><span>Send ${toolCalls.length > 1 ? "results" : "result"}</span></button></div>`}
  </form>`;
}

function Verdict({ call }) {
  const tool = current.value.settings.tools.find((one) => one.name === call.name);
  if (!tool) return null;
  const { problems } = checked(call.arguments || "{}", tool.parameters || "{}");
  return problems.length
    ? html`<span class="badge bad" title=${problems.map((one) => `${one.path} ${one.text}`).join("\n")}>Arguments are invalid</span>`
    : html`<span class="badge good"><${Icon} name="check" size=${14} />Arguments are valid</span>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
