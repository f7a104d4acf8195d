// Entry point of the page: mounts the shell, which shows one of two rooms.
import { render } from "preact";
import { html } from "./base/html.js";
import { Shell } from "./shell/shell.js";
import { watchServer } from "./api/server.js";

watchServer();
render(html`<${Shell} />`, document.getElementById("page"));
