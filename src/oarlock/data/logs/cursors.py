"""The lines in a stream's file: the place to begin at (`tail`, `since`), and the lines from there on.

No function here reads a whole file. A stream's index is a file of 16-byte records (offset, time), both growing: the
bytes from `offset` on arrived at `time`. The index is searched in place, and the text is searched from its end.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from oarlock.spec import attempts, tasklogs

PIECE_BYTES = 64 << 10
"""The longest line. Longer lines come in pieces."""
BLOCK_BYTES = 256 << 10
LEAST_BLOCK_BYTES = 8 << 10
GATHERED_BYTES = 8 << 20
"""The approximate amount of text in memory at a time, for any number of streams read side by side."""
RECORD = struct.Struct("<Qd")


class Index:
    """The times of one stream, in its index file. `fallback` is the time of bytes that no record covers."""

    def __init__(self, path: Path, fallback: float) -> None:
        self._path = path
        self._fallback = fallback

    def between(self, start: int, stop: int) -> tuple[list[int], list[float]]:
        """Return the offsets and times of the records that cover [start, stop). The first may begin before `start`."""
        with Records(self._path) as records:
            first = max(0, bisect.bisect_right(records, start, key=lambda record: record[0]) - 1)
            found = list(records.taken(first, stop))
        offsets, times = [offset for offset, _ in found], [at for _, at in found]
        if not found or offsets[0] > start:
            return [start, *offsets], [self._fallback, *times]
        return offsets, times

    def since(self, at: float, length: int, *, after: bool = False) -> int:
        """Return the first offset whose bytes, and all later ones, arrived at `at` or later; with `after` later."""
        search = bisect.bisect_right if after else bisect.bisect_left
        with Records(self._path) as records:
            place = search(records, at, key=lambda record: record[1])
            if place < len(records):
                return min(length, records[place][0])
        return length


class Records:
    """An index file as a sequence, so that `bisect` can search it."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = -1
        self._count = os.fstat(self._fd).st_size // RECORD.size if self._fd >= 0 else 0

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> tuple[int, float]:
        offset, at = RECORD.unpack(os.pread(self._fd, RECORD.size, place * RECORD.size))
        return offset, at

    def taken(self, first: int, stop: int) -> Iterator[tuple[int, float]]:
        """Yield the records from `first` on whose offset is below `stop`."""
        while first < self._count:
            data = os.pread(self._fd, 512 * RECORD.size, first * RECORD.size)
            for offset, at in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
                if offset >= stop:
                    return
                yield offset, at
            first += 512


