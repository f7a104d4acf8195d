import { html } from "../base/html.js";
import { Button, Field } from "../base/controls.js";
import { changeSettings } from "./conversations.js";
import { jsonProblem } from "./options.js";

const EXAMPLES = {
  Person: {
    type: "object",
    properties: { name: { type: "string", maxLength: 40 }, age: { type: "integer", minimum: 0, maximum: 120 }, likes: { type: "array", items: { type: "string", maxLength: 30 }, maxItems: 3 } },
    required: ["name", "age", "likes"],
    additionalProperties: false,
  },
  Review: {
    type: "object",
    properties: { rating: { type: "integer", minimum: 1, maximum: 5 }, complaint: { type: "string", maxLength: 80 }, recommends: { type: "boolean" } },
    required: ["rating", "complaint", "recommends"],
    additionalProperties: false,
  },
  Steps: {
    type: "object",
    properties: { steps: { type: "array", minItems: 2, maxItems: 5, items: { type: "object", properties: { step: { type: "string", maxLength: 80 }, minutes: { type: "integer", minimum: 1, maximum: 120 } }, required: ["step", "minutes"], additionalProperties: false } } },
    required: ["steps"],
    additionalProperties: false,
  },
};

/** Schema that answers must follow. The server makes a grammar of it, so the model can write nothing else. */
export function SchemaEditor({ settings }) {
  const { schema, form, strict } = settings;
  const wrong = schema.trim() ? jsonProblem(schema) : null;
  const put = (value) => changeSettings({ schema: value });
  return html`
    <label class="check"><input type="checkbox" checked=${form === "schema"} onChange=${(event) => changeSettings({ form: event.target.checked ? "schema" : "text" })} />Answers are JSON</label>
    <${Field} label="Schema" help="Answers always match it, because the server turns it into a grammar. Leave it empty for any JSON object." error=${wrong}>
      ${(field) => html`<textarea ...${field} class="code-input" rows="10" spellcheck=${false} value=${schema} onInput=${(event) => put(event.target.value)} onKeyDown=${indent}></textarea>`}
    </${Field}>
    <div class="row">
      ${Object.entries(EXAMPLES).map(([name, example]) => html`<${Button} key=${name} onClick=${() => (put(JSON.stringify(example, null, 2)), changeSettings({ form: "schema" }))}>${name}</${Button}>`)}
      <${Button} disabled=${!schema.trim() || Boolean(wrong)} onClick=${() => put(JSON.stringify(JSON.parse(schema), null, 2))}>Format</${Button}>
    </div>
    <label class="check"><input type="checkbox" checked=${strict} onChange=${(event) => changeSettings({ strict: event.target.checked })} />Reject a schema that cannot be fully enforced</label>
  `;
}

/** Enter keeps the indentation. Tab still moves the focus, for keyboard users. */
function indent(event) {
  if (event.key !== "Enter" || event.isComposing) return;
  const { value, selectionStart } = event.target;
  const line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
  const space = line.match(/^ */)[0] + (/[{[]\s*$/.test(line) ? "  " : "");
  if (!space) return;
  event.preventDefault();
  document.execCommand("insertText", false, `\n${space}`);
}
