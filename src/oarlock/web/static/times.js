// Times in words that go on by themselves, by the server's clock: `3m ago`, `in 4m 05s`. The words are the server's own
// (`rendering/times.py`). An update of the page comes without them, and gets them before it is shown. A time that has the
// focus, or whose row has it, is told in full. Times of day, which the server writes in UTC, become those of this browser.
"use strict";
window.oarlockTimes = (() => {
  const EVERY_MS = 1000;
  const FAR_MS = 1000; // the clock of the browser was set: another look at the server's
  const main = document.getElementById("content");
  let aheadMs = Number(main.dataset.now) * 1000 - Date.now(); // of the server's clock

  const even = (number) => (Math.abs(number % 1) === 0.5 ? 2 * Math.round(number / 2) : Math.round(number)); // as Python rounds
  const units = [[86400, "d"], [3600, "h"], [60, "m"]];
  const age = (seconds) => {
    const [size, unit] = units.find(([size]) => seconds >= size) || [0, "s"];
    return size ? `${Math.floor(seconds / size)}${unit}` : `${even(seconds)}s`;
  };
  const two = (number) => String(number).padStart(2, "0");
  const lasting = (seconds) => {
    if (seconds < 60) return `${even(seconds)} s`;
    const whole = even(seconds);
    const [minutes, hours, days] = [60, 3600, 86400].map((size) => Math.floor(whole / size));
    if (!hours) return `${minutes}m ${two(whole % 60)}s`;
    return days ? `${days}d ${hours % 24}h` : `${hours}h ${two(minutes % 60)}m`;
  };
  const least = (seconds) => Math.max(0, seconds);
  const forms = {
    ago: (seconds) => `${age(least(seconds))} ago`,
    age: (seconds) => age(least(seconds)),
    lasting: (seconds) => lasting(least(seconds)),
    ahead: (seconds) => (seconds < 0 ? `in ${lasting(-seconds)}` : "at any moment"),
    within: (seconds) => `within ${lasting(least(-seconds))}`,
  };
  const words = (form, gone) => forms[form](gone);

  const full = (at) => at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const row = (one) => one.closest("tr, li, dd, p") ?? one;
  const focused = (one) => document.activeElement !== main && row(one).contains(document.activeElement) && document.activeElement.matches(":focus-visible");

  const write = (root) => {
    const now = Date.now() + aheadMs;
    const chosen = getSelection();
    for (const one of root.querySelectorAll("[data-form]")) {
      const at = Date.parse(one.dateTime || one.dataset.since);
      if (one.dateTime && !row(one).querySelector("a, button")) one.tabIndex = 0; // nothing else brings the focus here
      const text = one.dateTime && focused(one) ? full(new Date(at)) : words(one.dataset.form, (now - at) / 1000);
      if (one.textContent === text || (chosen && !chosen.isCollapsed && chosen.containsNode(one, true))) continue;
      one.textContent = text;
    }
  };

  const CLOCK = /(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC/g;
  // Made at their first use: the first format of a page takes longer than all that its scripts do before the first paint.
  const late = (make) => {
    let made;
    return () => (made ??= make());
  };
  const hours = late(() => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }));
  const days = late(() => new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" }));
  const clock = (at) => {
    const [today, day, hour] = [days().format(Date.now() + aheadMs), days().format(at), hours().format(at)];
    return today === day ? hour : `${day}, ${hour}`;
  };
  const settle = (root) => {
    for (const one of root.querySelectorAll("[data-clocks] title, [data-clocks] li")) {
      const text = one.textContent.replace(CLOCK, (_, day, minute) => clock(Date.parse(`${day}T${minute}Z`)));
      if (text !== one.textContent) one.textContent = text;
    }
    for (const one of root.querySelectorAll("[data-clock]")) one.textContent = clock(Date.parse(one.dataset.clock));
    for (const one of root.querySelectorAll("[data-zone]")) one.textContent = `Times are those of ${hours().resolvedOptions().timeZone}.`;
    write(root);
  };
  const hear = (now) => {
    const told = now * 1000 - Date.now();
    if (now && Math.abs(told - aheadMs) > FAR_MS) aheadMs = told;
  };
  const go = () => document.hidden || write(main);
  // A date without a zone is one of this browser; the address has it with its zone, so that it is a permanent link.
  const DATE = /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?$/;
  main.addEventListener("submit", ({ target }) => {
    for (const field of target.querySelectorAll("[name=since], [name=until]")) {
      const typed = field.value.trim();
      if (!DATE.test(typed)) continue;
      const time = typed.length > 10 ? typed : `${typed}T00:00`;
      const at = new Date(time.replace(" ", "T"));
      if (isNaN(at)) continue;
      const [sign, minutes] = [at.getTimezoneOffset() > 0 ? "-" : "+", Math.abs(at.getTimezoneOffset())];
      field.value = `${time}${sign}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
    }
  });
  setInterval(go, EVERY_MS);
  document.addEventListener("visibilitychange", go);
  for (const kind of ["focusin", "focusout"]) main.addEventListener(kind, () => setTimeout(go));
  settle(main);
  return { settle, hear, words, clock, hours };
})();
