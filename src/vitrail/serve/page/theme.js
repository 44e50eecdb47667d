// Before the first paint, so that nobody sees a flash of the other theme. The choice is kept; without one, the system's.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("vitrail-theme"); } catch { return null; } };
  const apply = () => { document.documentElement.dataset.theme = kept() ?? (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", apply);
  apply();
})();
