"""The downloads of one job through a sender, a few files at once (`oarlock.client.downloads` has the decisions)."""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.client import downloads, elsewhere, failures, following, requests
from oarlock.client.asynchronous import sender, waiting


class AsyncDownloads:
    """Downloads of one job."""

    def __init__(self, job: str, sends: sender.AsyncSender, sleep: waiting.Sleep) -> None:
        self._job, self._sender, self._sleep = job, sends, sleep
        self._pool = waiting.Pool(downloads.AT_ONCE)
        self._elsewhere = elsewhere.Places()

    async def run(self, wanted: Sequence[downloads.Target], progress: downloads.Progress | None) -> int:
        """Fetch all these files and return their size in bytes."""
        meter = downloads.Meter(downloads.total(wanted), progress)

        async def one(target: downloads.Target) -> int:
            return await self._fetch(target, meter)

        return sum(await self._pool.map(one, wanted))

    async def _fetch(self, target: downloads.Target, meter: downloads.Meter) -> int:
        if target.url:
            return await waiting.in_thread(self._elsewhere.fetch, target.url, target.file, target.place, meter.add)
        draft, losses = downloads.Draft(target), 0
        while True:
            try:
                await self._receive(draft, meter, first=not losses)
                return await waiting.in_thread(draft.finish)
            except (failures.Lost, failures.Unsent):
                losses = losses + 1 if not draft.moved else 1
                if downloads.give_up(draft, losses):
                    raise
                await self._sleep(following.pause_s(losses))
                self._sender.forget_place()

    async def _receive(self, draft: downloads.Draft, meter: downloads.Meter, *, first: bool) -> None:
        request = requests.file(self._job, draft.target.file.path, draft.headers())
        async with self._sender.content(request) as (response, chunks):
            with draft.receiving(response.status_code, response.headers) as before:
                meter.add(before if first else 0)
                async for chunk in chunks:
                    await waiting.in_thread(draft.write, chunk)
                    meter.add(len(chunk))
                    self._pool.check()
