"""Lines of a job's logs for one reader: the stored ones, then new ones, merged by time of arrival."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from oarlock.data import storage
from oarlock.data.logs import cursors, joblogs, streams
from oarlock.spec import tasklogs

PARTIAL_S = 0.5
BATCH_LINES = 2000
BATCH_BLOCKS = 16


class Reader:
    """One reader's place in each stream that its query selects. Only for one thread at a time."""

    def __init__(self, job: joblogs.JobLogs, query: storage.LogQuery) -> None:
        self._job = job
        self._query = query
        self._cursors: dict[streams.Stream, cursors.Cursor] = {}

    @property
    def batch(self) -> int:
        """Number of lines, or blocks of lines, that may be in memory at a time."""
        return BATCH_BLOCKS if self._query.blocks else BATCH_LINES

    def stored(self, *, flush: bool) -> Iterator[tasklogs.Line]:
        """Return the lines that are stored now. With `flush` also an end without a newline, and missing bytes."""
        parts = []
        found = list(self._job.matching(self._query))
        block = cursors.block_for(len(found))
        for stream in found:
            end = latest(stream, self._query)
            cursor = self._cursor(stream, self._start(stream, end))
            parts.append(cursor.all(end, flush=flush, block=block))
        if flush:
            parts.append(iter(self.shortened()))
        if self._query.tail is None:
            return heapq.merge(*parts, key=arrival)
        # A tail is short, and the reading of each stream begins near its end.
        last: list[tasklogs.Line] = []
        for part in parts:
            last = sorted([*last, *part], key=arrival)[-self._query.tail :] if self._query.tail else []
        return iter(last)

    def news(self, *, due: set[streams.Stream], flush: bool) -> tuple[list[tasklogs.Line], dict[streams.Stream, int]]:
        """Return a block of new lines of each stream, merged; and the offset of each end that has no newline yet."""
        lines: list[tasklogs.Line] = []
        waiting: dict[streams.Stream, int] = {}
        found = list(self._job.matching(self._query))
        block = cursors.block_for(len(found))
        for stream in found:
            end = latest(stream, self._query)
            cursor = self._cursors.get(stream) or self._cursor(stream, 0)
            lines += cursor.take(end, flush=flush or stream in due, block=block)
            if cursor.offset < end:
                waiting[stream] = cursor.offset
        return sorted(lines, key=arrival), waiting

    def shortened(self) -> list[tasklogs.Line]:
        """Return a line for each stream that has lost acknowledged bytes."""
        since = self._query.since
        lines = [line for one in self._job.matching(self._query) if (line := one.missing_line()) is not None]
        return sorted((line for line in lines if since is None or line.at >= since), key=arrival)

    def _cursor(self, stream: streams.Stream, offset: int) -> cursors.Cursor:
        cursor = self._cursors[stream] = cursors.Cursor(
            stream.key, stream.name, stream.path, stream.index(), offset, blocks=self._query.blocks
        )
        return cursor

    def _start(self, stream: streams.Stream, end: int) -> int:
        start = earliest(stream, self._query, end)
        if self._query.tail is not None:
            start = max(start, cursors.tail_start(stream.path, end, self._query.tail))
        return start


def earliest(stream: streams.Stream, query: storage.LogQuery, end: int) -> int:
    """Return the place of the first line that is wanted, among the first `end` bytes."""
    if query.since is None or end == 0:
        return 0
    return cursors.line_start(stream.path, stream.index().since(query.since, end))


def latest(stream: streams.Stream, query: storage.LogQuery) -> int:
    """Return the end of the last line that is wanted."""
    end = stream.length()
    if query.until is None or (cut := stream.index().since(query.until, end)) >= end:
        return end
    return cursors.line_start(stream.path, cut)


class PartialWaits:
    """The waits of text without a newline, before it is shown."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[streams.Stream, tuple[int, float]] = {}

    def note(self, waiting: dict[streams.Stream, int]) -> float | None:
        """Note the offset at which the open end of each stream begins.

        Returns the seconds until the first of them is to be shown, or None.
        """
        now = self._clock()
        self._since = {
            one: (offset, self._since[one][1] if self._since.get(one, (-1, 0.0))[0] == offset else now)
            for one, offset in waiting.items()
        }
        return min((max(0.0, since + PARTIAL_S - now) for _, since in self._since.values()), default=None)

    def due(self) -> set[streams.Stream]:
        """Return the streams whose open end has waited long enough."""
        now = self._clock()
        return {one for one, (_, since) in self._since.items() if now >= since + PARTIAL_S}


def arrival(line: tasklogs.Line) -> float:
    return line.at
