// $inline$, $$display$$, \(inline\) and \[display\], the forms in which models write formulas.

const DISPLAY = [["$$", "$$"], ["\\[", "\\]"]];

export function mathRules(markdown) {
  markdown.inline.ruler.before("escape", "math", inline);
  markdown.block.ruler.before("fence", "math", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

function inline(state, silent) {
  const { src, pos } = state;
  const [open, close, display] = opened(src, pos);
  if (!open) return false;
  const start = pos + open.length;
  const end = src.indexOf(close, start);
  if (end < 0 || !src.slice(start, end).trim()) return false;
  if (open === "$" && !isDollarMath(src, start, end)) return false;
  if (!silent) push(state, src.slice(start, end), display);
  state.pos = end + close.length;
  return true;
}

function opened(src, pos) {
  if (src.startsWith("$$", pos)) return ["$$", "$$", true];
  if (src[pos] === "$") return ["$", "$", false];
  if (src.startsWith("\\(", pos)) return ["\\(", "\\)", false];
  if (src.startsWith("\\[", pos)) return ["\\[", "\\]", true];
  return [null];
}

/** Prices are not formulas: no space inside the marks, no digit after them, all on one line. */
function isDollarMath(src, start, end) {
  const inside = src.slice(start, end);
  return !/^\s|\s$|\n\n/.test(inside) && !/\d/.test(src[end + 1] ?? "");
}

function push(state, content, display) {
  const token = state.push("math", "", 0);
  token.content = content.trim();
  token.meta = { display };
}

function block(state, startLine, endLine, silent) {
  const first = line(state, startLine).trim();
  const [open, close] = DISPLAY.find(([mark]) => first.startsWith(mark)) ?? [];
  if (!open) return false;
  let last = startLine;
  let inside = first.slice(open.length);
  if (inside.includes(close)) {
    if (inside.indexOf(close) + close.length !== inside.length) return false;
  } else {
    do {
      last += 1;
      if (last >= endLine) break; // it is incomplete
      inside += `\n${line(state, last)}`;
    } while (!line(state, last).trim().endsWith(close));
  }
  if (silent) return true;
  const token = state.push("math", "", 0);
  token.block = true;
  token.content = inside.trimEnd().replace(close, "").trim();
  token.meta = { display: true };
  token.map = [startLine, last + 1];
  state.line = Math.min(last + 1, endLine);
  return true;
}

function line(state, number) {
  return state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
}
