// Conversations as Markdown: the visible versions, with names of attached files. Comments, which Markdown readers
// hide, mark the beginnings, so that the page can import such a file again.
import { pathTo } from "./tree.js";

const MARK = "<!-- openai-cpu-server:";
const BLOCK = /^<!-- openai-cpu-server: (conversation|user|thoughts|assistant) -->\n/m;

/** `entries`: as in a JSON file. */
export function markdownOf(entries) {
  return entries.flatMap(({ conversation, messages }) => {
    const byId = new Map(messages.map((message) => [message.id, message]));
    return [block("conversation", `# ${conversation.title}`, ""), ...pathTo(byId, conversation.leaf).flatMap(blocksOf)];
  }).join("\n");
}

function block(kind, heading, text) {
  const plain = text.replaceAll(MARK, "<!-- openai-cpu-server :");
  return `${MARK} ${kind} -->\n${heading}\n${plain && `\n${plain}\n`}`;
}

function blocksOf(message) {
  const { role, content, reasoning, name, model, files, toolCalls, parts } = message;
  if (role === "user") {
    const attached = files?.length ? `*Attached: ${files.map((file) => file.name).join(", ")}*` : "";
    return [block("user", "## You", joined(attached, content))];
  }
  if (role === "tool") return [block("assistant", `## Result of ${name}`, content)];
  const thoughts = reasoning ? [block("thoughts", "### Thoughts", reasoning)] : [];
  const texts = parts ? parts.map(textOfPart) : [content, ...(toolCalls ?? []).map(textOfCall)];
  return [...thoughts, block("assistant", model ? `## ${model}` : "## Answer", joined(...texts))];
}

function joined(...texts) {
  return texts.filter(Boolean).join("\n\n");
}

function textOfPart(part) {
  if (part.kind === "text") return part.text;
  if (part.kind === "thoughts") return part.text && quoted(part.text);
  return part.kind === "call" || part.kind === "function" ? textOfCall(part) : "";
}

function textOfCall({ server, name, arguments: given, output, error }) {
  const result = error ? `\nError: ${error}` : output ? `\nResult: ${output}` : "";
  return quoted(`Call of ${server ? `${server}: ` : ""}${name} with ${given}${result}`);
}

function quoted(text) {
  return text.replace(/^/gm, "> ");
}

export function isMarkdownOfOurs(text) {
  return BLOCK.test(text.replaceAll("\r\n", "\n"));
}

/** Drops each block's heading, because its mark has the same content, or only the exporting page knew it. */
export function entriesOfMarkdown(text) {
  const entries = [];
  let reasoning;
  const [, ...pieces] = text.replaceAll("\r\n", "\n").split(BLOCK);
  for (let at = 0; at < pieces.length; at += 2) {
    const [kind, [heading, ...lines]] = [pieces[at], pieces[at + 1].split("\n")];
    const content = lines.join("\n").trim();
    if (kind === "conversation" || !entries.length) entries.push({ conversation: { title: "Untitled" }, messages: [] });
    const { conversation, messages } = entries.at(-1);
    if (kind === "conversation") conversation.title = heading.replace(/^# /, "");
    else if (kind === "thoughts") reasoning = content;
    else {
      const id = String(messages.length);
      messages.push({ id, parent: messages.at(-1)?.id ?? null, role: kind, content, reasoning, created: messages.length + 1, status: "done" });
      conversation.leaf = id;
      reasoning = undefined;
    }
  }
  return entries;
}
