"""The thinning of a series: buckets of equal count, each with its last point, its least and its greatest value. Pure.

Points flow through in order and are not kept: a million points need the memory of one bucket. NaN is neither the least
nor the greatest value, unless the bucket holds only NaN. The first step of a bucket with a value that is not finite is
kept: the bucket's last value rarely is that one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from oarlock.data import storage


class Thinner:
    """The thinner of a series: from `count` points to at most `points`."""

    def __init__(self, count: int, points: int) -> None:
        self.count = count
        self._buckets = min(count, max(1, points))
        self._thin = count > self._buckets
        self._points: list[storage.Point] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._gaps: list[int] = []
        self._bucket = (math.nan, math.nan)
        self._gap: int | None = None  # of this bucket
        self._seen = 0

    def add(self, steps: Sequence[int], times: Sequence[float], values: array[float]) -> None:
        if not self._thin:
            self._points += map(storage.Point, steps, times, values)
            return
        at = 0
        while at < len(values):
            end = (len(self._points) + 1) * self.count // self._buckets
            stop = min(len(values), at + end - self._seen)
            self._bucket = wider(self._bucket, extremes(values[at:stop]))
            if self._gap is None and (place := gap(values[at:stop])) is not None:
                self._gap = int(steps[at + place])
            self._seen += stop - at
            at = stop
            if self._seen == end:
                self._points.append(storage.Point(int(steps[at - 1]), times[at - 1], values[at - 1]))
                self._low.append(self._bucket[0])
                self._high.append(self._bucket[1])
                self._gaps += () if self._gap is None else (self._gap,)
                self._bucket, self._gap = (math.nan, math.nan), None

    def series(self, task: str, process: int, name: str) -> storage.Series:
        return storage.Series(
            task=task,
            process=process,
            name=name,
            points=tuple(self._points),
            count=self.count,
            low=tuple(self._low),
            high=tuple(self._high),
            gaps=tuple(self._gaps),
        )


def extremes(values: array[float]) -> tuple[float, float]:
    """Return the least and the greatest value. `min` and `max` fail with a NaN, which shows in the sum."""
    numbers: Sequence[float] = values
    if math.isnan(sum(values)):
        numbers = [value for value in values if not math.isnan(value)] or (math.nan,)
    return min(numbers), max(numbers)


def gap(values: array[float]) -> int | None:
    """Return the place of the first value that is not finite, None without one. It shows in the sum, or an overflow."""
    if math.isfinite(sum(values)):
        return None
    return next((place for place, value in enumerate(values) if not math.isfinite(value)), None)


def wider(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    if math.isnan(one[0]):
        return other
    if math.isnan(other[0]):
        return one
    return min(one[0], other[0]), max(one[1], other[1])
