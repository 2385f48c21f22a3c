// Before the first paint: scripts run here, and the theme somebody chose, if they did.
(() => {
  const root = document.documentElement;
  root.classList.add('js');
  const chosen = localStorage.getItem('theme');
  if (chosen) root.dataset.theme = chosen;
})();
