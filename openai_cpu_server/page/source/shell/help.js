import { html } from "../base/html.js";
import { Button, Dialog } from "../base/controls.js";
import { shortcuts, shown } from "./shortcuts.js";

export function Help({ onClose, onAbout }) {
  const groups = Map.groupBy ? [...Map.groupBy(shortcuts.value, (one) => one.group)] : grouped(shortcuts.value);
  return html`<${Dialog} title="Shortcuts" onClose=${onClose}>
    ${groups.map(
      ([group, entries]) => html`<section class="keys">
        <h3>${group}</h3>
        <dl>${entries.map((one) => html`<div><dt>${one.label}</dt><dd>${shown(one.keys).split("+").map((part) => html`<kbd>${part}</kbd>`)}</dd></div>`)}</dl>
      </section>`,
    )}
    <footer class="dialog-foot"><${Button} onClick=${onAbout}>About this page</${Button}></footer>
  </${Dialog}>`;
}

function grouped(entries) {
  const groups = new Map();
  for (const entry of entries) groups.set(entry.group, [...(groups.get(entry.group) ?? []), entry]);
  return [...groups];
}
