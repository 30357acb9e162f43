// One chart: a line for each series with the band from the least to the greatest of its thinned points, or a smoothed line
// over a paler one; marks where attempts began, where their number of workers changed, and where a value is not a number.
"use strict";
const oarlockPlot = (() => {
  const DASHES = [undefined, [6, 3], [2, 3], [10, 3, 2, 3]];
  const HEIGHT = 180;
  const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat(); // no half step
  const WORDS = { step: "step", relative: "step", epoch: "epoch", time: "time", since: "hours" };
  const TICK = 6; // pixels
  const style = getComputedStyle(document.documentElement);
  const paint = (name) => style.getPropertyValue(name).trim();
  const numbers = (value) => value !== null && Number.isFinite(value);
  const counted = (count, word) => (count ? [`${count} ${word}${count > 1 ? "s" : ""}`] : []);

  // Where the points of a series lie on the axis, by their place in it.
  const axis = (one, x) => {
    const attempt = one.at.map((at) => Math.max(0, one.starts.findLastIndex((start) => start <= at)));
    const first = new Map();
    attempt.forEach((part, place) => first.has(part) || first.set(part, one.steps[place]));
    const across = {
      step: (place) => one.steps[place],
      relative: (place) => one.steps[place] - first.get(attempt[place]),
      time: (place) => one.at[place],
      since: (place) => (one.at[place] - one.starts[0]) / 3600,
      epoch: (place) => one.epochs[place] ?? NaN,
    }[x];
    return { attempt, across };
  };

  // The points of a series as lines: one for each attempt where steps count from its start.
  const lines = (one, x) => {
    const { attempt, across } = axis(one, x);
    return (x === "relative" ? [...new Set(attempt)] : [null]).map((part) => {
      const places = one.steps.map((_, place) => place).filter((place) => part === null || attempt[place] === part);
      const shown = places.filter((place) => Number.isFinite(across(place))).sort((a, b) => across(a) - across(b));
      const of = (column) => shown.map((place) => (column.length ? column[place] : one.values[place]));
      return {
        look: one,
        label: part === null || one.starts.length < 2 ? one.label : `${one.label}, attempt ${part + 1}`,
        xs: shown.map(across),
        steps: of(one.steps),
        values: of(one.values),
        low: of(one.low),
        high: of(one.high),
        smooth: one.smooth.length ? of(one.smooth) : null,
      };
    });
  };

  // Marks of a series: at moments, and at the steps without a number.
  const marks = (one, x) => {
    const { across } = axis(one, x);
    const at = (moment) => {
      if (x === "time") return moment;
      if (x === "since") return (moment - one.starts[0]) / 3600;
      const place = one.at.findIndex((told) => told >= moment);
      return place < 0 ? NaN : across(place);
    };
    const step = (told) => {
      if (x === "step") return told;
      const place = one.steps.findIndex((step) => step >= told);
      return place < 0 ? NaN : across(place);
    };
    const known = (kind, several, where) => several.map((told) => ({ kind, at: where(told) })).filter((mark) => Number.isFinite(mark.at));
    const restarts = x === "relative" ? [] : known("restart", one.starts.slice(1), at);
    return [...restarts, ...known("resize", one.resized, at), ...known("gap", one.gaps, step)];
  };

  // Marks that several lines share are drawn once; those of several jobs have the colours of their lines.
  const gathered = (series, x, several) => {
    const found = series.flatMap((one) =>
      marks(one, x).map((mark) => ({ ...mark, colour: several || mark.kind === "gap" ? `--series-${one.colour}` : "--violet" })),
    );
    return [...new Map(found.map((one) => [`${one.kind} ${one.at} ${one.colour}`, one])).values()];
  };

  const mark = (chart, { kind, at, colour }) => {
    const { left, top, width, height } = chart.bbox;
    const x = chart.valToPos(at, "x", true);
    if (x < left || x > left + width) return;
    const pen = chart.ctx;
    pen.strokeStyle = paint(colour);
    pen.lineWidth = kind === "gap" ? 2 * devicePixelRatio : devicePixelRatio;
    pen.setLineDash({ restart: [6, 3], resize: [1, 3], gap: [] }[kind].map((one) => one * devicePixelRatio));
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, kind === "gap" ? top + TICK * devicePixelRatio : top + height);
    pen.stroke();
  };

  // Draws the told series at a place, and returns the chart; null where there is nothing to draw. `look` has the axis, the
  // scale and the part of the axis that is shown; `selected` is called with a part of the axis and its first and last step.
  const plot = (place, name, told, look, several, selected) => {
    const found = told.series.flatMap((one) => lines(one, look.x)).filter((one) => one.xs.length);
    if (!found.length) {
      place.textContent = look.x === "epoch" ? "The job reports no metric named epoch." : "No points here.";
      return null;
    }
    const shown = (values) => values.map((one) => (!numbers(one ?? null) || (look.log && one <= 0) ? null : one));
    const columns = (one) => [one.values, one.low, one.high, ...(one.smooth ? [one.smooth] : [])];
    const data = uPlot.join(found.map((one) => [one.xs, ...columns(one).map(shown)]));
    const series = [{ label: WORDS[look.x] }];
    const bands = [];
    for (const one of found) {
      const colour = paint(`--series-${one.look.colour}`);
      const line = { stroke: colour, width: 1.5, dash: DASHES[one.look.dash] };
      bands.push({ series: [series.length + 2, series.length + 1], fill: `${colour}40` });
      series.push({ label: one.label, ...line, ...(one.smooth && { stroke: `${colour}60`, width: 1 }) });
      for (const bound of ["least", "greatest"]) {
        series.push({ label: bound, class: "bound", width: 0, stroke: "transparent", points: { show: false } });
      }
      if (one.smooth) series.push({ label: `${one.label}, smoothed`, ...line, points: { show: false } });
    }
    const marked = gathered(told.series, look.x, several);
    const part = look.part ? { range: () => look.part } : {};
    const scale = { stroke: paint("--quiet"), grid: { stroke: paint("--line"), width: 0.5 }, ticks: { show: false } };
    const chart = new uPlot(
      {
        width: place.clientWidth || 400,
        height: HEIGHT,
        series,
        bands,
        scales: { x: { time: look.x === "time", ...part }, y: { distr: look.log ? 3 : 1 } },
        axes: [WORDS[look.x] === "step" ? { ...scale, incrs: WHOLE } : scale, { ...scale, size: 60 }],
        cursor: { sync: { key: "metrics" }, drag: { x: true, y: false, setScale: false } },
        hooks: {
          draw: [
            (drawn) => {
              drawn.ctx.save();
              for (const one of marked) mark(drawn, one);
              drawn.ctx.restore();
            },
          ],
          setSelect: [
            ({ select, posToVal }) => {
              if (select.width < 4) return;
              const [low, high] = [posToVal(select.left, "x"), posToVal(select.left + select.width, "x")];
              const steps = found.flatMap((one) => one.steps.filter((_, at) => one.xs[at] >= low && one.xs[at] <= high));
              selected(low, high, steps);
            },
          ],
        },
      },
      data,
      place,
    );
    const kinds = (kind) => marked.filter((one) => one.kind === kind).length;
    const said = [
      `${name}: ${told.series.reduce((sum, one) => sum + one.count, 0)} points`,
      ...counted(kinds("restart"), "restart"),
      ...counted(kinds("resize"), "change").map((text) => `${text} of the number of workers`),
      ...counted(kinds("gap"), "step").map((text) => `${text} without a number`),
      ...counted(told.left_out, "rank").map((text) => `${text} left out`),
    ];
    place.setAttribute("role", "group"); // and no picture: its legend can be reached
    place.querySelector(".u-legend").tabIndex = 0; // it scrolls where it is long
    place.setAttribute("aria-label", said.join(", "));
    return chart;
  };

  // A chart as a picture: its name, the lines' names in their colours, and the drawing.
  const save = (chart, name) => {
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
    pen.fillText(name, size, 1.5 * size, canvas.width - 2 * size);
    pen.drawImage(source, 0, 2 * size);
    names.forEach((one, number) => {
      pen.fillStyle = typeof one.stroke === "function" ? one.stroke(chart, 1) : one.stroke;
      pen.fillText(one.label, size, source.height + 2 * size * (number + 1) + 1.5 * size, canvas.width - 2 * size);
    });
    canvas.toBlob((picture) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(picture);
      link.download = `${name.replaceAll(/[^\w.-]+/g, "-")}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
  };

  const resize = (chart, width) => chart.setSize({ width, height: HEIGHT });
  return { plot, save, resize };
})();
