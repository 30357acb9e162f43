"""Charts of simulations, as PNG: completed jobs over time, utilisation of the cluster, and the holder of each device.

matplotlib is imported when the first chart is drawn: without it, everything else works.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from oarlock.simulator.outcomes import outcome
from oarlock.spec import errors, phases
from oarlock.spec.hints import extras

DPI = 110
MOST_ROWS = 512
"""Devices in a Gantt chart; of a larger cluster the first ones are drawn."""

_COLOURS = 20  # of matplotlib's tab20, given to jobs in the order of their arrival


def check() -> None:
    """Check that charts can be drawn, before a long simulation. Raises Unavailable."""
    _figure(1.0, 1.0)


def completion(results: Sequence[outcome.Outcome]) -> bytes:
    """Return a chart with a line for each run: the share of jobs that completed within a time."""
    figure, axes = _figure(7.0, 4.2)
    for found in results:
        done = sorted(
            story.ended - story.arrived
            for story in found.stories
            if story.ended is not None and story.phase == phases.Phase.COMPLETED
        )
        shares = [(place + 1) / len(found.stories) for place in range(len(done))]
        axes.step([_hours(one) for one in done], shares, where="post", label=found.run)
    axes.set_xscale("log")
    axes.set_xlabel("completion time, hours")
    axes.set_ylabel("share of jobs")
    axes.set_ylim(0, 1.02)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right")
    return _png(figure)


def utilisation(results: Sequence[outcome.Outcome]) -> bytes:
    """Return a chart with a strip for each run.

    A strip has the devices held over time (line), and the devices doing useful work (filled).
    """
    figure, strips = _figure(9.0, 0.6 + 1.7 * len(results), rows=len(results))
    over = max((found.over for found in results), default=0.0)
    for axes, found in zip(strips, results, strict=True):
        held = steps((span.start, span.end, span.devices) for span in found.spans)
        useful = steps((*span.useful, span.devices) for span in found.spans)
        axes.fill_between(
            [_hours(at) for at, _ in useful], [count for _, count in useful], step="post", alpha=0.45, label="useful"
        )
        axes.step([_hours(at) for at, _ in held], [count for _, count in held], where="post", lw=0.8, label="held")
        axes.axhline(found.devices, color="black", lw=0.6, ls=":")
        axes.set_ylabel("devices")
        axes.set_xlim(0, _hours(over) or 1)
        axes.set_ylim(0, found.devices * 1.08 or 1)
        axes.set_title(found.run, loc="left", fontsize=9)
    strips[0].legend(loc="upper right", fontsize=8)
    strips[-1].set_xlabel("hours")
    return _png(figure)


def gantt(found: outcome.Outcome) -> bytes:
    """Return a chart with a row for each device and a colour for each job. Pale parts did no useful work."""
    rows = _rows(found.spans)
    figure, axes = _figure(10.0, min(14.0, 1.2 + 0.11 * max(8, len(rows))))
    colours = {story.job: place % _COLOURS for place, story in enumerate(found.stories)}
    table = _colour_table()
    for row, spans in enumerate(rows.values()):
        painted = [table[colours.get(span.job, 0)] for span in spans]
        held, useful = [_bar(span.start, span.end) for span in spans], [_bar(*span.useful) for span in spans]
        axes.broken_barh(held, (row, 0.94), facecolors=painted, alpha=0.3, linewidth=0)
        axes.broken_barh(useful, (row, 0.94), facecolors=painted, linewidth=0)
    nodes: dict[str, int] = {}
    for row, (node, _) in enumerate(rows):
        nodes.setdefault(node, row)
    step = max(1, len(nodes) // 32)
    axes.set_yticks(list(nodes.values())[::step], list(nodes)[::step], fontsize=7)
    axes.set_xlim(0, _hours(found.over) or 1)
    axes.set_ylim(0, max(1, len(rows)))
    axes.set_xlabel("hours")
    axes.set_title(found.run, loc="left", fontsize=9)
    return _png(figure)


def steps(stays: Iterable[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Return the sum of the amounts at each time at which it changes, from 0 on. `stays` has (start, end, amount)."""
    changes: dict[float, float] = {0.0: 0.0}
    for start, end, amount in stays:
        if end > start:
            changes[start] = changes.get(start, 0) + amount
            changes[end] = changes.get(end, 0) - amount
    found, count = [], 0.0
    for at in sorted(changes):
        count += changes[at]
        found.append((at, count))
    return found


def _rows(spans: Iterable[outcome.Span]) -> dict[tuple[str, int], list[outcome.Span]]:
    """Return the spans by node and device, for the first `MOST_ROWS`."""
    by_device: dict[tuple[str, int], list[outcome.Span]] = {}
    for span in spans:
        for node, indexes in span.held:
            for index in indexes:
                by_device.setdefault((node, index), []).append(span)
    return {key: by_device[key] for key in sorted(by_device)[:MOST_ROWS]}


def _figure(width: float, height: float, rows: int = 0) -> tuple[Any, Any]:
    """Return a figure and its axes (a list of `rows` of them, if given). Raises Unavailable without matplotlib."""
    try:
        from matplotlib.backends import backend_agg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise errors.Unavailable(
            "charts need matplotlib, which is not installed",
            hint=f"{extras.command('simulate')}\nOr leave out --out for the table alone.",
        ) from error
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    if rows:
        return figure, [axes for (axes,) in figure.subplots(rows, 1, sharex=True, squeeze=False)]
    return figure, figure.subplots()


def _colour_table() -> list[Any]:
    from matplotlib import colormaps

    table = colormaps["tab20"]
    return [table(place) for place in range(_COLOURS)]


def _png(figure: Any) -> bytes:
    """Return the file without a date or a version: the same chart is the same file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _hours(value_s: float) -> float:
    return value_s / 3600


def _bar(start: float, end: float) -> tuple[float, float]:
    return _hours(start), _hours(end - start)
