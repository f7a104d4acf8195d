import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { html } from "../base/html.js";
import { copyText } from "../base/clipboard.js";
import { announce } from "../shell/announce.js";
import { EMPTY, grownBlocks, wholeBlocks } from "./blocks.js";
import { painted } from "./markdown.js";

/** Markdown of a model. While `growing`, only the last block changes. */
export function Markdown({ text, growing }) {
  const before = useRef({ painted: -1, ...EMPTY });
  const version = painted.value;
  const blocks = useMemo(() => {
    if (!growing) return wholeBlocks(text);
    const from = before.current.painted === version ? before.current : EMPTY;
    before.current = { ...grownBlocks(from, text), painted: version };
    return before.current.blocks;
  }, [text, growing, version]);
  return html`<div class="prose" onClick=${pressed}>${blocks.map((block, index) => html`<${Block} key=${index} html=${block.html} />`)}</div>`;
}

function Block({ html: clean }) {
  const place = useRef(null);
  const text = String(clean);
  useLayoutEffect(() => {
    place.current.innerHTML = clean; // a TrustedHTML of DOMPurify
  }, [text]);
  return html`<div class="block" ref=${place}></div>`;
}

/** Actions of the buttons in the text. */
function pressed({ target, currentTarget }) {
  const code = target.closest?.(".copy-code");
  if (code) copyCode(code);
  const note = target.closest?.(".note");
  if (note) currentTarget.querySelector(`.notes > li:nth-child(${note.textContent})`)?.focus();
}

async function copyCode(button) {
  await copyText(button.closest(".code").querySelector("code").textContent);
  button.textContent = "Copied";
  announce("Copied");
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
