/** Copies a text. Pages on plain HTTP from another machine have no clipboard, but may copy a selection. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).catch(() => copySelected(text));
  return copySelected(text);
}

function copySelected(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden-text";
  field.setAttribute("aria-hidden", "true");
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
