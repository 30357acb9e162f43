"""Health of the server: the store and the folders take writes, a leader plans, the backend answers.

The probe of the store writes a row of its own through the writer and flushes it like every commit. Each folder gets a
file, which is flushed and removed. An answer is kept for a second, so that frequent requests are cheap. Every part has
a time-out of its own: the answer names a part that hangs.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent import futures
from pathlib import Path

from oarlock.data import durable
from oarlock.spec import errors
from oarlock.store import stores

KEPT_S = 1.0
PART_S = 2.0


class Health:
    """`provided.Health`. `backend` makes a harmless call to the backend; `clock` is the wall clock.

    `folders` are the folders that must take files, by the names that the answer uses.
    """

    def __init__(
        self,
        store: stores.Store,
        backend: Callable[[], Awaitable[object]],
        clock: Callable[[], float],
        folders: Mapping[str, Path],
    ) -> None:
        self._parts: dict[str, Callable[[], Awaitable[str]]] = {
            "store": self._store_takes_writes,
            "leader": self._leader_lives,
            "backend": self._backend_answers,
        }
        for name, folder in folders.items():
            self._parts[name] = functools.partial(self._folder_takes_files, folder)
        self._store = store
        self._backend = backend
        self._clock = clock
        # A disk that hangs blocks this thread only. Later probes time out in its queue.
        self._disk = futures.ThreadPoolExecutor(1, "health")
        self._lock = asyncio.Lock()
        self._known: dict[str, str] = {}
        self._until = 0.0

    async def __call__(self) -> dict[str, str]:
        async with self._lock:
            if time.monotonic() >= self._until:
                problems = await asyncio.gather(*(self._ask(part) for part in self._parts.values()))
                self._known = {name: said for name, said in zip(self._parts, problems, strict=True) if said}
                self._until = time.monotonic() + KEPT_S
            return self._known

    async def _ask(self, part: Callable[[], Awaitable[str]]) -> str:
        try:
            async with asyncio.timeout(PART_S):
                return await part()
        except TimeoutError:
            return f"no answer within {PART_S:g} s"
        except errors.OarlockError as error:
            return error.message

    async def _store_takes_writes(self) -> str:
        await self._store.probe(at=self._clock())
        return ""

    async def _leader_lives(self) -> str:
        leader = await self._store.read(lambda view: view.leader())
        if leader is None:
            return "there is no leader yet"
        return "" if leader.expires_at > self._clock() else "the leader has not renewed its term"

    async def _backend_answers(self) -> str:
        await self._backend()
        return ""

    async def _folder_takes_files(self, folder: Path) -> str:
        await asyncio.get_running_loop().run_in_executor(self._disk, durable.probe, folder)
        return ""
