"""Metrics in a directory: frames arrive, compressed columns are stored, and thinned series are returned.

Each process of a task has two files. Arriving bytes are appended to `raw-BASE`, synced and then acknowledged. When
there are enough, their whole frames become one chunk at the end of `chunks` (synced), and a new raw file begins with
the rest. A chunk names the part of the stream that it replaces, so that a kill between the two steps is noticed and
repaired. A reader takes the chunks' columns one by one, then the raw rest, and thins the points at once.

An invalid frame is refused, with the bytes after it. The frames before it are stored, and the stream continues when
valid frames are sent.

Several servers may share the directory (`shared`), and the agents of a job append to any of them. While a server reads
or appends, the chunks' file is locked, and the raw file too (`appending`): of both it then has what another server has
left there. All methods may be called from any event loop of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import TypeVar

from oarlock.data import appending, durable, recent, storage, taskfolders
from oarlock.data.metrics import arrivals, chunks, frames, lives
from oarlock.spec import attempts, errors

T = TypeVar("T")

QUOTA_BYTES = 4 << 30
CHUNK_BYTES = 256 << 10
"""The size of the raw bytes that become one chunk."""
RECOUNT_S = 60.0
"""The time after which a server counts again what others have stored of a job."""


class DirectoryMetrics:
    """The metrics of all jobs in one directory of a file system whose files can be locked.

    `quota_bytes` is the limit for one job. `shared`: other servers use the directory, too.
    """

    def __init__(
        self,
        root: Path,
        *,
        quota_bytes: int = QUOTA_BYTES,
        shared: bool = False,
        writers: int = 4,
        readers: int = 2,
    ) -> None:
        self._root = root
        self._quota_bytes = quota_bytes
        self._writers = futures.ThreadPoolExecutor(writers, "metric-writer")
        self._readers = futures.ThreadPoolExecutor(readers, "metric-reader")
        self._jobs = recent.Recent(lambda job: JobMetrics(root, job, shared=shared))

    async def append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        """Append frames, as `storage.Metrics` describes.

        InvalidInput for an invalid frame. Its `detail` has the `length` up to which the stream is stored.
        """
        return await self._on(self._writers, lambda: self._append(key, process, offset, data))

    async def names(self, job: str) -> list[str]:
        return await self._on(self._readers, lambda: self._names(job))

    async def series(
        self,
        job: str,
        names: list[str] | None = None,
        *,
        points: int = 500,
        steps: tuple[int, int] = storage.ALL_STEPS,
        ranks: int | None = None,
    ) -> list[storage.Series]:
        """Return the series, as `storage.Metrics` describes."""
        return await self._on(self._readers, lambda: self._series(job, names, points, steps, ranks))

    async def news(self, job: str, after: str = "", *, points: int = 10_000, group: int = 0) -> storage.News:
        """Return what has arrived since, as `storage.Metrics` describes."""
        return await self._on(self._readers, lambda: self._news(job, after, points, group))

    async def forget(self, job: str) -> None:
        def delete() -> None:
            taskfolders.delete_job(self._root, job)
            self._jobs.drop(job)

        await self._on(self._writers, delete)

    def close(self) -> None:
        """Wait for the writes under way, then end the threads."""
        self._writers.shutdown()
        self._readers.shutdown()

    async def _on(self, pool: futures.Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        if not 0 <= process < taskfolders.MOST:
            raise errors.InvalidInput(
                "this is not a valid process number", hint="processes are counted from 0", path="process"
            )
        job = self._jobs.get(key.job)
        stream = job.stream(key, process)
        try:
            with stream.held(begin=offset == 0 and bool(data), write=bool(data)):
                if offset != stream.length:
                    raise errors.OffsetMismatch(
                        f"{key} metrics {process} is {stream.length} bytes long, not {offset}",
                        hint="continue at the stored length",
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

    def _series(
        self, job: str, names: list[str] | None, points: int, steps: tuple[int, int], ranks: int | None
    ) -> list[storage.Series]:
        if points < 1:
            raise errors.InvalidInput(
                "the number of points must be positive", hint="ask for at least one point", path="points"
            )
        wanted = None if names is None else frozenset(names)
        streams = [(one.key, one.process, one.view) for one in self._looked(job).streams()]
        with self._reading():
            return lives.series(streams, wanted, points, steps, ranks)

    def _news(self, job: str, after: str, points: int, group: int) -> storage.News:
        its_lives = [arrivals.Life(one.key, one.process, one.view_behind) for one in self._looked(job).streams()]
        with self._reading():
            return arrivals.news(its_lives, after, points, group)

    def _names(self, job: str) -> list[str]:
        with self._reading():
            return sorted(self._looked(job).names())

    def _looked(self, job: str) -> JobMetrics:
        """Return the job's streams, those included that other servers have begun."""
        found = self._jobs.get(job)
        found.look()
        return found

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise errors.NotFound("the job's metrics were deleted while they were read", hint="ask again") from error
        except BlockingIOError as error:
            raise durable.unavailable(error, "metrics", self._root, done="read") from error


