// Puts the one-time code of a login link into the form. The code stands in the fragment, which is sent to no server.
"use strict";
(() => {
  // The address of a page of ours, as the browser itself reads it: it drops tabs, and takes \ for /.
  const local = (wanted) => {
    if (!wanted || !wanted.startsWith("/")) return null;
    try {
      const found = new URL(wanted, location.origin);
      return found.origin === location.origin ? found : null;
    } catch {
      return null;
    }
  };
  const told = new URLSearchParams(location.hash.slice(1));
  const code = told.get("code");
  const next = local(told.get("next"));
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  const known = document.getElementById("known");
  if (known) {
    location.replace(next ? next.href : known.dataset.next);
    return;
  }
  const form = document.getElementById("login");
  form.elements.secret.value = code;
  if (next) form.elements.next.value = next.pathname + next.search;
  form.submit();
})();
