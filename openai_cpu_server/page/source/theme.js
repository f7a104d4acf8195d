// Runs before the first paint, so that nobody who wants dark sees a white flash.
(() => {
  try {
    const chosen = localStorage.getItem("ocs-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden: then the system's theme it is.
  }
})();
