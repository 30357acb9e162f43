"""Logs in a directory: for each stream of a task an append-only file, and a small index of when its bytes arrived.

In come raw bytes at an offset, from many agents at once; each append is written, synced and only then acknowledged, on
a small pool of threads, so that streams wait for the disk side by side. Out come lines, merged by time of arrival. The
file's length is the truth about what is stored; the index is written first and never synced: where it lags, lines have
an earlier time, and no byte depends on it.

Somebody may delete or cut a file under a running server. Each append and each look compares the file's length with what
was acknowledged: a stream that is short goes on at the length that is left, so that its agent sends the rest again. How
much was acknowledged is written beside it (`NAME.lost`) until it is there again, and readers are told.

One process at a time may append. Everything may be called from any event loop of that process.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import TypeVar

from oarlock.data import appending, durable, keys, loglines, recent, storage
from oarlock.spec import attempts, errors

T = TypeVar("T")

RESOLUTION_S = 0.02
"""Appends of one stream that follow each other faster share a record of the index."""
PARTIAL_S = 0.5
BATCH_LINES = 2000
BATCH_BLOCKS = 16
MISSING = (
    "[oarlock] {:,} bytes of this log are missing here: somebody deleted or cut its file on the server's disk."
    " They are shown once the task has sent them again; they are lost if it has ended."
)


class DirectoryLogs:
    """The port over one directory of a local file system.

    `quota_bytes` bounds what one job may store: over it, TooLarge.
    """

    def __init__(self, root: Path, *, quota_bytes: int | None = None, writers: int = 8, readers: int = 4) -> None:
        self._root = root
        self._quota_bytes = quota_bytes
        self._writers = futures.ThreadPoolExecutor(writers, "log-writer")
        self._readers = futures.ThreadPoolExecutor(readers, "log-reader")
        self._short = Shortages()
        self._jobs = recent.Recent(lambda job: JobLogs(root, job, self._short))

    async def append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, *, at: float) -> int:
        """Append, as `storage.Logs` says. Raises Unavailable when the disk refuses; then nothing is stored."""
        return await self._on(self._writers, lambda: self._append(key, stream, offset, data, at))

    async def length(self, key: attempts.TaskKey, stream: str) -> int:
        def measure() -> int:
            job = self._jobs.get(key.job)
            return job.stream(key, stream).length()

        return await self._on(self._readers, measure)

    async def streams(self, job: str) -> list[storage.StreamInfo]:
        def list_them() -> list[storage.StreamInfo]:
            found = self._jobs.get(job)
            return [storage.StreamInfo(key=one.key, stream=one.name, length=one.length()) for one in found.streams()]

        return await self._on(self._readers, list_them)

    def shortages(self, key: attempts.TaskKey) -> dict[str, storage.Shortage]:
        return self._short.of(key)

    async def read(self, query: storage.LogQuery) -> AsyncIterator[storage.Line]:
        lines = await self._on(self._readers, lambda: reading(self._jobs.get(query.job), query, {}, flush=True))
        while batch := await self._on(self._readers, lambda: list(itertools.islice(lines, batch_of(query)))):
            for line in batch:
                yield line

    async def follow(
        self, query: storage.LogQuery, *, until: asyncio.Event | None = None
    ) -> AsyncIterator[storage.Line]:
        job = await self._on(self._readers, lambda: self._jobs.get(query.job))
        cursors: dict[Stream, loglines.Cursor] = {}
        with job.bell.heard() as rung:
            stopper = asyncio.create_task(ring_when(until, rung)) if until is not None else None
            try:
                lines = await self._on(self._readers, lambda: reading(job, query, cursors, flush=False))
                while batch := await self._on(self._readers, lambda: list(itertools.islice(lines, batch_of(query)))):
                    for line in batch:
                        yield line
                patience = Patience(asyncio.get_running_loop().time)
                while True:
                    ending = until is not None and until.is_set()
                    rung.clear()
                    ripe = patience.ripe()
                    look = functools.partial(news, job, query, cursors, ripe=ripe, flush=ending)
                    batch, waiting = await self._on(self._readers, look)
                    for line in batch:
                        yield line
                    if batch:
                        patience.note(waiting)
                        continue
                    if ending:
                        for line in await self._on(self._readers, lambda: shortened(job, query)):
                            yield line
                        return
                    await wait(rung, patience.note(waiting))
            finally:
                if stopper is not None:
                    stopper.cancel()

    async def forget(self, job: str) -> None:
        def delete() -> None:
            self._jobs.get(job).forgotten = True
            shutil.rmtree(keys.job_folder(self._root, job), ignore_errors=True)
            self._jobs.drop(job)
            self._short.forget(job)

        await self._on(self._writers, delete)

    def close(self) -> None:
        """Let the threads go, once what they write is written."""
        self._writers.shutdown()
        self._readers.shutdown()

    async def _on(self, pool: futures.Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, at: float) -> int:
        job = self._jobs.get(key.job)
        one = job.stream(key, stream)
        try:
            with one.lock:
                length = one.length()
                if offset != length:
                    raise errors.OffsetMismatch(
                        f"{key} {stream} is {length} bytes long, not {offset}",
                        hint="go on at the stored length",
                        detail={"length": length},
                    )
                job.check_quota(len(data), self._quota_bytes)
                length = one.write(data, at)
        except OSError as error:
            raise durable.unavailable(error, "the log", self._root) from error
        job.grown(len(data))
        job.bell.ring()
        return length


class JobLogs:
    """The streams of one job: known from its directory once, from then on by what is appended."""

    def __init__(self, root: Path, job: str, short: Shortages) -> None:
        self.bell = Bell()
        self.forgotten = False
        self._root = root
        self._short = short
        self._lock = threading.Lock()
        self._streams: dict[tuple[attempts.TaskKey, str], Stream] = {}
        self._bytes: int | None = None
        for key, folder in keys.folders(root, job):
            for name in sorted({path.stem for kind in ("*.log", "*.lost") for path in folder.glob(kind)}):
                self._streams[key, name] = Stream(key, name, folder / f"{name}.log", self._shortened)

    def stream(self, key: attempts.TaskKey, name: str) -> Stream:
        with self._lock:
            found = self._streams.get((key, name))
            if found is None:
                keys.check_stream(name)
                path = keys.folder(self._root, key) / f"{name}.log"
                found = self._streams[key, name] = Stream(key, name, path, self._shortened)
        return found

    def _shortened(self, one: Stream, shortage: storage.Shortage | None) -> bool:
        """A stream became short, or is whole again; False where the job's logs were deleted on purpose."""
        if self.forgotten:
            return False
        with self._lock:
            self._bytes = None
        self._short.note(one.key, one.name, shortage)
        return True

    def streams(self) -> list[Stream]:
        with self._lock:
            return [one for _, one in sorted(self._streams.items())]

    def matching(self, query: storage.LogQuery) -> Iterator[Stream]:
        for one in self.streams():
            wanted = (query.attempt, query.role, query.index)
            if all(
                want is None or want == has
                for want, has in zip(wanted, (one.key.attempt, one.key.role, one.key.index), strict=True)
            ):
                yield one

    def check_quota(self, more: int, quota_bytes: int | None) -> None:
        if quota_bytes is None:
            return
        if self._bytes is None:
            self._bytes = sum(one.length() for one in self.streams())
        if self._bytes + more > quota_bytes:
            raise errors.TooLarge(
                f"the job's logs have reached their quota of {quota_bytes:,} bytes",
                hint="print less, or raise the server's log quota",
                detail={"quota_bytes": quota_bytes},
            )

    def grown(self, more: int) -> None:
        with self._lock:
            if self._bytes is not None:
                self._bytes += more


