// Sounds in the form that the server takes.

/** Formats that the server reads: their names in a request, by the type in a data URI. */
const FORMATS = { "audio/wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg" };
const LOSSLESS = ["audio/wav", "audio/flac"];
const MODEL_RATE = 16_000; // sample rate of nearly all models
const SMALL_BYTES = 1_000_000;

export const SOUND_URI = new RegExp(`^data:(${Object.keys(FORMATS).join("|")});base64,`);

export function isSound(file) {
  return file.type.startsWith("audio/") || /\.(wav|mp3|flac|og[ga]|opus|m4a|aac)$/i.test(file.name);
}

/** Part of a request. `uri`: like `SOUND_URI`. */
export function soundPart(uri) {
  const [, type] = uri.match(SOUND_URI);
  return { type: "input_audio", input_audio: { data: uri.slice(uri.indexOf(",") + 1), format: FORMATS[type] } };
}

/** Duration in seconds. Infinity if the file has it only at its end. Raises an Error if the browser cannot play it. */
export async function secondsOf(blob) {
  const url = URL.createObjectURL(blob);
  const player = new Audio();
  try {
    return await new Promise((resolve, reject) => {
      player.onloadedmetadata = () => resolve(player.duration);
      player.onerror = () => reject(new Error("it cannot be played"));
      player.preload = "metadata";
      player.src = url;
    });
  } finally {
    player.removeAttribute("src");
    URL.revokeObjectURL(url);
  }
}

/** {blob, seconds}: the sound itself. If the server does not read it or it is large: one channel at the models' sample
 * rate. `seconds`: see `secondsOf`. Raises an Error. */
export async function asSent(file, seconds) {
  const bytes = await file.arrayBuffer();
  const type = typeOf(new Uint8Array(bytes));
  const original = type && { blob: new Blob([bytes], { type }), seconds };
  const isFine = original && Number.isFinite(seconds) && (file.size <= SMALL_BYTES || !LOSSLESS.includes(type));
  if (isFine) return original;
  const samples = await new OfflineAudioContext(1, 1, MODEL_RATE).decodeAudioData(bytes);
  const converted = { blob: new Blob([wave(samples)], { type: "audio/wav" }), seconds: samples.duration };
  return original && original.blob.size < converted.blob.size ? { ...original, seconds: samples.duration } : converted;
}

/** Type by the first bytes, or null if the server does not read it. Ogg may contain Opus, which it does not read. */
function typeOf(bytes) {
  const head = String.fromCharCode(...bytes.subarray(0, 64));
  if (head.startsWith("RIFF") && head.startsWith("WAVE", 8)) return "audio/wav";
  if (head.startsWith("fLaC")) return "audio/flac";
  if (head.startsWith("OggS") && head.includes("vorbis")) return "audio/ogg";
  return head.startsWith("ID3") || (bytes[0] === 0xff && (bytes[1] & 0xe6) === 0xe2) ? "audio/mpeg" : null;
}

/** A file with 16 bits per sample, all channels mixed into one. */
function wave(samples) {
  const channels = Array.from({ length: samples.numberOfChannels }, (_, at) => samples.getChannelData(at));
  const size = 2 * samples.length;
  const file = new DataView(new ArrayBuffer(44 + size));
  const word = (at, letters) => [...letters].forEach((letter, next) => file.setUint8(at + next, letter.charCodeAt(0)));
  word(0, "RIFF");
  file.setUint32(4, 36 + size, true);
  word(8, "WAVEfmt ");
  file.setUint32(16, 16, true);
  file.setUint16(20, 1, true); // PCM
  file.setUint16(22, 1, true); // channels
  file.setUint32(24, samples.sampleRate, true);
  file.setUint32(28, 2 * samples.sampleRate, true);
  file.setUint16(32, 2, true);
  file.setUint16(34, 16, true);
  word(36, "data");
  file.setUint32(40, size, true);
  for (let at = 0; at < samples.length; at++) {
    const sum = channels.reduce((sofar, channel) => sofar + channel[at], 0) / channels.length;
    file.setInt16(44 + 2 * at, 32_767 * Math.max(-1, Math.min(1, sum)), true);
  }
  return file;
}
