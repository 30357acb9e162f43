"""Log lines and metrics that an ended task could not send: its agent died, or the server was away. The missing bytes
are appended before the task is declared gone, so that no log line, metric or last word is lost.

The agent blanks secrets before it sends; these bytes went past it, so they are blanked here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from oarlock.backends import backends
from oarlock.data import storage
from oarlock.spec import attempts, errors, jobs

PIECE_BYTES = 1 << 20
_METRICS = "metrics-"


class Blanker(Protocol):
    """Overwrites secrets by as many `*`. It must see `reach` bytes on either side to recognise a secret."""

    reach: int

    def cover(self, data: bytes) -> bytes: ...


class Leftovers:
    """`blanker` returns the blanker of a job's secrets; it may read them from their files."""

    def __init__(
        self,
        backend: backends.Backend,
        logs: storage.Logs,
        metrics: storage.Metrics,
        *,
        blanker: Callable[[jobs.Job], Blanker],
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._logs = logs
        self._metrics = metrics
        self._blanker = blanker
        self._clock = clock

    async def deliver(self, job: jobs.Job, key: attempts.TaskKey) -> None:
        """Append the missing bytes; a repeated call appends none. Raises Unavailable when they cannot be stored now."""
        for left in await self._backend.leftovers(key):
            if left.stream.startswith(_METRICS):
                await self._deliver_metrics(key, int(left.stream.removeprefix(_METRICS)), left.path)
            else:
                await self._deliver_log(job, key, left)

    def missing(self, key: attempts.TaskKey) -> int:
        """Return how many acknowledged bytes of the task's logs are gone from the disk."""
        return sum(shortage.missing for shortage in self._logs.shortages(key).values())

    async def _deliver_log(self, job: jobs.Job, key: attempts.TaskKey, left: backends.Leftover) -> None:
        stored = await self._logs.length(key, left.stream)
        if _size(left.path) <= stored:
            return
        blanker = self._blanker(job)

        async def append(offset: int, piece: bytes) -> int:
            return await self._logs.append(key, left.stream, offset, piece, at=self._clock())

        await _append_rest(left.path, stored, append, blanker)

    async def _deliver_metrics(self, key: attempts.TaskKey, process: int, path: Path) -> None:
        async def append(offset: int, piece: bytes) -> int:
            return await self._metrics.append(key, process, offset, piece)

        if not _size(path):
            return
        try:
            stored = await append(0, b"")
        except errors.OffsetMismatch as elsewhere:
            stored = elsewhere.length
        try:
            await _append_rest(path, stored, append, None)
        except errors.TooLarge:  # over the job's quota: the stored part stays
            return


async def _append_rest(
    path: Path, stored: int, append: Callable[[int, bytes], Awaitable[int]], blanker: Blanker | None
) -> None:
    """Append the file piece by piece, from `stored` to its end. Bytes that another appender stored meanwhile are
    skipped.
    """
    while piece := _piece(path, stored, blanker):
        try:
            stored = await append(stored, piece)
        except errors.OffsetMismatch as elsewhere:
            if elsewhere.length <= stored:
                raise
            stored = elsewhere.length


def _piece(path: Path, offset: int, blanker: Blanker | None) -> bytes:
    """Return up to PIECE_BYTES from `offset`, blanked with a view of the bytes around them. Empty at the end, or past
    it.
    """
    reach = blanker.reach if blanker is not None else 0
    before = min(offset, reach)
    try:
        with path.open("rb") as file:
            file.seek(offset - before)
            around = file.read(before + PIECE_BYTES + reach)
    except FileNotFoundError:
        return b""
    covered = blanker.cover(around) if blanker is not None else around
    return covered[before : before + PIECE_BYTES]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
