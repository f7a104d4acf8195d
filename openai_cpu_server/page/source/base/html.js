import { h } from "preact";
import htm from "htm";

/** Templates instead of JSX: html`<p class="x">${value}</p>`. Values are text, never markup. */
export const html = htm.bind(h);
