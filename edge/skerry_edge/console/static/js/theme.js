// Before the first paint: the theme that was chosen, so that no page flashes.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("skerry.theme");
  } catch { /* a private window keeps nothing */ }
  theme ??= matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
})();
