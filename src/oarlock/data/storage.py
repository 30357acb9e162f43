"""The interfaces of the data layer: blobs (code snapshots), logs, metrics, and the files of a job.

Each has an implementation over a directory, and a contract test. The server makes the keys (a digest, a task key, a
stream's name); it never takes them from users.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from oarlock.spec import attempts, tasklogs

if TYPE_CHECKING:  # the command line packs with this package and must start fast
    import asyncio

    from oarlock.spec import bodies


ALL_STEPS = (0, (1 << 64) - 1)


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    key: attempts.TaskKey
    stream: str
    length: int


class Shortage(msgspec.Struct, frozen=True):
    """A stream with fewer bytes than were acknowledged: `length` bytes are left, `missing` bytes are lost."""

    length: int
    missing: int


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    attempt: int | None = None  # None: all of them
    role: str | None = None
    index: int | None = None
    stream: str | None = None  # `stderr`: of all processes; `stderr.0`: of one
    tail: int | None = None  # the last N lines over all streams
    since: float | None = None  # Unix seconds
    until: float | None = None  # only lines before then
    blocks: bool = False  # return whole lines that arrived together as one `Lines`; not with `tail`


class Point(msgspec.Struct, frozen=True):
    step: int
    at: float
    value: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one name in one process of a task, over all its attempts and incarnations.

    If a later life repeats steps, the points of the earlier life are dropped. `count` is the number of points before
    thinning. In a thinned series each point is the last of its bucket, and `low` and `high` are the bucket's least and
    greatest values; `gaps` has, of each bucket with values that are not finite, the step of the first of them.
    """

    task: str
    process: int
    name: str
    points: tuple[Point, ...]
    count: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    gaps: tuple[int, ...] = ()


class News(msgspec.Struct, frozen=True):
    """Points that have arrived since an earlier answer. `after` asks for those that arrive behind them.

    `groups` is the number of groups of the job's processes: each is asked for by itself, with an `after` of its own.
    """

    series: list[Series]
    after: str
    groups: int = 1


class OpenFile(Protocol):
    """A file that is open for reading."""

    size_bytes: int
    version: str

    async def read(self, offset: int, size: int) -> bytes: ...

    def close(self) -> None: ...


class JobFiles(Protocol):
    """The files of a job in the server's home. `checkpoints` are the paths of the checkpoints that users may see."""

    async def listing(self, job: str, checkpoints: Collection[str] = ()) -> list[bodies.JobFile]:
        """Return all files, ordered by path."""
        ...

    async def open(self, job: str, key: str, checkpoints: Collection[str] = ()) -> OpenFile:
        """Open a file. NotFound if it does not exist; InvalidInput if `key` is not a valid key."""
        ...


class ReceivedFiles(Protocol):
    """Files that tasks send: their results, and files of their working directories."""

    async def put(
        self,
        task: attempts.TaskKey,
        path: str,
        chunks: AsyncIterator[bytes],
        check: Callable[[], Awaitable[object]],
    ) -> int:
        """Store a file durably and return its length. InvalidInput for a path that the task may not write, Conflict
        for one that the file system can never take, and TooLarge where the disk would fall below its reserve.

        `check` is awaited once the file is here and before it appears: its error leaves the place as it was.
        """
        ...

    async def delete_older(self, task: attempts.TaskKey, left_bytes: int, left_files: int) -> list[str]:
        """Delete kept files of earlier lives that are over these limits; return the names of the lives."""
        ...


class Blobs(Protocol):
    """Content-addressed bytes. A digest is `sha256:` and 64 hexadecimal digits."""

    async def put(self, digest: str, chunks: AsyncIterator[bytes], *, limit_bytes: int) -> int:
        """Store the bytes durably, verify their digest, and return their length.

        InvalidInput for a wrong digest, TooLarge, Unavailable if the disk fails.
        """
        ...

    async def has(self, digest: str) -> bool: ...

    def path(self, digest: str) -> Path:
        """Return the path of the bytes. NotFound if there are none."""
        ...

    async def sweep(self, keep: set[str], older_than: float) -> int:
        """Delete the blobs that are not in `keep` and were stored before `older_than`; return their number."""
        ...


class Logs(Protocol):
    """Append-only streams, addressed by (task key, stream, offset)."""

    async def append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, *, at: float) -> int:
        """Append at the stored length, fsync, and return the new length.

        OffsetMismatch (a Conflict with `.length`) if `offset` is not the stored length.
        """
        ...

    async def length(self, key: attempts.TaskKey, stream: str) -> int: ...

    async def streams(self, job: str) -> list[StreamInfo]: ...

    def shortages(self, key: attempts.TaskKey) -> dict[str, Shortage]:
        """Return the task's streams that have lost acknowledged bytes from the disk, as far as that was noticed.

        Each append and each read checks. A stream is whole again once the lost bytes were appended again.
        """
        ...

    def read(self, query: LogQuery) -> AsyncIterator[tasklogs.Line]:
        """Yield the lines stored now, merged by time of arrival, each stream in its order.

        A stream that has lost bytes ends with a line that says so.
        """
        ...

    async def page(self, query: LogQuery, place: str, *, before: int, after: int) -> tasklogs.LogPage:
        """Return at most this many lines before and after a place.

        A place is `start`, `end`, the address of a line (`worker-0:ATTEMPT:INCARNATION:STREAM:OFFSET`), or one that an
        earlier answer has named. InvalidInput for another text. NotFound for a line of a stream that is not there.
        """
        ...

    async def search(self, query: LogQuery, place: str, search: tasklogs.LogSearch, *, limit: int) -> tasklogs.LogHits:
        """Return the lines of the whole log that have the text, as seen from a place. InvalidInput for a bad one."""
        ...

    def follow(self, query: LogQuery, *, until: asyncio.Event | None = None) -> AsyncIterator[tasklogs.Line]:
        """Yield the lines of `read`, then new lines as they arrive, until the caller stops.

        With `until` the iterator ends after that event is set and all lines stored by then were yielded. Text without a
        newline becomes a `partial` line after half a second.
        """
        ...

    async def forget(self, job: str) -> None: ...


class Metrics(Protocol):
    """Metric frames (docs/agent-protocol.md section 3), stored as compressed columns and returned as thinned series."""

    async def append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        """Append as `Logs.append` does. A call may end in the middle of a frame.

        TooLarge if the job's quota is exceeded; the stored bytes stay.
        """
        ...

    async def names(self, job: str) -> list[str]: ...

    async def series(
        self,
        job: str,
        names: list[str] | None = None,
        *,
        points: int = 500,
        steps: tuple[int, int] = ALL_STEPS,
        ranks: int | None = None,
    ) -> list[Series]:
        """Return the thinned series of these names, of the steps from the first to the last of `steps`.

        They are ordered by task, process and name; `ranks` is the most of each name, from the first.
        """
        ...

    async def news(self, job: str, after: str = "", *, points: int = 10_000, group: int = 0) -> News:
        """Return the points of a group that have arrived since its answer with this `after`, about `points` at once.

        None is left out. A point may come twice. InvalidInput for a text that is not of an answer.
        """
        ...

    async def forget(self, job: str) -> None: ...
