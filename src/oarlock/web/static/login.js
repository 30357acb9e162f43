// Puts the one-time code of a login link into the form. The code stands in the fragment, which is sent to no server.
"use strict";
(() => {
  const told = new URLSearchParams(location.hash.slice(1));
  const code = told.get("code");
  const next = told.get("next");
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  const local = next && next.startsWith("/") && !next.startsWith("//") && !next.includes("\\");
  const known = document.getElementById("known");
  if (known) {
    location.replace(local ? next : known.dataset.next);
    return;
  }
  const form = document.getElementById("login");
  form.elements.secret.value = code;
  if (local) form.elements.next.value = next;
  form.submit();
})();
