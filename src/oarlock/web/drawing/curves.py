"""The numbers of a chart by columns: a line for each rank, or one line for all ranks of a job. Pure.

Every line is made from the points of its own job alone, so that it is the same whatever else is shown.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from oarlock.client import answers
from oarlock.web.drawing import colours

MANY = 8
"""With more ranks than that, their mean and range are drawn unless their lines are asked for."""

MOST_LINES = 64


class Columns(msgspec.Struct, frozen=True):
    """A line. `low` and `high` are empty where no points were left out.

    `gaps` are steps with a value that is not finite: all of them, or the first one of those that a point stands for.
    `starts` are the times at which the attempts of its job began, and `resized` those at which an attempt got another
    number of workers. `epochs` has the epoch of each step, where the job reports one. `smooth` is the smoothed line,
    where one was asked for. `colour` and `dash` are the look of the line.
    """

    label: str
    count: int
    steps: list[int]
    at: list[float]
    values: list[float | None]
    low: list[float | None]
    high: list[float | None]
    gaps: list[int] = []
    starts: list[float] = []
    resized: list[float] = []
    smooth: list[float | None] = []
    epochs: list[float | None] = []
    colour: int = 0
    dash: int = 0


def lines(found: Sequence[answers.Series], ranks: str = "") -> list[Columns]:
    """Return a line for each rank, at most `MOST_LINES`, or one for all of them, each with its look.

    `ranks` is `lines`, `range` for one line, or empty for the choice by their number.
    """
    mean = ranks == "range" or (ranks != "lines" and len(found) > MANY)
    drawn = [together(found)] if mean and len(found) > 1 else [columns(one) for one in found[:MOST_LINES]]
    return [
        msgspec.structs.replace(one, colour=place % colours.COLOURS, dash=place // colours.COLOURS % colours.DASHES)
        for place, one in enumerate(drawn)
    ]


def columns(one: answers.Series) -> Columns:
    return Columns(
        label(one),
        one.count,
        [point.step for point in one.points],
        [point.at for point in one.points],
        [point.value for point in one.points],
        list(one.low),
        list(one.high),
        _gaps([one]),
    )


def _gaps(found: Sequence[answers.Series]) -> list[int]:
    shown = {point.step for one in found for point in one.points if not _finite(point.value)}
    return sorted(shown.union(*(one.gaps for one in found)))


def smoothed(one: Columns, window: float) -> list[float | None]:
    """Return the mean of the values up to each step, weighted by e^(-distance / window); distances are in steps.

    The weights add up to one, also at the beginning. A value that is not finite is left out, and has no mean.
    """
    found: list[float | None] = []
    total = weight = 0.0
    before = one.steps[0] if one.steps else 0
    for step, value in zip(one.steps, one.values, strict=True):
        fading = math.exp(-max(0, step - before) / window)
        total, weight, before = total * fading, weight * fading, step
        if _finite(value):
            total, weight = total + value, weight + 1.0
        found.append(total / weight if _finite(value) else None)
    return found


def label(one: answers.Series) -> str:
    return one.task if not one.process else f"{one.task}, process {one.process}"


def together(found: Sequence[answers.Series]) -> Columns:
    """Return the mean of the ranks with their range.

    Ranks may have reported different numbers of points, at different steps. The value of a rank between two of its
    points lies on the line between them; before its first and after its last point it has none. The range of a step
    is that of all points since the step before.
    """
    ranks = [_Rank(one) for one in found if one.points]
    if not ranks:
        return Columns("", 0, [], [], [], [], [])
    longest = max(ranks, key=lambda one: len(one.steps))
    outside = [step for one in ranks for step in one.steps if not longest.steps[0] <= step <= longest.steps[-1]]
    steps = sorted({*longest.steps, *outside})
    values: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for at_step in zip(*(one.at_steps(steps) for one in ranks), strict=True):
        finite = [value for value in at_step if _finite(value)]
        values.append(math.fsum(finite) / len(finite) if finite else None)
    for reaches in zip(*(one.reaches(steps) for one in ranks), strict=True):
        ends = [value for reach in reaches for value in reach if _finite(value)]
        low.append(min(ends, default=None))
        high.append(max(ends, default=None))
    times = [next(one.time(step) for one in (longest, *ranks) if one.spans(step)) for step in steps]
    count = sum(one.count for one in found)
    return Columns(f"mean of {len(ranks)}", count, steps, times, values, low, high, _gaps(found))


def along(told: answers.Series | None, steps: Sequence[int]) -> list[float | None]:
    """Return the value of a series at each step, on the line between its points; empty without a series."""
    if told is None or not told.points:
        return []
    rank = _Rank(told)
    return [value if _finite(value) else None for value in rank.at_steps(steps)]


class _Rank:
    """The points of one series, in the order of their steps."""

    def __init__(self, one: answers.Series) -> None:
        order = sorted(range(len(one.points)), key=lambda place: one.points[place].step)
        self.steps = [one.points[place].step for place in order]
        self._times = [one.points[place].at for place in order]
        self._values = [one.points[place].value for place in order]
        self._low = [one.low[place] for place in order] if one.low else self._values
        self._high = [one.high[place] for place in order] if one.high else self._values

    def spans(self, step: int) -> bool:
        return self.steps[0] <= step <= self.steps[-1]

    def time(self, step: int) -> float:
        place = bisect.bisect_left(self.steps, step)
        if self.steps[place] == step:
            return self._times[place]
        return self._between(place, step, self._times[place - 1], self._times[place])

    def at_steps(self, steps: Sequence[int]) -> Sequence[float | None]:
        """Return the value at each step, None where it has none."""
        return self._values if steps == self.steps else [self._at(step) for step in steps]

    def _at(self, step: int) -> float | None:
        if not self.spans(step):
            return None
        place = bisect.bisect_left(self.steps, step)
        value = self._values[place]
        if self.steps[place] != step:
            before = self._values[place - 1]
            value = self._between(place, step, before, value) if _finite(before) and _finite(value) else None
        return value

    def reaches(self, steps: Sequence[int]) -> Sequence[Sequence[float | None]]:
        """Return for each step the least and the greatest values of the points after the step before.

        A point stands for those since the point before it, so that the next one counts where it lies behind the step.
        """
        if steps == self.steps:
            return list(zip(self._low, self._high, strict=True))
        return [self._reach(before, step) for before, step in zip((-math.inf, *steps), steps, strict=False)]

    def _reach(self, before: float, step: int) -> Sequence[float | None]:
        first, last = bisect.bisect_right(self.steps, before), bisect.bisect_left(self.steps, step)
        until = last + self.spans(step)
        return [*self._low[first:until], *self._high[first:until]]

    def _between(self, place: int, step: int, before: float | None, after: float | None) -> float:
        assert before is not None
        assert after is not None
        first, last = self.steps[place - 1], self.steps[place]
        return before + (after - before) * (step - first) / (last - first)


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
