"""The looks that objects of the cluster are waiting for, in their order.

    an object has come, changed or gone ──> touch(uid) ──┐
    its job has changed ──────────────────> tell(uid) ───┼──> take() ──> done(uid, pause)
    a look has to be repeated ──────────────> its time ──┘

What a user does to an object comes first. Words about jobs that have changed wait while gangs are launched, but not for
long: in a burst of thousands the pods come before them, and several changes of one job become one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterator

AT_ONCE, WHILE_LAUNCHING = 8, 2
"""Looks together, and those together while gangs are launched, where only a job has changed."""
LATE_S = 15.0
"""So long after a job's change the word about it waits no more, although gangs are launched."""
AGAIN_FIRST_S = 2.0
AGAIN_MOST_S = 120.0
"""A look is repeated after so long at first, and at most."""


class Looks:
    """Belongs to one event loop. `launches` tells whether gangs are being launched.

    An object is named by its UID, a job without an object by its id.
    """

    def __init__(self, *, launches: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self.bell = asyncio.Event()
        self._launches = launches
        self._monotonic = monotonic
        self._touched: dict[str, None] = {}  # in the order in which they were named
        self._told: dict[str, float] = {}  # and since when
        self._busy: set[str] = set()
        self._again: dict[str, tuple[float, float]] = {}  # when it is looked at again, and the pause
        self._due: list[tuple[float, str]] = []  # a heap of these times

    def touch(self, uid: str) -> None:
        """Look at an object that may have changed."""
        self._touched[uid] = None
        self.bell.set()

    def tell(self, uid: str) -> None:
        """Look at an object whose job has changed."""
        self._told.setdefault(uid, self._monotonic())
        self.bell.set()

    def waits(self, since: float) -> bool:
        """Return whether a word about a job, which could be told since then (monotonic), waits for launches."""
        return self._launches() and self._monotonic() < since + LATE_S

    def take(self) -> list[str]:
        """Return what is to be looked at now. Nothing of it is returned again before its look is `done`."""
        self.bell.clear()
        self._tell_due()
        few = WHILE_LAUNCHING if self._launches() else AT_ONCE
        found = []
        for waiting, most in ((self._touched, AT_ONCE), (self._due_words(), few)):
            ready = (uid for uid in waiting if uid not in self._busy)
            for uid in list(itertools.islice(ready, max(0, most - len(self._busy)))):
                self._touched.pop(uid, None)
                self._told.pop(uid, None)
                self._busy.add(uid)
                found.append(uid)
        return found

    def done(self, uid: str, pause_s: float | None) -> None:
        """Take note that a look is over. It is repeated after `pause_s` at least; with None, once it is asked for."""
        self._busy.discard(uid)
        self.bell.set()
        if pause_s is None:
            self._again.pop(uid, None)
            return
        _, before_s = self._again.get(uid, (0.0, AGAIN_FIRST_S / 2))
        pause_s = min(AGAIN_MOST_S, max(pause_s, before_s * 2))
        at = self._monotonic() + pause_s
        self._again[uid] = at, pause_s
        heapq.heappush(self._due, (at, uid))

    def _due_words(self) -> Iterator[str]:
        """Yield those that do not wait for launches. They stand in the order in which they began to wait."""
        for uid, since in self._told.items():
            if self.waits(since):
                return
            yield uid

    def _tell_due(self) -> None:
        now = self._monotonic()
        while self._due and self._due[0][0] <= now:
            at, uid = heapq.heappop(self._due)
            if self._again.get(uid, (None, 0.0))[0] == at:  # else another look came before
                self._told.setdefault(uid, now)
