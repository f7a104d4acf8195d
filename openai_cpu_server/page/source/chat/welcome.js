import { html } from "../base/html.js";
import { current } from "./conversations.js";
import { say } from "./generation.js";

const IDEAS = [
  "Tell a short story about a lighthouse.",
  "Write a Python function that finds the median of a list.",
  "Explain in three sentences why the sky is blue.",
];

export function Welcome() {
  const { settings } = current.value;
  return html`<div class="welcome">
    <h2>What do you want to know?</h2>
    <p class="soft">Everything stays between this browser and your server.</p>
    ${settings.form === "text" &&
    html`<ul class="ideas">${IDEAS.map((idea) => html`<li><button type="button" onClick=${() => say(null, idea, [])}>${idea}</button></li>`)}</ul>`}
  </div>`;
}
