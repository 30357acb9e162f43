"""The clock of the times that the product must keep sees a wait that is too long, and forgives a slow machine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from tests.e2e.kubernetes import clocks

ROUNDS = 6
AT_LEAST_S = (ROUNDS - 1) * clocks.REST_S
"""The shortest time of so many rounds: the last one may not have ended."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield a loop that runs on a thread of its own, as that of a cluster does."""
    begun, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()
        await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert begun.wait(240)
    yield loops[0]
    loops[0].call_soon_threadsafe(over.set)
    thread.join(240)


class Asked:
    """An API server that answers at once. `enough` is set after `ROUNDS` questions."""

    def __init__(self) -> None:
        self.enough = threading.Event()
        self._count = 0

    async def __call__(self) -> None:
        self._count += 1
        if self._count >= ROUNDS:
            self.enough.set()


def test_a_wait_that_is_too_long_fails(loop: asyncio.AbstractEventLoop) -> None:
    asked = Asked()
    with (
        pytest.raises(AssertionError, match="the wait took"),
        clocks.within(loop, asked, AT_LEAST_S / 2, "the wait"),
    ):
        assert asked.enough.wait(240)
    with clocks.within(loop, asked, ROUNDS * clocks.ROUND_S, "a wait of no time"):
        pass


def test_a_clock_that_has_stopped_is_told(loop: asyncio.AbstractEventLoop) -> None:
    asked = threading.Event()

    async def ask() -> None:
        asked.set()
        raise OSError

    def wait() -> None:
        with clocks.within(loop, ask, 60.0, "the wait"):
            assert asked.wait(240)
            while len(asyncio.all_tasks(loop)) > 1:  # one runs the loop
                time.sleep(0.01)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(240)  # the end of the other one is told

    with pytest.raises(AssertionError, match="the clock has run until now"):
        wait()


def test_slow_rounds_count_as_those_of_an_idle_machine() -> None:
    clock = clocks.StretchedClock()
    for _ in range(10):
        clock.add(60.0)
    assert clock.now_s == pytest.approx(10 * clocks.ROUND_S)


async def test_a_clock_stands_still_while_nothing_needs_it() -> None:
    clock, asked = clocks.StretchedClock(), Asked()
    running = asyncio.create_task(clock.run(asked, lambda: False))
    await asyncio.sleep(5 * clocks.LOOK_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert clock.now_s == 0
    assert not asked._count
