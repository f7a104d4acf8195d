import "uplot";
import { html } from "../base/html.js";

/** Helper "control" builds this room. */
export function ControlRoom() {
  return html`<div class="empty"><h1>Control room</h1></div>`;
}
