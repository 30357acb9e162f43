"""Whether the server can work: store and folders take writes, a leader plans, the backend answers. Asked on demand.

The store's probe writes a row of its own through the one writer, flushed as every commit is; each folder gets a file,
flushed and removed. An answer holds for a second, so that questions, however many, are no load. Every part has its own
time-out, so that a part that hangs is named and does not hang the question.
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
    """`provided.Health`. `backend` is some harmless question to the backend; `clock` is the wall's.

    `folders` are those that must take files, by the name under which one that does not is told.
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
        # A thread of its own: a disk that hangs takes this one only, and those that ask later time out in its queue.
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
