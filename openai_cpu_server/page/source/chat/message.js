// One message of the thread, with its buttons.
import { useEffect, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Button, IconButton } from "../base/controls.js";
import { Icon } from "../base/icons.js";
import { copyText } from "../base/clipboard.js";
import { announce } from "../shell/announce.js";
import { Markdown } from "../text/markdown_view.js";
import { canContinue, isAbandoned, isRunning, isThinking } from "./answer.js";
import { answer, continueAnswer, resume, say, stopThinking } from "./generation.js";
import { sizeOf } from "./files.js";
import { FormAnswer } from "./form_answer.js";
import { change, current, messages, remove, watched } from "./conversations.js";
import { Figures } from "./figures.js";
import { Parts } from "./parts.js";
import { isWaitingForApproval } from "./response.js";
import { ToolCalls } from "./tool_calls.js";
import { Waiting } from "./waiting.js";
import { useNow } from "./now.js";
import { childrenOf, newestLeaf } from "./tree.js";

export function Message({ id, isLast }) {
  const message = watched(id).value;
  if (!message) return null;
  switch (message.role) {
    case "user":
      return html`<${Asked} message=${message} />`;
    case "tool":
      return html`<${Result} message=${message} />`;
    default:
      return html`<${Answer} message=${message} isLast=${isLast} />`;
  }
}

function Asked({ message }) {
  const [editing, setEditing] = useState(false);
  if (editing) return html`<${Editing} message=${message} onClose=${() => setEditing(false)} />`;
  return html`<article class="message asked" aria-label="You">
    ${message.files?.length > 0 && html`<ul class="chips">${message.files.map((file) => html`<${Attached} file=${file} />`)}</ul>`}
    ${message.content && html`<div class="said">${message.content}</div>`}
    <div class="actions">
      <${Siblings} message=${message} />
      <${Copy} text=${message.content} />
      <${IconButton} icon="pen" kind="small" label="Edit and ask again" onClick=${() => setEditing(true)} />
      <${IconButton} icon="bin" kind="small" label="Delete from here on" onClick=${() => remove(message.id)} />
    </div>
  </article>`;
}

function Attached({ file }) {
  if (file.picture) {
    return html`<li class="attached"><details class="shown"><summary><img src=${file.picture} alt=${file.name} /></summary><img src=${file.picture} alt="" /></details></li>`;
  }
  if (file.sound) {
    return html`<li class="attached heard"><audio controls preload="metadata" src=${file.sound} aria-label=${file.name}></audio><span class="soft">${file.name}</span></li>`;
  }
  if (file.document) {
    return html`<li class="attached"><a class="chip" href=${file.document} download=${file.name} title="Save the file"><${Icon} name="clip" size=${14} /><span>${file.name}</span> <span class="soft">${sizeOf(file)}</span></a></li>`;
  }
  return html`<li class="attached"><details><summary class="chip"><${Icon} name="clip" size=${14} /><span>${file.name}</span> <span class="soft">${sizeOf(file)}</span></summary><pre tabindex="0">${file.text}</pre></details></li>`;
}

/** An edit becomes a sibling, so the original message stays. */
function Editing({ message, onClose }) {
  const [text, setText] = useState(message.content);
  const send = (event) => {
    event.preventDefault();
    onClose();
    if (text.trim() || message.files?.length) say(message.parent, text.trim(), message.files);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
  };
  return html`<form class="message editing" onSubmit=${send} onKeyDown=${onKeyDown}>
    <textarea aria-label="Your message" rows="4" autofocus value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}><button class="button main" type="submit"><span>Ask again</span></button></div>
  </form>`;
}

function Result({ message }) {
  return html`<article class="message result" aria-label=${`Result of ${message.name}`}>
    <details><summary><${Icon} name="check" size=${14} /><span>Result of <code>${message.name}</code></span></summary><pre tabindex="0">${message.content}</pre></details>
  </article>`;
}

