"""The server's state as the pages of all administrators share it.

To find it the server probes its store and its folders, which costs as much as several pages, and no event tells of it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from oarlock.spec import bodies

KEPT_S = 10.0


class RecentState:
    """The last state, kept for `KEPT_S`. `monotonic` is a clock in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: tuple[float, bodies.ServerState] | None = None

    async def find(self, ask: Callable[[], Awaitable[bodies.ServerState]]) -> bodies.ServerState:
        """Return the last state, or a new one from `ask`, which needs the right of an administrator."""
        if self._known is None or self._monotonic() - self._known[0] >= KEPT_S:
            began = self._monotonic()
            self._known = began, await ask()
        return self._known[1]
