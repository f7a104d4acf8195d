// Files that people attach, and files that they get.

const LARGEST_BYTES = 2_000_000;

/** Reads text files. Returns those that are text, and what is wrong with the others. */
export async function readFiles(list) {
  const files = [];
  const problems = [];
  for (const file of list) {
    const problem = await read(file, files);
    if (problem) problems.push(problem);
  }
  return { files, problems };
}

async function read(file, files) {
  if (file.size > LARGEST_BYTES) return `${file.name} is larger than 2 MB.`;
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (text.includes("\0")) throw new TypeError("zero");
    files.push({ name: file.name, text });
    return null;
  } catch {
    return `${file.name} is no text: this server's models read text only.`;
  }
}

export function saveAs(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