class Stream:
    """One append-only file and its index. `lock` is held by whoever appends; readers use what was acknowledged."""

    def __init__(
        self,
        key: attempts.TaskKey,
        name: str,
        path: Path,
        changed: Callable[[Stream, storage.Shortage | None], bool],
    ) -> None:
        self.key = key
        self.name = name
        self.path = path
        self.lock = threading.RLock()
        self._changed = changed
        self._acknowledged = 0  # more than the file has, while the stream is short
        self._file: appending.AppendOnly | None = None
        self._last_at = float("-inf")
        self._indexed_at = float("-inf")

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    @property
    def lost_path(self) -> Path:
        return self.path.with_suffix(".lost")

    def length(self) -> int:
        file = self._opened()
        if file.remaining() < file.length:
            with self.lock:
                self._lose(file)
        return file.length

    @property
    def missing(self) -> int:
        """How many acknowledged bytes are gone from the disk."""
        return max(0, self._acknowledged - self.length())

    def missing_line(self) -> storage.Line | None:
        """What readers are told at the end of a stream that is short."""
        if not self.missing:
            return None
        return storage.Line(
            task=f"{self.key.role}-{self.key.index}",
            attempt=self.key.attempt,
            incarnation=self.key.incarnation,
            stream=self.name,
            offset=self.length(),
            at=max(self._last_at, _changed_at(self.lost_path)),
            text=MISSING.format(self.missing),
        )

    def index(self) -> loglines.Index:
        try:
            fallback = self.path.stat().st_mtime
        except FileNotFoundError:
            fallback = 0.0
        return loglines.Index(self.index_path, fallback)

    def write(self, data: bytes, at: float) -> int:
        """Store `data` at the end; raises OSError, and then nothing of it is stored."""
        file = self._opened()
        if data:
            self._note(file.length, at)
        length = file.append(data)
        if self._acknowledged:
            self._regain(length)
        return length

    def _lose(self, file: appending.AppendOnly) -> None:
        """Go on at what is left of the file. Readers and the task's agent are told how much is missing."""
        left, before = file.remaining(), max(file.length, self._acknowledged)
        if left >= file.length:
            return  # another thread was here first
        file.cut(left)
        self._last_at = self._indexed_at = float("-inf")
        self._recover_index(left)
        if self._changed(self, storage.Shortage(left, before - left)):
            self._acknowledged = before
            try:
                durable.make_folder(self.path.parent)
                durable.write(self.lost_path, str(before).encode())
            except OSError:
                return  # a full disk: it is remembered until the server ends

    def _regain(self, length: int) -> None:
        """Bytes came again: the stream is short by less, or by nothing."""
        if length < self._acknowledged:
            self._changed(self, storage.Shortage(length, self._acknowledged - length))
            return
        self._acknowledged = 0
        self._changed(self, None)
        self.lost_path.unlink(missing_ok=True)

    def _opened(self) -> appending.AppendOnly:
        file = self._file
        if file is None:
            with self.lock:
                file = self._file
                if file is None:
                    file = appending.AppendOnly(self.path)
                    self._recover_index(file.length)
                    self._acknowledged = _number_in(self.lost_path)
                    if self._acknowledged:
                        self._regain(file.length)
                    self._file = file
        return file

    def _recover_index(self, length: int) -> None:
        """Drop what speaks of bytes that are not there; go on from the last time that is."""
        with loglines.Records(self.index_path) as records:
            kept = len(records)
            while kept and records[kept - 1][0] >= length:
                kept -= 1
            if kept:
                self._last_at = self._indexed_at = records[kept - 1][1]
        if self.index_path.exists():
            os.truncate(self.index_path, kept * loglines.RECORD.size)

    def _note(self, offset: int, at: float) -> None:
        """Times only grow, so that they can be searched, whatever the clock does."""
        self._last_at = at = max(at, self._last_at)
        if offset > 0 and at - self._indexed_at < RESOLUTION_S:
            return
        try:
            durable.make_folder(self.path.parent)
            with self.index_path.open("ab") as file:
                file.write(loglines.RECORD.pack(offset, at))
        except OSError:
            return  # a full disk shows itself at the bytes, and times are not worth failing for
        self._indexed_at = at


