"""The programs of the server's machine, read now and then.

Starting them takes seconds, and a driver that hangs half a minute: they are read in a thread, and an answer gives what
was read last. Only the first one waits, and not for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oarlock.spec import bodies

KEPT_S = 300.0
PATIENCE_S = 2.0


class Examination:
    """`look` reads the programs, and blocks. `monotonic` is a clock in seconds."""

    def __init__(self, look: Callable[[], bodies.Programs], monotonic: Callable[[], float]) -> None:
        self._look = look
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0
        self._known: bodies.Programs | None = None

    async def __call__(self) -> bodies.Programs | None:
        """Return what was read last, None while the first look takes long."""
        if self._task is None and (self._known is None or self._monotonic() >= self._until):
            self._task = asyncio.create_task(self._read())
        if self._known is None and self._task is not None:
            await asyncio.wait({self._task}, timeout=PATIENCE_S)
        return self._known

    async def _read(self) -> None:
        try:
            self._known = await asyncio.to_thread(self._look)
            self._until = self._monotonic() + KEPT_S
        finally:
            self._task = None
