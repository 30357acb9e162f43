// The charts of a job's metrics. A chart is drawn when it comes into view and dropped when it is far away, so that a
// thousand names cost no more than a screenful. The band goes from the least to the greatest of the thinned points.
"use strict";
(() => {
  const root = document.getElementById("charts");
  const form = document.getElementById("look");
  const whole = document.getElementById("whole");
  if (!root || !window.uPlot) return;
  const EVERY_MS = 5000;
  const MANY = 8; // with more series than that, their mean and range are drawn
  const HEIGHT = 180;
  const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat(); // no half step
  const drawn = new Map();
  const near = new Set();
  const asked = new Map();
  const style = getComputedStyle(document.documentElement);
  const paint = (name) => style.getPropertyValue(name).trim();
  const numbers = (value) => value !== null && Number.isFinite(value);
  let zoom = root.dataset.first ? [root.dataset.first, root.dataset.last] : null;
  let live = true;

  const settings = () => ({
    x: form.elements.x.value,
    range: form.elements.ranks.value === "range",
    log: form.elements.log.checked,
  });

  // The points of a series as lines: one for each attempt where steps or times count from its start.
  const lines = (one, starts, x) => {
    const attempt = one.at.map((at) => Math.max(0, starts.findLastIndex((start) => start <= at)));
    const parts = x === "relative" ? [...new Set(attempt)] : [null];
    return parts.map((part) => {
      const places = one.steps.map((_, place) => place).filter((place) => part === null || attempt[place] === part);
      const first = places.length ? one.steps[places[0]] : 0;
      const across = {
        step: (place) => one.steps[place],
        relative: (place) => one.steps[place] - first,
        time: (place) => one.at[place],
        since: (place) => (one.at[place] - starts[0]) / 3600,
      }[x];
      places.sort((a, b) => across(a) - across(b));
      return {
        label: part === null || starts.length < 2 ? one.label : `${one.label}, attempt ${part + 1}`,
        xs: places.map(across),
        steps: places.map((place) => one.steps[place]),
        values: places.map((place) => one.values[place]),
        low: places.map((place) => (one.low.length ? one.low[place] : one.values[place])),
        high: places.map((place) => (one.high.length ? one.high[place] : one.values[place])),
      };
    });
  };

  const together = (found) => {
    const joined = uPlot.join(found.map((one) => [one.xs, one.values, one.low, one.high]));
    const over = (offset, fold) =>
      joined[0].map((_, place) => {
        const values = found.map((_, line) => joined[1 + 3 * line + offset][place]).filter((one) => numbers(one ?? null));
        return values.length ? fold(values) : null;
      });
    const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
    return {
      label: `mean of ${found.length}`,
      xs: joined[0],
      steps: found.flatMap((one) => one.steps),
      values: over(0, mean),
      low: over(1, (values) => Math.min(...values)),
      high: over(2, (values) => Math.max(...values)),
    };
  };

  const marks = (found, told, x) => {
    if (x === "relative") return [];
    return told.starts.slice(1).flatMap((start) => {
      if (x === "time") return [start];
      if (x === "since") return [(start - told.starts[0]) / 3600];
      const steps = told.series.flatMap((one) => one.steps.filter((_, place) => one.at[place] >= start).slice(0, 1));
      return steps.length ? [Math.min(...steps)] : [];
    });
  };

  const plot = (figure, told) => {
    const look = settings();
    let found = told.series.flatMap((one) => lines(one, told.starts, look.x)).filter((one) => one.xs.length);
    const place = figure.querySelector(".plot");
    drop(figure);
    if (!found.length) {
      place.textContent = "No points here.";
      return;
    }
    if (found.length > 1 && (look.range || found.length > MANY)) found = [together(found)];
    const shown = (values) => values.map((one) => (!numbers(one ?? null) || (look.log && one <= 0) ? null : one));
    const data = uPlot.join(found.map((one) => [one.xs, shown(one.values), shown(one.low), shown(one.high)]));
    const series = [{ label: look.x === "time" ? "time" : look.x === "since" ? "hours" : "step" }];
    const bands = [];
    found.forEach((one, number) => {
      const colour = paint(`--series-${number % 8}`);
      const at = 1 + 3 * number;
      series.push({ label: one.label, stroke: colour, width: 1.5, dash: number >= 8 ? [4, 2] : undefined });
      for (const bound of ["least", "greatest"]) {
        series.push({ label: bound, class: "bound", width: 0, stroke: "transparent", points: { show: false } });
      }
      bands.push({ series: [at + 2, at + 1], fill: `${colour}40` });
    });
    const vertical = marks(found, told, look.x);
    const axis = { stroke: paint("--quiet"), grid: { stroke: paint("--line"), width: 0.5 }, ticks: { show: false } };
    const made = new uPlot(
      {
        width: place.clientWidth || 400,
        height: HEIGHT,
        series,
        bands,
        scales: { x: { time: look.x === "time" }, y: { distr: look.log ? 3 : 1 } },
        axes: [/step|relative/.test(look.x) ? { ...axis, incrs: WHOLE } : axis, { ...axis, size: 60 }],
        cursor: { sync: { key: "metrics" }, drag: { x: true, y: false, setScale: false } },
        hooks: {
          draw: [
            (chart) => {
              chart.ctx.save();
              chart.ctx.strokeStyle = paint("--violet");
              chart.ctx.setLineDash([3, 3]);
              for (const at of vertical) {
                const x = chart.valToPos(at, "x", true);
                if (x < chart.bbox.left || x > chart.bbox.left + chart.bbox.width) continue;
                chart.ctx.beginPath();
                chart.ctx.moveTo(x, chart.bbox.top);
                chart.ctx.lineTo(x, chart.bbox.top + chart.bbox.height);
                chart.ctx.stroke();
              }
              chart.ctx.restore();
            },
          ],
          setSelect: [
            (chart) => {
              const { left, width } = chart.select;
              if (width < 4) return;
              const [low, high] = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
              const steps = found.flatMap((one) => one.steps.filter((_, at) => one.xs[at] >= low && one.xs[at] <= high));
              if (!steps.length) return;
              zoomed(steps.reduce((a, b) => Math.min(a, b)), steps.reduce((a, b) => Math.max(a, b)));
            },
          ],
        },
      },
      data,
      place,
    );
    drawn.set(figure, made);
    const count = told.series.reduce((sum, one) => sum + one.count, 0);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${figure.dataset.name}: ${count} points, marks: ${vertical.length}`);
  };

  const drop = (figure) => {
    drawn.get(figure)?.destroy();
    drawn.delete(figure);
    figure.querySelector(".plot").textContent = "";
  };

  const draw = async (figure) => {
    const query = new URLSearchParams(figure.dataset.query);
    asked.get(figure)?.abort(); // an old answer would cover a new one
    const control = new AbortController();
    asked.set(figure, control);
    if (zoom) {
      query.set("first", zoom[0]);
      query.set("last", zoom[1]);
    }
    try {
      const answer = await fetch(`${root.dataset.numbers}?${query}`, {
        headers: { "Oarlock-Fragment": "1" },
        redirect: "error",
        signal: control.signal,
      });
      if (!answer.ok) throw new Error(answer.statusText);
      const told = await answer.json();
      live = told.live;
      if (near.has(figure)) plot(figure, told);
    } catch {
      if (control.signal.aborted) return;
      figure.querySelector(".plot").title = "The server does not answer.";
    }
  };
  const all = () => near.forEach((figure) => draw(figure));

  const write = () => {
    const address = new URL(location.href);
    const look = { ...Object.fromEntries(new FormData(form)), first: zoom?.[0] ?? "", last: zoom?.[1] ?? "" };
    for (const name of ["q", "x", "ranks", "log", "first", "last"]) {
      if (look[name] && !(name === "x" && look[name] === "step")) address.searchParams.set(name, look[name]);
      else address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
    whole.hidden = !zoom;
  };
  const zoomed = (first, last) => {
    zoom = first === null ? null : [first, last];
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
  const figures = [...root.querySelectorAll("figure")];
  for (const figure of figures) watch.observe(figure);

  form.elements.q.addEventListener("input", () => {
    const text = form.elements.q.value.toLowerCase();
    for (const figure of figures) figure.hidden = !figure.dataset.name.toLowerCase().includes(text);
    for (const group of root.querySelectorAll(".group")) group.hidden = !group.querySelector("figure:not([hidden])");
    write();
  });
  for (const name of ["x", "ranks", "log"]) {
    form.elements[name].addEventListener("change", () => {
      write();
      all();
    });
  }
  whole.addEventListener("click", () => zoomed(null));
  addEventListener("resize", () => {
    for (const [figure, chart] of drawn) chart.setSize({ width: figure.clientWidth, height: HEIGHT });
  });
  setInterval(() => {
    if (live && !zoom && !document.hidden && !root.querySelector(".plot:hover")) all();
  }, EVERY_MS);
  whole.hidden = !zoom;
})();
