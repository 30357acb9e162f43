"""Metrics in a directory: frames in, columnar compressed chunks on disk, thinned series out.

For each process of a task there are two files. What arrives is appended to `raw-BASE` and synced: that is the
acknowledgement. When enough has gathered, its whole frames become one chunk at the end of `chunks` (synced), and a new
raw file begins with the rest; a chunk says which stretch of the stream it stands for, so that a kill between the two is
found and mended. A reader takes the chunks' columns one by one and the raw rest, and thins as it goes.

A frame that is wrong is refused, with what follows it; what came before it is stored, and the stream goes on when right
frames are sent.

One process at a time may append. Everything may be called from any event loop of that process.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import TypeVar

from oarlock.data import appending, durable, recent, storage, taskfolders
from oarlock.data.metrics import chunks, frames, lives
from oarlock.spec import attempts, errors

T = TypeVar("T")

QUOTA_BYTES = 4 << 30
CHUNK_BYTES = 256 << 10
"""Raw bytes that become a chunk."""


class DirectoryMetrics:
    """The port over one directory of a local file system. `quota_bytes` bounds what one job may store."""

    def __init__(self, root: Path, *, quota_bytes: int = QUOTA_BYTES, writers: int = 4, readers: int = 2) -> None:
        self._root = root
        self._quota_bytes = quota_bytes
        self._writers = futures.ThreadPoolExecutor(writers, "metric-writer")
        self._readers = futures.ThreadPoolExecutor(readers, "metric-reader")
        self._jobs = recent.Recent(lambda job: JobMetrics(root, job))

    async def append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        """Append frames, as `storage.Metrics` says.

        Raises InvalidInput for a bad frame; its `detail` has the `length` up to which the stream is stored.
        """
        return await self._on(self._writers, lambda: self._append(key, process, offset, data))

    async def names(self, job: str) -> list[str]:
        return await self._on(self._readers, lambda: sorted(self._jobs.get(job).names()))

    async def series(self, job: str, names: list[str] | None = None, *, points: int = 500) -> list[storage.Series]:
        """Ordered by task, process and name."""
        return await self._on(self._readers, lambda: self._series(job, names, points))

    async def forget(self, job: str) -> None:
        def delete() -> None:
            shutil.rmtree(taskfolders.job_folder(self._root, job), ignore_errors=True)
            self._jobs.drop(job)

        await self._on(self._writers, delete)

    def close(self) -> None:
        """Let the threads go, once what they write is written."""
        self._writers.shutdown()
        self._readers.shutdown()

    async def _on(self, pool: futures.Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        if not 0 <= process < taskfolders.MOST:
            raise errors.InvalidInput("not a process's number", hint="processes count from 0", path="process")
        job = self._jobs.get(key.job)
        stream = job.stream(key, process)
        try:
            with stream.lock:
                stream.open()
                if offset != stream.length:
                    raise errors.OffsetMismatch(
                        f"{key} metrics {process} is {stream.length} bytes long, not {offset}",
                        hint="go on at the stored length",
                        detail={"length": stream.length},
                    )
                job.check_quota(len(data), self._quota_bytes)
                before = stream.stored_bytes
                bad = stream.append(data)
                job.grown(stream.stored_bytes - before)
        except OSError as error:
            raise durable.unavailable(error, "metrics", self._root) from error
        if bad:
            raise errors.InvalidInput(
                f"{key} metrics {process}: {bad}",
                hint="metrics are written by oarlock.train; see docs/agent-protocol.md, section 3",
                detail={"length": stream.length},
            )
        return stream.length

    def _series(self, job: str, names: list[str] | None, points: int) -> list[storage.Series]:
        if points < 1:
            raise errors.InvalidInput("no points at all", hint="ask for at least one", path="points")
        wanted = None if names is None else frozenset(names)
        held = self._jobs.get(job)
        streams = [(one.key, one.process, one.view) for one in held.streams()]
        try:
            return lives.series(streams, wanted, points)
        except FileNotFoundError as error:
            raise errors.NotFound("the job's metrics were deleted while they were read", hint="ask again") from error


class JobMetrics:
    """The streams of one job: known from its directory once, from then on by what is appended."""

    def __init__(self, root: Path, job: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._streams: dict[tuple[attempts.TaskKey, int], Stream] = {}
        self._bytes: int | None = None
        for key, folder in taskfolders.folders(root, job):
            for path in folder.glob("process-*"):
                process = int(path.name.removeprefix("process-"))
                self._streams[key, process] = Stream(key, process, path)

    def stream(self, key: attempts.TaskKey, process: int) -> Stream:
        with self._lock:
            found = self._streams.get((key, process))
            if found is None:
                path = taskfolders.folder(self._root, key) / f"process-{process}"
                found = self._streams[key, process] = Stream(key, process, path)
        return found

    def streams(self) -> list[Stream]:
        with self._lock:
            return [one for _, one in sorted(self._streams.items())]

    def names(self) -> set[str]:
        found: set[str] = set()
        for one in self.streams():
            with one.lock:
                one.open()
                found |= one.names
        return found

    def check_quota(self, more: int, quota_bytes: int) -> None:
        """Streams that append at the same time may each take the last of it."""
        if self._bytes is None:
            self._bytes = sum(one.stored_bytes for one in self.streams())
        if self._bytes + more > quota_bytes:
            raise errors.TooLarge(
                f"the job's metrics have reached their quota of {quota_bytes:,} bytes",
                hint="report fewer values or less often, or raise the server's quota for metrics",
                detail={"quota_bytes": quota_bytes},
            )

    def grown(self, more: int) -> None:
        with self._lock:
            if self._bytes is not None:
                self._bytes += more


class Stream:
    """Frames of one process. Writers and readers hold `lock`."""

    def __init__(self, key: attempts.TaskKey, process: int, folder: Path) -> None:
        self.key = key
        self.process = process
        self.lock = threading.Lock()
        self.names: set[str] = set()
        self._folder = folder
        self._chunks: appending.AppendOnly | None = None
        self._raw: appending.AppendOnly | None = None
        self._base = 0  # where the raw file begins in the stream
        self._schemas: dict[int, tuple[str, ...]] = {}  # in force at `_tail`
        self._tail = b""  # the frame at the end that is not whole yet

    @property
    def length(self) -> int:
        return self._base + (self._raw.length if self._raw is not None else 0)

    @property
    def stored_bytes(self) -> int:
        if self._chunks is None or self._raw is None:
            return sum(path.stat().st_size for path in self._folder.glob("*")) if self._folder.exists() else 0
        return self._chunks.length + self._raw.length

    def open(self) -> None:
        """Find what is stored, and mend what a kill has left: once, and again where somebody has cut the files."""
        if self._raw is not None and self._chunks is not None:
            if all(file.remaining() == file.length for file in (self._raw, self._chunks)):
                return
            self._chunks = self._raw = None
            self._schemas, self._tail = {}, b""
        file = appending.AppendOnly(self._folder / "chunks")
        records = chunks.Records(file.path, file.length)
        found = records.scan()
        file.cut(found[-1].at + found[-1].size if found else 0)
        for chunk in found:
            head, _ = records.head(chunk)
            self._schemas = head.schemas
            self.names.update(name for block in head.blocks for name in block.names)
        raw = appending.AppendOnly(self._newest_raw(found[-1].end if found else 0))
        self._chunks, self._raw = file, raw
        parsed = self._parsed()[1]
        self._learn(parsed)

    def append(self, data: bytes) -> str:
        """Store the frames of `data` that are right; return what is wrong with the first that is not, or nothing."""
        assert self._raw is not None  # `open` came first
        whole = self._tail + data
        parsed = frames.parse(whole, self._schemas)
        if parsed.bad:
            data = data[: max(0, parsed.end - len(self._tail))]
            whole = whole[: max(parsed.end, len(self._tail))]
        self._raw.append(data)
        self._schemas = parsed.schemas
        self._tail = whole[parsed.end :]
        self.names.update(name for run in parsed.runs for name in run.names)
        if self._raw.length >= CHUNK_BYTES:
            try:
                self._compact()
            except OSError:
                return parsed.bad  # a full disk: what came is stored, and the next append tries again
        return parsed.bad

    def view(self) -> tuple[chunks.Records, list[chunks.Chunk], bytes, frames.Parsed]:
        """What a reader needs, as of one instant: the chunks, and the raw rest."""
        with self.lock:
            self.open()
            assert self._chunks is not None
            records = chunks.Records(self._chunks.path, self._chunks.length)
            return (records, records.scan(), *self._parsed())

    def _compact(self) -> None:
        """Raw bytes to a chunk. Killed after the chunk: `_newest_raw` skips what it stands for."""
        assert self._chunks is not None
        assert self._raw is not None
        raw, parsed = self._parsed()
        if not parsed.end:
            return
        before = self._chunks.length
        self._chunks.append(chunks.encoded(raw, parsed, self._base))
        old, base = self._raw.path, self._base + parsed.end
        try:
            self._raw = self._raw_from(base, raw[parsed.end :])
        except OSError:
            self._chunks.cut(before)
            raise
        self._base = base
        old.unlink(missing_ok=True)

    def _newest_raw(self, end: int) -> Path:
        """The raw file that goes on where the chunks end; what else lies there is of no use any more."""
        bases = sorted(int(path.name.removeprefix("raw-")) for path in self._folder.glob("raw-*"))
        before = [base for base in bases if base < end]
        self._base = end
        if before and end not in bases:
            rest = (self._folder / f"raw-{before[-1]}").read_bytes()[end - before[-1] :]
            self._raw_from(end, rest)
        for base in before:
            (self._folder / f"raw-{base}").unlink()
        return self._folder / f"raw-{end}"

    def _raw_from(self, base: int, rest: bytes) -> appending.AppendOnly:
        path = self._folder / f"raw-{base}"
        durable.write(path, rest)
        return appending.AppendOnly(path)

    def _parsed(self) -> tuple[bytes, frames.Parsed]:
        """The raw file's bytes and frames."""
        assert self._raw is not None
        raw = self._raw.path.read_bytes()[: self._raw.length] if self._raw.length else b""
        return raw, frames.parse(raw, self._schemas_at_base())

    def _schemas_at_base(self) -> dict[int, tuple[str, ...]]:
        assert self._chunks is not None
        if not self._chunks.length:
            return {}
        records = chunks.Records(self._chunks.path, self._chunks.length)
        return records.head(records.scan()[-1])[0].schemas

    def _learn(self, parsed: frames.Parsed) -> None:
        assert self._raw is not None
        self._schemas = parsed.schemas
        self._tail = self._raw.path.read_bytes()[parsed.end : self._raw.length] if self._raw.length else b""
        self.names.update(name for run in parsed.runs for name in run.names)
