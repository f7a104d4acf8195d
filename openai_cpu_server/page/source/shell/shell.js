// Frame of both rooms: navigation, state of the server, key, theme, help.
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { Icon } from "../base/icons.js";
import { Button, Choice, IconButton } from "../base/controls.js";
import { access } from "../api/server.js";
import { key } from "../api/client.js";
import { ChatRoom } from "../chat/room.js";
import { About } from "./about.js";
import { Help } from "./help.js";
import { KeyDialog } from "./key_dialog.js";
import { ServerBanner } from "./server_banner.js";
import { announced } from "./announce.js";
import { go, route } from "./route.js";
import { setTheme, theme } from "./theme.js";
import { useShortcuts } from "./shortcuts.js";

const ROOMS = [
  { name: "chat", label: "Chat", icon: "chat" },
  { name: "control", label: "Control room", icon: "gauge" },
];
const THEMES = [
  { value: "system", label: "Match the system", icon: "screen" },
  { value: "light", label: "Light", icon: "sun" },
  { value: "dark", label: "Dark", icon: "moon" },
];

export function Shell() {
  const [open, setOpen] = useState(null); // "help", "key", "about"
  const wantsKey = access.value === "needed" || access.value === "wrong";
  useShortcuts("Page", [
    { keys: "?", label: "Show these shortcuts", run: () => setOpen("help") },
    { keys: "Alt+1", label: "Chat", run: () => go("chat") },
    { keys: "Alt+2", label: "Control room", run: () => go("control") },
  ]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="bar">
      <span class="brand" aria-hidden="true"><${Mark} /></span>
      <nav class="rooms" aria-label="Rooms">
        ${ROOMS.map(
          (room) => html`<a
            href=${`#/${room.name}`}
            aria-current=${route.value.room === room.name ? "page" : undefined}
          ><${Icon} name=${room.icon} /><span>${room.label}</span></a>`,
        )}
      </nav>
      <span class="bar-space"></span>
      <span id="bar-room"></span>
      ${(key.value || wantsKey) && html`<${IconButton} icon="key" label="API key" kind=${wantsKey ? "alarming" : ""} onClick=${() => setOpen("key")} />`}
      <${Choice} label="Theme" compact value=${theme.value} options=${THEMES} onChange=${setTheme} />
      <${IconButton} icon="help" label="Help and shortcuts" shortcut="?" onClick=${() => setOpen("help")} />
    </header>
    <${ServerBanner} onKey=${() => setOpen("key")} />
    <main id="main" tabindex="-1"><${Room} key=${route.value.room} name=${route.value.room} /></main>
    <div class="hidden-text" role="status" aria-live="polite">${announced.value}</div>
    ${(open === "key" || (wantsKey && open === null)) && html`<${KeyDialog} onClose=${() => setOpen(wantsKey ? "later" : null)} />`}
    ${open === "help" && html`<${Help} onAbout=${() => setOpen("about")} onClose=${() => setOpen(null)} />`}
    ${open === "about" && html`<${About} onClose=${() => setOpen(null)} />`}
  `;
}

/** The hash belongs to the rooms, so the link moves the focus itself. */
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** A bug in one room leaves the other room and the conversations usable. */
function Room({ name }) {
  const [broken] = useErrorBoundary((error) => console.error(error));
  if (broken) return html`<${Broken} error=${broken} />`;
  return name === "control" ? html`<${LaterRoom} />` : html`<${ChatRoom} />`;
}

/** The control room with its plots is loaded when it is first opened. */
function LaterRoom() {
  const [room, setRoom] = useState(null);
  useEffect(() => {
    import("../control/room.js").then(
      (module) => setRoom({ Component: module.ControlRoom }),
      () => setRoom({ failed: true }),
    );
  }, []);
  if (room === null) return null;
  if (room.failed) return html`<${Outdated} />`;
  return html`<${room.Component} />`;
}

function Outdated() {
  return html`<div class="empty">
    <p>This part of the page could not be loaded. The server may be down, or newer than this page.</p>
    <${Button} onClick=${() => location.reload()}>Reload the page</${Button}>
  </div>`;
}

function Broken({ error }) {
  return html`<div class="empty" role="alert">
    <p>Something went wrong in this page: <code>${String(error.message ?? error)}</code></p>
    <p>Your conversations are safe.</p>
    <${Button} onClick=${() => location.reload()}>Reload the page</${Button}>
  </div>`;
}

function Mark() {
  return html`<svg viewBox="0 0 32 32" width="22" height="22"><rect width="32" height="32" rx="8" class="mark-ground" />
    <g class="mark-bars"><rect x="7" y="8" width="4" height="16" rx="1.5" /><rect x="14" y="12" width="4" height="12" rx="1.5" opacity=".8" /><rect x="21" y="17" width="4" height="7" rx="1.5" opacity=".6" /></g></svg>`;
}
