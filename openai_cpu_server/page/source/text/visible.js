// Texts of strangers, at places where people decide by them.

/** Characters that are invisible or that move others. */
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** The text with such characters written out: “\u{202e}”. */
export function visible(text) {
  return String(text ?? "").replace(HIDDEN, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}
