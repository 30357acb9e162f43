// Live updates. News say that something has changed, and the page fetches itself again and morphs its content: at most
// twice a second, and never under a selection. One page of the browser holds the stream and tells the others. Sections that
// are made on demand are named in the address of the fetch while they are in view; those far away keep what they have.
"use strict";
(() => {
  const main = document.getElementById("content");
  const bar = document.getElementById("connection");
  if (!main || !("live" in main.dataset)) return;
  const PAUSE_MS = 500;
  const channel = new BroadcastChannel("oarlock-live");
  let dirty = false;
  let timer = 0;
  let fetching = false;
  let over = false; // this page has no session any more
  let seenAt = Date.now();

  const tell = (text) => {
    bar.hidden = !text;
    if (bar.textContent !== text) bar.textContent = text;
  };
  const clock = () => new Date(seenAt).toLocaleTimeString();
  const lost = () => over || tell(`As of ${clock()}, reconnecting`);

  const selecting = () => {
    const chosen = getSelection();
    return chosen && !chosen.isCollapsed && main.contains(chosen.anchorNode);
  };

  const replace = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html").getElementById("content");
    if (!page) return;
    for (const open of main.querySelectorAll("details[open][id]")) {
      page.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    }
    for (const one of page.querySelectorAll("[data-loaded]")) madeAt.set(one.dataset.section, Date.now());
    for (const old of main.querySelectorAll("[data-loaded]")) {
      const fresh = page.querySelector(`#${CSS.escape(old.id)}:not([data-loaded])`);
      if (fresh) fresh.innerHTML = old.innerHTML;
      fresh?.setAttribute("data-loaded", "");
    }
    main.dataset.refresh = page.dataset.refresh || "0";
    htmx.swap({ text: page.innerHTML, target: main, sourceElement: main, swap: "innerMorph" });
    for (const one of main.querySelectorAll("[data-section]:not([data-loaded])")) coming.observe(one);
  };

  const NEAR_PX = 400;
  const coming = new IntersectionObserver(
    (entries) => {
      if (entries.some((one) => one.isIntersecting && !("loaded" in one.target.dataset))) later(0);
    },
    { rootMargin: `${NEAR_PX}px` },
  );
  const near = (one) => {
    const { top, bottom } = one.getBoundingClientRect();
    return top < innerHeight + NEAR_PX && bottom > -NEAR_PX;
  };
  const madeAt = new Map(); // of the sections that are worth their making only now and then
  const due = (one) => near(one) && !(Date.now() - (madeAt.get(one.dataset.section) ?? 0) < Number(one.dataset.keep || 0) * 1000);
  const address = () => {
    const url = new URL(location.href);
    const found = [...main.querySelectorAll("[data-section]")].filter(due).map((one) => one.dataset.section);
    const list = main.querySelector("[data-seen]");
    if (list) url.searchParams.set("seen", list.dataset.seen); // rows that came later are counted, and push none away
    if (found.length) url.searchParams.set("sections", [...url.searchParams.getAll("sections"), ...found].join());
    return url;
  };

  const ask = async () => {
    const answer = await fetch(address(), { headers: { "Oarlock-Fragment": "1" }, redirect: "error" });
    if (answer.status === 401) {
      over = true;
      tell("The session has ended. Reload the page to log in.");
    }
    return answer;
  };

  const refresh = async () => {
    timer = 0;
    if (over) return;
    if (fetching || document.hidden || selecting()) {
      dirty = true;
      return;
    }
    dirty = false;
    fetching = true;
    try {
      const answer = await ask();
      if (over) return;
      if (!answer.ok && answer.status >= 500) throw new Error(answer.statusText);
      replace(await answer.text());
      seenAt = Date.now();
      tell("");
    } catch {
      lost();
      dirty = true;
    } finally {
      fetching = false;
      if (dirty && !document.hidden) later(PAUSE_MS * 2);
    }
  };

  for (const one of main.querySelectorAll("[data-section]")) coming.observe(one);

  const later = (ms) => {
    if (!timer) timer = setTimeout(refresh, ms);
  };
  const news = () => {
    dirty = true;
    later(PAUSE_MS);
  };

  channel.onmessage = (event) => (event.data === "changed" ? news() : event.data === "lost" ? lost() : news());
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) news();
  });
  setInterval(() => {
    const every = Number(main.dataset.refresh || 0) * 1000;
    if ((every && Date.now() - seenAt >= every && !document.hidden) || (dirty && !timer && !fetching)) later(0);
  }, 1000);

  // Follows one stream until it ends, or the server refuses it: then the page itself tells whether there is a session.
  const follow = () =>
    new Promise((done) => {
      const stream = new EventSource("/live");
      const leave = () => setTimeout(() => (over ? done() : ask().catch(lost).finally(done)), PAUSE_MS * 4);
      stream.addEventListener("open", () => {
        channel.postMessage("open");
        news();
      });
      stream.addEventListener("changed", () => {
        channel.postMessage("changed");
        news();
      });
      stream.addEventListener("ended", () => {
        stream.close();
        channel.postMessage("ended");
        news();
        leave();
      });
      stream.onerror = () => {
        channel.postMessage("lost");
        lost();
        if (stream.readyState === EventSource.CLOSED) leave();
      };
    });
  if (navigator.locks) {
    navigator.locks.request("oarlock-live", async () => {
      while (!over) await follow();
    });
  }
})();
