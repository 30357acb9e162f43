"""Logs in a directory: for each stream of a task an append-only file, and an index with the bytes' times of arrival.

Many agents append raw bytes at an offset. Each append is written, synced and then acknowledged, on a small pool of
threads, so that streams wait for the disk side by side. Readers get lines, merged by time of arrival. The index is
written first and never synced: if it lacks records, lines have an earlier time, but no bytes are lost.

Several servers may share the directory (`shared`), and the agents of a job append to any of them. A stream's file is
locked while bytes are appended (`appending`), and readers look at the directory and the files again. All methods may be
called from any event loop of the process.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from pathlib import Path
from typing import TypeVar

from oarlock.data import durable, recent, storage, taskfolders
from oarlock.data.logs import joblogs, notifying, paging, reading, searching, streams
from oarlock.spec import attempts, errors, tasklogs

T = TypeVar("T")
SEARCHERS = 2
"""Searches read whole logs. A third one waits, and the readers of pages do not wait for any."""
LOOK_S = 1.0
"""The time after which a follower looks for lines that were appended by another server."""


class DirectoryLogs:
    """The logs of all jobs in one directory of a file system whose files can be locked.

    `quota_bytes` is the limit for one job. TooLarge if it is exceeded. `shared`: other servers use the directory, too.
    """

    def __init__(
        self,
        root: Path,
        *,
        quota_bytes: int | None = None,
        shared: bool = False,
        writers: int = 8,
        readers: int = 4,
    ) -> None:
        self._root = root
        self._shared = shared
        self._quota_bytes = quota_bytes
        self._writers = futures.ThreadPoolExecutor(writers, "log-writer")
        self._readers = futures.ThreadPoolExecutor(readers, "log-reader")
        self._searchers = futures.ThreadPoolExecutor(SEARCHERS, "log-search")
        self._searches: set[searching.Stop] = set()
        self._short = streams.Shortages()
        self._jobs = recent.Recent(lambda job: joblogs.JobLogs(root, job, self._short, shared=shared))

    async def append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, *, at: float) -> int:
        """Append, as `storage.Logs` describes. Unavailable if the disk fails; then nothing is stored."""
        return await self._on(self._writers, lambda: self._append(key, stream, offset, data, at))

    async def length(self, key: attempts.TaskKey, stream: str) -> int:
        def measure() -> int:
            job = self._jobs.get(key.job)
            return job.stream(key, stream).length()

        return await self._read(measure)

    async def streams(self, job: str) -> list[storage.StreamInfo]:
        def list_them() -> list[storage.StreamInfo]:
            found = self._looked(job)
            return [storage.StreamInfo(key=one.key, stream=one.name, length=one.length()) for one in found.listed()]

        return await self._read(list_them)

    def shortages(self, key: attempts.TaskKey) -> dict[str, storage.Shortage]:
        return self._short.of(key)

    async def page(self, query: storage.LogQuery, place: str, *, before: int, after: int) -> tasklogs.LogPage:
        work = functools.partial(paging.page, query=query, place=place, before=before, after=after)
        return await self._read(lambda: work(self._looked(query.job)))

    async def search(
        self, query: storage.LogQuery, place: str, search: tasklogs.LogSearch, *, limit: int
    ) -> tasklogs.LogHits:
        """Search, as `storage.Logs` describes. A search whose task is cancelled ends soon. TooLarge, Unavailable."""
        stop = searching.Stop()
        work = functools.partial(searching.search, query=query, place=place, wanted=search, limit=limit, stop=stop)
        self._searches.add(stop)
        try:
            return await self._read(lambda: work(self._looked(query.job)), self._searchers)
        finally:
            stop.now()
            self._searches.discard(stop)

    async def read(self, query: storage.LogQuery) -> AsyncIterator[tasklogs.Line]:
        reader = await self._read(lambda: reading.Reader(self._looked(query.job), query))
        async for line in self._stored(reader, flush=True):
            yield line

    async def follow(
        self, query: storage.LogQuery, *, until: asyncio.Event | None = None
    ) -> AsyncIterator[tasklogs.Line]:
        job = await self._read(lambda: self._looked(query.job))
        reader = reading.Reader(job, query)
        with job.notifier.subscribed() as notified:
            stopper = asyncio.create_task(notifying.set_when(until, notified)) if until is not None else None
            try:
                async for line in self._stored(reader, flush=False):
                    yield line
                waits = reading.PartialWaits(asyncio.get_running_loop().time)
                while True:
                    ending = until is not None and until.is_set()
                    notified.clear()
                    look = functools.partial(_news, job, reader, waits.due(), ending)
                    batch, waiting = await self._read(look)
                    for line in batch:
                        yield line
                    if batch:
                        waits.note(waiting)
                        continue
                    if ending:
                        for line in await self._read(reader.shortened):
                            yield line
                        return
                    await notifying.wait(notified, self._pause_s(waits.note(waiting)))
            finally:
                if stopper is not None:
                    stopper.cancel()

    def _looked(self, job: str) -> joblogs.JobLogs:
        """Return the job's streams, those included that other servers have begun."""
        found = self._jobs.get(job)
        found.look()
        return found

    def _pause_s(self, wait_s: float | None) -> float | None:
        """Return the time until a follower looks again: other servers give no notice of what they append."""
        if not self._shared:
            return wait_s
        return LOOK_S if wait_s is None else min(wait_s, LOOK_S)

    async def _stored(self, reader: reading.Reader, *, flush: bool) -> AsyncIterator[tasklogs.Line]:
        lines = await self._read(lambda: reader.stored(flush=flush))
        while batch := await self._read(lambda: list(itertools.islice(lines, reader.batch))):
            for line in batch:
                yield line

    async def forget(self, job: str) -> None:
        def delete() -> None:
            self._jobs.get(job).forgotten = True
            taskfolders.delete_job(self._root, job)
            self._jobs.drop(job)
            self._short.forget(job)

        await self._on(self._writers, delete)

    def close(self) -> None:
        """Wait for the writes under way, stop the searches, then end the threads."""
        self._writers.shutdown()
        self._readers.shutdown()
        for stop in tuple(self._searches):
            stop.now()
        self._searchers.shutdown(wait=False, cancel_futures=True)

    async def _on(self, pool: futures.Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def _read(self, work: Callable[[], T], pool: futures.Executor | None = None) -> T:
        try:
            return await self._on(pool or self._readers, work)
        except OSError as error:
            raise durable.unavailable(error, "the log", self._root, done="read") from error

    def _append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, at: float) -> int:
        job = self._jobs.get(key.job)
        one = job.stream(key, stream)
        try:
            with one.held(create=offset == 0 and bool(data)) as length:
                if offset != length:
                    raise errors.OffsetMismatch(
                        f"{key} {stream} is {length} bytes long, not {offset}",
                        hint="continue at the stored length",
                        detail={"length": length},
                    )
                job.check_quota(len(data), self._quota_bytes)
                length = one.write(data, at)
        except OSError as error:
            raise durable.unavailable(error, "the log", self._root) from error
        job.grown(len(data))
        job.notifier.notify()
        return length


def _news(
    job: joblogs.JobLogs, reader: reading.Reader, due: set[streams.Stream], ending: bool
) -> tuple[list[tasklogs.Line], dict[streams.Stream, int]]:
    job.look(every_s=0.0 if ending else LOOK_S)
    return reader.news(due=due, flush=ending)