class JobMetrics:
    """The streams of one job. `shared`: other servers append to some of them."""

    def __init__(self, root: Path, job: str, *, shared: bool = False) -> None:
        self._root = root
        self._job = job
        self._shared = shared
        self._lock = threading.Lock()
        self._streams: dict[tuple[attempts.TaskKey, int], Stream] = {}
        self._bytes: int | None = None
        self._counted_at = 0.0
        self._read()

    def look(self) -> None:
        """Find the streams that other servers have begun."""
        if self._shared:
            self._read()

    def stream(self, key: attempts.TaskKey, process: int) -> Stream:
        with self._lock:
            found = self._streams.get((key, process))
            if found is None:
                found = self._add(key, process, taskfolders.folder(self._root, key))
        return found

    def _read(self) -> None:
        """Read the job's directory."""
        for key, folder in taskfolders.folders(self._root, self._job):
            numbers = sorted(int(path.name.removeprefix("process-")) for path in folder.glob("process-*"))
            with self._lock:
                for process in numbers:
                    if (key, process) not in self._streams:
                        self._add(key, process, folder)

    def _add(self, key: attempts.TaskKey, process: int, folder: Path) -> Stream:
        self._streams[key, process] = made = Stream(key, process, folder / f"process-{process}")
        return made

    def streams(self) -> list[Stream]:
        with self._lock:
            return [one for _, one in sorted(self._streams.items())]

    def names(self) -> set[str]:
        found: set[str] = set()
        for one in self.streams():
            with one.held():
                found |= one.names
        return found

    def check_quota(self, more: int, quota_bytes: int) -> None:
        """Raise TooLarge if `more` bytes exceed the quota.

        Streams that append at the same time may exceed it together, and so may several servers within `RECOUNT_S`.
        """
        if self._bytes is None or (self._shared and time.monotonic() - self._counted_at > RECOUNT_S):
            self.look()
            self._counted_at = time.monotonic()
            self._bytes = sum(one.bytes_on_disk() for one in self.streams())
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
    """The frames of one process. Writers and readers use `held`."""

    def __init__(self, key: attempts.TaskKey, process: int, folder: Path) -> None:
        self.key = key
        self.process = process
        self.names: set[str] = set()
        self._folder = folder
        self._lock = threading.Lock()
        self._chunks = appending.AppendOnly(folder / "chunks")
        self._raw: appending.AppendOnly | None = None
        self._base = 0  # the place in the stream at which the raw file begins
        self._schemas: dict[int, tuple[str, ...]] = {}  # in force at `_tail`
        self._tail = b""  # the incomplete frame at the end

    @property
    def length(self) -> int:
        return self._base + (self._raw.length if self._raw is not None else 0)

    @property
    def stored_bytes(self) -> int:
        """What is known to be stored, within `held`."""
        return self._chunks.length + (self._raw.length if self._raw is not None else 0)

    def bytes_on_disk(self) -> int:
        """Return the size of the files, those included that another server has written."""
        total = 0
        for path in self._folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):  # another server makes a chunk of it
                total += path.stat().st_size
        return total

    @contextlib.contextmanager
    def held(self, *, begin: bool = False, write: bool = False) -> Iterator[None]:
        """Keep others from appending, and know what is stored. Only `begin` makes a stream that is not there.

        The files are read and repaired at first, and again where another server, or another program, has changed them.
        Raises OSError; BlockingIOError where another server does not end its write.
        """
        create = begin or (write and (self._raw is not None or self._folder.exists()))
        with self._lock, self._chunks.locked(create=create):
            if self._raw is None or not self._chunks.is_settled():
                self._raw = None
                self._raw = self._open()
            with self._raw.locked(create=create):
                if not self._raw.is_settled():
                    self._learn()
                yield

    def _open(self) -> appending.AppendOnly:
        """Read the chunks, repair the files after a kill, and return the raw file. The chunks are locked."""
        self._schemas, self._tail = {}, b""
        self._chunks.settle()
        records = chunks.Records(self._chunks.path, self._chunks.length)
        found = records.scan()
        self._chunks.cut(found[-1].at + found[-1].size if found else 0)
        for chunk in found:
            head, _ = records.head(chunk)
            self._schemas = head.schemas
            self.names.update(name for block in head.blocks for name in block.names)
        return appending.AppendOnly(self._newest_raw(found[-1].end if found else 0))

    def append(self, data: bytes) -> str:
        """Store the valid frames of `data`; return the fault of the first invalid one, or an empty text."""
        assert self._raw is not None  # within `held`
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
                return parsed.bad  # a full disk: the frames are stored, and the next append tries again
        return parsed.bad

    def view(self) -> tuple[chunks.Records, list[chunks.Chunk], bytes, frames.Parsed]:
        """Return the chunks and the raw rest of one moment, for a reader."""
        with self.held():
            assert self._raw is not None
            records = chunks.Records(self._chunks.path, self._chunks.length)
            return (records, records.scan(), *self._parsed(self._raw))

    def view_behind(self, at: int) -> tuple[chunks.Records, list[chunks.Chunk], bytes, frames.Parsed] | None:
        """Return the same, unless no whole frame is stored behind this place of the stream."""
        if self._rests_behind(at):
            return None
        with self.held():
            if self.length - len(self._tail) <= at:
                return None
        return self.view()

    def _rests_behind(self, at: int) -> bool:
        """Return whether nothing is stored behind this place, and nothing was appended: so rest most streams."""
        with self._lock:
            if self._raw is None or self.length - len(self._tail) > at:
                return False
            return all(file.size() == file.length for file in (self._raw, self._chunks))

    def _compact(self) -> None:
        """Turn raw bytes into a chunk.

        After a kill between the two files, `_newest_raw` skips the bytes of the chunk.
        """
        assert self._raw is not None
        raw, parsed = self._parsed(self._raw)
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
        """Return the raw file that continues after the chunks.

        Delete the other raw files, which are no longer needed.
        """
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
        made = appending.AppendOnly(self._folder / f"raw-{base}")
        durable.write(made.path, rest)
        made.length = len(rest)
        return made

    def _parsed(self, raw: appending.AppendOnly) -> tuple[bytes, frames.Parsed]:
        """Return the raw file's bytes and frames."""
        data = raw.path.read_bytes()[: raw.length] if raw.length else b""
        return data, frames.parse(data, self._schemas_at_base())

    def _schemas_at_base(self) -> dict[int, tuple[str, ...]]:
        if not self._chunks.length:
            return {}
        records = chunks.Records(self._chunks.path, self._chunks.length)
        return records.head(records.scan()[-1])[0].schemas

    def _learn(self) -> None:
        """Read the raw file, which is locked."""
        raw, self._raw = self._raw, None
        assert raw is not None
        raw.settle()
        data, parsed = self._parsed(raw)
        self._schemas = parsed.schemas
        self._tail = data[parsed.end :]
        self.names.update(name for run in parsed.runs for name in run.names)
        self._raw = raw
