"""Charts as SVG: lines, each with the band from the least to the greatest of its thinned points: no spike is lost.

Coordinates are numbers in attributes, which the content policy allows; colours are classes of the style sheet. Pure.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import msgspec

from oarlock.client import answers
from oarlock.display import amounts
from oarlock.web.drawing import curves

WIDTH, HEIGHT = 320, 120
NARROW = 2.0
"""The width of the band of a single point."""


class Line(msgspec.Struct, frozen=True):
    """A series. `paths` are polylines, broken where a value is not finite; `band` is a polygon, or empty.

    `smooth` are the polylines of the smoothed line, where one was asked for; `gaps` are the places of the steps with
    a value that is not finite.
    """

    label: str
    paths: tuple[str, ...]
    band: str
    colour: int
    dash: int
    last: str
    smooth: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """A place at which an attempt began (`restart`), or got another number of workers (`resize`).

    `colour` is a class of the style sheet.
    """

    kind: str
    x: str
    colour: str


class Chart(msgspec.Struct, frozen=True):
    """A metric of all its tasks on one pair of scales."""

    name: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    low: str
    high: str
    first: str
    last: str
    points: int

    def marked(self, kind: str) -> int:
        """Return how many marks of a kind there are."""
        return sum(one.kind == kind for one in self.marks)


class Scale(msgspec.Struct, frozen=True):
    least: float
    greatest: float
    length: float

    def at(self, value: float) -> float:
        span = self.greatest - self.least
        return (value - self.least) / span * self.length if span > 0 else self.length / 2


def charts(found: answers.Metrics, starts: Sequence[float] = (), resized: Sequence[float] = ()) -> list[Chart]:
    """Return a chart for each name, in the order of the names: of a line for each rank, or of one for many of them.

    `starts` and `resized` are the times that are marked.
    """
    by_name: dict[str, list[answers.Series]] = {}
    for one in found.series:
        by_name.setdefault(one.name, []).append(one)
    marks = {"starts": list(starts), "resized": list(resized)}
    drawn = {
        name: [msgspec.structs.replace(one, **marks) for one in curves.lines(by_name[name])]
        for name in found.names
        if name in by_name
    }
    return [chart for name, lines in drawn.items() for chart in of_lines(name, lines)]


def of_lines(name: str, lines: Sequence[curves.Columns], *, apart: bool = False) -> list[Chart]:
    """Return the chart of the lines, none where no value is finite.

    The marks of lines that stand `apart`, as those of several jobs do, have the colours of their lines.
    """
    steps = [step for one in lines for step in one.steps]
    values = [value for one in lines for value in (*one.values, *one.low, *one.high) if _finite(value)]
    if not steps or not values:
        return []
    across, up = Scale(min(steps), max(steps), WIDTH), Scale(min(values), max(values), HEIGHT)
    return [
        Chart(
            name=name,
            lines=tuple(_line(one, across, up) for one in lines),
            marks=tuple(dict.fromkeys(mark for one in lines for mark in _marks(one, across, apart=apart))),
            low=amounts.number(up.least),
            high=amounts.number(up.greatest),
            first=f"{min(steps):,}",
            last=f"{max(steps):,}",
            points=sum(one.count or len(one.steps) for one in lines),
        )
    ]


def sparkline(values: Sequence[float], width: int = 120, height: int = 24) -> str:
    """Return the points of a polyline; empty for fewer than two values."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    across, up = Scale(0, len(finite) - 1, width), Scale(min(finite), max(finite), height - 2)
    return " ".join(f"{across.at(place):.1f},{height - 1 - up.at(value):.1f}" for place, value in enumerate(finite))


def _line(one: curves.Columns, across: Scale, up: Scale) -> Line:
    told = [value for value in one.values if value is not None]
    return Line(
        label=one.label,
        paths=tuple(_runs(one.steps, one.values, across, up)),
        smooth=tuple(_runs(one.steps, one.smooth, across, up)) if one.smooth else (),
        gaps=tuple(f"{across.at(step):.1f}" for step in one.gaps),
        band=_band(one, across, up),
        colour=one.colour,
        dash=one.dash,
        last=amounts.number(told[-1]) if told else "NaN",
    )


def _marks(one: curves.Columns, across: Scale, *, apart: bool) -> Iterator[Mark]:
    """Yield a mark at the first point after each time. The start of the first attempt has none."""
    until = list(itertools.accumulate(one.at, max))  # the times of ranks need not be in order
    for kind, moments in (("restart", one.starts[1:]), ("resize", one.resized)):
        for moment in moments:
            place = bisect.bisect_left(until, moment)
            if place < len(until):
                x = f"{across.at(one.steps[place]):.1f}"
                yield Mark(kind, x, f"series-{one.colour}" if apart else "violet")


def _runs(steps: Sequence[int], values: Sequence[float | None], across: Scale, up: Scale) -> Iterator[str]:
    run: list[str] = []
    for step, value in zip(steps, values, strict=True):
        if not _finite(value):
            if run:
                yield " ".join(run)
            run = []
        else:
            run.append(f"{across.at(step):.1f},{HEIGHT - up.at(value):.1f}")
    if run:
        yield " ".join([*run, run[0]] if len(run) == 1 else run)


def _band(one: curves.Columns, across: Scale, up: Scale) -> str:
    """Return the polygon of the band. A point that stands for an infinite value has the finite ones of its ends."""
    ends = [
        (across.at(step), up.at(min(told)), up.at(max(told)))
        for step, *values in zip(one.steps, one.low, one.values, one.high, strict=False)
        if (told := [value for value in values if _finite(value)])
    ]
    if len(ends) == 1:  # a point alone has a width, too
        (x, low, high), half = ends[0], NARROW / 2
        ends = [(x - half, low, high), (x + half, low, high)]
    over = [f"{x:.1f},{HEIGHT - high:.1f}" for x, _, high in ends]
    under = [f"{x:.1f},{HEIGHT - low:.1f}" for x, low, _ in reversed(ends)]
    return " ".join(over + under)


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
