// The chat room: conversations at the left, the open one in the middle, its settings at the right.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { IconButton } from "../base/controls.js";
import { go, route } from "../shell/route.js";
import { useShortcuts } from "../shell/shortcuts.js";
import { answer, stop } from "./generation.js";
import { Composer } from "./composer.js";
import { current, keepingProblem, live, loadConversations, open, openNew, path } from "./conversations.js";
import { showsList, showsPanel, wide } from "./layout.js";
import { Message } from "./message.js";
import { ModelPicker } from "./model_picker.js";
import { Panel } from "./panel.js";
import { Sidebar } from "./sidebar.js";
import { Welcome } from "./welcome.js";

export function ChatRoom() {
  useOpenedByAddress();
  const { title, id } = current.value;
  useEffect(() => {
    document.title = title ? `${title} – openai-cpu-server` : "openai-cpu-server";
  }, [title]);
  useShortcuts("Chat", [
    { keys: "Alt+N", label: "New conversation", run: newConversation },
    { keys: "Alt+L", label: "Show or hide the conversations", run: () => (showsList.value = !showsList.value) },
    { keys: "Alt+S", label: "Show or hide the settings", run: () => (showsPanel.value = !showsPanel.value) },
    { keys: "/", label: "Go to the message field", run: focusComposer },
    { keys: "Escape", label: "Stop the answer", run: stopAll, when: () => live.size > 0 },
    { keys: "Alt+R", label: "Another answer", run: again },
  ]);
  return html`<div class=${`chat ${showsList.value ? "with-list" : ""} ${showsPanel.value ? "with-panel" : ""}`}>
    ${showsList.value && html`<${Sidebar} onNew=${newConversation} onClose=${() => (showsList.value = false)} />`}
    <section class="talk" aria-label="Conversation">
      <header class="talk-head">
        <${IconButton} icon="menu" label="Conversations" shortcut="Alt+L" expanded=${showsList.value} onClick=${() => (showsList.value = !showsList.value)} />
        <${ModelPicker} />
        <h1 class="talk-title">${title || "New conversation"}</h1>
        <${IconButton} icon="plus" label="New conversation" shortcut="Alt+N" onClick=${newConversation} />
        <${IconButton} icon="sliders" label="Settings" shortcut="Alt+S" expanded=${showsPanel.value} onClick=${() => (showsPanel.value = !showsPanel.value)} />
      </header>
      ${keepingProblem.value && html`<p class="banner warn" role="alert">${keepingProblem.value}</p>`}
      <${Thread} key=${id} />
      <${Composer} key=${`${id}-composer`} />
    </section>
    ${showsPanel.value && html`<${Panel} onClose=${() => (showsPanel.value = false)} />`}
  </div>`;
}

/** The address names the open conversation, so that it can be reloaded, and opened twice. */
function useOpenedByAddress() {
  const { id } = route.value;
  useEffect(() => {
    loadConversations();
  }, []);
  useEffect(() => {
    if (id && id !== current.peek().id) open(id).then((found) => found || go("chat", null, { replace: true }));
    if (!id && !current.peek().isFresh) openNew();
  }, [id]);
  const { isFresh, id: opened } = current.value;
  useEffect(() => {
    if (!isFresh && route.peek().id !== opened) go("chat", opened, { replace: route.peek().id === null });
  }, [isFresh, opened]);
}

function newConversation() {
  go("chat");
  openNew();
  if (!wide.matches) showsList.value = false;
  focusComposer();
}

function focusComposer() {
  requestAnimationFrame(() => document.getElementById("composer")?.focus());
}

function stopAll() {
  for (const one of path.value) stop(one.id);
}

function again() {
  const last = path.value.at(-1);
  if (last?.role === "assistant" && !live.has(last.id)) answer(last.parent);
}

/** Messages of the visible branch. The view stays at the end of a growing answer, unless the reader has scrolled up. */
function Thread() {
  const place = useRef(null);
  const inside = useRef(null);
  const [atEnd, setAtEnd] = useState(true);
  const follows = useRef(true);
  useEffect(() => {
    const scroller = place.current;
    const settle = new ResizeObserver(() => follows.current && (scroller.scrollTop = scroller.scrollHeight));
    settle.observe(inside.current);
    settle.observe(scroller); // it shrinks when the message field grows
    return () => settle.disconnect();
  }, []);
  const ids = path.value.map((one) => one.id);
  useEffect(() => {
    follows.current = true;
    place.current.scrollTop = place.current.scrollHeight;
  }, [ids.at(-1)]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = place.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 40;
    setAtEnd(follows.current);
  };
  const toEnd = () => {
    follows.current = true;
    place.current.scrollTop = place.current.scrollHeight;
  };
  return html`<div class="thread" ref=${place} onScroll=${onScroll} tabindex="0" role="region" aria-label="Messages">
    <div class="thread-inside" ref=${inside}>
      ${ids.length === 0 ? html`<${Welcome} />` : ids.map((id, index) => html`<${Message} key=${id} id=${id} isLast=${index === ids.length - 1} />`)}
    </div>
    ${!atEnd && html`<button type="button" class="to-end" onClick=${toEnd} aria-label="Scroll to the end"><span aria-hidden="true">↓</span></button>`}
  </div>`;
}
