// Growing text as blocks. Complete blocks stay; only the last one is parsed and drawn again.
import { html as htmlOf, parsed } from "./markdown.js";

export const EMPTY = { text: "", settled: 0, blocks: [] };

/**
 * Returns the blocks of `text` as [{html}]. Complete blocks are the same objects as before.
 * `before`: the result for an earlier beginning of the same text.
 */
export function grownBlocks(before, text) {
  if (before.text === text) return before;
  if (!text.startsWith(before.text)) before = EMPTY;
  const complete = before.blocks.slice(0, Math.max(0, before.blocks.length - 1));
  const fresh = blocksOf(text.slice(before.settled), false);
  const last = fresh.at(-1);
  return {
    text,
    settled: before.settled + (last?.start ?? 0),
    blocks: [...complete, ...fresh.map(({ tokens, env }) => ({ html: htmlOf(tokens, env) }))],
  };
}

/** Parses everything at once, because references and footnotes may be defined far below their use. */
export function wholeBlocks(text) {
  return blocksOf(text, true).map(({ tokens, env }) => ({ html: htmlOf(tokens, env) }));
}

/** The outermost blocks, each with its tokens and its start in the text. */
function blocksOf(text, isWhole) {
  const env = {};
  const starts = lineStarts(text);
  const blocks = [];
  let depth = 0;
  for (const token of parsed(text, env, isWhole)) {
    if (depth === 0 && token.nesting >= 0) blocks.push({ tokens: [], env, start: starts[token.map?.[0] ?? 0] });
    blocks.at(-1).tokens.push(token);
    depth += token.nesting;
  }
  return blocks;
}

function lineStarts(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}
