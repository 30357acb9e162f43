"""The duration of a step, the time in it spent waiting for data and for the other processes' gradients, and the bytes
that it sent.

A step is counted from the end of the one before, with the reading of data, but without saving. In a step of several
accumulated parts only the last part, the one with the exchange, is counted. The same holds for a script that delays
exchanges itself. The first steps of a process, and of a new batch size, are slower than later ones: they are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

WARM_UP_STEPS = 3
OWN_SMOOTHING = 0.8


class Means(NamedTuple):
    """The means of a step: its seconds, those of waiting for gradients (None: unknown) and for data, and its bytes."""

    step_s: float
    sync_s: float | None
    data_s: float
    sent_bytes: float


class Pace:
    """The counter of steps.

    `total` only grows: the steps, their seconds, and the seconds of waiting (None: unknown). So do `data_s`, the
    seconds in which the script waited for a batch, and `sent_bytes`. `own_s` is the smoothed time of a step without the
    waiting for other processes, None while it is unknown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._cold = WARM_UP_STEPS
        self.total: tuple[int, float, float | None] = (0, 0.0, 0.0)
        self.data_s = 0.0
        self.sent_bytes = 0
        self.own_s: float | None = None

    def restart(self, *, cold: bool = False) -> None:
        """Start counting again: the time before this moment belongs to no step."""
        self._since = self._clock()
        if cold:
            self._cold = WARM_UP_STEPS

    def ended(
        self,
        *,
        counts: bool,
        waited_s: float | None,
        data_s: float = 0.0,
        sent_bytes: int = 0,
        agreeing_s: float = 0.0,
    ) -> None:
        """Count a step that has ended. `waited_s` is the waiting in this step, `agreeing_s` that at its boundary."""
        now = self._clock()
        took_s, self._since = now - self._since, now
        if not counts:
            return
        if self._cold:
            self._cold -= 1
            return
        steps, seconds, waiting = self.total
        self.total = steps + 1, seconds + took_s, None if waited_s is None or waiting is None else waiting + waited_s
        self.data_s += data_s
        self.sent_bytes += sent_bytes
        if waited_s is not None:
            own_s = max(0.0, took_s - waited_s - agreeing_s)
            self.own_s = own_s if self.own_s is None else OWN_SMOOTHING * self.own_s + (1 - OWN_SMOOTHING) * own_s


class Mean:
    """The mean of a `Pace` since the last call."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._told = pace.total
        self._told_of_data = pace.data_s, pace.sent_bytes

    def since(self) -> Means | None:
        """Return the means of a step; None if there was no step."""
        (steps, seconds, waiting), (before, earlier, waited) = self._pace.total, self._told
        if steps == before:
            return None
        self._told = self._pace.total
        count = steps - before
        unknown = waiting is None or waited is None
        (data_s, sent), self._told_of_data = self._told_of_data, (self._pace.data_s, self._pace.sent_bytes)
        return Means(
            (seconds - earlier) / count,
            None if unknown else max(0.0, (waiting or 0.0) - (waited or 0.0)) / count,
            (self._pace.data_s - data_s) / count,
            (self._pace.sent_bytes - sent) / count,
        )
