"""The exchanges of all workers among each other, by way of the first server: each gives bytes and gets those of all.

A worker's exchanges have numbers, so that all meet in the same one. The last results are kept, for a worker whose
connection broke before it had read them.
"""

from __future__ import annotations

import threading

from oarlock.train.servers.wire import frames

MOST_BODY_BYTES = 16 << 20
MOST_AHEAD = 64
"""So many exchanges may be open at once."""
KEPT = 8
"""No worker is more exchanges ahead of another."""
KEPT_SMALL, SMALL_BYTES = 64, 64 << 10
"""A worker that takes the place of a dead one repeats the exchanges of a step. So many small ones are kept."""


class Meeting:
    """The exchanges of `workers` workers. Threads of many workers call `meet`. `error` tells of a lost worker."""

    def __init__(self, workers: int, error: type[frames.Refused] = frames.Refused) -> None:
        self.workers = workers
        self._error = error
        self._changed = threading.Condition()
        self._values: dict[int, dict[int, bytes]] = {}
        self._over: dict[int, list[bytes]] = {}
        self._newest = -1  # the highest number in `_over`
        self._lost: dict[int, str] = {}  # the reason, by the rank

    def meet(self, rank: int, number: int, value: bytes) -> list[bytes]:
        """Return the values of all workers in the exchange of this number, in the order of the ranks.

        Raises Refused where the value of a lost worker is not there: the exchange never ends.
        """
        with self._changed:
            if number in self._over:
                return self._over[number]
            values = self._take(rank, number, value)
            self._changed.wait_for(lambda: len(values) == self.workers or self._missed(values))
            if len(values) < self.workers:
                raise self._error(self._missed(values))
            return [values[each] for each in range(self.workers)]

    def give(self, rank: int, number: int, value: bytes) -> None:
        """Take a value without waiting: of an exchange whose results this worker has, and others may lack."""
        with self._changed:
            if number > self._newest:
                self._take(rank, number, value)

    def lose(self, rank: int, why: str) -> None:
        """Fail the exchanges for which this worker has not given a value, and will not."""
        with self._changed:
            self._lost.setdefault(rank, why)
            self._changed.notify_all()

    def _missed(self, values: dict[int, bytes]) -> str:
        return next((why for rank, why in self._lost.items() if rank not in values), "")

    def _take(self, rank: int, number: int, value: bytes) -> dict[int, bytes]:
        """Return the values of this exchange so far. Each worker's come in the order of their numbers."""
        if number <= self._newest:
            raise frames.Refused(f"exchange {number} was over long ago")
        if number not in self._values and len(self._values) >= MOST_AHEAD:
            raise frames.Refused(f"more than {MOST_AHEAD} exchanges are open")
        values = self._values.setdefault(number, {})
        values[rank] = value
        if len(values) == self.workers:
            self._newest = number
            self._over[number] = [values[each] for each in range(self.workers)]
            self._over = {each: kept for each, kept in self._over.items() if _stays(number - each, kept)}
            self._values = {each: some for each, some in self._values.items() if each > number}
        self._changed.notify_all()
        return values


def _stays(age: int, values: list[bytes]) -> bool:
    """Return whether the results of an exchange are kept, which was so many exchanges ago."""
    return age < KEPT or (age < KEPT_SMALL and sum(map(len, values)) <= SMALL_BYTES)
