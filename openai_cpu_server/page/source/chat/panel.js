// Settings of the open conversation: system prompt, priority, form of the answer, tools, sampling.
import { html } from "../base/html.js";
import { Button, Choice, Field, IconButton } from "../base/controls.js";
import { mcpServers } from "../api/server.js";
import { changeSettings, current } from "./conversations.js";
import { McpPanel } from "./mcp_panel.js";
import { chosenModel } from "./model_picker.js";
import { OPTIONS, problem, usualOf } from "./options.js";
import { usedServers } from "./request.js";
import { SchemaEditor } from "./schema_editor.js";
import { ToolEditor } from "./tool_editor.js";

const PRIORITIES = [
  { value: "interactive", label: "Normal" },
  { value: "batch", label: "Low" },
];

export function Panel({ onClose }) {
  const { settings } = current.value;
  const set = (name, value) => {
    const { [name]: _, ...others } = current.peek().settings.options;
    changeSettings({ options: value === null || value === "" ? others : { ...others, [name]: value } });
  };
  const groups = [...new Set(OPTIONS.map((option) => option.group))];
  const card = chosenModel();
  const servers = mcpServers.value;
  const numServers = usedServers(settings, servers).length;
  const numSet = Object.keys(settings.options).length;
  return html`<aside class="panel" aria-label="Settings of this conversation">
    <header class="panel-head"><h2>Settings</h2><${IconButton} icon="close" label="Close the settings" onClick=${onClose} /></header>
    <${Section} title="System prompt" open=${true}>
      <textarea aria-label="System prompt" rows="4" placeholder="Instructions for the model, such as its role or the tone of its answers" value=${settings.system} onInput=${(event) => changeSettings({ system: event.target.value })}></textarea>
    </${Section}>
    <${Section} title="Priority" id="priority-settings" open=${true}>
      <div><${Choice} label="Priority" value=${settings.priority} options=${PRIORITIES} onChange=${(priority) => changeSettings({ priority })} /></div>
      <p class="field-help">Low gives way to other requests: choose it for answers that can wait.</p>
    </${Section}>
    <${Section} title="JSON schema" open=${settings.form === "schema"} key=${`schema-${settings.form}`} mark=${settings.form === "schema" ? "on" : ""}><${SchemaEditor} settings=${settings} /></${Section}>
    <${Section} title="Tools" open=${settings.usesTools} key=${`tools-${settings.usesTools}`} mark=${settings.usesTools ? "on" : ""}><${ToolEditor} settings=${settings} /></${Section}>
    ${servers.length > 0 && html`<${Section} title="MCP servers" id="mcp-settings" mark=${numServers ? `${numServers} on` : ""}><${McpPanel} settings=${settings} /></${Section}>`}
    ${groups.map((group) => {
      const options = OPTIONS.filter((option) => option.group === group);
      const some = options.filter((option) => option.name in settings.options).length;
      return html`<${Section} key=${group} title=${group} open=${group === "Sampling"} mark=${some ? `${some} set` : ""}>
        ${options.map((option) => html`<${Option} key=${option.name} option=${option} value=${settings.options[option.name]} usual=${usualOf(option, card)} set=${set} />`)}
      </${Section}>`;
    })}
    ${numSet > 0 && html`<${Button} icon="again" onClick=${() => changeSettings({ options: {} })}>Reset to the model's defaults</${Button}>`}
  </aside>`;
}

function Section({ title, open, mark, id, children }) {
  return html`<details class="section" id=${id} open=${open}><summary><span>${title}</span>${mark && html`<span class="tag">${mark}</span>`}</summary><div class="stack">${children}</div></details>`;
}

function Option({ option, value, usual, set }) {
  const isSet = value !== undefined;
  const wrong = problem(option, value);
  const reset = isSet && html`<button type="button" class="back" aria-label=${`reset ${option.label}`} onClick=${() => set(option.name, null)}>reset</button>`;
  const put = (event) => set(option.name, event.target.value);
  if (option.kind === "switch" || option.kind === "off") {
    const on = option.kind === "off" ? value !== false : value === true;
    const change = (event) => set(option.name, option.kind === "off" ? (event.target.checked ? null : false) : event.target.checked || null);
    return html`<div><label class="check"><input type="checkbox" checked=${on} onChange=${change} />${option.label}</label><p class="field-help">${option.help}</p></div>`;
  }
  return html`<${Field} label=${option.label} help=${option.help} error=${wrong} aside=${reset}>
    ${(field) => {
      switch (option.kind) {
        case "choice":
          return html`<select ...${field} value=${value ?? ""} onChange=${put}><option value="">model default</option>${option.values.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
        case "lines":
        case "json":
          return html`<textarea ...${field} class="code-input" rows="2" value=${value ?? ""} onInput=${put}></textarea>`;
        case "text":
          return html`<input ...${field} type="text" maxlength="256" value=${value ?? ""} onInput=${put} />`;
        default:
          return html`<${Numeric} option=${option} field=${field} value=${value} usual=${usual} put=${put} />`;
      }
    }}
  </${Field}>`;
}

/** Number field, with a slider if its range is known. */
function Numeric({ option, field, value, usual, put }) {
  const { min, max, step, label } = option;
  const typed = html`<input ...${field} class="number" inputmode="decimal" placeholder=${usual ?? "none"} value=${value ?? ""} onInput=${put} />`;
  if (max === undefined) return typed;
  return html`<div class="slider"><input type="range" aria-label=${`${label}, slider`} min=${min} max=${max} step=${step ?? 1} value=${value ?? usual ?? min} onInput=${put} />${typed}</div>`;
}
