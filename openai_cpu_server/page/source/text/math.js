// Formulas as MathML, which browsers draw with their own fonts.
import katex from "katex";

/** MathML of a formula, or null if it is not a formula (yet). */
export function paint(tex, displayMode) {
  if (tex.length > 20_000) return null;
  try {
    return katex.renderToString(tex, { output: "mathml", displayMode, throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 20 });
  } catch {
    return null;
  }
}
