// Markdown to safe HTML. The text comes from a model and is not trusted. markdown-it passes no HTML through,
// DOMPurify permits a short list of elements, and the page's policy runs and fetches nothing else.
import { signal } from "@preact/signals";
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import footnotes from "markdown-it-footnote";
import { mathRules } from "./math_rules.js";
import { taskRules } from "./task_rules.js";

/** Grows when the code that draws code or formulas has been loaded. */
export const painted = signal(0);
const painters = { code: null, math: null };
const fetching = {};

/** Loads the code that draws code or formulas when the first one appears. */
function painter(name, load) {
  fetching[name] ??= load().then(
    (module) => {
      painters[name] = module.paint;
      painted.value += 1;
    },
    () => {}, // the server is down, or newer: the text stays as it is
  );
  return painters[name];
}
const codePainter = () => painter("code", () => import("./code.js"));
const mathPainter = () => painter("math", () => import("./math.js"));

/** Growing text is parsed without footnotes, because they move to its end. */
const growing = parser();
const markdown = parser().use(footnotes).disable("footnote_inline");

function parser() {
  const made = new MarkdownIt({ html: false, linkify: true, breaks: false, typographer: false, highlight: null });
  made.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
  made.validateLink = (url) => /^(https?:|mailto:)/i.test(url.trim());
  return made.use(mathRules).use(taskRules);
}

const { escapeHtml } = markdown.utils;
const LONGEST_PAINTED = 40_000;

markdown.renderer.rules.fence = markdown.renderer.rules.code_block = (tokens, index) => {
  const { content, info } = tokens[index];
  const language = info.trim().split(/\s+/)[0].slice(0, 30);
  const paint = language && content.length < LONGEST_PAINTED ? codePainter() : null;
  const inside = paint?.(content, language) ?? escapeHtml(content);
  return `<div class="code"><div class="code-head"><span>${escapeHtml(language || "text")}</span><button type="button" class="copy-code">Copy</button></div><pre tabindex="0"><code>${inside}</code></pre></div>`;
};
markdown.renderer.rules.math = (tokens, index) => {
  const { content, meta } = tokens[index];
  const drawn = mathPainter()?.(content, meta.display);
  const kind = meta.display ? "math display" : "math";
  return `<span class="${kind}">${drawn ?? `<code>${escapeHtml(content)}</code>`}</span>`;
};
// Loading a picture would reveal the reading to its host, so it becomes a link.
markdown.renderer.rules.image = (tokens, index) => {
  const token = tokens[index];
  const words = escapeHtml(token.content || "a picture");
  const url = escapeHtml(token.attrGet("src") ?? "");
  return `<a class="picture" href="${url}">Picture: ${words}</a>`;
};
// Cells are aligned by an attribute, because the page's policy forbids styles in markup.
markdown.renderer.rules.th_open = markdown.renderer.rules.td_open = (tokens, index) => {
  const { tag, attrs } = tokens[index];
  const side = attrs?.map(([, value]) => value.match(/right|center/)?.[0]).find(Boolean);
  return side ? `<${tag} align="${side}">` : `<${tag}>`;
};
markdown.renderer.rules.table_open = () => '<div class="table" tabindex="0" role="group" aria-label="Table"><table>';
markdown.renderer.rules.table_close = () => "</table></div>";
// The rooms use the address, so a footnote mark is a button that moves the focus (see markdown_view.js).
markdown.renderer.rules.footnote_ref = (tokens, index) => {
  const number = tokens[index].meta.id + 1;
  return `<sup><button type="button" class="note" aria-label="Footnote ${number}">${number}</button></sup>`;
};
markdown.renderer.rules.footnote_block_open = () => '<hr><ol class="notes">';
markdown.renderer.rules.footnote_block_close = () => "</ol>";
markdown.renderer.rules.footnote_open = () => '<li tabindex="-1">';
markdown.renderer.rules.footnote_anchor = () => "";

const TAGS = (
  "a blockquote br button code del div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong sub sup table tbody td th thead tr ul " +
  "math semantics annotation mrow mi mo mn ms mtext mspace mfrac msqrt mroot mstyle merror mpadded mphantom menclose " +
  "msub msup msubsup munder mover munderover mmultiscripts mtable mtr mtd mlabeledtr mprescripts none"
).split(" ");
const ATTRIBUTES = (
  "href class start type tabindex role aria-label align " +
  "display xmlns encoding mathvariant stretchy fence separator lspace rspace minsize maxsize movablelimits accent accentunder " +
  "linethickness columnalign rowspacing columnspacing columnlines rowlines width height depth voffset notation displaystyle " +
  "scriptlevel form symmetric largeop"
).split(" ");
const CLEANING = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ATTRIBUTES,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  // Applies to every attribute: an address of these kinds, or no address with a scheme.
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.:-]|$))/i,
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  if (!/^(https?:|mailto:)/i.test(node.getAttribute("href") ?? "")) node.removeAttribute("href");
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

export function parsed(text, env, isWhole) {
  return (isWhole ? markdown : growing).parse(text, env);
}

/** Clean HTML of some tokens, as a TrustedHTML if the browser supports it. */
export function html(tokens, env) {
  return DOMPurify.sanitize(markdown.renderer.render(tokens, markdown.options, env), CLEANING);
}
