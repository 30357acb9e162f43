"""Turns: one piece of work at a time for each key, and only the newest check of those that wait."""

from __future__ import annotations

import asyncio

import pytest

from oarlock.spec import errors
from oarlock.web.access import turns


async def test_only_the_newest_check_waits_and_kept_work_is_done() -> None:
    line = turns.Turns()
    done: list[str] = []
    gate = asyncio.Event()

    async def work(name: str, *, keep: bool = False) -> None:
        async with line.turn("ann", keep=keep):
            done.append(name)
            await gate.wait()

    first = asyncio.create_task(work("first"))
    old = asyncio.create_task(work("old"))
    job = asyncio.create_task(work("job", keep=True))
    new = asyncio.create_task(work("new"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert line._lines["ann"].length == 4
    assert done == ["first"]
    gate.set()
    with pytest.raises(errors.Conflict):
        await old
    await asyncio.gather(first, job, new)
    assert done == ["first", "job", "new"]
    assert line._lines == {}


async def test_another_session_does_not_wait_and_a_left_one_is_forgotten() -> None:
    line = turns.Turns()
    async with line.turn("ann"):
        waiting = asyncio.create_task(line.turn("ann").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        async with line.turn("bob"):
            pass
        await asyncio.gather(waiting, return_exceptions=True)
    assert line._lines == {}
