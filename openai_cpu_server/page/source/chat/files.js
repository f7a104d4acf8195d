// Files that people attach, and files that they get.

const LARGEST_BYTES = 2_000_000;
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const LARGEST_SIDE = 2048; // no encoder looks at more, and all pictures are sent again in each turn
const PICTURE_BYTES = 1_000_000;
// Of a conversation: servers take 32 pictures, 120 million pixels and bodies of 32 MB, unless they are told otherwise.
const MOST_PICTURES = 28;
const MOST_CHARACTERS = 24_000_000;

/** Reads files: texts, and pictures where the model sees, beside those that are `shown` already. Returns them,
 * and what is wrong with the others. */
export async function readFiles(list, { sees = false, shown = [] } = {}) {
  const files = [];
  const problems = [];
  for (const file of list) {
    const problem = file.type.startsWith("image/") ? await look(file, files, sees, shown) : await read(file, files);
    if (problem) problems.push(problem);
  }
  return { files, problems };
}

async function look(file, files, sees, shown) {
  if (!sees) return `${file.name} is a picture, and this model takes none.`;
  if (!PICTURES.includes(file.type)) return `${file.name} is a kind of picture that is not taken.`;
  try {
    const picture = await asDataUri(await smaller(file));
    if (!isRoom([...shown, ...files], picture)) return `${file.name} is one picture too many for this conversation: begin a new one.`;
    files.push({ name: file.name, picture });
    return null;
  } catch {
    return `${file.name} is a picture that this browser cannot read.`;
  }
}

function isRoom(shown, picture) {
  const pictures = [...shown.map((file) => file.picture).filter(Boolean), picture];
  return pictures.length <= MOST_PICTURES && pictures.reduce((sum, one) => sum + one.length, 0) <= MOST_CHARACTERS;
}

/** The picture itself, or a smaller one where it is larger than it need be. */
async function smaller(file) {
  const image = await createImageBitmap(file, { imageOrientation: "from-image" });
  const share = Math.min(1, LARGEST_SIDE / Math.max(image.width, image.height));
  if (share === 1 && file.size <= PICTURE_BYTES) return file;
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.width * share));
  canvas.height = Math.max(1, Math.round(image.height * share));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("empty"))), "image/jpeg", 0.9));
}

function asDataUri(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

async function read(file, files) {
  if (file.size > LARGEST_BYTES) return `${file.name} is larger than 2 MB.`;
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (text.includes("\0")) throw new TypeError("zero");
    files.push({ name: file.name, text });
    return null;
  } catch {
    return `${file.name} is no text, and no picture.`;
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
