"""Pictures beside docs/benchmarks.md: a value at each size with its allowed growth, several curves, and bars."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.backends import backend_agg
from matplotlib.figure import Figure

BEHIND = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
"""The box behind the words at a bar."""


def growth(points: tuple[tuple[float, float], ...], of: str, unit: str, path: Path) -> None:
    """Draw `points`, sizes and values, and n log n from the first of them. Both axes are logarithmic."""
    figure, axes = _empty()
    sizes = [size for size, _ in points]
    first = points[0][1] / (sizes[0] * math.log(sizes[0]))
    axes.plot(sizes, [value for _, value in points], marker="o", label="measured")
    axes.plot(sizes, [first * size * math.log(size) for size in sizes], linestyle="--", label="n log n")
    axes.set(xscale="log", yscale="log", xlabel=of, ylabel=unit)
    axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, alpha=0.3)
    _write(figure, axes, path)


def curves(named: Mapping[str, tuple[tuple[float, float], ...]], of: str, unit: str, path: Path) -> None:
    """Draw each curve of points (x, y)."""
    figure, axes = _empty()
    for name, points in named.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    axes.set(xlabel=of, ylabel=unit)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    _write(figure, axes, path)


@dataclass(frozen=True)
class Panel:
    """One of the panels of a picture: bars by their names, and `words` for their values. `marks` are lines across.
    `intervals` are those of the values, low and high, by the names.
    """

    words: str
    bars: Mapping[str, float]
    marks: Sequence[float] = ()
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def bars(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels beside each other."""
    rows = max(len(panel.bars) for panel in panels)
    figure = Figure(figsize=(1.6 + 3.4 * len(panels), 0.9 + 0.3 * rows), dpi=100, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        _draw(panel, axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})


def _draw(panel: Panel, axes: Any) -> None:
    names, values = list(panel.bars), list(panel.bars.values())
    around = [panel.intervals.get(name, (value, value)) for name, value in panel.bars.items()]
    errors = [
        [max(0.0, value - low) for value, (low, _) in zip(values, around, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, around, strict=True)],
    ]
    drawn = axes.barh(names, values, height=0.6, xerr=errors if panel.intervals else None, ecolor="0.3", zorder=2)
    if panel.intervals:
        words = [f"{value:+.2f}" for value in values]
    else:
        words = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
    for bar, word, (low, high) in zip(drawn, words, around, strict=True):
        left = bar.get_width() < 0
        place = min(low, bar.get_width()) if left else max(high, bar.get_width())
        shift, side = (-4, "right") if left else (4, "left")
        axes.annotate(
            word, (place, bar.get_y() + bar.get_height() / 2), (shift, 0), textcoords="offset points", ha=side,
            va="center", fontsize="small", bbox=BEHIND,
        )  # fmt: skip
    for mark in panel.marks:
        axes.axvline(mark, color="0.4", linestyle="--", linewidth=1, zorder=1)
    axes.invert_yaxis()
    axes.set(xlabel=textwrap.fill(panel.words, 46))
    axes.margins(x=0.28)
    axes.tick_params(labelsize="small")
    axes.xaxis.label.set_size("small")
    axes.grid(visible=True, axis="x", alpha=0.3)


def _empty() -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _write(figure: Figure, axes: Any, path: Path) -> None:
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
