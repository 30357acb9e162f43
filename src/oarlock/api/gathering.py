"""Look-ups of one moment that are answered by one reading of the store.

The pages of many browsers ask at the same moment, and each reading costs two changes of the thread. A reading begins
after all the look-ups that it answers, so that none of them gets an older state than by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Gathering(Generic[K, V]):
    """Look-ups of one event loop. `read` returns the value of each key."""

    def __init__(self, read: Callable[[Set[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._read = read
        self._keys: set[K] = set()
        self._next: asyncio.Task[Mapping[K, V]] | None = None

    async def find(self, key: K) -> V:
        """Return the value of the key. Raises as `read` does."""
        if self._next is None:
            self._next = asyncio.create_task(self._gathered())
        self._keys.add(key)
        return (await asyncio.shield(self._next))[key]

    async def _gathered(self) -> Mapping[K, V]:
        keys, self._keys, self._next = self._keys, set(), None
        return await self._read(keys)
