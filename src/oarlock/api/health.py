"""Whether the server can work: the store takes writes, a leader plans, the backend answers. Looked at when asked for.

An answer holds for a second, so that asking is no load; every part has its own time-out, so that one that hangs is
named instead of hanging the question.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from oarlock.spec import errors
from oarlock.store import port as stores

KEPT_S = 1.0
PART_S = 2.0


class Health:
    """`services.Health`. `backend` is some harmless question to the backend; `clock` is the wall's."""

    def __init__(
        self, store: stores.Store, backend: Callable[[], Awaitable[object]], clock: Callable[[], float]
    ) -> None:
        self._parts: dict[str, Callable[[], Awaitable[str]]] = {
            "store": self._store_takes_writes,
            "leader": self._leader_lives,
            "backend": self._backend_answers,
        }
        self._store = store
        self._backend = backend
        self._clock = clock
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
        await self._store.write(lambda _: None)
        return ""

    async def _leader_lives(self) -> str:
        leader = await self._store.read(lambda view: view.leader())
        if leader is None:
            return "there is no leader yet"
        return "" if leader.expires_at > self._clock() else "the leader has not renewed its term"

    async def _backend_answers(self) -> str:
        await self._backend()
        return ""
