"""Turns of users at costly work. Each user has one at a time, so that no user keeps the server from the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from oarlock.spec import errors

MOST_WAITING = 4


class Turns:
    """One lock for each user who works or waits. `work` names the work in the plural."""

    def __init__(self, work: str = "searches") -> None:
        self._work = work
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait for the user's turn, and hold it. Conflict if several of the user's requests wait already."""
        lock, count = self._locks.get(user, (asyncio.Lock(), 0))
        if count > MOST_WAITING:
            raise errors.Conflict(
                f"{MOST_WAITING} of your {self._work} wait already.", hint="Ask again when one of them has ended."
            )
        self._locks[user] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            lock, count = self._locks.pop(user)
            if count > 1:
                self._locks[user] = (lock, count - 1)
