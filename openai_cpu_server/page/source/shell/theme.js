import { signal } from "@preact/signals";
import { inBrowser } from "../base/storage.js";

/** "system", "light" or "dark". */
export const theme = signal(document.documentElement.dataset.theme ?? "system");

const dark = matchMedia("(prefers-color-scheme: dark)");
/** Whether the theme is dark now, for code that draws on a canvas. */
export const isDark = signal(darkNow());
dark.addEventListener("change", () => (isDark.value = darkNow()));

function darkNow() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

export function setTheme(chosen) {
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  inBrowser.set("theme", chosen === "system" ? null : chosen);
  theme.value = chosen;
  isDark.value = darkNow();
}