function Answer({ message, isLast }) {
  const running = isRunning(message);
  const now = useNow(running ? 1000 : null);
  const abandoned = isAbandoned(message, now);
  const growing = running && !abandoned;
  useEffect(() => {
    if (running) resume(message);
  }, [abandoned]); // at once if this page was reloaded, or later if another tab was closed
  return html`<article class="message answer" aria-label="Answer" aria-busy=${growing}>
    <${Thoughts} message=${message} growing=${growing} />
    ${message.parts && html`<${Parts} message=${message} growing=${growing} isLast=${isLast} />`}
    ${message.schema !== undefined
      ? html`<${FormAnswer} message=${message} growing=${growing} />`
      : message.content && !message.parts && html`<${Markdown} text=${message.content} growing=${growing} />`}
    <${ToolCalls} message=${message} growing=${growing} isLast=${isLast} />
    ${growing && html`<${Waiting} message=${message} now=${now} />`}
    ${!growing && html`<${Ending} message=${message} abandoned=${abandoned} isLast=${isLast} />`}
    <footer class="answer-foot">
      <div class="actions">
        <${Siblings} message=${message} />
        ${!growing &&
        html`<${Copy} text=${message.content} />
            <${IconButton} icon="again" kind="small" label="Another answer" shortcut="Alt+R" onClick=${() => answer(message.parent)} />
            <${IconButton} icon="bin" kind="small" label="Delete from here on" onClick=${() => remove(message.id)} />`}
      </div>
      ${!growing && html`<${Figures} message=${message} />`}
    </footer>
  </article>`;
}

function Thoughts({ message, growing }) {
  const thinking = growing && isThinking(message);
  if (message.parts) return thinking ? html`<div><${StopThinking} message=${message} /></div>` : null;
  if (!message.reasoning) return null;
  return html`<div class="thoughts">
    <details>
      <summary>${thinking ? "Thinking …" : "Thoughts"}</summary>
      <${Markdown} text=${message.reasoning} growing=${growing} />
    </details>
    ${thinking && html`<${StopThinking} message=${message} />`}
  </div>`;
}

function StopThinking({ message }) {
  const [state, setState] = useState({ isSent: false, problem: null });
  const send = async () => {
    setState({ isSent: true, problem: null });
    const problem = await stopThinking(message);
    if (problem) setState({ isSent: false, problem });
  };
  return html`<${Button} icon="right" disabled=${state.isSent} onClick=${send}>Answer now</${Button}>
    ${state.problem && html`<p role="alert">${state.problem}</p>`}`;
}

/** Note on how the answer ended, unless it is complete. */
function Ending({ message, abandoned, isLast }) {
  const again = html`<${Button} icon="again" onClick=${() => answer(message.parent)}>Try again</${Button}>`;
  const further = isLast && canContinue(message) && html`<${Button} icon="right" onClick=${() => continueAnswer(message)}>Continue</${Button}>`;
  if (message.status === "failed") {
    const { text, code, param } = message.error ?? { text: "The answer failed." };
    return html`<div class="ending bad" role="alert"><${Icon} name="warning" /><div><p>${text}</p>${(code || param) && html`<p class="soft"><code>${[code, param].filter(Boolean).join(" · ")}</code></p>`}</div>${again}</div>`;
  }
  if (abandoned || message.status === "cut") return html`<div class="ending"><${Icon} name="info" /><p>This answer was interrupted because its tab was closed.</p>${further || again}</div>`;
  if (message.status === "stopped") return html`<div class="ending"><${Icon} name="stop" /><p>Stopped.</p>${further}</div>`;
  if (message.finish === "repetition") return html`<div class="ending"><${Icon} name="info" /><p>The server ended this answer because it repeated itself.</p>${again}</div>`;
  if (message.finish === "length") return html`<div class="ending"><${Icon} name="info" /><p>The maximum length was reached.</p>${further}</div>`;
  if (message.status === "done" && !message.content && !message.toolCalls?.length && !isWaitingForApproval(message)) return html`<div class="ending"><p class="soft">The answer is empty.</p></div>`;
  return null;
}

function Copy({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(text);
    announce("Copied");
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  if (!text) return null;
  return html`<${IconButton} icon=${done ? "check" : "copy"} kind="small" label="Copy" onClick=${copy} />`;
}

/** Moves between edits or answers at the same place. */
function Siblings({ message }) {
  const all = childrenOf(messages.value, message.parent);
  if (all.length < 2) return null;
  const at = all.findIndex((one) => one.id === message.id);
  const show = (index) => change(current.peek().id, { leaf: newestLeaf(messages.peek(), all[index].id) });
  return html`<span class="siblings" role="group" aria-label="Versions">
    <${IconButton} icon="left" kind="small" label="Previous version" disabled=${at === 0} onClick=${() => show(at - 1)} />
    <span>${at + 1} / ${all.length}</span>
    <${IconButton} icon="right" kind="small" label="Next version" disabled=${at === all.length - 1} onClick=${() => show(at + 1)} />
  </span>`;
}
