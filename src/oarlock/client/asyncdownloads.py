"""Downloads on an event loop: `oarlock.client.downloads`, with the waiting left to asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from oarlock.client import asyncsender, downloads, elsewhere, failures, following, requests


class AsyncDownloads:
    """Downloads of one job, a few files at once."""

    def __init__(self, job: str, sends: asyncsender.AsyncSender, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._job, self._sender, self._sleep = job, sends, sleep

    async def run(self, wanted: Sequence[downloads.Target], progress: downloads.Progress | None) -> int:
        meter, slots = downloads.Meter(downloads.total(wanted), progress), asyncio.Semaphore(downloads.AT_ONCE)

        async def one(target: downloads.Target) -> int:
            async with slots:
                return await self._fetch(target, meter)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(target)) for target in wanted]
        return sum(task.result() for task in tasks)

    async def _fetch(self, target: downloads.Target, meter: downloads.Meter) -> int:
        if target.url:
            return await asyncio.to_thread(elsewhere.fetch, target.url, target.file, target.place, meter.add)
        draft, losses = downloads.Draft(target), 0
        while True:
            try:
                request = requests.file(self._job, target.file.path, draft.headers())
                async with self._sender.content(request) as (response, chunks):
                    with draft.receiving(response.status_code, response.headers) as before:
                        meter.add(before if not losses else 0)
                        async for chunk in chunks:
                            await asyncio.to_thread(draft.write, chunk)
                            meter.add(len(chunk))
                return await asyncio.to_thread(draft.finish)
            except (failures.Lost, failures.Unsent):
                losses = losses + 1 if not draft.moved else 1
                if downloads.give_up(draft, losses):
                    raise
                await self._sleep(following.pause_s(losses))
                self._sender.forget_place()


def first_error(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return what went wrong first: the others were only told to stop."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
