// Files that people attach, and files that they get.
import { asSent, isSound, secondsOf } from "./sounds.js";

const LARGEST_BYTES = 2_000_000;
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const LARGEST_SIDE = 2048; // no encoder looks at more, and all pictures are sent again in each turn
const PICTURE_BYTES = 1_000_000;
const LARGEST_SOUND_BYTES = 100_000_000; // it is made smaller, but all of it is in memory before
// Of a conversation: servers take 32 pictures and sounds, 120 million pixels, 20 minutes and bodies of 32 MB, unless
// they are told otherwise.
const MOST_MEDIA = 28;
const MOST_CHARACTERS = 24_000_000;
const MOST_SECONDS = 1200;
const LEAST_SECONDS = 0.1; // of each sound

/** Reads files: texts, and pictures and sounds where the model `takes` them ({picture, sound}: whether it does),
 * beside those that are `shown` already. Returns them, and what is wrong with the others. */
export async function readFiles(list, { takes, shown }) {
  const files = [];
  const problems = [];
  for (const file of list) {
    const problem = await taken(file, files, takes, shown);
    if (problem) problems.push(problem);
  }
  return { files, problems };
}

/** Adds it to `files`. Returns what is wrong with it; null: nothing. */
async function taken(file, files, takes, shown) {
  const kind = file.type.startsWith("image/") ? "picture" : isSound(file) ? "sound" : null;
  if (!kind) return read(file, files);
  if (!takes[kind]) return `${file.name} is a ${kind}, and this model takes none.`;
  try {
    const given = await (kind === "picture" ? look(file) : listen(file));
    if (given.problem) return given.problem;
    if (!isRoom([...shown, ...files, given])) return `${file.name} is one ${kind} too many for this conversation: begin a new one.`;
    files.push(given);
    return null;
  } catch {
    return `${file.name} is a ${kind} that this browser cannot read.`;
  }
}

function isRoom(shown) {
  const media = shown.filter((file) => file.picture || file.sound);
  const characters = media.reduce((sum, one) => sum + (one.picture ?? one.sound).length, 0);
  const seconds = media.reduce((sum, one) => sum + (one.seconds ?? 0), 0);
  return media.length <= MOST_MEDIA && characters <= MOST_CHARACTERS && seconds <= MOST_SECONDS;
}

async function look(file) {
  if (!PICTURES.includes(file.type)) return { problem: `${file.name} is a kind of picture that is not taken.` };
  return { name: file.name, picture: await asDataUri(await smaller(file)) };
}

async function listen(file) {
  if (file.size > LARGEST_SOUND_BYTES) return { problem: `${file.name} is larger than 100 MB.` };
  const told = await secondsOf(file);
  const isLong = Number.isFinite(told) && told > MOST_SECONDS;
  if (isLong) return { problem: `${file.name} is longer than 20 minutes.` };
  const { blob, seconds } = await asSent(file, told);
  if (seconds < LEAST_SECONDS) return { problem: `${file.name} is too short to be heard.` };
  return { name: file.name, sound: await asDataUri(blob), seconds };
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
    return `${file.name} is no text, no picture and no sound.`;
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
