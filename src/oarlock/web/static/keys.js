// Keys: `/` search, `j` and `k` rows, `g` and a letter for pages, `?` help. The help has a switch for single keys, and
// the choices of the theme and of the height of rows. All stay in this browser.
"use strict";
(() => {
  let going = false;
  const help = document.getElementById("keys");
  const single = document.getElementById("single-keys");
  const typing = (target) => target.closest("input, textarea, select, [contenteditable]");

  single.checked = localStorage.getItem("keys") !== "off";
  single.addEventListener("change", () => localStorage.setItem("keys", single.checked ? "on" : "off"));
  const look = document.documentElement.dataset;
  for (const [name, usual] of Object.entries({ theme: "system", density: "compact" })) {
    const field = document.getElementById(name);
    field.value = look[name] || usual;
    field.addEventListener("change", () => {
      localStorage.setItem(name, field.value);
      if (field.value === usual) delete look[name];
      else look[name] = field.value;
    });
  }
  const opener = document.getElementById("show-keys");
  opener.hidden = false;
  opener.addEventListener("click", () => help.showModal());

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || typing(event.target)) return;
    if (localStorage.getItem("keys") === "off") return;
    if (going) {
      going = false;
      const page = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (page) page.click();
      return;
    }
    if (event.key === "g") going = true;
    else if (event.key === "?") help.showModal();
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
