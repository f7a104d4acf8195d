// The list of conversations: find, open, rename, export, import, delete.
import { useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Button, Dialog, IconButton } from "../base/controls.js";
import { announce } from "../shell/announce.js";
import { go } from "../shell/route.js";
import { change, conversations, current, discard } from "./conversations.js";
import { saveAs } from "./files.js";
import { exported, imported } from "./interchange.js";
import { wide } from "./layout.js";

const DAY = 86_400_000;

export function Sidebar({ onNew, onClose }) {
  const [sought, setSought] = useState("");
  const [renaming, setRenaming] = useState(null);
  const [discarding, setDiscarding] = useState(null);
  const words = sought.trim().toLowerCase();
  const found = conversations.value.filter((one) => one.title.toLowerCase().includes(words));
  const show = (id) => {
    go("chat", id);
    if (!wide.matches) onClose();
  };
  return html`<div class="list-shade" onClick=${onClose}></div>
    <nav class="list" aria-label="Conversations" onKeyDown=${(event) => event.key === "Escape" && !wide.matches && onClose()}>
      <div class="list-head">
        <${Button} icon="plus" kind="new" onClick=${onNew}>New conversation</${Button}>
        <${IconButton} icon="close" label="Close the list" kind="only-narrow" onClick=${onClose} />
      </div>
      ${conversations.value.length > 5 && html`<input type="search" class="list-search" placeholder="Find" aria-label="Find a conversation" value=${sought} onInput=${(event) => setSought(event.target.value)} />`}
      <div class="list-items" tabindex="-1">
        ${conversations.value.length === 0 && html`<p class="list-empty">Conversations are kept in this browser.</p>`}
        ${byAge(found).map(
          ([age, entries]) => html`<section key=${age}>
            <h2>${age}</h2>
            <ul>${entries.map((one) => html`<${Entry} key=${one.id} entry=${one} show=${show} renaming=${renaming === one.id} setRenaming=${setRenaming} onDiscard=${setDiscarding} />`)}</ul>
          </section>`,
        )}
      </div>
      <${FileActions} />
      ${discarding && html`<${Discarding} entry=${discarding} onClose=${() => setDiscarding(null)} />`}
    </nav>`;
}

function byAge(entries) {
  const today = new Date().setHours(0, 0, 0, 0);
  const groups = new Map();
  for (const entry of entries) {
    const age = entry.updated >= today ? "Today" : entry.updated >= today - DAY ? "Yesterday" : entry.updated >= today - 7 * DAY ? "Last week" : "Earlier";
    groups.set(age, [...(groups.get(age) ?? []), entry]);
  }
  return [...groups];
}

function Entry({ entry, show, renaming, setRenaming, onDiscard }) {
  const isOpen = current.value.id === entry.id;
  const [actions, setActions] = useState(false);
  const rename = (event) => {
    event.preventDefault();
    const title = new FormData(event.currentTarget).get("title").trim();
    if (title) change(entry.id, { title });
    setRenaming(null);
  };
  if (renaming) {
    return html`<li><form class="rename" onSubmit=${rename} onKeyDown=${(event) => event.key === "Escape" && setRenaming(null)}>
      <input name="title" aria-label="Title" maxlength="200" autofocus value=${entry.title} ref=${(field) => field?.select()} />
      <${IconButton} icon="check" label="Rename" kind="small" type="submit" />
    </form></li>`;
  }
  return html`<li class=${isOpen ? "entry open" : "entry"}>
    <button type="button" class="entry-open" aria-current=${isOpen ? "true" : undefined} onClick=${() => show(entry.id)}>${entry.title || "Untitled"}</button>
    <${IconButton} icon="more" label=${`Actions of ${entry.title}`} kind="small" expanded=${actions} onClick=${() => setActions(!actions)} />
    ${actions && html`<div class="entry-actions">
      <${Button} kind="plain" icon="pen" onClick=${() => setRenaming(entry.id)}>Rename</${Button}>
      <${Button} kind="plain" icon="down_tray" onClick=${() => save([entry.id], entry.title)}>Export</${Button}>
      <${Button} kind="plain danger" icon="bin" onClick=${() => onDiscard(entry)}>Delete</${Button}>
    </div>`}
  </li>`;
}

function Discarding({ entry, onClose }) {
  const remove = async () => {
    await discard(entry.id);
    if (!current.peek().isFresh) go("chat", current.peek().id);
    else go("chat");
    onClose();
    announce("Deleted");
  };
  return html`<${Dialog} title="Delete this conversation?" onClose=${onClose}>
    <p>“${entry.title}” is deleted from this browser. It cannot be brought back.</p>
    <footer class="dialog-foot">
      <${Button} onClick=${onClose}>Keep it</${Button}>
      <${Button} kind="danger" icon="bin" onClick=${remove}>Delete</${Button}>
    </footer>
  </${Dialog}>`;
}

async function save(ids, name) {
  const text = JSON.stringify(await exported(ids), null, 1);
  saveAs(`${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation"}.json`, text);
}

function FileActions() {
  const field = useRef(null);
  const [said, setSaid] = useState(null);
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    try {
      const number = await imported(await file.text());
      setSaid({ text: `${number} imported.` });
    } catch (error) {
      setSaid({ text: error.message, isWrong: true });
    }
  };
  return html`<div class="list-foot">
    <${Button} kind="plain" icon="up_tray" onClick=${() => field.current.click()}>Import</${Button}>
    <${Button} kind="plain" icon="down_tray" disabled=${!conversations.value.length} onClick=${() => save(conversations.value.map((one) => one.id), "conversations")}>Export all</${Button}>
    <input type="file" accept="application/json,.json" hidden ref=${field} onChange=${read} aria-label="File to import" />
    <p role="status" class=${said?.isWrong ? "list-said wrong" : "list-said"}>${said?.text}</p>
  </div>`;
}
