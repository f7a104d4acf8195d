// Attached files and downloads.
import { bytes } from "../base/numbers.js";
import { asSent, isSound, secondsOf } from "./sounds.js";

const MOST_DOCUMENT_BYTES = 17_000_000;
const MOST_TEXT_BYTES = 4_000_000; // characters in all files of a conversation
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const UNSHOWN = ["image/heic", "image/heif", "image/tiff"]; // the server reads them, and few browsers do
const LARGEST_SIDE = 2048; // encoders use no more, and each turn sends all pictures again
const PICTURE_BYTES = 1_000_000;
const LARGEST_SOUND_BYTES = 100_000_000; // it becomes smaller, but is in memory first
// Limits of a conversation. By default servers take 32 pictures and sounds, 32 files, 120 million pixels, 20 minutes
// and bodies of 32 MB.
const MOST_MEDIA = 28;
const MOST_CHARACTERS = 24_000_000;
const MOST_SECONDS = 1200;
const LEAST_SECONDS = 0.1; // for each sound

/**
 * Reads documents and texts, and pictures and sounds if the model `takes` them ({picture, sound}), in addition to the
 * files that are `shown` already. Returns {files, problems}; `problems` has a sentence for each rejected file.
 */
export async function readFiles(list, { takes, shown }) {
  const files = [];
  const problems = [];
  for (const file of list) {
    try {
      const attached = await read(file, takes);
      if (!isRoom([...shown, ...files, attached])) throw new Refused(`${file.name} does not fit into this conversation: start a new one.`);
      files.push(attached);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problems.push(error.message);
    }
  }
  return { files, problems };
}

/** A file that cannot be attached, with the reason as a sentence. */
class Refused extends Error {}

/** Returns {name, text}, {name, document}, {name, picture} or {name, sound, seconds}. Raises Refused. */
async function read(file, takes) {
  const { name } = file;
  const kind = isPicture(file) ? "picture" : isSound(file) ? "sound" : null;
  if (kind && !takes[kind]) throw new Refused(`${name} is a ${kind}, and this model does not take ${kind}s.`);
  const readers = { picture: readPicture, sound: readSound };
  try {
    return { name, ...(await (readers[kind] ?? readDocument)(file)) };
  } catch (error) {
    throw error instanceof Refused ? error : new Refused(`${name} ${kind ? `is a ${kind} that this browser cannot read` : "cannot be read"}.`);
  }
}

/** SVG drawings are text, which every model reads. */
function isPicture({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}

function isRoom(shown) {
  const media = shown.filter((file) => file.picture || file.sound);
  const documents = shown.filter((file) => file.document);
  const characters = shown.reduce((sum, one) => sum + (one.picture ?? one.sound ?? one.document ?? "").length, 0);
  const texts = shown.reduce((sum, one) => sum + (one.text?.length ?? 0), 0);
  const seconds = media.reduce((sum, one) => sum + (one.seconds ?? 0), 0);
  const isFew = media.length <= MOST_MEDIA && documents.length <= MOST_MEDIA;
  return isFew && characters <= MOST_CHARACTERS && texts <= MOST_TEXT_BYTES && seconds <= MOST_SECONDS;
}

async function readPicture(file) {
  return { picture: await asDataUri(await smaller(file)) };
}

async function readSound(file) {
  if (file.size > LARGEST_SOUND_BYTES) throw new Refused(`${file.name} is larger than ${bytes(LARGEST_SOUND_BYTES)}.`);
  const duration = await secondsOf(file);
  const isLong = Number.isFinite(duration) && duration > MOST_SECONDS;
  if (isLong) throw new Refused(`${file.name} is longer than 20 minutes.`);
  const { blob, seconds } = await asSent(file, duration);
  if (seconds < LEAST_SECONDS) throw new Refused(`${file.name} is too short.`);
  return { sound: await asDataUri(blob), seconds };
}

/** The picture itself, or a smaller JPEG if it is larger than necessary or of a type that servers do not take. */
async function smaller(file) {
  let image;
  try {
    image = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch (error) {
    if (UNSHOWN.includes(file.type) && file.size < MOST_DOCUMENT_BYTES) return file;
    throw error;
  }
  const share = Math.min(1, LARGEST_SIDE / Math.max(image.width, image.height));
  if (share === 1 && file.size <= PICTURE_BYTES && PICTURES.includes(file.type)) return file;
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

// Documents that the server reads: PDFs, archives of XML (docx, xlsx, pptx, odt, epub), Office until 2003, RTF. By
// their names alone: web pages, notebooks and mail, of which it takes what people see.
const DOCUMENT = /^\s*(?:%PDF-|PK\x03\x04[^]{26}(?:\[Content_Types\]|mimetype|_rels|docProps|word|xl|ppt)|\xd0\xcf\x11\xe0|\{\\rtf)/;
const DOCUMENT_NAME = /\.(html?|ipynb|eml)$/i;
const HEAD_BYTES = 64;
const CONTROLS = /[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]/;

/** The server gets a document unchanged and reads its text. Other files are text, or useless to a model. */
async function readDocument(file) {
  const head = String.fromCharCode(...new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer()));
  const isDocument = DOCUMENT.test(head) || DOCUMENT_NAME.test(file.name);
  const most = isDocument ? MOST_DOCUMENT_BYTES : MOST_TEXT_BYTES;
  if (file.size > most) throw new Refused(`${file.name} is larger than ${bytes(most)}, the most that a ${isDocument ? "document" : "text"} may have.`);
  const type = file.type.startsWith("application/") ? file.type : "application/octet-stream";
  if (isDocument) return { document: await asDataUri(new Blob([file], { type })) };
  const text = decoded(new Uint8Array(await file.arrayBuffer()));
  if (CONTROLS.test(text)) throw new Refused(`${file.name} is not a text, a document, a picture or a sound.`);
  return { text };
}

/** Decodes text like the server: by byte order mark, else UTF-8, else Windows-1252. */
function decoded(data) {
  const mark = data[0] === 0xff && data[1] === 0xfe ? "utf-16le" : data[0] === 0xfe && data[1] === 0xff ? "utf-16be" : "utf-8";
  try {
    return new TextDecoder(mark, { fatal: true }).decode(data);
  } catch {
    return new TextDecoder("windows-1252").decode(data);
  }
}

export const DOCUMENT_URI = /^data:application\/[a-z0-9.+-]{1,100};base64,/;

/** Size of a text, or of a file that is stored as a data URI in base64. */
export function sizeOf({ text, document }) {
  return bytes(text?.length ?? Math.floor((3 * document.slice(document.indexOf(",") + 1).replace(/=+$/, "").length) / 4));
}

export function saveAs(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
