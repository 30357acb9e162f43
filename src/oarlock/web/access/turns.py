"""Turns for costly work: one piece at a time for each key, such as a session.

A check of a text is worth nothing once a newer text has come, so only the newest of the checks that wait is made. Work
that must be done, such as the submission of a job, keeps its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from oarlock.spec import errors

REMEMBERED = 10_000


class Turns:
    """The lines of those that wait, by key. A key without work is forgotten."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._sent: dict[str, None] = {}

    def once(self, key: str) -> bool:
        """Return whether the key is new, and remember it: of a form that must not be sent twice."""
        if key in self._sent:
            return False
        self._sent[key] = None
        if len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return True

    @contextlib.asynccontextmanager
    async def turn(self, key: str, *, keep: bool = False) -> AsyncIterator[None]:
        """Wait for a turn. Without `keep`, raises Conflict where a later one without `keep` waits or is at work."""
        line = self._lines.setdefault(key, _Line())
        line.length += 1
        line.newest += not keep
        mine = line.newest
        try:
            async with line.lock:
                if not keep and mine != line.newest:
                    raise errors.Conflict("A newer check has taken the place of this one.", hint="Check again.")
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[key]


class _Line:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0
        self.newest = 0
