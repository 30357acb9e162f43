"""One growing file as the server hears it: bytes with offsets that never move, however the file fares.

The file on disk is the spool. What was dropped from it (the server was away for too long, or the program truncated its
own output with `> /dev/stderr`) is replaced by one line that says so; `segments` remember which offsets are the file's
and which are such a line, so that any offset the server asks for can be served again.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.blanking import Blanker

BATCH_BYTES = 4 << 20
LINE_SEARCH_BYTES = 64 << 10


class Stream:
    """`name` is the last part of the URL; `acknowledged` and `attempted` are offsets as the server counts them."""

    def __init__(self, name: str, path: str, blanker: Blanker | None) -> None:
        self.name = name
        self.path = path
        self._blanker = blanker
        self._fd = -1
        # (offset, place in the file, line): the line is for a segment that is not in the file.
        self._segments: list[tuple[int, int, bytes]] = [(0, 0, b"")]
        self._dropped = (0, 0)  # bytes and lines that the last line speaks of
        self.acknowledged = 0
        self.attempted = 0
        self.refusals = 0
        self.quiet_until = 0.0  # monotonic: after a refusal it is left alone for a while

    def size(self) -> int:
        """Bytes in the file now; 0 while there is none."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return 0
        return os.fstat(self._fd).st_size

    def end(self) -> int:
        """The offset after the file's last byte."""
        start, place, _ = self._segments[-1]
        return start + max(0, self.size() - place)

    def unsent(self) -> int:
        return max(0, self.end() - self.acknowledged)

    def batch(self, final: bool) -> bytes:
        """The bytes to send at `acknowledged`, at most BATCH_BYTES. `final`: the file will not grow any more."""
        size = self.size()
        self._notice_truncation(size)
        number = self._segment_at(self.acknowledged)
        start, place, line = self._segments[number]
        skipped = self.acknowledged - start
        if line:
            data = line[skipped:]
        else:
            limit = self._segments[number + 1][0] if number + 1 < len(self._segments) else None
            first = place + skipped
            last = min(size if limit is None else place + limit - start, first + BATCH_BYTES)
            data = self._read(first, last, size, final) if last > first else b""
            if not data and limit is not None:  # asked again for what a truncation has taken since
                data = b"\n" * min(limit - self.acknowledged, BATCH_BYTES)
        self.attempted = max(self.attempted, self.acknowledged + len(data))
        return data

    def acknowledge(self, length: int) -> None:
        """The server has `length` bytes. It may have more than was acknowledged (its answer was lost), or fewer."""
        self.acknowledged = max(0, min(length, self.end()))

    def drop(self, excess: int) -> int:
        """Leave out the oldest `excess` bytes never sent, up to a line's end; return how many were left out."""
        start, place, _ = self._segments[-1]
        cut = max(self.attempted, self.acknowledged, start)
        first = place + cut - start
        last = self._after_newline(min(self.size(), first + excess))
        if last <= first:
            return 0
        lines = self._count_lines(first, last)
        previous = self._segments[-2] if len(self._segments) > 1 else None
        if (
            previous is not None
            and previous[2]
            and cut == start
            and previous[0] >= max(self.attempted, self.acknowledged)
        ):
            del self._segments[-2:]
            self._dropped = (self._dropped[0] + last - first, self._dropped[1] + lines)
            cut = previous[0]
            broken = previous[2].startswith(b"\n")
        else:
            if cut == start:
                del self._segments[-1:]
            self._dropped = (last - first, lines)
            broken = first > 0 and self._pread(first - 1, 1) != b"\n"
        text = b"[oarlock] %d bytes (%d lines) were dropped here: they could not be sent in time\n" % self._dropped
        self._append_line((b"\n" if broken else b"") + text, cut, last)
        return last - first

    def tail(self, size_bytes: int) -> bytes:
        """The file's last bytes, blanked: for the exit record's last lines."""
        size = self.size()
        return self._read(max(0, size - size_bytes), size, size, True)

    def _notice_truncation(self, size: int) -> None:
        """A file shorter than what was read of it has been truncated by the program: go on from its new beginning."""
        start, place, _ = self._segments[-1]
        reached = place + max(0, max(self.acknowledged, self.attempted) - start)
        if size < reached:
            cut = max(self.acknowledged, self.attempted, start)
            if cut == start:
                del self._segments[-1:]
            self.acknowledged = max(self.acknowledged, cut)
            self._append_line(b"[oarlock] the program truncated its own output here\n", cut, 0)

    def _append_line(self, line: bytes, offset: int, place: int) -> None:
        self._segments.append((offset, 0, line))
        self._segments.append((offset + len(line), place, b""))

    def _segment_at(self, offset: int) -> int:
        number = len(self._segments) - 1
        while number > 0 and self._segments[number][0] > offset:
            number -= 1
        return number

    def _read(self, first: int, last: int, size: int, final: bool) -> bytes:
        """The file's bytes from `first` to `last`, blanked with context on both sides, less what must be held back."""
        if self._blanker is None:
            return self._pread(first, last - first)
        reach = self._blanker.reach
        before = min(first, reach)
        until = min(size, last + reach)
        window = self._pread(first - before, until - first + before)
        at_end = until >= size and not final
        end = min(last - first + before, len(window) - (self._blanker.held(window) if at_end else 0))
        return self._blanker.cover(window)[before:end]

    def _pread(self, place: int, count: int) -> bytes:
        return os.pread(self._fd, count, place) if self._fd >= 0 and count > 0 else b""

    def _after_newline(self, place: int) -> int:
        found = self._pread(place, LINE_SEARCH_BYTES).find(b"\n")
        return place + found + 1

    def _count_lines(self, first: int, last: int) -> int:
        lines = 0
        while first < last:
            part = self._pread(first, min(BATCH_BYTES, last - first))
            if not part:
                break
            lines += part.count(b"\n")
            first += len(part)
        return lines
