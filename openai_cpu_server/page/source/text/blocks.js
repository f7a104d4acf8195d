// A text that grows, as blocks: what is whole stays as it is, only the last block is parsed and drawn again.
import { html as htmlOf, parsed } from "./markdown.js";

export const EMPTY = { text: "", settled: 0, blocks: [] };

/**
 * The blocks of `text`: [{html}], where blocks that were settled before are the same objects.
 * `before` is what this returned for an earlier beginning of the same text.
 */
export function grownBlocks(before, text) {
  if (before.text === text) return before;
  if (!text.startsWith(before.text)) before = EMPTY;
  const kept = before.blocks.slice(0, Math.max(0, before.blocks.length - 1));
  const fresh = blocksOf(text.slice(before.settled), false);
  const last = fresh.at(-1);
  return {
    text,
    settled: before.settled + (last?.start ?? 0),
    blocks: [...kept, ...fresh.map(({ tokens, env }) => ({ html: htmlOf(tokens, env) }))],
  };
}

/** All of it at once: a reference or a footnote may be defined far below where it is used. */
export function wholeBlocks(text) {
  return blocksOf(text, true).map(({ tokens, env }) => ({ html: htmlOf(tokens, env) }));
}

/** The outermost blocks, each with its tokens and where it starts in the text. */
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
