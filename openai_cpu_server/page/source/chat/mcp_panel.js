// MCP servers of a conversation: names, states, and the tools that the model sees.
import { useEffect, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Button, Field } from "../base/controls.js";
import { ApiError, Unreachable } from "../api/client.js";
import { loadMcpServer, loadMcpServers, mcpServers } from "../api/server.js";
import { visible } from "../text/visible.js";
import { changeSettings, current } from "./conversations.js";
import { usedServers } from "./request.js";

const STATES = { idle: "not contacted yet", starting: "starting …", ready: "reachable", failed: "not reachable" };
const ASKING = [
  ["always", "before each call"],
  ["writes", "unless the tool is marked read-only"],
  ["never", "never"],
];

export function McpPanel({ settings }) {
  useEffect(() => {
    loadMcpServers();
  }, []);
  const servers = mcpServers.value;
  return html`
    <p class="field-help">The server runs these tools while it answers. The model reads their descriptions and their results.</p>
    ${servers.map((card) => html`<${Server} key=${card.name} card=${card} used=${settings.mcp?.[card.name]} />`)}
    ${usedServers(settings, servers).length > 0 && html`<${Demand} settings=${settings} servers=${servers} />`}
  `;
}

function change(name, fields) {
  const { [name]: before, ...others } = current.peek().settings.mcp ?? {};
  changeSettings({ mcp: fields ? { ...others, [name]: { tools: null, ask: "always", ...before, ...fields } } : others });
}

function Server({ card, used }) {
  const { name, state, error, last_words: lastWords, tools } = card;
  const [loading, setLoading] = useState(false);
  const [problem, setProblem] = useState(null);
  const look = async () => {
    setLoading(true);
    setProblem(null);
    try {
      await loadMcpServer(name);
    } catch (failure) {
      if (!(failure instanceof ApiError || failure instanceof Unreachable)) throw failure;
      setProblem(failure.message);
    }
    setLoading(false);
  };
  const toggle = (event) => {
    change(name, event.target.checked ? {} : null);
    if (event.target.checked && !tools) look();
  };
  const why = problem ?? (state === "failed" ? error : null);
  return html`<fieldset class="tool stack">
    <legend class="hidden-text">MCP server ${name}</legend>
    <div class="mcp-head">
      <label class="check"><input type="checkbox" checked=${Boolean(used)} onChange=${toggle} /><strong>${name}</strong></label>
      <span class="mcp-state" role="status"><span class=${`dot ${loading ? "loading" : state}`} aria-hidden="true"></span>${loading ? STATES.starting : STATES[state]}</span>
    </div>
    ${why && html`<p class="mcp-why" role="alert">${visible(why)}</p>`}
    ${why && lastWords?.length > 0 && html`<details><summary>Last output</summary><pre tabindex="0" role="region" aria-label=${`Last output of ${name}`}>${visible(lastWords.join("\n"))}</pre></details>`}
    ${tools ? html`<${Tools} name=${name} tools=${tools} used=${used} />` : html`<div class="row"><${Button} disabled=${loading} onClick=${look}>${state === "failed" ? "Try again" : "Show tools"}</${Button}></div>`}
    ${used && html`<${Field} label="Ask me">
      ${(field) => html`<select ...${field} value=${used.ask} onChange=${(event) => change(name, { ask: event.target.value })}>${ASKING.map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select>`}
    </${Field}>`}
  </fieldset>`;
}

function Tools({ name, tools, used }) {
  if (!tools.length) return html`<p class="field-help">It offers you no tools.</p>`;
  const isOn = (tool) => Boolean(used) && (used.tools === null || used.tools.includes(tool.name));
  const toggle = (tool, on) => {
    const chosen = tools.filter((one) => (one.name === tool.name ? on : isOn(one))).map((one) => one.name);
    if (!chosen.length) return change(name, null);
    return change(name, { tools: chosen.length === tools.length ? null : chosen });
  };
  return html`<ul class="mcp-tools" aria-label=${`Tools of ${name}`}>
    ${tools.map(
      (tool) => html`<li key=${tool.name}>
        <label class="check"><input type="checkbox" checked=${isOn(tool)} onChange=${(event) => toggle(tool, event.target.checked)} /><code>${visible(tool.name)}</code>${tool.annotations?.readOnlyHint === true && html`<span class="tag" title="According to the tool itself">read-only</span>`}</label>
        ${tool.description && html`<p class="mcp-words" dir="auto">${visible(tool.description)}</p>`}
        <details><summary>Arguments<span class="hidden-text"> of ${visible(tool.name)}</span></summary><${Arguments} schema=${tool.input_schema} /></details>
      </li>`,
    )}
  </ul>`;
}

/** The schema comes from a stranger, so any of its fields may have a wrong type. */
function Arguments({ schema }) {
  const properties = Object.entries(schema?.properties ?? {});
  const required = Array.isArray(schema?.required) ? schema.required : [];
  if (!properties.length) return html`<p class="field-help">None.</p>`;
  return html`<dl class="mcp-arguments">${properties.map(
    ([name, one]) => html`<div><dt><code>${visible(name)}</code> <span class="soft">${visible(typeOf(one))}${required.includes(name) ? ", required" : ""}</span></dt>${one?.description && html`<dd dir="auto">${visible(one.description)}</dd>`}</div>`,
  )}</dl>`;
}

function typeOf(schema) {
  const { type, enum: values, anyOf } = schema ?? {};
  if (Array.isArray(values)) return values.map((value) => JSON.stringify(value)).join(" | ");
  if (Array.isArray(anyOf)) return anyOf.map(typeOf).join(" | ");
  return Array.isArray(type) ? type.join(" | ") : String(type ?? "anything");
}

function Demand({ settings, servers }) {
  const used = usedServers(settings, servers);
  const toolsOf = ([name, { tools }]) => tools ?? servers.find((one) => one.name === name)?.tools?.map((tool) => tool.name) ?? [];
  return html`<${Field} label="When" help="After a required call, the model decides.">
    ${(field) => html`<select ...${field} value=${settings.mcpChoice ?? ""} onChange=${(event) => changeSettings({ mcpChoice: event.target.value })}>
      <option value="">the model decides</option>
      ${used.map(([name]) => html`<option value=${name}>must call a tool of ${name}</option>`)}
      ${used.flatMap((entry) => toolsOf(entry).map((tool) => html`<option value=${`${entry[0]}/${tool}`}>must call ${entry[0]}: ${visible(tool)}</option>`))}
    </select>`}
  </${Field}>`;
}
