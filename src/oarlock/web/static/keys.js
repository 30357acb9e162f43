// Keys: `/` search, `j` and `k` rows, `g` and a letter for pages. They can be switched off: localStorage.keys = "off".
"use strict";
(() => {
  let going = false;
  const typing = (target) => target.closest("input, textarea, select, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (localStorage.getItem("keys") === "off") return;
    if (going) {
      going = false;
      const page = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (page) page.click();
      return;
    }
    if (event.key === "g") going = true;
    else if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) {
        event.preventDefault();
        search.focus();
      }
    } else if (event.key === "j" || event.key === "k") {
      const links = [...document.querySelectorAll("tbody tr th a")];
      if (!links.length) return;
      const at = links.indexOf(document.activeElement);
      const to = event.key === "j" ? Math.min(at + 1, links.length - 1) : Math.max(at - 1, 0);
      links[to].focus();
    }
  });
})();
