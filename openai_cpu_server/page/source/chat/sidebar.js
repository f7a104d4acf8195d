// The list of conversations: find, open, rename, export, import, delete.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Button, Dialog, IconButton } from "../base/controls.js";
import { announce } from "../shell/announce.js";
import { go } from "../shell/route.js";
import { change, conversations, current, discard } from "./conversations.js";
import { saveAs } from "./files.js";
import { exported, imported } from "./interchange.js";
import { wide } from "./layout.js";
import { markdownOf } from "./markdown_file.js";
import { conversationsWith } from "./store.js";

const DAY = 86_400_000;

export function Sidebar({ onNew, onClose }) {
  const [sought, setSought] = useState("");
  const [renaming, setRenaming] = useState(null);
  const [discarding, setDiscarding] = useState(null);
  const [exporting, setExporting] = useState(null); // {ids, name}
  const words = sought.trim().toLowerCase();
  const inTexts = useTextMatches(words);
  const found = conversations.value.filter((one) => one.title.toLowerCase().includes(words) || inTexts?.has(one.id));
  const isNowhere = words && inTexts && !found.length;
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
      ${conversations.value.length > 1 && html`<input type="search" class="list-search" placeholder="Search" aria-label="Search conversations" value=${sought} onInput=${(event) => setSought(event.target.value)} />`}
      <div class="list-items" tabindex="-1">
        ${conversations.value.length === 0 && html`<p class="list-empty">Conversations are stored in this browser.</p>`}
        ${isNowhere && html`<p class="list-empty" role="status">No conversation contains “${sought.trim()}”.</p>`}
        ${byAge(found).map(
          ([age, entries]) => html`<section key=${age}>
            <h2>${age}</h2>
            <ul>${entries.map((one) => html`<${Entry} key=${one.id} entry=${one} show=${show} renaming=${renaming === one.id} setRenaming=${setRenaming} onDiscard=${setDiscarding} onExport=${setExporting} />`)}</ul>
          </section>`,
        )}
      </div>
      <${FileActions} onExport=${setExporting} />
      ${exporting && html`<${Exporting} ...${exporting} onClose=${() => setExporting(null)} />`}
      ${discarding && html`<${Discarding} entry=${discarding} onClose=${() => setDiscarding(null)} />`}
    </nav>`;
}

/** Ids of conversations with these words in their messages, or null during the search. */
function useTextMatches(words) {
  const [found, setFound] = useState({ words: "", ids: null });
  useEffect(() => {
    if (!words) return undefined;
    let isCurrent = true;
    conversationsWith(words).then((ids) => isCurrent && setFound({ words, ids }));
    return () => (isCurrent = false);
  }, [words, conversations.value]);
  return found.words === words ? found.ids : null;
}

function byAge(entries) {
  const today = new Date().setHours(0, 0, 0, 0);
  const groups = new Map();
  for (const entry of entries) {
    const age = entry.updated >= today ? "Today" : entry.updated >= today - DAY ? "Yesterday" : entry.updated >= today - 7 * DAY ? "Last 7 days" : "Earlier";
    groups.set(age, [...(groups.get(age) ?? []), entry]);
  }
  return [...groups];
}

function Entry({ entry, show, renaming, setRenaming, onDiscard, onExport }) {
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
    <${IconButton} icon="more" label=${`Actions for ${entry.title}`} kind="small" expanded=${actions} onClick=${() => setActions(!actions)} />
    ${actions && html`<div class="entry-actions">
      <${Button} kind="plain" icon="pen" onClick=${() => setRenaming(entry.id)}>Rename</${Button}>
      <${Button} kind="plain" icon="down_tray" onClick=${() => (setActions(false), onExport({ ids: [entry.id], name: entry.title }))}>Export</${Button}>
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
    <p>“${entry.title}” will be deleted from this browser. This cannot be undone.</p>
    <footer class="dialog-foot">
      <${Button} onClick=${onClose}>Cancel</${Button}>
      <${Button} kind="danger" icon="bin" onClick=${remove}>Delete</${Button}>
    </footer>
  </${Dialog}>`;
}

/** `name`: title of the only conversation, or null for all. */
function Exporting({ ids, name, onClose }) {
  const save = async (extension, type, written) => {
    const file = await exported(ids);
    const base = (name ?? "conversations").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
    saveAs(`${base}.${extension}`, written(file), type);
    onClose();
  };
  const asJson = () => save("json", "application/json", (file) => JSON.stringify(file, null, 1));
  const asMarkdown = () => save("md", "text/markdown", (file) => markdownOf(file.conversations));
  return html`<${Dialog} title=${name === null ? "Export all conversations" : `Export “${name}”`} onClose=${onClose}>
    <p>JSON keeps everything: all versions, attached files, settings. Markdown is easier to read: it has the messages that are shown, and only the names of attached files. Both can be imported again.</p>
    <footer class="dialog-foot">
      <${Button} onClick=${asMarkdown}>Markdown</${Button}>
      <${Button} kind="main" onClick=${asJson}>JSON</${Button}>
    </footer>
  </${Dialog}>`;
}

function FileActions({ onExport }) {
  const field = useRef(null);
  const [report, setReport] = useState(null);
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    try {
      const number = await imported(await file.text());
      setReport({ text: `${number} ${number === 1 ? "conversation" : "conversations"} imported.` });
    } catch (error) {
      setReport({ text: error.message, isWrong: true });
    }
  };
  return html`<div class="list-foot">
    <${Button} kind="plain" icon="up_tray" onClick=${() => field.current.click()}>Import</${Button}>
    <${Button} kind="plain" icon="down_tray" disabled=${!conversations.value.length} onClick=${() => onExport({ ids: conversations.value.map((one) => one.id), name: null })}>Export all</${Button}>
    <input type="file" accept="application/json,.json,text/markdown,.md" hidden ref=${field} onChange=${read} aria-label="File to import" />
    <p role="status" class=${report?.isWrong ? "list-said wrong" : "list-said"}>${report?.text}</p>
  </div>`;
}