class Shortages:
    """Which streams are short, by task; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[attempts.TaskKey, dict[str, storage.Shortage]] = {}

    def of(self, key: attempts.TaskKey) -> dict[str, storage.Shortage]:
        with self._lock:
            return dict(self._found.get(key, {}))

    def note(self, key: attempts.TaskKey, stream: str, shortage: storage.Shortage | None) -> None:
        with self._lock:
            theirs = self._found.setdefault(key, {})
            theirs.pop(stream, None)
            if shortage is not None:
                theirs[stream] = shortage
            if not theirs:
                del self._found[key]

    def forget(self, job: str) -> None:
        with self._lock:
            self._found = {key: theirs for key, theirs in self._found.items() if key.job != job}


def _number_in(path: Path) -> int:
    try:
        text = path.read_text()
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdigit() else 0


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class Bell:
    """Wakes readers on any thread's loop when something was appended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hearers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def heard(self) -> Hearing:
        return Hearing(self)

    def ring(self) -> None:
        with self._lock:
            hearers = list(self._hearers.items())
        for event, loop in hearers:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop is closed, and its reader gone

    def add(self, event: asyncio.Event) -> None:
        with self._lock:
            self._hearers[event] = asyncio.get_running_loop()

    def remove(self, event: asyncio.Event) -> None:
        with self._lock:
            self._hearers.pop(event, None)


