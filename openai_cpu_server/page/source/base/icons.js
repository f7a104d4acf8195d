import { html } from "./html.js";

// Drawn on a grid of 16 with strokes of 1.5, so that they sit beside text of 13 px.
const PATHS = {
  plus: "M8 3v10M3 8h10",
  send: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
  check: "m3 8.5 3.2 3.2L13 5",
  pen: "M3 13h2.2L13 5.2 10.8 3 3 10.8zM9.3 4.5l2.2 2.2",
  again: "M13 8a5 5 0 1 1-1.5-3.6L13 6M13 3v3h-3",
  branch: "M4.5 4.5v7M11.5 4.5c0 4-7 2-7 5M4.5 3v1.5M11.5 3v1.5",
  left: "M9.5 4 5.5 8l4 4",
  right: "m6.5 4 4 4-4 4",
  down: "m4 6 4 4 4-4",
  close: "m4 4 8 8M12 4l-8 8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  sliders: "M2.5 5h6M11.5 5h2M2.5 11h2M7.5 11h6M8.5 3.5v3M5.5 9.5v3",
  key: "M9.5 9.5a3 3 0 1 0-3-3c0 .5.1.9.3 1.3L2.5 12v1.5H5V12h1.5v-1.5H8l.3-.3c.4.2.8.3 1.2.3zM10.5 5.5v.01",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6zM8 1.8v1M8 13.2v1M1.8 8h1M13.2 8h1M3.6 3.6l.7.7M11.7 11.7l.7.7M3.6 12.4l.7-.7M11.7 4.3l.7-.7",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  screen: "M2.5 3.5h11v7.5h-11zM6 13.5h4",
  help: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM6.4 6.3A1.7 1.7 0 1 1 8 8.4v.8M8 11.2v.01",
  bin: "M3 4.5h10M6.5 4.5v-1h3v1M4.5 4.5l.5 8.5h6l.5-8.5M7 7v3.5M9 7v3.5",
  down_tray: "M8 2.5v7M5 6.5l3 3 3-3M2.5 10.5v3h11v-3",
  up_tray: "M8 9.5v-7M5 5.5l3-3 3 3M2.5 10.5v3h11v-3",
  clip: "M12.5 7.5 8 12a3 3 0 0 1-4.2-4.2l5-5a2 2 0 0 1 2.8 2.8l-5 5a1 1 0 0 1-1.4-1.4L9.5 5",
  braces: "M6 2.5c-2 0-1.5 2-1.5 3.2S4 8 3 8c1 0 1.5 1 1.5 2.3S4 13.5 6 13.5M10 2.5c2 0 1.5 2 1.5 3.2S12 8 13 8c-1 0-1.5 1-1.5 2.3s.5 3.2-1.5 3.2",
  tool: "M10.5 2.8a3.2 3.2 0 0 0-3 4.3L2.8 11.8l1.4 1.4 4.7-4.7a3.2 3.2 0 0 0 4.2-3.7L11.3 6.6 9.4 4.7l1.8-1.8z",
  plug: "M6 2.5v3M10 2.5v3M4 5.5h8v2a4 4 0 0 1-8 0zM8 11.5v2.5",
  image: "M2.5 3.5h11v9h-11zM2.5 10.5l3-3 2.5 2.5 2-2 3.5 3M10.5 6v.01",
  sound: "M2.5 6.5v3M5.25 4v8M8 2.5v11M10.75 5v6M13.5 6.5v3",
  microphone: "M8 2a2 2 0 0 1 2 2v4a2 2 0 0 1-4 0V4a2 2 0 0 1 2-2zM3.5 7.5V8a4.5 4.5 0 0 0 9 0v-.5M8 12.5V14",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.3v3.5M8 5v.01",
  warning: "M8 2.5 14.5 13.5h-13zM8 6.8v3.2M8 11.8v.01",
  chat: "M2.5 3.5h11v7.5H8l-3 2.5V11H2.5z",
  gauge: "M2.5 12a6 6 0 1 1 11 0M8 10.5l2.5-3.5",
  more: "M3.5 8v.01M8 8v.01M12.5 8v.01",
};

/** A picture beside words, which screen readers skip. */
export function Icon({ name, size = 16 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}