def add_record(path: Path, offset: int, at: float) -> float:
    """Add a record to an index, and return its time: `at`, or that of the last record, which may be later."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = os.fstat(fd).st_size // RECORD.size * RECORD.size
        if end:
            _, last_at = RECORD.unpack(os.pread(fd, RECORD.size, end - RECORD.size))
            at = max(at, last_at)
        os.pwrite(fd, RECORD.pack(offset, at), end)
    finally:
        os.close(fd)
    return at


def block_for(streams: int) -> int:
    """Return the number of bytes to read at a time from each of this many streams."""
    return max(LEAST_BLOCK_BYTES, min(BLOCK_BYTES, GATHERED_BYTES // max(1, streams)))


class Cursor:
    """A reader's place in one stream. `offset` is the place of the first byte that it has not received yet.

    With `blocks`, whole lines that arrived together are one `tasklogs.Lines`, for readers of millions of lines.
    """

    def __init__(
        self, key: attempts.TaskKey, stream: str, path: Path, index: Index, offset: int, *, blocks: bool = False
    ) -> None:
        self.key = key
        self.stream = stream
        self.offset = offset
        self._path = path
        self._index = index
        self._blocks = blocks
        self._task = f"{key.role}-{key.index}"

    def take(self, end: int, *, flush: bool, block: int = BLOCK_BYTES) -> list[tasklogs.Line]:
        """Return the next block of lines among the first `end` bytes; it may be empty.

        With `flush` it includes an end without a newline. A line that is longer than `block` is read as a whole.
        """
        if self.offset >= end:
            return []
        data, spans = b"", list[tuple[int, int, bool]]()
        for size in (block, BLOCK_BYTES):
            data = read(self._path, self.offset, min(end - self.offset, size))
            if self._blocks and (whole := whole_lines(data)):
                return self._together(data[:whole])
            spans = list(spans_of(data, flush=flush and self.offset + len(data) >= end))
            if spans or len(data) < size:
                break
        if not spans:
            return []
        offsets, times = self._index.between(self.offset, self.offset + len(data))
        lines = []
        for start, stop, partial in spans:
            last = self.offset + stop - (1 if partial else 0)  # a whole line's last byte is its newline, at `stop`
            lines.append(
                tasklogs.Line(
                    task=self._task,
                    attempt=self.key.attempt,
                    incarnation=self.key.incarnation,
                    stream=self.stream,
                    offset=self.offset + start,
                    at=times[bisect.bisect_right(offsets, last) - 1],
                    text=data[start:stop].decode(errors="replace"),
                    partial=partial,
                )
            )
        _, stop, partial = spans[-1]
        self.offset += stop if partial else stop + 1
        return lines

    def _together(self, data: bytes) -> list[tasklogs.Line]:
        """Return these whole lines, one `Lines` for each record of the index: a line's time is that of its newline."""
        offsets, times = self._index.between(self.offset, self.offset + len(data))
        found: list[tasklogs.Line] = []
        start = 0
        for place, at in enumerate(times):
            until = offsets[place + 1] - self.offset if place + 1 < len(offsets) else len(data)
            stop = data.rfind(b"\n", start, until) + 1
            if stop > start:
                lines = tasklogs.Lines(
                    task=self._task,
                    attempt=self.key.attempt,
                    incarnation=self.key.incarnation,
                    stream=self.stream,
                    offset=self.offset + start,
                    at=at,
                    data=data[start:stop],
                    last=self.offset + max(start, data.rfind(b"\n", start, stop - 1) + 1),
                )
                found.append(lines)
                start = stop
        self.offset += len(data)
        return found

    def all(self, end: int, *, flush: bool, block: int = BLOCK_BYTES) -> Iterator[tasklogs.Line]:
        while lines := self.take(end, flush=flush, block=block):
            yield from lines


def read(path: Path, offset: int, size: int) -> bytes:
    """Return the bytes; none if the file was deleted after its length was read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def whole_lines(data: bytes) -> int:
    """Return the length of the whole lines at the beginning of `data`, up to the first that comes in pieces."""
    place = 0
    while (stop := data.rfind(b"\n", place, place + PIECE_BYTES + 1)) >= 0:
        place = stop + 1
    return place


def spans_of(data: bytes, *, flush: bool) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, stop, partial) of each line in `data`. An end without a newline is left out unless `flush`."""
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start, start + PIECE_BYTES + 1)
        if stop >= 0:
            yield start, stop, False
            start = stop + 1
        elif len(data) - start > PIECE_BYTES:
            stop = between_characters(data, start + PIECE_BYTES)
            yield start, stop, True
            start = stop
        else:
            if flush:
                yield start, len(data), True
            return


def between_characters(data: bytes, cut: int) -> int:
    """Return the place at or shortly before `cut` that does not split a UTF-8 character."""
    for back in range(4):
        if data[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut


def line_start(path: Path, offset: int) -> int:
    """Return the start of the line that has the byte at `offset` (or of its piece, if the line is very long)."""
    low = max(0, offset - PIECE_BYTES)
    found = read(path, low, offset - low).rfind(b"\n")
    return low + found + 1 if found >= 0 else (offset if low > 0 else 0)


def tail_start(path: Path, end: int, count: int) -> int:
    """Return the start of the last `count` lines of the first `end` bytes, at most `count` pieces back."""
    if count <= 0 or end <= 0:
        return end
    low = end
    missing = count
    size = 8 << 10
    floor = max(0, end - (count + 1) * PIECE_BYTES)
    ends = end - 1  # the newline at the end does not start a line
    while low > floor:
        high, low = low, max(floor, low - size)
        size = min(size * 2, 1 << 20)
        block = read(path, low, high - low)
        at = len(block)
        while (at := block.rfind(b"\n", 0, min(at, ends - low))) >= 0:
            missing -= 1
            if missing == 0:
                return low + at + 1
    return low
