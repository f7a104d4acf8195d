import { useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Button, Dialog, Field } from "../base/controls.js";
import { access, loadModels } from "../api/server.js";
import { isPrintable, key, setKey } from "../api/client.js";

const WRONG = "The server does not recognize this key.";

export function KeyDialog({ onClose }) {
  const [typed, setTyped] = useState(key.value);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(access.value === "wrong" ? WRONG : null);
  const use = async (event) => {
    event.preventDefault();
    const entered = typed.trim();
    if (!isPrintable(entered)) return setError("It contains characters that a key cannot have.");
    setBusy(true);
    setKey(entered);
    await loadModels();
    setBusy(false);
    if (access.value === "ok") onClose();
    else setError(entered ? WRONG : "This server requires a key.");
  };
  return html`<${Dialog} title="API key" onClose=${onClose}>
    <form onSubmit=${use} class="stack">
      <${Field} label="Key" error=${error} help="Kept in this tab until you close it, and sent only to this server.">
        ${(field) => html`<input ...${field} type="password" name="key" autocomplete="off" spellcheck=${false} autofocus value=${typed} onInput=${(e) => setTyped(e.target.value)} />`}
      </${Field}>
      <footer class="dialog-foot">
        ${key.value && html`<${Button} onClick=${() => { setTyped(""); setKey(""); onClose(); }}>Forget the key</${Button}>`}
        <button type="submit" class="button main" disabled=${busy}><span>Use this key</span></button>
      </footer>
    </form>
  </${Dialog}>`;
}
