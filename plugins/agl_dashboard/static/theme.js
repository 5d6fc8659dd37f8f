// Sets the chosen theme before the page is painted.
(() => {
  let theme = "";
  try { theme = localStorage.getItem("agl-theme") || ""; } catch { /* storage is off */ }
  if (theme) document.documentElement.dataset.theme = theme;
})();
