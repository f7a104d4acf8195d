// Runs before the first paint, so that the dark theme begins without a white flash.
(() => {
  try {
    const chosen = localStorage.getItem("ocs-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden. Then the system's theme applies.
  }
})();
