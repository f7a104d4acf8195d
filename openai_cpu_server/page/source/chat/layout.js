import { signal } from "@preact/signals";

export const wide = matchMedia("(min-width: 60rem)");
const roomy = matchMedia("(min-width: 80rem)");
/** Whether the list of conversations and the settings stand beside the conversation. */
export const showsList = signal(wide.matches);
export const showsPanel = signal(roomy.matches);
