// A JSON answer, as a readable form or as its text.
import { useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Choice } from "../base/controls.js";
import { Icon } from "../base/icons.js";
import { Markdown } from "../text/markdown_view.js";
import { checked } from "./json_schema.js";

const DEEPEST = 30; // a form with thousands of levels would overflow the browser's stack
const VIEWS = [
  { value: "form", label: "Form" },
  { value: "raw", label: "JSON" },
];

export function FormAnswer({ message, growing }) {
  const [view, setView] = useState("form");
  if (!message.content) return null;
  if (growing) return html`<${Raw} text=${message.content} growing />`;
  const { value, problems } = checked(message.content, message.schema);
  const hasForm = value !== undefined && !isDeep(value);
  const shows = hasForm ? view : "raw";
  return html`<div class="json">
    <div class="json-head">
      ${problems.length === 0
        ? html`<span class="badge good"><${Icon} name="check" size=${14} />Matches its schema</span>`
        : html`<span class="badge bad"><${Icon} name="warning" size=${14} />Does not match its schema</span>`}
      ${hasForm && html`<${Choice} label="View" value=${view} options=${VIEWS} onChange=${setView} />`}
    </div>
    ${problems.length > 0 && html`<ul class="json-problems">${problems.map((one) => html`<li><code>${one.path}</code> ${one.text}</li>`)}</ul>`}
    ${shows === "form" ? html`<div class="json-form"><${Value} value=${value} schema=${parsedSchema(message.schema)} /></div>` : html`<${Raw} text=${hasForm ? JSON.stringify(value, null, 2) : message.content} />`}
  </div>`;
}

function Raw({ text, growing = false }) {
  return html`<${Markdown} text=${`~~~~~~json\n${text}\n~~~~~~`} growing=${growing} />`;
}

function isDeep(value) {
  let level = [value];
  for (let depth = 0; level.length; depth++) {
    if (depth > DEEPEST) return true;
    level = level.flatMap((one) => (one && typeof one === "object" ? Object.values(one) : []));
  }
  return false;
}

function parsedSchema(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

/** Titles and descriptions come from the schema if it has them. */
function Value({ value, schema }) {
  if (Array.isArray(value)) return html`<${List} values=${value} schema=${schema?.items} />`;
  if (value && typeof value === "object") return html`<${Group} value=${value} properties=${schema?.properties} />`;
  if (typeof value === "boolean") return html`<span class="json-value"><${Icon} name=${value ? "check" : "close"} size=${14} />${value ? "yes" : "no"}</span>`;
  if (value === null) return html`<span class="json-value soft">nothing</span>`;
  return html`<span class="json-value">${String(value)}</span>`;
}

function Group({ value, properties }) {
  const names = Object.keys(value);
  if (!names.length) return html`<span class="json-value soft">empty</span>`;
  return html`<dl>${names.map((name) => {
    const schema = properties?.[name];
    return html`<div key=${name}><dt title=${schema?.description}>${schema?.title ?? name}</dt><dd><${Value} value=${value[name]} schema=${schema} /></dd></div>`;
  })}</dl>`;
}

function List({ values, schema }) {
  if (!values.length) return html`<span class="json-value soft">none</span>`;
  if (values.every(isFlat)) return html`<${Table} rows=${values} properties=${schema?.properties} />`;
  return html`<ol>${values.map((value, index) => html`<li key=${index}><${Value} value=${value} schema=${schema} /></li>`)}</ol>`;
}

function isFlat(value) {
  return value && typeof value === "object" && !Array.isArray(value) && Object.values(value).every((one) => one === null || typeof one !== "object");
}

function Table({ rows, properties }) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return html`<div class="table" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr>${names.map((name) => html`<th scope="col">${properties?.[name]?.title ?? name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${names.map((name) => html`<td>${name in row && html`<${Value} value=${row[name]} />`}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}
