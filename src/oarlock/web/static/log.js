// The lines of a log: follows the end until the reader scrolls away, and loads the lines before and behind those shown.
// At most MOST rows are in the document, and fewer while it follows: each answer costs the browser a look at all rows.
// A place is asked for by the text that the server gave, so no line is lost. Where rows were cut there is no such text: the id
// of a row that counts lines of several ranks is the place of the first line alone.
"use strict";
(() => {
  const box = document.getElementById("log");
  const bar = document.getElementById("log-connection");
  const button = document.getElementById("follow");
  if (!box) return;
  const MOST = 5000;
  const SOME = 500;
  const MOST_LINES = 2000; // that an answer has; where they fold, few rows hold many
  const FOLLOWED = 2000;
  const FAR_BYTES = 100000;
  const EDGE = 400;
  const LONGEST_MS = 5000;
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
  const fill = () => document.querySelector("#none > .empty")?.remove();
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
    return zoned(new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("lines"));
  };

  // The server writes times of day in UTC. Here they are those of this browser, minute by minute: many lines share one.
  const minutes = new Map();
  const zoned = (page) => {
    for (const one of page.querySelectorAll("time")) {
      const minute = one.dateTime.slice(0, 16);
      if (!minutes.has(minute)) minutes.set(minute, oarlockTimes.hours().format(Date.parse(`${minute}Z`)));
      one.textContent = minutes.get(minute) + one.textContent.slice(5);
    }
    return page;
  };

  // A line of one rank joins the equal row of others that came with an earlier answer, by the rules of the server's folding:
  // the row is near, has no line of this rank, and follows the row of this rank's line before.
  const NEAR_ROWS = 64;
  const NEAR_MS = 5000;
  const apart = /[?&]apart=/.test(box.dataset.path);
  const facts = (row, place) => {
    const [task, attempt, , stream] = row.id.split(":");
    const told = row.querySelector("b")?.title || task;
    const tasks = told.split(", ").flatMap((part) => {
      const [, role, first, last = first] = /^(.+)-(\d+)(?: to (\d+))?$/.exec(part);
      return Array.from({ length: last - first + 1 }, (_, at) => `${role}-${Number(first) + at}`);
    });
    const text = row.querySelector("code");
    const whole = !row.classList.contains("part") && text.textContent.trim() !== "";
    const of = `:${attempt}:${stream}`;
    return { row, place, whole, of, tasks: new Set(tasks), key: of + text.innerHTML, at: Date.parse(row.querySelector("time").dateTime) };
  };
  const named = (tasks) => {
    const split = [...tasks].map((one) => [one.slice(0, one.lastIndexOf("-")), Number(one.slice(one.lastIndexOf("-") + 1))]);
    const runs = [];
    for (const [role, index] of split.sort((one, two) => (one[0] < two[0] ? -1 : one[0] > two[0] ? 1 : one[1] - two[1]))) {
      const run = runs.at(-1);
      if (run && run.role === role && run.last === index - 1) run.last = index;
      else runs.push({ role, first: index, last: index });
    }
    return runs.map(({ role, first, last }) => `${role}-${first}${last > first ? ` to ${last}` : ""}`).join(", ");
  };
  const join = (page) => {
    if (apart) return;
    const known = [...rows.children].slice(-NEAR_ROWS).map(facts);
    const last = new Map(); // the place of the row with the last line of a task's stream
    const note = ({ tasks, of, place }) => tasks.forEach((task) => last.set(task + of, place));
    known.forEach(note);
    let end = known.length;
    for (const row of [...page.children]) {
      if (end >= known.length + NEAR_ROWS) return;
      const one = facts(row, end);
      const fits = ({ place, whole, key, at, tasks }) =>
        whole && key === one.key && place >= end - NEAR_ROWS && one.at - at <= NEAR_MS
        && [...one.tasks].every((task) => !tasks.has(task) && (last.get(task + one.of) ?? -1) < place);
      const found = one.whole && known.find(fits);
      if (found) {
        one.tasks.forEach((task) => found.tasks.add(task));
        const count = found.row.querySelector("b") || document.createElement("b");
        Object.assign(count, { title: named(found.tasks), textContent: `×${found.tasks.size}` });
        found.row.querySelector("code").before(count);
        row.remove();
        one.place = found.place;
      } else end += 1;
      note(one);
    }
  };

  // Lines without an end come again, with more text or with their end.
  const append = (page) => {
    for (const open of rows.querySelectorAll(".open")) open.remove();
    join(page);
    const parts = new Map(); // the last row of each stream that goes on
    const note = (row) => (row.classList.contains("part") ? parts.set(stream(row), row) : parts.delete(stream(row)));
    if (rows.querySelector(".part")) for (const row of rows.children) note(row);
    const added = document.createDocumentFragment();
    for (const row of [...page.children]) {
      const before = parts.get(stream(row));
      if (before && row.classList.contains("redrawn")) before.remove();
      note(row);
      added.append(row);
    }
    const mark = added.firstElementChild;
    rows.append(added);
    if (mark) fill();
    cut.after = page.dataset.after;
    later = Number(page.dataset.later);
    const most = following ? FOLLOWED : MOST;
    if (rows.childElementCount <= most) return;
    const top = following ? 0 : mark.getBoundingClientRect().top; // it costs a layout of all rows
    while (rows.childElementCount > most) rows.firstElementChild.remove();
    cut.before = null;
    earlier = 1;
    if (!following) box.scrollTop += mark.getBoundingClientRect().top - top; // the rows in view stay where they are
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
    if (rows.childElementCount) fill();
    cut = { before: page.dataset.before, after: page.dataset.after };
    earlier = Number(page.dataset.earlier);
    later = Number(page.dataset.later);
  };

  const alone = async (work) => {
    if (busy || refused || Date.now() < waitsUntil) return;
    busy = true;
    let changed = false;
    try {
      changed = await work();
      failed = 0;
    } catch (error) {
      tell(error instanceof TypeError ? `As of ${new Date(seenAt).toLocaleTimeString()}, reconnecting` : error.message);
      failed += 1;
      waitsUntil = Date.now() + Math.min(LONGEST_MS, 500 + 50 * failed);
      if (!refused) setTimeout(look, waitsUntil - Date.now() + 20);
    } finally {
      busy = false;
      schedule();
    }
    if (changed !== false) look();
  };

  // Asks for what lies beyond an edge that is near: also after each answer, because one may bring no rows, and the reader may
  // have scrolled while another one was on its way.
  const look = () => {
    if (earlier && box.scrollTop < EDGE) back();
    else if (!following && later && box.scrollHeight - box.scrollTop - box.clientHeight < EDGE) forth();
  };

  // The rows come anew about the first one in view, as the server folds them; that one stays where it is.
  const renew = async () => {
    if (selecting()) return false;
    const { top } = box.getBoundingClientRect();
    const first = [...rows.children].find((row) => row.getBoundingClientRect().bottom > top) ?? rows.lastElementChild;
    const count = rows.querySelector("b") ? MOST_LINES : SOME;
    const page = await fetched(first.id, { before: count, after: count });
    const before = first.getBoundingClientRect().top;
    replace(page);
    const now = document.getElementById(first.id);
    if (now) box.scrollTop += now.getBoundingClientRect().top - before;
  };

  const back = () =>
    alone(async () => {
      const place = cut.before;
      if (!place) return renew();
      prepend(await fetched(place, { before: SOME }));
      return cut.before !== place;
    });

  const forth = () =>
    alone(async () => {
      const place = cut.after;
      if (!place) return renew();
      append(await fetched(place, { after: SOME }));
      return cut.after !== place;
    });

  const news = () =>
    alone(async () => {
      if (selecting() || document.hidden) return;
      if (!cut.after || (following && later > FAR_BYTES)) {
        replace(await fetched("end", { before: SOME }));
        return toEnd();
      }
      const page = await fetched(cut.after, { after: SOME });
      poll = Number((rows.dataset.poll = page.dataset.poll));
      const count = page.childElementCount;
      quiet = count > page.querySelectorAll(".open").length ? 0 : Math.min(4, quiet + 1);
      if (!following && rows.childElementCount + count > MOST) {
        later = Math.max(1, Number(page.dataset.later)); // for when the reader comes to the end: rows above may be read now
        return;
      }
      append(page);
      if (following) toEnd();
    });

  const schedule = () => {
    clearTimeout(timer);
    button.hidden = !poll && !later;
    if (button.hidden) follow(false);
    if (refused) return;
    const failing = Math.max(0, waitsUntil - Date.now() + 20);
    if (following && later) timer = setTimeout(news, Math.max(50, failing));
    else if (poll && cut.after && (following || !later)) timer = setTimeout(news, Math.max(poll * (1 + quiet), failing));
  };

  const follow = (on) => {
    if (following === on) return;
    following = on;
    button.setAttribute("aria-pressed", String(on));
    if (on && (later || !cut.after)) {
      alone(async () => {
        replace(await fetched("end", { before: SOME }));
        toEnd();
      });
    } else if (on) toEnd();
    schedule();
  };

  // The rest of the page has changed, and tells how often lines come now: the job has started, or its last lines are there.
  const { job } = document.getElementById("head").dataset;
  document.getElementById("content").addEventListener("refreshed", () => {
    const now = document.getElementById("head").dataset;
    if (now.job !== job) return location.reload(); // the address has a name, and names another job now
    if (!Number(now.poll) && poll && (following || !later)) return news();
    poll = Number(now.poll);
    return schedule();
  });

  box.addEventListener("scroll", () => {
    if (following && !atEnd()) follow(false);
    else if (!following && poll && !later && cut.after && atEnd()) follow(true);
    look();
  });
  button.addEventListener("click", () => follow(!following));
  const awake = () => {
    waitsUntil = 0;
    schedule();
  };
  document.addEventListener("visibilitychange", () => document.hidden || awake());
  for (const kind of ["online", "focus"]) addEventListener(kind, awake);
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

  zoned(rows);
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
