"""How long a step takes, and how much of that is waiting for the other processes' gradients.

Counted from the end of one step to the end of the next, data and all, but without what is no part of training (saving).
Of a step that adds up several parts only the last is counted, the one with the exchange; so is a step of a script that
holds exchanges back itself. The first steps of a life, and of a new batch size, are slower than those to come: they are
left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WARM_UP_STEPS = 3


class Pace:
    """`total` only grows: steps counted, their seconds, and of those the seconds of waiting (None: not known)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._cold = WARM_UP_STEPS
        self.total: tuple[int, float, float | None] = (0, 0.0, 0.0)

    def anew(self, *, cold: bool = False) -> None:
        """What was before this moment is of no step."""
        self._since = self._clock()
        if cold:
            self._cold = WARM_UP_STEPS

    def ended(self, *, counts: bool, waited_s: float | None) -> None:
        """A step is over; the next begins. `waited_s` is its own."""
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
    """Of what a `Pace` has counted since it was last asked."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._told = pace.total

    def since(self) -> tuple[float, float | None] | None:
        """Seconds of a step, and of its waiting; None where there was none."""
        (steps, seconds, waiting), (before, earlier, waited) = self._pace.total, self._told
        if steps == before:
            return None
        self._told = self._pace.total
        count = steps - before
        unknown = waiting is None or waited is None
        return (seconds - earlier) / count, None if unknown else max(0.0, (waiting or 0.0) - (waited or 0.0)) / count
