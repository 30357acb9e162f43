// Times in words that go on by themselves, by the server's clock: `3m ago`, `in 4m 05s`. The words are the server's own
// (`rendering/times.py`). An update of the page comes without them, and gets them before it is shown.
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

  const write = (root) => {
    const now = Date.now() + aheadMs;
    const chosen = getSelection();
    for (const one of root.querySelectorAll("[data-form]")) {
      const text = words(one.dataset.form, (now - Date.parse(one.dateTime || one.dataset.since)) / 1000);
      if (one.textContent === text || (chosen && !chosen.isCollapsed && chosen.containsNode(one, true))) continue;
      one.textContent = text;
    }
  };
  const hear = (now) => {
    const told = now * 1000 - Date.now();
    if (now && Math.abs(told - aheadMs) > FAR_MS) aheadMs = told;
  };
  const go = () => document.hidden || write(main);
  setInterval(go, EVERY_MS);
  document.addEventListener("visibilitychange", go);
  return { write, hear, words };
})();
