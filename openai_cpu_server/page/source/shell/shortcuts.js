// Keyboard shortcuts: one table, which the help shows and the page listens to.
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";

/** [{keys: "Mod+Shift+O", label, run, group}]; `Mod` is Ctrl, or Cmd on Apple's machines. */
export const shortcuts = signal([]);

const isApple = /Mac|iP(hone|ad)/.test(navigator.platform);

/** Adds shortcuts while the component is mounted. `run` of the last render counts. */
export function useShortcuts(group, entries) {
  useEffect(() => {
    const added = entries.map((entry) => ({ ...entry, group }));
    shortcuts.value = [...shortcuts.peek(), ...added];
    return () => (shortcuts.value = shortcuts.peek().filter((entry) => !added.includes(entry)));
  });
}

/** "Ctrl+Shift+O" in the notation of this machine. */
export function shown(keys) {
  return isApple ? keys.replace("Mod", "⌘").replace("Shift", "⇧").replace("Alt", "⌥") : keys.replace("Mod", "Ctrl");
}

function pressed(event) {
  const parts = [];
  if (isApple ? event.metaKey : event.ctrlKey) parts.push("Mod");
  if (event.altKey) parts.push("Alt");
  if (event.shiftKey && event.key.length > 1) parts.push("Shift");
  if (event.shiftKey && event.key.length === 1 && parts.length) parts.push("Shift");
  parts.push(event.key.length === 1 ? event.key.toUpperCase() : event.key);
  return parts.join("+");
}

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") && target.type !== "radio" && target.type !== "checkbox";
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  const keys = pressed(event);
  const entry = shortcuts.peek().findLast((one) => one.keys === keys && (one.when?.() ?? true));
  const alone = !keys.includes("Mod") && !keys.includes("Alt") && keys !== "Escape";
  if (!entry || (alone && isTyping(event.target)) || (document.querySelector("dialog[open]") && !entry.inDialogs)) return;
  event.preventDefault();
  entry.run();
});
