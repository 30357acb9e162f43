"""A figure with its goal, and the table that is made of many."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
FIGURES, PAGES, GPUS = "figures", "pages", "gpus"
"""The tables of the page, by the comments that enclose them."""


@dataclass(frozen=True)
class Row:
    """`value` and `reach` in `unit`; at most `reach`, or at least where `at_least`. `detail` says how it was taken.

    When the table is saved, `points` (sizes, and the value measured at each) or `curves` (such points by name) are
    drawn into `picture`, a file of docs/. `axes` are the words at the axes of curves.
    """

    bench: str
    what: str
    value: float
    unit: str
    reach: float | None = None
    at_least: bool = False
    detail: str = ""
    points: tuple[tuple[float, float], ...] = ()
    picture: str = ""
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    axes: tuple[str, str] = ("", "")

    @property
    def reached(self) -> bool | None:
        if self.reach is None:
            return None
        return self.value >= self.reach if self.at_least else self.value <= self.reach

    def cells(self) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        reach = "" if self.reach is None else f"{sign} {_number(self.reach)} {self.unit}".strip()
        verdict = {True: "yes", False: "**no**", None: ""}[self.reached]
        return [self.what, f"{_number(self.value)} {self.unit}".strip(), reach, verdict, self.detail]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], unit: str = "s") -> str:
    """Return `n=5, 1.2 to 1.9 s`: how far apart the runs were."""
    return f"n={len(values)}, {min(values):.3g} to {max(values):.3g} {unit}".rstrip()


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def written(rows: Sequence[Row], machine: str) -> str:
    """Return the table in Markdown."""
    lines = [machine, "", "| figure | measured | goal | reached | details |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def save(rows: Sequence[Row], machine: str, place: str = FIGURES) -> None:
    """Put the rows into a table of docs/benchmarks.md, in the place of earlier ones of their benches; others stay."""
    begin, end = f"<!-- {place}: begin -->", f"<!-- {place}: end -->"
    text = PAGE.read_text()
    head, _, rest = text.partition(begin)
    old, _, tail = rest.partition(end)
    measured = {row.what for row in rows}
    kept = [
        line
        for line in old.splitlines()
        if line.startswith("| ") and not line.startswith("| figure |") and line.split(" | ")[0][2:] not in measured
    ]
    table = written(rows, machine) + ("\n" + "\n".join(kept) if kept else "")
    for row in rows:
        if row.picture:
            from bench import plots  # matplotlib is needed for this alone

            path = PAGE.parent / row.picture
            if row.curves:
                plots.curves(row.curves, *row.axes, path)
            else:
                plots.growth(row.points, "nodes, and as many gangs that wait", "ms a round, median", path)
    PAGE.write_text(f"{head}{begin}\n{table}\n{end}{tail}")
