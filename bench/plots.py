"""A curve as a picture beside docs/benchmarks.md: the measured value at each size, and the allowed growth."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.backends import backend_agg
from matplotlib.figure import Figure


def growth(points: tuple[tuple[float, float], ...], of: str, unit: str, path: Path) -> None:
    """Draw `points`, sizes and values, and n log n from the first of them. Both axes are logarithmic."""
    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = [size for size, _ in points]
    first = points[0][1] / (sizes[0] * math.log(sizes[0]))
    axes.plot(sizes, [value for _, value in points], marker="o", label="measured")
    axes.plot(sizes, [first * size * math.log(size) for size in sizes], linestyle="--", label="n log n")
    axes.set(xscale="log", yscale="log", xlabel=of, ylabel=unit)
    axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
