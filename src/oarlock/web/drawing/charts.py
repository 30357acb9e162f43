"""Charts as SVG: a line with the band from the least to the greatest of its thinned points, so that no spike is lost.

Coordinates are numbers in attributes, which the content policy allows; colours are classes of the style sheet. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from oarlock.client import answers
from oarlock.display import amounts

WIDTH, HEIGHT = 320, 120
COLOURS = 8
"""Series take these colours in turn; the later ones are dashed."""


class Line(msgspec.Struct, frozen=True):
    """A series. `paths` are polylines, broken where a value is not finite; `band` is a polygon, or empty."""

    label: str
    paths: tuple[str, ...]
    band: str
    colour: int
    dashed: bool
    last: str


class Chart(msgspec.Struct, frozen=True):
    """A metric of all its tasks on one pair of scales."""

    name: str
    lines: tuple[Line, ...]
    low: str
    high: str
    first: str
    last: str
    points: int


class Scale(msgspec.Struct, frozen=True):
    least: float
    greatest: float
    length: float

    def at(self, value: float) -> float:
        span = self.greatest - self.least
        return (value - self.least) / span * self.length if span > 0 else self.length / 2


def charts(found: answers.Metrics) -> list[Chart]:
    """Return a chart for each name, in the order of the names."""
    return [chart for name in found.names if (chart := _chart(name, [one for one in found.series if one.name == name]))]


def sparkline(values: Sequence[float], width: int = 120, height: int = 24) -> str:
    """Return the points of a polyline; empty for fewer than two values."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    across, up = Scale(0, len(finite) - 1, width), Scale(min(finite), max(finite), height - 2)
    return " ".join(f"{across.at(place):.1f},{height - 1 - up.at(value):.1f}" for place, value in enumerate(finite))


def _chart(name: str, series: Sequence[answers.Series]) -> Chart | None:
    steps = [point.step for one in series for point in one.points]
    values = [value for one in series for value in _values(one)]
    if not steps or not values:
        return None
    across = Scale(min(steps), max(steps), WIDTH)
    up = Scale(min(values), max(values), HEIGHT)
    lines = tuple(_line(place, one, across, up, alone=len(series) == 1) for place, one in enumerate(series))
    return Chart(
        name=name,
        lines=lines,
        low=amounts.number(up.least),
        high=amounts.number(up.greatest),
        first=f"{min(steps):,}",
        last=f"{max(steps):,}",
        points=sum(one.count or len(one.points) for one in series),
    )


def _line(place: int, one: answers.Series, across: Scale, up: Scale, *, alone: bool) -> Line:
    label = one.task if not one.process else f"{one.task}, process {one.process}"
    finite = one.values
    return Line(
        label=label,
        paths=tuple(_runs(one, across, up)),
        band=_band(one, across, up) if alone else "",
        colour=place % COLOURS,
        dashed=place >= COLOURS,
        last=amounts.number(finite[-1]) if finite else "NaN",
    )


def _runs(one: answers.Series, across: Scale, up: Scale) -> Iterator[str]:
    run: list[str] = []
    for point in one.points:
        if point.value is None or not math.isfinite(point.value):
            if run:
                yield " ".join(run)
            run = []
        else:
            run.append(f"{across.at(point.step):.1f},{HEIGHT - up.at(point.value):.1f}")
    if run:
        yield " ".join([*run, run[0]] if len(run) == 1 else run)


def _band(one: answers.Series, across: Scale, up: Scale) -> str:
    ends = [
        (point.step, low, high)
        for point, low, high in zip(one.points, one.low, one.high, strict=False)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    ]
    over = [f"{across.at(step):.1f},{HEIGHT - up.at(high):.1f}" for step, _, high in ends]
    under = [f"{across.at(step):.1f},{HEIGHT - up.at(low):.1f}" for step, low, _ in reversed(ends)]
    return " ".join(over + under) if len(ends) > 1 else ""


def _values(one: answers.Series) -> Iterator[float]:
    """Yield the finite values of a series, with the ends of its buckets."""
    for value in (*one.values, *one.low, *one.high):
        if value is not None and math.isfinite(value):
            yield value
