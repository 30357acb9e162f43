"""The data layer's ports: blobs (code snapshots), logs, metrics. Each has a directory implementation beside it and
passes its contract test.

Keys are made by the server, never taken from users: a digest, a task key, a stream name of a fixed alphabet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from oarlock.spec import attempts

if TYPE_CHECKING:  # the command line packs with this package and must start fast
    import asyncio


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    key: attempts.TaskKey
    stream: str
    length: int


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log, without its newline.

    `at` is when the server received its last byte; `offset` is of its first byte in its stream. A `partial` line has
    no end yet: the next one of that stream goes on where it stops. Lines longer than 64 KiB come in such pieces.
    Control characters are as they were printed (a face that shows them strips them); what is not UTF-8 is replaced.
    """

    task: str  # `worker-0`
    attempt: int
    incarnation: int
    stream: str
    offset: int
    at: float
    text: str
    partial: bool = False


class Lines(Line, frozen=True, kw_only=True):
    """Several whole lines that arrived together: `text` joins them by newlines, `last` is the last one's offset."""

    last: int


class Shortage(msgspec.Struct, frozen=True):
    """A stream that has fewer bytes than were acknowledged: `length` are left, `missing` more were there."""

    length: int
    missing: int


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    attempt: int | None = None  # else all
    role: str | None = None
    index: int | None = None
    tail: int | None = None  # the last N lines over all streams
    since: float | None = None  # Unix seconds
    blocks: bool = False  # whole lines that arrived together are one `Lines`; not with `tail`


class Point(msgspec.Struct, frozen=True):
    step: int
    at: float
    value: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One name's values in one process of a task, over all its attempts and incarnations.

    Where a later life repeats steps, the earlier one's are dropped. `count` is the number of points before thinning;
    where they were thinned, each point is its bucket's last, and `low` and `high` are its least and greatest value.
    """

    task: str
    process: int
    name: str
    points: tuple[Point, ...]
    count: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a job. `path` is its key (`oarlock.data.filekeys`) in the job's one tree, `modified_at` Unix seconds.

    `version` is another where the content may be another.
    """

    path: str
    bytes: int
    modified_at: float
    version: str = ""


class OpenFile(Protocol):
    """A file that is open for reading."""

    size_bytes: int
    version: str

    async def read(self, offset: int, size: int) -> bytes: ...

    def close(self) -> None: ...


class JobFiles(Protocol):
    """The files of a job that lie in the server's own place. `checkpoints` are the places of the visible ones."""

    async def listing(self, job: str, checkpoints: Collection[str] = ()) -> list[JobFile]:
        """All of them, by path."""
        ...

    async def open(self, job: str, key: str, checkpoints: Collection[str] = ()) -> OpenFile:
        """Raises NotFound, and InvalidInput for what is not a key."""
        ...


class Blobs(Protocol):
    """Content-addressed bytes: `sha256:` and 64 hexadecimal digits."""

    async def put(self, digest: str, chunks: AsyncIterator[bytes], *, limit_bytes: int) -> int:
        """Store, once the bytes are durable and their digest holds; returns the length.

        Raises InvalidInput (digest), TooLarge, Unavailable (disk).
        """
        ...

    async def has(self, digest: str) -> bool: ...

    def path(self, digest: str) -> Path:
        """Where the bytes lie. Raises NotFound."""
        ...

    async def sweep(self, keep: set[str], older_than: float) -> int:
        """Delete what is not in `keep` and was stored before `older_than`; returns how many."""
        ...


class Logs(Protocol):
    """Append-only streams addressed by (task key, stream, offset)."""

    async def append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, *, at: float) -> int:
        """Append at the stored length and return the new one, after fsync.

        Raises OffsetMismatch (a Conflict with `.length`) when `offset` is another.
        """
        ...

    async def length(self, key: attempts.TaskKey, stream: str) -> int: ...

    async def streams(self, job: str) -> list[StreamInfo]: ...

    def shortages(self, key: attempts.TaskKey) -> dict[str, Shortage]:
        """The task's streams of which acknowledged bytes are gone from the disk, as far as that was noticed.

        Each append and each read looks. A stream is no longer short once it was appended to up to where it was.
        """
        ...

    def read(self, query: LogQuery) -> AsyncIterator[Line]:
        """What is stored now, merged by time of arrival, each stream in its order.

        A stream that is short ends with a line that says so.
        """
        ...

    def follow(self, query: LogQuery, *, until: asyncio.Event | None = None) -> AsyncIterator[Line]:
        """As `read`, then what arrives, until the caller stops asking.

        Where `until` is given, ends by itself once it is set and everything stored by then was given. Text without a
        newline comes as a `partial` line once it has waited for half a second.
        """
        ...

    async def forget(self, job: str) -> None: ...


class Metrics(Protocol):
    """Metric frames in (docs/agent-protocol.md section 3), columnar compressed chunks on disk, thinned series out."""

    async def append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        """As Logs.append.

        Frames may be cut anywhere between two calls. Over the job's quota: TooLarge, and what was stored stays.
        """
        ...

    async def names(self, job: str) -> list[str]: ...

    async def series(self, job: str, names: list[str] | None = None, *, points: int = 500) -> list[Series]: ...

    async def forget(self, job: str) -> None: ...
