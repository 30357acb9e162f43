"""How long gangs are seen to be bound in part, by a clock that is as slow as the machine (`clocks`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import msgspec
from tests.e2e.kubernetes import clocks

from oarlock.spec import attempts

BOUND_S = 30.0
"""No gang is bound in part for longer."""
LOOK_S = clocks.LOOK_S

Gang = tuple[str, int]
"""The job and the number of its attempt."""


class Life(msgspec.Struct, frozen=True):
    """A pod: whether it was ever bound, and whether it is over: deleted, ended, or gone."""

    key: attempts.TaskKey
    bound: bool
    over: bool


class Parts:
    """Belongs to one event loop. Gangs have `size` tasks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.clock = clocks.StretchedClock()
        self._since: dict[Gang, float] = {}  # those that are bound in part now
        self._longest_s: dict[Gang, float] = {}

    def look(self, lives: Iterable[Life]) -> None:
        """Take note of all pods that were ever seen, as they are now."""
        bound: dict[Gang, set[tuple[str, int]]] = {}
        living: set[Gang] = set()
        for life in lives:
            if life.bound:
                gang = life.key.job, life.key.attempt
                bound.setdefault(gang, set()).add((life.key.role, life.key.index))
                living |= set() if life.over else {gang}
        part = {gang for gang in living if len(bound[gang]) < self._size}
        self._since = {gang: self._since.get(gang, self.clock.now_s) for gang in part}
        for gang, since in self._since.items():
            self._longest_s[gang] = max(self._longest_s.get(gang, 0.0), self.clock.now_s - since)

    def late(self) -> dict[Gang, float]:
        """Return the gangs that were bound in part for too long, with the time."""
        return {gang: seconds for gang, seconds in self._longest_s.items() if seconds > BOUND_S}

    async def count(self, ask: clocks.Ask) -> NoReturn:
        """Count the time while a gang is bound in part."""
        await self.clock.run(ask, lambda: bool(self._since))
