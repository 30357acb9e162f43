"""The exchanges of all workers among each other, by way of the first server: each gives bytes and gets those of all.

A worker's exchanges have numbers, so that all meet in the same one. Results are kept until every worker has read them.
"""

from __future__ import annotations

import threading

from oarlock.train.servers import frames

MOST_BODY_BYTES = 16 << 20


class Meeting:
    """The exchanges of `workers` workers. Threads of many workers call `meet`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._changed = threading.Condition()
        self._values: dict[int, dict[int, bytes]] = {}
        self._unread: dict[int, set[int]] = {}
        self._lost = ""

    def meet(self, rank: int, number: int, value: bytes) -> list[bytes]:
        """Return the values of all workers in the exchange of this number, in the order of the ranks.

        Raises Refused once a worker is lost: an exchange without it never ends.
        """
        with self._changed:
            values = self._values.setdefault(number, {})
            values[rank] = value
            self._unread.setdefault(number, set(range(self.workers)))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lost or len(values) == self.workers)
            if len(values) < self.workers:
                raise frames.Refused(self._lost)
            unread = self._unread[number]
            unread.discard(rank)
            if not unread:
                del self._unread[number], self._values[number]
            return [values[each] for each in range(self.workers)]

    def give(self, rank: int, number: int, value: bytes) -> None:
        """Take a value without waiting: of an exchange whose results this worker has, and others may lack."""
        with self._changed:
            self._values.setdefault(number, {})[rank] = value
            self._unread.setdefault(number, set(range(self.workers))).discard(rank)
            self._changed.notify_all()

    def lose(self, why: str) -> None:
        """Fail the exchanges that are not complete, and all later ones."""
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()
