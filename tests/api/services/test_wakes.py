"""Waiting requests are woken by the event log, in spite of every failure on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from oarlock.api.services import wakes
from oarlock.spec import errors, jobfile, jobs
from oarlock.store import memory, stores


class Stumbling(memory.MemoryStore):
    """Fails at its first read, at its second wait, and then at the first look at the log."""

    def __init__(self) -> None:
        super().__init__()
        self.read_failures: list[Exception] = [errors.Unavailable("the disk is full")]
        self.wait_failures: list[Exception | None] = [None, RuntimeError("a defect")]
        self.failed = 0

    async def read(self, look: Callable[[stores.View], Any]) -> Any:
        if self.read_failures:
            self.failed += 1
            raise self.read_failures.pop(0)
        return await super().read(look)

    async def wait(self, after: int, timeout_s: float) -> int:
        failure = self.wait_failures.pop(0) if self.wait_failures else None
        if failure is not None:
            self.failed += 1
            self.read_failures.append(errors.Gone("compacted", hint="List again."))
            raise failure
        return await super().wait(after, timeout_s)


async def test_the_log_is_followed_again_after_whatever_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakes, "PAUSE_AFTER_FAILURE_S", 0.0)
    store = Stumbling()
    woken = wakes.Wakes(store, time.monotonic)
    following = asyncio.create_task(woken.follow())
    try:
        for number in range(3):
            spec = jobfile.JobSpec(command="true")
            job = jobs.Job(id=f"j-{number}", name=f"n{number}", owner="ann", spec=spec, created_at=0.0)
            with woken.listening(job.id) as ear:
                await store.write(lambda tx, job=job: tx.add_job(job, at=0.0))
                async with asyncio.timeout(240):
                    await ear.wait(60)
        assert store.failed == 3
        assert not following.done()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.close()
