"""Leadership: takes and renews it, and tells the other controllers the epoch under which they may write.

The store's row decides; this clock only says when to ask again, and when to stop believing without an answer. Every
write of another controller carries the epoch, and is refused once there is a newer one: the controller then calls
`lost`.
"""

from __future__ import annotations

from collections.abc import Callable

from oarlock.spec.process import failpoints
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
        self._when_over: list[Callable[[], object]] = []

    def when_over(self, call: Callable[[], object]) -> None:
        """Call it whenever an epoch of this server has ended, as soon as that is known."""
        self._when_over.append(call)

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
        if self._epoch is not None and self.epoch is None:  # whatever becomes of the question below
            self._end()
        if 0 < self._ask_at - now <= self._ttl_s:  # further away: the clock was set back
            return
        epoch = await self._store.lead(self._holder, now=now, ttl_s=self._ttl_s)
        failpoints.hit("leading.after_lead")
        if epoch != self._epoch:
            self._end()
        self._epoch, self._until = epoch, now + self._ttl_s
        self._ask_at = now + self._ttl_s / 3
        self._refused = epoch is None

    def wake_at(self) -> float | None:
        return self._ask_at

    def lost(self, epoch: int) -> None:
        """Note that a write under `epoch` was refused: another server leads."""
        if self._epoch == epoch:
            self._end()

    async def resign(self) -> None:
        """Let a successor begin at once."""
        if self._epoch is not None:
            epoch = self._epoch
            self._end()
            await self._store.resign(self._holder, epoch)

    def _end(self) -> None:
        if self._epoch is not None:
            self._epoch = None
            for call in self._when_over:
                call()
