"""The duration of a step, and the time in it spent waiting for the other processes' gradients.

A step is counted from the end of the one before, with the reading of data, but without saving. In a step of several
accumulated parts only the last part, the one with the exchange, is counted. The same holds for a script that delays
exchanges itself. The first steps of a process, and of a new batch size, are slower than later ones: they are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WARM_UP_STEPS = 3


class Pace:
    """The counter of steps.

    `total` only grows: the steps, their seconds, and the seconds of waiting (None: unknown).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._cold = WARM_UP_STEPS
        self.total: tuple[int, float, float | None] = (0, 0.0, 0.0)

    def restart(self, *, cold: bool = False) -> None:
        """Start counting again: the time before this moment belongs to no step."""
        self._since = self._clock()
        if cold:
            self._cold = WARM_UP_STEPS

    def ended(self, *, counts: bool, waited_s: float | None) -> None:
        """Count a step that has ended. `waited_s` is the waiting in this step."""
        now = self._clock()
        took_s, self._since = now - self._since, now
        if not counts:
            return
        if self._cold:
            self._cold -= 1
            return
        steps, seconds, waiting = self.total
        self.total = steps + 1, seconds + took_s, None if waited_s is None or waiting is None else waiting + waited_s


class Mean:
    """The mean of a `Pace` since the last call."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._told = pace.total

    def since(self) -> tuple[float, float | None] | None:
        """Return the mean seconds of a step and of its waiting; None if there was no step."""
        (steps, seconds, waiting), (before, earlier, waited) = self._pace.total, self._told
        if steps == before:
            return None
        self._told = self._pace.total
        count = steps - before
        unknown = waiting is None or waited is None
        return (seconds - earlier) / count, None if unknown else max(0.0, (waiting or 0.0) - (waited or 0.0)) / count
