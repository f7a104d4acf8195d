// Message field, files, and the most used switches.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { IconButton } from "../base/controls.js";
import { Icon } from "../base/icons.js";
import { count, playingTime } from "../base/numbers.js";
import { mcpServers, models } from "../api/server.js";
import { isAbandoned, isRunning } from "./answer.js";
import { giveResults, say, stop } from "./generation.js";
import { changeSettings, current, path, watched } from "./conversations.js";
import { readFiles, sizeOf } from "./files.js";
import { showsPanel } from "./layout.js";
import { chosenModel, takenBy } from "./model_picker.js";
import { jsonProblem } from "./options.js";
import { RecordButton } from "./record_button.js";
import { obstacle, usedServers } from "./request.js";
import { isWaitingForApproval } from "./response.js";

/** Unsent text, by conversation. */
const drafts = new Map();

export function Composer() {
  const { id, settings } = current.value;
  const draft = drafts.get(id) ?? { text: "", files: [] };
  const [text, setText] = useState(draft.text);
  const [files, setFiles] = useState(draft.files);
  const [problems, setProblems] = useState([]);
  const [numRead, setNumRead] = useState(0); // number of files being read
  const [dragging, setDragging] = useState(false);
  const field = useRef(null);
  const picker = useRef(null);
  const reading = useRef(Promise.resolve());
  const held = useRef(files);
  held.current = files;
  drafts.set(id, { text, files });
  useGrowing(field, text);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) field.current.focus();
  }, []);

  const last = path.value.length ? watched(path.value.at(-1).id).value : null;
  const running = last && isRunning(last) && !isAbandoned(last, Date.now());
  const wantsResults = last?.role === "assistant" && last.toolCalls?.length > 0 && !running;
  const wantsApproval = isWaitingForApproval(last) && !running;
  const takes = takenBy(chosenModel());
  const lacking = chosenModel() ? ["picture", "sound"].find((kind) => !takes[kind] && files.some((file) => file[kind])) : undefined;
  const wrong = obstacle(settings, jsonProblem, mcpServers.value) ?? (lacking ? `This model does not take ${lacking}s: remove them, or choose another model.` : null);
  const isUnready = (!text.trim() && !files.length) || numRead > 0;

  const send = () => {
    if (isUnready || running || wrong || wantsResults || wantsApproval) return;
    drafts.delete(id);
    setText("");
    setFiles([]);
    setProblems([]);
    say(last?.id ?? null, text.trim(), files);
  };
  const attach = (list) => {
    const items = [...list]; // dropped or pasted items may disappear later
    setNumRead((before) => before + 1); // a message is sent only after its files are read
    reading.current = reading.current.then(async () => { // in the order in which they were added, large or small
      const shown = [...path.value, { files: held.current }].flatMap((message) => message.files ?? []);
      const read = await readFiles(items, { takes: takenBy(chosenModel()), shown });
      held.current = [...held.current, ...read.files];
      setFiles(held.current);
      setProblems(read.problems);
      setNumRead((before) => before - 1);
    });
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    send();
  };
  const onPaste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach(event.clipboardData.files);
  };
  useDroppedFiles(setDragging, attach);
  return html`<form
    class=${dragging ? "composer dragging" : "composer"}
    onSubmit=${(event) => (event.preventDefault(), send())}
  >
    ${files.length > 0 && html`<ul class="chips" aria-label="Attached files">${files.map(
      (file, index) => html`<li class="chip">${file.picture ? html`<img class="thumb" src=${file.picture} alt="" />` : html`<${Icon} name=${file.sound ? "sound" : "clip"} size=${14} />`}<span>${file.name}</span> ${measureOf(file)}
        <button type="button" aria-label=${`Remove ${file.name}`} onClick=${() => setFiles(files.filter((_, other) => other !== index))}><${Icon} name="close" size=${12} /></button></li>`,
    )}</ul>`}
    ${problems.length > 0 && html`<p class="composer-problem" role="alert">${problems.join(" ")}</p>`}
    <label class="hidden-text" for="composer">Message</label>
    <textarea
      id="composer"
      ref=${field}
      rows="1"
      placeholder=${wantsApproval ? "Approve or deny the call above to continue" : wantsResults ? "Enter results for the calls above to continue" : "Write a message"}
      value=${text}
      onInput=${(event) => setText(event.target.value)}
      onKeyDown=${onKeyDown}
      onPaste=${onPaste}
    ></textarea>
    <div class="composer-foot">
      <${IconButton} icon="clip" label=${`Attach ${attachable(takes)}`} onClick=${() => picker.current.click()} />
      <input type="file" multiple hidden ref=${picker} aria-label="Files" onChange=${(event) => (attach([...event.target.files]), (event.target.value = ""))} />
      ${takes.sound && html`<${RecordButton} onFile=${(file) => attach([file])} onProblem=${(problem) => setProblems([problem])} />`}
      <${IconButton} icon="braces" label="JSON schema" pressed=${settings.form === "schema"} onClick=${() => toggle({ form: settings.form === "schema" ? "text" : "schema" })} />
      <${IconButton} icon="tool" label="Tools" pressed=${settings.usesTools} onClick=${() => toggle({ usesTools: !settings.usesTools })} />
      ${mcpServers.value.length > 0 && html`<${ServersButton} settings=${settings} />`}
      ${settings.priority === "batch" && html`<button type="button" class="tag low" title="Set in the settings" onClick=${() => showSection("priority-settings")}>Low priority</button>`}
      <span class="composer-end">
        <${ContextMeter} last=${last} />
        ${running
          ? html`<${IconButton} icon="stop" label="Stop" shortcut="Esc" kind="send" onClick=${() => stop(last.id)} />`
          : html`<${IconButton} icon="send" label="Send" shortcut="Enter" kind="send" type="submit" disabled=${isUnready || Boolean(wrong) || wantsResults || wantsApproval} />`}
      </span>
    </div>
    ${wrong && html`<p class="composer-problem" role="alert">${wrong}</p>`}
  </form>`;
}

