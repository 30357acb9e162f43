"""The times of a step that the workers tell, so that the slowest one is known where none waits for another."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from oarlock.train.servers.wire import frames

MOST_US = 1 << 40


class Paces:
    """The newest time of each worker's step, without its waiting for others. Threads of many workers call the methods.

    All times are in microseconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own_us: dict[int, int] = {}

    def news(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        """Take the time that a worker tells in these fields. Return the fields of its answer: the slowest worker, its
        time, and that of the fastest. Nothing where it tells none. Raises Refused where it is not a time.
        """
        own_us = told.get("own_us")
        if own_us is None:
            return {}
        if type(own_us) is not int or not 0 <= own_us < MOST_US:
            raise frames.Refused(f"{own_us!r} is not a number of microseconds")
        with self._lock:
            self._own_us[rank] = own_us
            slowest = max(self._own_us, key=lambda each: self._own_us[each])
            return {"slowest": [slowest, self._own_us[slowest], min(self._own_us.values())]}

    def forget(self, rank: int) -> None:
        """Forget a worker that trains no more."""
        with self._lock:
            self._own_us.pop(rank, None)
