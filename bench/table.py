"""A figure with its goal, and the table that is made of many. Each row of a saved table has its day and its commit."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
FIGURES, PAGES, GPUS = "figures", "pages", "gpus"
"""The tables of the page, by the comments that enclose them."""
HEADS = ("figure", "measured", "goal", "reached", "details", "day, commit")


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


def now() -> str:
    """Return the day, and the short name of the present commit, with a + where the code has changed since."""
    commit = _git("rev-parse", "--short=8", "HEAD")
    changed = "+" if commit and _git("status", "--porcelain", "--", "src", "bench") else ""
    return f"{time.strftime('%Y-%m-%d')} {commit}{changed}".strip()


def _git(*words: str) -> str:
    """Return what git says; nothing where this is not a clone."""
    command = ["git", "-C", str(PAGE.parents[1]), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def written(rows: Sequence[Row], machine: str, when: str) -> str:
    """Return the table in Markdown."""
    lines = [machine, "", f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    lines += ["| " + " | ".join([*row.cells(), when]) + " |" for row in rows]
    return "\n".join(lines)


def saved(text: str, place: str = FIGURES) -> dict[str, list[str]]:
    """Return the cells of each row of a table of the page, by its figure."""
    _, _, rest = text.partition(f"<!-- {place}: begin -->")
    lines = rest.partition(f"<!-- {place}: end -->")[0].splitlines()
    rows = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines if line.startswith("| ")]
    return {cells[0]: cells for cells in rows if cells[0] != HEADS[0]}


def save(rows: Sequence[Row], machine: str, when: str, place: str = FIGURES) -> None:
    """Put the rows into a table of docs/benchmarks.md, in the place of earlier ones of their benches; others stay."""
    begin, end = f"<!-- {place}: begin -->", f"<!-- {place}: end -->"
    text = PAGE.read_text()
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    measured = {row.what for row in rows}
    kept = [f"| {' | '.join(cells)} |" for what, cells in saved(text, place).items() if what not in measured]
    table = "\n".join([written(rows, machine, when), *kept])
    for row in rows:
        if row.picture:
            from bench import plots  # matplotlib is needed for this alone

            path = PAGE.parent / row.picture
            if row.curves:
                plots.curves(row.curves, *row.axes, path)
            else:
                plots.growth(row.points, "nodes, and as many gangs that wait", "ms a round, median", path)
    PAGE.write_text(f"{head}{begin}\n{table}\n{end}{tail}")
