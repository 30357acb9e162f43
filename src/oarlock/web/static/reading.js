// For readers of every page: buttons that copy a command, times in the browser's zone, and a change of phase said once.
"use strict";
(() => {
  const main = document.getElementById("content");
  const spoken = document.getElementById("spoken");

  const copying = () => {
    for (const one of main.querySelectorAll(".empty code, [data-copy]")) {
      if (one.nextElementSibling?.classList.contains("copy")) continue;
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(one.textContent);
        spoken.textContent = "Copied";
      });
      one.after(button);
    }
  };

  // The words are relative; the title is the absolute time of this browser's zone. (With the focus, `times.js` writes it.)
  const absolute = (event) => {
    const time = event.target.closest?.("time[datetime]");
    const at = time ? new Date(time.dateTime) : null;
    if (at && !isNaN(at)) time.title = at.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
  };
  main.addEventListener("mouseover", absolute);

  let phase = null;
  const said = () => main.querySelector(".head .phase")?.textContent.trim();
  const changed = () => {
    copying();
    const now = said();
    if (now && phase && now !== phase) spoken.textContent = `${main.querySelector("h1").textContent.trim()}: ${now}`;
    phase = now || phase;
  };
  changed();
  new MutationObserver(changed).observe(main, { childList: true, subtree: true, characterData: true });
})();
