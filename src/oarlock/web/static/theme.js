// The chosen theme, "light", "dark" or the system's, and the chosen height of rows, before the first paint.
"use strict";
(() => {
  const looks = { theme: ["light", "dark"], density: ["comfortable"] };
  for (const [name, words] of Object.entries(looks)) {
    const chosen = localStorage.getItem(name);
    if (words.includes(chosen)) document.documentElement.dataset[name] = chosen;
  }
})();
