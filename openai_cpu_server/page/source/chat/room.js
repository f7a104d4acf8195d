import { html } from "../base/html.js";

export function ChatRoom() {
  return html`<div class="empty"><h1>Chat</h1></div>`;
}
