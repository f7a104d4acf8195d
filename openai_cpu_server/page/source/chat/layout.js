import { effect, signal } from "@preact/signals";
import { inBrowser } from "../base/storage.js";

export const wide = matchMedia("(min-width: 60rem)");
const roomy = matchMedia("(min-width: 80rem)");
/** Whether the list of conversations and the settings are beside the conversation. */
export const showsList = signal(wide.matches);
/** Closed at the first visit. Later as the user left them, if there is room. */
export const showsPanel = signal(roomy.matches && inBrowser.get("panel") === "open");
effect(() => {
  const isOpen = showsPanel.value;
  if (roomy.matches) inBrowser.set("panel", isOpen ? "open" : null);
});
