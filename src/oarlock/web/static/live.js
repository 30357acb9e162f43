// Live updates. News name the topics that have changed, and a page that shows one of them fetches itself again and morphs
// its content: at once, but at most twice a second, and never under a selection. Each message says which events it covers,
// so a page that has missed one finds the gap and fetches. It also has the marks of pages that have fetched before: one
// that has the content of its mark already does not fetch, and the message has the content that it lacks, packed: it is taken
// at once where nothing speaks against it. A page that changes without events, as by a job's progress, is told so by its
// mark alone. One page of the browser holds the stream and tells the others.
// Sections that are made on demand are named in the address of the fetch while they are in view; those far away keep what
// they have. The server answers 304 where the content is the same.
"use strict";
(() => {
  const main = document.getElementById("content");
  const bar = document.getElementById("connection");
  if (!main || !("live" in main.dataset)) return;
  const PAUSE_MS = 500;
  const LONGEST_MS = 5000; // between two attempts to open a stream: at first they are PAUSE_MS apart
  const SILENCE_MS = 40000; // of a stream, with a beat every 15 s: its connection is dead, and nothing else would tell
  const channel = new BroadcastChannel("oarlock-live");
  let dirty = false;
  let timer = 0;
  let fetching = false;
  let over = false; // this page has no session any more
  let seen = Number(main.dataset.seq || 0); // the last event that the content has
  let heard = 0; // of the page that holds the stream: the last event that it was told of
  let tag = ""; // of the content
  let asked = ""; // the address of the last fetch
  const name = Math.random().toString(36).slice(2, 12);
  let told = 0; // the last event that this page was told of, until it has it
  let currentAt = Date.now();
  let beganAt = 0; // of the last fetch
  const LOOKED_MS = 30000; // where the server looks: another server may hold the stream, or it may be lost
  let looked = false; // at by the server, where the page changes without events
  let known = false; // to the server, which makes this page's mark with all news of it
  let fetchedAt = Date.now();

  const tell = (text) => {
    bar.hidden = !text;
    if (bar.textContent !== text) bar.textContent = text;
  };
  const clock = () => new Date(currentAt).toLocaleTimeString();
  const lost = () => over || tell(`As of ${clock()}, reconnecting`);

  const selecting = () => {
    const chosen = getSelection();
    return chosen && !chosen.isCollapsed && main.contains(chosen.anchorNode);
  };

  const replace = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html").getElementById("content");
    if (!page) return;
    for (const one of main.querySelectorAll("details[id]")) page.querySelector(`#${CSS.escape(one.id)}`)?.toggleAttribute("open", one.open);
    for (const one of page.querySelectorAll("[data-loaded]")) madeAt.set(one.dataset.section, Date.now());
    for (const old of main.querySelectorAll("[data-loaded]")) {
      const fresh = page.querySelector(`#${CSS.escape(old.id)}:not([data-loaded])`);
      if (fresh) fresh.innerHTML = old.innerHTML;
      fresh?.setAttribute("data-loaded", "");
    }
    oarlockTimes.settle(page);
    main.dataset.refresh = page.dataset.refresh || "0";
    main.dataset.topics = page.dataset.topics ?? "*";
    oarlockPatch(main, page);
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
    if (found.length) url.searchParams.set("sections", [...url.searchParams.getAll("sections"), ...found].sort().join());
    return url;
  };

  const ask = async () => {
    const url = address();
    asked = url.href;
    const headers = { "Oarlock-Fragment": "1", "Oarlock-Page": name, ...(tag && { "If-None-Match": tag }), ...(told && { "Oarlock-Seq": told }) };
    const answer = await fetch(url, { headers, redirect: "error" });
    if (answer.status === 401) {
      over = true;
      tell("The session has ended. Reload the page to log in.");
    }
    return answer;
  };

  // A closed or hidden page needs no mark. One that is shown again fetches itself, and so is known again.
  const leave = () => {
    if (known) fetch("/live/left", { method: "POST", keepalive: true, headers: { "Oarlock-Page": name } }).catch(() => {});
    known = false;
  };

  // Does an update, `make`, which returns the last event that the content has then.
  const update = async (make) => {
    dirty = false;
    fetching = true;
    const wanted = told;
    let failed = false;
    beganAt = Date.now();
    try {
      seen = (await make()) || seen;
      if (over) return;
      if (told === wanted) told = 0;
      fetchedAt = currentAt = Date.now();
      tell("");
      main.dispatchEvent(new Event("refreshed"));
    } catch {
      lost();
      failed = dirty = true;
    } finally {
      fetching = false;
      if (document.hidden) leave();
      if (dirty && !document.hidden) later(failed ? PAUSE_MS * 2 : pause());
    }
  };

  const fetched = async () => {
    const answer = await ask();
    if (over) return 0;
    if (!answer.ok && answer.status >= 500) throw new Error(answer.statusText);
    oarlockTimes.hear(Number(answer.headers.get("Oarlock-Now")));
    known = true;
    looked = answer.headers.has("Oarlock-Looked");
    if (answer.status !== 304) {
      replace(await answer.text());
      tag = answer.ok ? answer.headers.get("ETag") || "" : "";
    }
    return Number(answer.headers.get("Oarlock-Seq"));
  };

  const refresh = () => {
    timer = 0;
    if (over) return;
    if (fetching || document.hidden || selecting()) {
      dirty = true;
      if (selecting() && bar.hidden) tell("Updates wait while text is selected");
      return;
    }
    update(fetched);
  };

  // Takes a content that came with news. The server sends at most two a second; messages may be a little closer.
  const taken = async (mark, packed, seq) => {
    const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
    const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    replace(text);
    tag = mark;
    return seq;
  };
  const fits = (mark, contents) =>
    tag && mark in contents && window.DecompressionStream && !dirty && !fetching && !document.hidden && !selecting() &&
    address().href === asked && Date.now() - beganAt > PAUSE_MS / 2;

  for (const one of main.querySelectorAll("[data-section]")) coming.observe(one);

  const later = (ms) => {
    if (!timer) timer = setTimeout(refresh, ms);
  };
  const pause = () => Math.max(0, beganAt + PAUSE_MS - Date.now());
  const news = () => {
    dirty = true;
    later(pause());
  };
  main.addEventListener("stale", news); // a script of this page found that out
  const concerns = (topics) => {
    const shown = (main.dataset.topics ?? "*").split(" ");
    return shown.includes("*") || topics.includes("*") || topics.some((one) => shown.includes(one));
  };
  const same = (marks) => tag && marks[name] === tag && !dirty && !fetching && address().href === asked;
  const other = (marks) => tag && name in marks && marks[name] !== tag;
  const hear = ({ kind, after = 0, seq = 0, topics = ["*"], marks = {}, contents = {} }) => {
    if (over) return undefined;
    if (kind === "lost") return lost();
    if (kind === "wake") return wake();
    if (kind === "hello") return heard && channel.postMessage({ kind: "at", seq: heard });
    if (kind === "ended") return news();
    currentAt = Date.now();
    if (kind === "open" ? seq !== seen : kind === "at" ? seq > seen : seq > seen && (after > seen || concerns(topics)) ? !same(marks) : other(marks)) {
      told = seq;
      const mark = marks[name];
      return fits(mark, contents) ? update(() => taken(mark, contents[mark], seq)) : news();
    }
    if (!dirty && !fetching) tell("");
    seen = Math.max(seen, seq);
  };

  channel.onmessage = (event) => hear(event.data);
  channel.postMessage({ kind: "hello" }); // this page may have missed news while it was loaded
  let wake = () => {}; // ends the pause before the next attempt
  const awake = () => {
    wake();
    channel.postMessage({ kind: "wake" });
    if (!bar.hidden) news();
  };
  for (const kind of ["online", "focus"]) addEventListener(kind, awake);
  const shown = () => {
    if (document.hidden) return leave();
    awake();
    news();
  };
  document.addEventListener("visibilitychange", shown);
  addEventListener("pagehide", leave);
  addEventListener("pageshow", ({ persisted }) => persisted && shown()); // the reader came back, and finds the page as it was left
  setInterval(() => {
    const every = looked ? LOOKED_MS : Number(main.dataset.refresh || 0) * 1000;
    if ((every && Date.now() - fetchedAt >= every && !document.hidden) || (dirty && !timer && !fetching)) later(0);
  }, 1000);

  const rest = (ms) =>
    new Promise((done) => {
      wake = done;
      setTimeout(done, ms);
    });

  // Follows one stream until it ends, and tells whether it was open.
  const follow = () =>
    new Promise((done) => {
      const stream = new EventSource("/live");
      let silence = 0;
      let opened = false;
      const leave = (kind) => {
        clearTimeout(silence);
        stream.close();
        tellAll({ kind });
        done(opened);
      };
      const alive = () => {
        clearTimeout(silence);
        silence = setTimeout(leave, SILENCE_MS, "lost");
      };
      const tellAll = (message) => {
        channel.postMessage(message);
        hear(message);
      };
      for (const kind of ["open", "changed"]) {
        stream.addEventListener(kind, (event) => {
          alive();
          if (!event.data) return; // the browser's own `open`
          opened = true;
          const news = JSON.parse(event.data);
          heard = news.seq;
          tellAll({ kind, ...news });
        });
      }
      stream.addEventListener("beat", alive);
      alive();
      stream.addEventListener("ended", () => leave("ended"));
      stream.onerror = () => leave("lost"); // the browser itself would wait longer and longer
    });
  if (navigator.locks) {
    navigator.locks.request("oarlock-live", async () => {
      for (let failed = 0; !over; failed += 1) {
        if (await follow()) failed = 0;
        else await ask().catch(lost); // where the server refuses the stream, the page tells whether there is a session
        if (!over) await rest(Math.min(LONGEST_MS, PAUSE_MS + 50 * failed));
      }
    });
  }
})();
