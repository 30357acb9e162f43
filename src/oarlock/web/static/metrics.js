// The charts of one job's metrics, or of several jobs' with a line for each: which of them are drawn, when, and with what
// look, which stands in the address. A chart is drawn when it comes into view and dropped when it is far away, so that a
// thousand names cost no more than a screenful. The page refreshes itself (`live.js`), and the charts with it; the server
// makes each line from its own job alone.
"use strict";
(() => {
  const main = document.getElementById("content");
  if (!window.uPlot) return;
  const FIELDS = ["x", "ranks", "smooth", "log", "best"];
  const WHOLLY = ["q", "ranks", "smooth", "best"]; // fields that change more of the page than its charts
  const drawn = new Map();
  const near = new Set();
  const asked = new Map();
  const failed = new Set();
  const root = () => document.getElementById("charts");
  const form = () => document.getElementById("look");
  const parameters = new URL(location.href).searchParams;
  const pair = (first, last) => (parameters.get(first) && parameters.get(last) ? [parameters.get(first), parameters.get(last)] : null);
  let zoom = pair("first", "last"); // steps
  let part = pair("from", "to")?.map(Number) ?? null; // of another axis than that of the steps
  let live = false;

  const drop = (figure) => {
    drawn.get(figure)?.destroy();
    drawn.delete(figure);
    figure.querySelector(".plot").textContent = "";
  };

  const plot = (figure, told) => {
    const { x, log, ranks } = form().elements;
    const place = figure.querySelector(".plot");
    drop(figure);
    const look = { x: x.value, log: log.checked, part: x.value === "step" ? null : part };
    const chart = oarlockPlot.plot(place, figure.dataset.name, told, look, !ranks, (low, high, steps) => {
      const ends = x.value === "step" ? [Math.max(0, Math.ceil(low)), Math.floor(high)] : steps.length && [Math.min(...steps), Math.max(...steps)];
      if (ends && ends[0] <= ends[1]) zoomed(ends, x.value === "step" ? null : [low, high]);
    });
    if (chart) drawn.set(figure, chart);
    const note = figure.querySelector(".left-out") ?? figure.appendChild(Object.assign(document.createElement("span"), { className: "quiet left-out" }));
    const { left_out } = told;
    note.textContent = left_out ? ` ${left_out} ${left_out > 1 ? "ranks have" : "rank has"} no line; mean and range are of all.` : "";
  };

  const draw = async (figure) => {
    const query = new URLSearchParams(figure.dataset.query);
    asked.get(figure)?.abort(); // an old answer would cover a new one
    const control = new AbortController();
    asked.set(figure, control);
    for (const name of ["x", "ranks", "smooth"]) {
      const field = form().elements[name];
      if (field?.value) query.set(name, field.value);
    }
    if (zoom) {
      query.set("first", zoom[0]);
      query.set("last", zoom[1]);
    }
    try {
      const answer = await fetch(`${root().dataset.numbers}?${query}`, {
        headers: { "Oarlock-Fragment": "1" },
        redirect: "error",
        signal: control.signal,
      });
      if (answer.status === 401) throw new TypeError("the session has ended");
      if (!answer.ok) throw new Error(`The server has no numbers for it now: ${answer.status} ${answer.statusText}`);
      const told = await answer.json();
      failed.delete(figure);
      if (near.has(figure)) plot(figure, told);
    } catch (error) {
      if (control.signal.aborted) return;
      failed.add(figure);
      if (error instanceof TypeError) main.dispatchEvent(new Event("stale")); // the page says so, and asks until it has an answer
      else if (!drawn.has(figure)) figure.querySelector(".plot").textContent = error.message;
    }
  };
  const all = () => near.forEach((figure) => draw(figure));

  const write = () => {
    const address = new URL(location.href);
    const [first, last] = zoom ?? ["", ""];
    const [from, to] = part ?? ["", ""];
    const look = { ...Object.fromEntries(new FormData(form())), first, last, from, to };
    for (const name of ["q", ...FIELDS, "first", "last", "from", "to"]) {
      if (look[name] && !(name === "x" && look[name] === "step")) address.searchParams.set(name, look[name]);
      else address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
    document.getElementById("whole").hidden = !zoom;
  };
  const zoomed = (steps, stretch) => {
    zoom = steps;
    part = stretch;
    write();
    all();
  };

  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting && !near.has(entry.target)) {
          near.add(entry.target);
          draw(entry.target);
        } else if (!entry.isIntersecting && near.delete(entry.target)) drop(entry.target);
      }
    },
    { rootMargin: "200px" },
  );

  const button = (figure) => {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", className: "plain", textContent: "PNG" });
    made.setAttribute("aria-label", `PNG of ${figure.dataset.name}`);
    made.addEventListener("click", () => drawn.has(figure) && oarlockPlot.save(drawn.get(figure), figure.dataset.name));
    figure.append(" ", made);
  };

  const filter = () => {
    const text = form().elements.q.value.toLowerCase();
    for (const figure of root().querySelectorAll("figure")) figure.hidden = !figure.dataset.name.toLowerCase().includes(text);
    for (const group of root().querySelectorAll(".group")) group.hidden = !group.querySelector("figure:not([hidden])");
  };

  // What the page has now: charts come with their first point, and go with another filter.
  const take = () => {
    for (const figure of [...near, ...drawn.keys()].filter((one) => !one.isConnected)) {
      watch.unobserve(figure);
      for (const kept of [near, failed, asked]) kept.delete(figure);
      drop(figure);
    }
    if (!root()) return;
    for (const figure of root().querySelectorAll("figure:not([data-watched])")) {
      figure.dataset.watched = "";
      button(figure);
      watch.observe(figure);
    }
    filter();
    document.getElementById("whole").hidden = !zoom;
  };

  main.addEventListener("refreshed", () => {
    const goes = live;
    live = Number(main.dataset.refresh) > 0;
    take();
    const rest = zoom || root()?.querySelector(".plot:hover");
    for (const figure of near) if (failed.has(figure) || ((goes || live) && !rest)) draw(figure);
  });
  main.addEventListener("input", ({ target }) => {
    if (target.form !== form() || target.name !== "q") return;
    filter();
    write();
    main.dispatchEvent(new Event("stale"));
  });
  main.addEventListener("change", ({ target }) => {
    if (target.form !== form() || !FIELDS.includes(target.name)) return;
    if (target.name === "x") part = null;
    write();
    all();
    if (WHOLLY.includes(target.name)) main.dispatchEvent(new Event("stale"));
  });
  main.addEventListener("click", ({ target }) => target.id === "whole" && zoomed(null, null));
  // The colours of a canvas are those with which it was drawn.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  new MutationObserver(all).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  addEventListener("resize", () => {
    for (const [figure, chart] of drawn) oarlockPlot.resize(chart, figure.clientWidth);
  });
  live = Number(main.dataset.refresh) > 0;
  take();
})();
