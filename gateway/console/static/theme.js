// Before the first paint: the theme somebody chose here, if they did.
(() => {
  const chosen = localStorage.getItem('theme');
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
