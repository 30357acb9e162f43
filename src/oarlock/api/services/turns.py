"""Turns of users at costly work. Each user has one at a time, so that nobody keeps the server from the others."""

from __future__ import annotations

import asyncio
import weakref


class Turns:
    """One lock for each user who works or waits."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, user: str) -> asyncio.Lock:
        """Return the user's lock, to enter with `async with`."""
        return self._locks.setdefault(user, asyncio.Lock())