function measureOf(file) {
  if (file.picture) return null;
  return html`<span class="soft">${file.sound ? playingTime(file.seconds) : sizeOf(file)}</span>`;
}

/** "pictures, sounds, documents and text files" */
function attachable(takes) {
  const media = ["picture", "sound"].filter((kind) => takes[kind]).map((kind) => `${kind}s`);
  return `${[...media, "documents"].join(", ")} and text files`;
}

/** Accepts files dropped anywhere. Otherwise a browser would open a file instead of the page. */
function useDroppedFiles(setDragging, attach) {
  const latest = useRef(attach);
  latest.current = attach;
  useEffect(() => {
    const handled = (handle) => (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return; // dragging text works as usual
      event.preventDefault();
      handle(event);
    };
    const over = handled(() => setDragging(true));
    const leave = (event) => event.relatedTarget ?? setDragging(false);
    const drop = handled((event) => {
      setDragging(false);
      if (!document.querySelector("dialog[open]")) latest.current(event.dataTransfer.files);
    });
    const listeners = { dragover: over, dragleave: leave, drop };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => Object.entries(listeners).forEach(([name, listener]) => removeEventListener(name, listener));
  }, []);
}

function showSection(id) {
  showsPanel.value = true;
  requestAnimationFrame(() => {
    const part = document.getElementById(id);
    part.open = true;
    part.querySelector("summary").focus();
  });
}

/** Opens the settings for MCP servers, and shows how many are on. */
function ServersButton({ settings }) {
  const on = usedServers(settings, mcpServers.value).length;
  return html`<button type="button" class=${on ? "icon-button mcp-on" : "icon-button"} aria-label=${`MCP servers, ${on} on`} title="Tools of MCP servers" onClick=${() => showSection("mcp-settings")}><${Icon} name="plug" />${on > 0 && html`<span aria-hidden="true">${on}</span>`}</button>`;
}

function toggle(fields) {
  changeSettings(fields);
  if (fields.form === "schema" || fields.usesTools) showsPanel.value = true;
}

/** The field is as high as its text, up to a third of the window. */
function useGrowing(field, text) {
  useLayoutEffect(() => {
    const { style } = field.current;
    style.height = "auto";
    style.height = `${Math.min(field.current.scrollHeight, innerHeight / 3)}px`;
  }, [text]);
}

/** Share of the model's context that the conversation uses, by the last answer. */
function ContextMeter({ last }) {
  const used = last?.usage?.total_tokens;
  const card = (models.value ?? []).find((one) => one.id === (last?.model ?? current.value.settings.model));
  const limit = card?.meta?.context_length;
  if (!used || !limit) return null;
  return html`<span class="meter" title=${`${count(used)} of ${count(limit)} tokens of context`}>
    <progress max=${limit} value=${used} aria-label="Context used"></progress><span>${count(used)} tokens</span>
  </span>`;
}
