"""How long gangs are seen to be bound in part, counted so that no gang is late by the slowness of its machine alone.

    a round: a program starts, and the API server answers ──> its time counts, as far as an idle machine would need it

A server that is slow, or that waits for an API server which does not answer, makes such rounds slow as well.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

import msgspec

from oarlock.spec import attempts

BOUND_S = 30.0
"""No gang is bound in part for longer."""
LOOK_S = 0.02
REST_S = 0.1
ROUND_S = 0.2
"""A round counts as so long at most. An idle machine needs 0.13 s, its rest included."""

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
        self._counted_s = 0.0
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
        self._since = {gang: self._since.get(gang, self._counted_s) for gang in part}
        for gang, since in self._since.items():
            self._longest_s[gang] = max(self._longest_s.get(gang, 0.0), self._counted_s - since)

    def late(self) -> dict[Gang, float]:
        """Return the gangs that were bound in part for too long, with the time."""
        return {gang: seconds for gang, seconds in self._longest_s.items() if seconds > BOUND_S}

    async def count(self, ask: Callable[[], Awaitable[object]]) -> NoReturn:
        """Count the time while a gang is bound in part. `ask` asks the API server until it answers."""
        while True:
            if not self._since:
                await asyncio.sleep(LOOK_S)
                continue
            began = time.monotonic()
            await asyncio.sleep(REST_S)
            await asyncio.to_thread(subprocess.run, [sys.executable, "-I", "-S", "-c", ""], check=True)
            await ask()
            self.add(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        """Count one round."""
        self._counted_s += min(seconds, ROUND_S)
