"""A clock that is as slow as its machine, for the times that the product must keep.

    a round: a program starts, the API server answers, a rest follows ──> it counts as far as an idle machine needs it

A rest is three times as long as the work before it. So 30 s of this clock are several times as long on a machine that
is busy with other work, or beside an API server that does not answer: no test fails because a machine is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn

ROUND_S = 0.2
"""A round counts as so long at most. An idle machine needs 0.13 s."""
REST_S, RESTS = 0.1, 3
"""The shortest rest, and how many times as long as the work before it a rest is."""
LOOK_S = 0.02

Ask = Callable[[], Awaitable[object]]
"""Asks the API server until it answers."""


class StretchedClock:
    """Belongs to one event loop. `now_s` stands still while nothing needs the clock: its rounds cost something."""

    def __init__(self) -> None:
        self.now_s = 0.0

    async def run(self, ask: Ask, needed: Callable[[], bool] = lambda: True) -> NoReturn:
        while True:
            if not needed():
                await asyncio.sleep(LOOK_S)
                continue
            began = time.monotonic()
            await asyncio.to_thread(subprocess.run, [sys.executable, "-I", "-S", "-c", ""], check=True)
            await ask()
            await asyncio.sleep(max(REST_S, RESTS * (time.monotonic() - began)))
            self.add(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        """Count one round."""
        self.now_s += min(seconds, ROUND_S)


@contextlib.contextmanager
def within(loop: asyncio.AbstractEventLoop, ask: Ask, bound_s: float, what: str) -> Iterator[None]:
    """Fail where the body takes more than `bound_s` of a stretched clock, which runs on another thread's loop."""
    clock = StretchedClock()
    running = asyncio.run_coroutine_threadsafe(clock.run(ask), loop)
    try:
        yield
        assert not running.done(), "the clock has run until now"
    finally:
        running.cancel()
    assert clock.now_s <= bound_s, f"{what} took {clock.now_s:.0f} s of a machine without other work, not {bound_s:g} s"
