"""Pictures beside docs/benchmarks.md: a value at each size with its allowed growth, and several curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends import backend_agg
from matplotlib.figure import Figure


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


def _empty() -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _write(figure: Figure, axes: Any, path: Path) -> None:
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
