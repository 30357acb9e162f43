// The charts of one job's metrics, or of several jobs' with a line for each. A chart is drawn when it comes into view and
// dropped when it is far away, so that a thousand names cost no more than a screenful. The band goes from the least to the
// greatest of the thinned points. The server makes each line from its own job alone.
"use strict";
(() => {
  const root = document.getElementById("charts");
  const form = document.getElementById("look");
  const whole = document.getElementById("whole");
  if (!root || !window.uPlot) return;
  const EVERY_MS = 5000;
  const DASHES = [undefined, [6, 3], [2, 3], [10, 3, 2, 3]];
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
    log: form.elements.log.checked,
  });

  // The points of a series as lines: one for each attempt where steps count from its start.
  const lines = (one, x) => {
    const attempt = one.at.map((at) => Math.max(0, one.starts.findLastIndex((start) => start <= at)));
    const parts = x === "relative" ? [...new Set(attempt)] : [null];
    return parts.map((part) => {
      const first = one.steps[attempt.indexOf(part ?? 0)] ?? 0;
      const across = {
        step: (place) => one.steps[place],
        relative: (place) => one.steps[place] - first,
        time: (place) => one.at[place],
        since: (place) => (one.at[place] - one.starts[0]) / 3600,
        epoch: (place) => one.epochs[place] ?? NaN,
      }[x];
      const places = one.steps.map((_, place) => place).filter((place) => part === null || attempt[place] === part);
      const shown = places.filter((place) => Number.isFinite(across(place))).sort((a, b) => across(a) - across(b));
      return {
        look: one,
        label: part === null || one.starts.length < 2 ? one.label : `${one.label}, attempt ${part + 1}`,
        xs: shown.map(across),
        steps: shown.map((place) => one.steps[place]),
        values: shown.map((place) => one.values[place]),
        low: shown.map((place) => (one.low.length ? one.low[place] : one.values[place])),
        high: shown.map((place) => (one.high.length ? one.high[place] : one.values[place])),
      };
    });
  };

  // Where the attempts of a series began, after the first one.
  const restarts = (one, x) => {
    if (x === "relative") return [];
    return one.starts.slice(1).flatMap((start) => {
      if (x === "time") return [start];
      if (x === "since") return [(start - one.starts[0]) / 3600];
      const place = one.at.findIndex((at) => at >= start);
      const at = place < 0 ? NaN : x === "epoch" ? one.epochs[place] : one.steps[place];
      return Number.isFinite(at ?? NaN) ? [at] : [];
    });
  };
  const marks = (told, x) => {
    const several = !form.elements.ranks;
    const found = told.series.flatMap((one) => restarts(one, x).map((at) => [at, several ? `--series-${one.colour}` : "--violet"]));
    return [...new Map(found.map((one) => [one.join(), one])).values()];
  };

  const plot = (figure, told) => {
    const look = settings();
    const found = told.series.flatMap((one) => lines(one, look.x)).filter((one) => one.xs.length);
    const place = figure.querySelector(".plot");
    drop(figure);
    if (!found.length) {
      place.textContent = look.x === "epoch" ? "The job reports no metric named epoch." : "No points here.";
      return;
    }
    const shown = (values) => values.map((one) => (!numbers(one ?? null) || (look.log && one <= 0) ? null : one));
    const data = uPlot.join(found.map((one) => [one.xs, shown(one.values), shown(one.low), shown(one.high)]));
    const series = [{ label: look.x === "time" ? "time" : look.x === "since" ? "hours" : look.x === "epoch" ? "epoch" : "step" }];
    const bands = [];
    found.forEach((one, number) => {
      const colour = paint(`--series-${one.look.colour}`);
      const at = 1 + 3 * number;
      series.push({ label: one.label, stroke: colour, width: 1.5, dash: DASHES[one.look.dash] });
      for (const bound of ["least", "greatest"]) {
        series.push({ label: bound, class: "bound", width: 0, stroke: "transparent", points: { show: false } });
      }
      bands.push({ series: [at + 2, at + 1], fill: `${colour}40` });
    });
    const vertical = marks(told, look.x);
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
              chart.ctx.setLineDash([3, 3]);
              for (const [at, colour] of vertical) {
                chart.ctx.strokeStyle = paint(colour);
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
              if (look.x === "step") {
                const [first, last] = [Math.max(0, Math.ceil(low)), Math.floor(high)];
                if (first <= last) zoomed(first, last);
                return;
              }
              if (!form.elements.ranks) return chart.setScale("x", { min: low, max: high }); // jobs differ in their steps
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
    place.setAttribute("role", "group"); // and no picture: its legend can be reached
    place.querySelector(".u-legend").tabIndex = 0; // it scrolls where it is long
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
    for (const name of ["x", "ranks"]) if (form.elements[name]?.value) query.set(name, form.elements[name].value);
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
    for (const name of ["q", "best", "x", "ranks", "log", "first", "last"]) {
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
    form.elements[name]?.addEventListener("change", () => {
      write();
      all();
    });
  }
  whole.addEventListener("click", () => zoomed(null));

  // A chart as a picture: its name, the lines' names in their colours, and the drawing.
  const save = (figure) => {
    const chart = drawn.get(figure);
    if (!chart) return;
    const source = chart.ctx.canvas;
    const names = chart.series.filter((one, number) => number && one.class !== "bound");
    const size = Math.round((12 * source.width) / chart.width);
    const canvas = document.createElement("canvas");
    canvas.width = source.width;
    canvas.height = source.height + 2 * size * (names.length + 1);
    const pen = canvas.getContext("2d");
    pen.fillStyle = paint("--ground");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.font = `${size}px system-ui, sans-serif`;
    pen.fillStyle = paint("--text");
    pen.fillText(figure.dataset.name, size, 1.5 * size, canvas.width - 2 * size);
    pen.drawImage(source, 0, 2 * size);
    names.forEach((one, number) => {
      pen.fillStyle = typeof one.stroke === "function" ? one.stroke(chart, 1) : one.stroke;
      pen.fillText(one.label, size, source.height + 2 * size * (number + 1) + 1.5 * size, canvas.width - 2 * size);
    });
    canvas.toBlob((picture) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(picture);
      link.download = `${figure.dataset.name.replaceAll(/[^\w.-]+/g, "-")}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
  };
  for (const figure of figures) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.textContent = "PNG";
    button.setAttribute("aria-label", `PNG of ${figure.dataset.name}`);
    button.addEventListener("click", () => save(figure));
    figure.append(" ", button);
  }
  addEventListener("resize", () => {
    for (const [figure, chart] of drawn) chart.setSize({ width: figure.clientWidth, height: HEIGHT });
  });
  setInterval(() => {
    if (live && !zoom && !document.hidden && !root.querySelector(".plot:hover")) all();
  }, EVERY_MS);
  whole.hidden = !zoom;
})();