class Hearing:
    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._event = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._bell.add(self._event)
        return self._event

    def __exit__(self, *_: object) -> None:
        self._bell.remove(self._event)


async def ring_when(until: asyncio.Event, rung: asyncio.Event) -> None:
    await until.wait()
    rung.set()


async def wait(rung: asyncio.Event, timeout_s: float | None) -> None:
    try:
        await asyncio.wait_for(rung.wait(), timeout_s)
    except TimeoutError:
        return


class Patience:
    """How long text without a newline waits for one before it is shown."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Stream, tuple[int, float]] = {}

    def note(self, waiting: dict[Stream, int]) -> float | None:
        """`waiting` has the offset at which each open end begins.

        Returns the seconds until the first is ripe, or None.
        """
        now = self._clock()
        self._since = {
            one: (offset, self._since[one][1] if self._since.get(one, (-1, 0.0))[0] == offset else now)
            for one, offset in waiting.items()
        }
        return min((max(0.0, since + PARTIAL_S - now) for _, since in self._since.values()), default=None)

    def ripe(self) -> set[Stream]:
        now = self._clock()
        return {one for one, (_, since) in self._since.items() if now >= since + PARTIAL_S}


def reading(
    job: JobLogs, query: storage.LogQuery, cursors: dict[Stream, loglines.Cursor], *, flush: bool
) -> Iterator[storage.Line]:
    """What is stored now. Leaves in `cursors` where each stream was left."""
    parts = []
    streams = list(job.matching(query))
    block = loglines.block_for(len(streams))
    for one in streams:
        end = one.length()
        cursors[one] = cursor = loglines.Cursor(
            one.key, one.name, one.path, one.index(), start_of(one, query, end), blocks=query.blocks
        )
        parts.append(cursor.all(end, flush=flush, block=block))
    if flush:
        parts.append(iter(shortened(job, query)))
    if query.tail is None:
        return heapq.merge(*parts, key=arrival)
    # A tail is short, and each part of it begins near its end.
    last: list[storage.Line] = []
    for part in parts:
        last = sorted([*last, *part], key=arrival)[-query.tail :] if query.tail else []
    return iter(last)


def batch_of(query: storage.LogQuery) -> int:
    """How many lines, or blocks of them, are in memory for one reader."""
    return BATCH_BLOCKS if query.blocks else BATCH_LINES


def shortened(job: JobLogs, query: storage.LogQuery) -> list[storage.Line]:
    """A line for each stream of which acknowledged bytes are missing."""
    lines = [line for one in job.matching(query) if (line := one.missing_line()) is not None]
    return sorted((line for line in lines if query.since is None or line.at >= query.since), key=arrival)


def start_of(one: Stream, query: storage.LogQuery, end: int) -> int:
    start = 0
    if query.since is not None and end > 0:
        start = loglines.line_start(one.path, one.index().since(query.since, end))
    if query.tail is not None:
        start = max(start, loglines.tail_start(one.path, end, query.tail))
    return start


def arrival(line: storage.Line) -> float:
    return line.at


def news(
    job: JobLogs, query: storage.LogQuery, cursors: dict[Stream, loglines.Cursor], *, ripe: set[Stream], flush: bool
) -> tuple[list[storage.Line], dict[Stream, int]]:
    """A block of new lines of each stream, merged; and where the streams that have an open end stand."""
    found: list[storage.Line] = []
    waiting: dict[Stream, int] = {}
    streams = list(job.matching(query))
    block = loglines.block_for(len(streams))
    for one in streams:
        end = one.length()
        cursor = cursors.get(one)
        if cursor is None:
            cursor = cursors[one] = loglines.Cursor(one.key, one.name, one.path, one.index(), 0, blocks=query.blocks)
        found += cursor.take(end, flush=flush or one in ripe, block=block)
        if cursor.offset < end:
            waiting[one] = cursor.offset
    return sorted(found, key=arrival), waiting
