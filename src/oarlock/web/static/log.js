// The lines of a log: follows the end until the reader scrolls away, and loads the lines before and behind those shown.
// At most MOST rows are in the document. A place is asked for by the text that the server gave, so no line is lost.
"use strict";
(() => {
  const box = document.getElementById("log");
  const bar = document.getElementById("connection");
  const button = document.getElementById("follow");
  if (!box) return;
  const MOST = 5000;
  const SOME = 500;
  const MANY = 2000;
  const EDGE = 400;
  const LONGEST_MS = 30000;
  let rows = document.getElementById("lines");
  let poll = Number(rows.dataset.poll);
  let following = false;
  let busy = false;
  let quiet = 0;
  let timer = 0;
  let failed = 0;
  let waitsUntil = 0;
  let refused = false;
  let seenAt = Date.now();
  let cut = { before: rows.dataset.before, after: rows.dataset.after };
  let earlier = Number(rows.dataset.earlier);
  let later = Number(rows.dataset.later);

  const tell = (text) => {
    bar.hidden = !text;
    if (bar.textContent !== text) bar.textContent = text;
  };
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const toEnd = () => {
    box.scrollTop = box.scrollHeight;
  };
  const stream = (row) => row.id.slice(0, row.id.lastIndexOf(":"));
  const selecting = () => {
    const chosen = getSelection();
    return chosen && !chosen.isCollapsed && box.contains(chosen.anchorNode);
  };

  const fetched = async (place, counts) => {
    const query = new URLSearchParams(counts);
    const path = box.dataset.path + (box.dataset.path.includes("?") ? "&" : "?");
    const answer = await fetch(`${path}place=${encodeURIComponent(place)}&${query}`, {
      headers: { "Oarlock-Fragment": "1" },
      redirect: "error",
    });
    if (answer.status >= 400 && answer.status < 500) {
      refused = true;
      if (answer.status === 401) throw new Error("The session has ended. Reload the page to log in.");
      const told = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[role=alert]");
      throw new Error(`${told ? told.textContent : answer.statusText} Reload the page.`);
    }
    if (!answer.ok) throw new Error(`As of ${new Date(seenAt).toLocaleTimeString()}, reconnecting`);
    seenAt = Date.now();
    tell("");
    return new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("lines");
  };

  // Lines without an end come again, with more text or with their end.
  const append = (page) => {
    for (const open of rows.querySelectorAll(".open")) open.remove();
    const parts = new Map(); // the last row of each stream that goes on
    const note = (row) => (row.classList.contains("part") ? parts.set(stream(row), row) : parts.delete(stream(row)));
    for (const row of rows.children) note(row);
    const added = document.createDocumentFragment();
    for (const row of [...page.children]) {
      const before = parts.get(stream(row));
      if (before && row.classList.contains("redrawn")) before.remove();
      note(row);
      added.append(row);
    }
    const mark = added.firstElementChild;
    rows.append(added);
    cut.after = page.dataset.after;
    later = Number(page.dataset.later);
    if (rows.childElementCount <= MOST) return;
    const top = mark.getBoundingClientRect().top;
    while (rows.childElementCount > MOST) rows.firstElementChild.remove();
    cut.before = null;
    earlier = 1;
    box.scrollTop += mark.getBoundingClientRect().top - top; // the rows in view stay where they are
  };

  const prepend = (page) => {
    const first = rows.firstElementChild;
    const top = first ? first.getBoundingClientRect().top : 0;
    rows.prepend(...page.children);
    cut.before = page.dataset.before;
    earlier = Number(page.dataset.earlier);
    while (rows.childElementCount > MOST) {
      rows.lastElementChild.remove();
      cut.after = null;
      later = 1;
    }
    if (first) box.scrollTop += first.getBoundingClientRect().top - top;
  };

  const replace = (page) => {
    rows.replaceChildren(...page.children);
    cut = { before: page.dataset.before, after: page.dataset.after };
    earlier = Number(page.dataset.earlier);
    later = Number(page.dataset.later);
  };

  const alone = async (work) => {
    if (busy || refused || Date.now() < waitsUntil) return;
    busy = true;
    try {
      await work();
      failed = 0;
    } catch (error) {
      tell(error instanceof TypeError ? `As of ${new Date(seenAt).toLocaleTimeString()}, reconnecting` : error.message);
      failed += 1;
      waitsUntil = Date.now() + Math.min(LONGEST_MS, 500 * 2 ** failed);
    } finally {
      busy = false;
      schedule();
    }
  };

  const back = () =>
    alone(async () => prepend(await fetched(cut.before || rows.firstElementChild.id, { before: SOME })));

  const forth = () =>
    alone(async () => {
      if (cut.after) return append(await fetched(cut.after, { after: following ? MANY : SOME }));
      const last = rows.lastElementChild;
      const page = await fetched(last.id, { after: SOME });
      last.remove();
      append(page);
    });

  const news = () =>
    alone(async () => {
      if (selecting() || document.hidden) return;
      if (!cut.after) {
        replace(await fetched("end", { before: 1000 }));
        return toEnd();
      }
      const page = await fetched(cut.after, { after: MANY });
      poll = Number((rows.dataset.poll = page.dataset.poll));
      const count = page.childElementCount;
      quiet = count > page.querySelectorAll(".open").length ? 0 : Math.min(4, quiet + 1);
      if (!following && rows.childElementCount + count > MOST) {
        later = Math.max(1, Number(page.dataset.later)); // for when the reader comes to the end: rows above may be read now
        return;
      }
      if (Number(page.dataset.later) > 4e6) replace(await fetched("end", { before: 1000 }));
      else append(page);
      if (following) toEnd();
    });

  const schedule = () => {
    clearTimeout(timer);
    if (refused) return;
    const failing = Math.max(0, waitsUntil - Date.now() + 20);
    if (following && later) timer = setTimeout(news, Math.max(50, failing));
    else if (poll && cut.after && (following || !later)) timer = setTimeout(news, Math.max(poll * (1 + quiet), failing));
  };

  const follow = (on) => {
    following = on;
    button.setAttribute("aria-pressed", String(on));
    if (on && (later || !cut.after)) {
      alone(async () => {
        replace(await fetched("end", { before: 1000 }));
        toEnd();
      });
    } else if (on) toEnd();
    schedule();
  };

  box.addEventListener("scroll", () => {
    if (following && !atEnd()) follow(false);
    else if (!following && poll && !later && cut.after && atEnd()) follow(true);
    if (earlier && box.scrollTop < EDGE) back();
    else if (!following && later && box.scrollHeight - box.scrollTop - box.clientHeight < EDGE) forth();
  });
  button.addEventListener("click", () => follow(!following));
  document.addEventListener("visibilitychange", () => document.hidden || schedule());
  for (const [name, word] of [["wrap", "wrapped"], ["times", "timed"]]) {
    const field = document.querySelector(`input[name=${name}]`);
    field.addEventListener("change", () => {
      box.classList.toggle(word, field.checked);
      const address = new URL(location.href);
      if (field.checked) address.searchParams.set(name, "yes");
      else address.searchParams.delete(name);
      history.replaceState(null, "", address);
    });
  }

  button.hidden = !poll;
  if (box.dataset.opened === "end") {
    toEnd();
    if (poll) follow(true);
  } else {
    const chosen = rows.querySelector(".chosen");
    if (chosen) box.scrollTop += chosen.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
    schedule();
  }
})();
