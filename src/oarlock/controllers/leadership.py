"""Leadership: takes and renews it, and tells the other controllers the epoch under which they may write.

The store's row decides; this clock only says when to ask again, and when to stop believing without an answer. Every
write of another controller carries the epoch, and is refused once there is a newer one: the controller then calls
`lost`.
"""

from __future__ import annotations

from collections.abc import Callable

from oarlock.spec import failpoints
from oarlock.store import stores

TTL_S = 10.0


class Leading:
    """`holder` names this server, differently from any other that may be alive."""

    name = "leading"

    def __init__(self, store: stores.Store, *, holder: str, clock: Callable[[], float], ttl_s: float = TTL_S) -> None:
        self._store = store
        self._holder = holder
        self._clock = clock
        self._ttl_s = ttl_s
        self._epoch: int | None = None
        self._until = 0.0
        self._ask_at = 0.0
        self._refused = False

    @property
    def epoch(self) -> int | None:
        """The epoch while this server leads, by all that it knows; else None."""
        return self._epoch if self._clock() < self._until else None

    @property
    def standing_by(self) -> bool:
        """Whether another server led when this one last asked."""
        return self._refused

    async def tick(self) -> None:
        now = self._clock()
        if 0 <= self._ask_at - now <= self._ttl_s:  # further away: the clock was set back
            return
        epoch = await self._store.lead(self._holder, now=now, ttl_s=self._ttl_s)
        failpoints.hit("leading.after_lead")
        self._epoch, self._until = epoch, now + self._ttl_s
        self._ask_at = now + self._ttl_s / 3
        self._refused = epoch is None

    def wake_at(self) -> float | None:
        return self._ask_at

    def lost(self, epoch: int) -> None:
        """Note that a write under `epoch` was refused: another server leads."""
        if self._epoch == epoch:
            self._epoch = None

    async def resign(self) -> None:
        """Let a successor begin at once."""
        if self._epoch is not None:
            epoch, self._epoch = self._epoch, None
            await self._store.resign(self._holder, epoch)
