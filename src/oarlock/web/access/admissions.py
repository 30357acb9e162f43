"""Admissions: one look-up of the session for all open pages of a browser that fetch themselves at the same moment.

An event concerns several pages of a session, which ask at once. An admission is shared for a moment only, among
requests of open pages, and only if it was made after the event that the page was told of: its `seq` says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from oarlock.spec import bodies

KEPT_S = 0.3
Find = Callable[[], Awaitable[bodies.Server]]


class Admissions:
    """The users of the sessions whose pages asked in the last moment."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[float, asyncio.Future[bodies.Server]]] = {}

    async def find(self, secret: str, told: int | None, find: Find) -> bodies.Server:
        """Return the user of a session: a shared answer with event `told`, else that of `find`. Raises as it does."""
        began, made = self._made.get(secret, (0.0, None))
        if told is not None and made is not None and time.monotonic() - began < KEPT_S:
            await asyncio.wait((made,))
            if not made.cancelled() and (known := made.result()).seq >= told:
                return known
        self._forget()
        mine: asyncio.Future[bodies.Server] = asyncio.get_running_loop().create_future()
        self._made[secret] = time.monotonic(), mine
        try:
            mine.set_result(await find())
            return mine.result()
        finally:
            if not mine.done():
                mine.cancel()  # the others ask for themselves

    def _forget(self) -> None:
        now = time.monotonic()
        for secret in [secret for secret, (began, made) in self._made.items() if made.done() and now - began >= KEPT_S]:
            del self._made[secret]
