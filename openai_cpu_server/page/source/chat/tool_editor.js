import { html } from "../base/html.js";
import { Button, Field, IconButton } from "../base/controls.js";
import { changeSettings, current } from "./conversations.js";
import { jsonProblem } from "./options.js";

const PARAMETERS = '{\n  "type": "object",\n  "properties": {\n    "city": { "type": "string" }\n  },\n  "required": ["city"]\n}';
const CHOICES = [
  ["auto", "the model decides"],
  ["required", "must call one"],
  ["none", "must not call any"],
];

/** Functions that the model may call. The server does not run them: people see the calls and enter the results. */
export function ToolEditor({ settings }) {
  const { tools, usesTools, toolChoice } = settings;
  const put = (index, fields) => {
    const before = current.peek().settings.tools;
    changeSettings({ tools: before.map((tool, other) => (other === index ? { ...tool, ...fields } : tool)) });
  };
  const more = () => changeSettings({ usesTools: true, tools: [...tools, { name: tools.length ? `function_${tools.length + 1}` : "get_weather", description: tools.length ? "" : "The weather in a city", parameters: PARAMETERS }] });
  return html`
    <label class="check"><input type="checkbox" checked=${usesTools} onChange=${(event) => changeSettings({ usesTools: event.target.checked })} />The model may call functions</label>
    ${tools.map((tool, index) => html`<${Tool} key=${index} tool=${tool} put=${(fields) => put(index, fields)} remove=${() => changeSettings({ tools: tools.filter((_, other) => other !== index) })} />`)}
    <${Button} icon="plus" onClick=${more}>Add a function</${Button}>
    ${tools.length > 0 && html`<${Field} label="When">
      ${(field) => html`<select ...${field} value=${toolChoice} onChange=${(event) => changeSettings({ toolChoice: event.target.value })}>
        ${CHOICES.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
        ${tools.map((tool) => html`<option value=${tool.name}>must call ${tool.name}</option>`)}
      </select>`}
    </${Field}>`}
  `;
}

function Tool({ tool, put, remove }) {
  const wrongName = /^[\w-]{1,64}$/.test(tool.name) ? null : "Use up to 64 letters, digits, _ and -.";
  const wrong = tool.parameters.trim() ? jsonProblem(tool.parameters) : null;
  return html`<fieldset class="tool stack">
    <legend class="hidden-text">${tool.name}</legend>
    <div class="tool-head"><${Field} label="Name" error=${wrongName}>${(field) => html`<input ...${field} class="code-input" spellcheck=${false} value=${tool.name} onInput=${(event) => put({ name: event.target.value })} />`}</${Field}>
    <${IconButton} icon="bin" label=${`Remove ${tool.name}`} onClick=${remove} /></div>
    <${Field} label="Description">${(field) => html`<input ...${field} value=${tool.description} onInput=${(event) => put({ description: event.target.value })} />`}</${Field}>
    <${Field} label="Parameters" help="A JSON Schema for an object." error=${wrong}>${(field) => html`<textarea ...${field} class="code-input" rows="7" spellcheck=${false} value=${tool.parameters} onInput=${(event) => put({ parameters: event.target.value })}></textarea>`}</${Field}>
  </fieldset>`;
}
