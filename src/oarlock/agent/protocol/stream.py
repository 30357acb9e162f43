"""One growing file as a stream for the server: bytes with offsets that never move, even if the file is truncated.

The file on disk is the spool. Bytes may be dropped from it: the server was away for too long, or the program truncated
its own output with `> /dev/stderr`. One line then says so in their place. `segments` record which offsets belong to the
file and which to such a line, so that any offset can be served again.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.protocol.blanking import Blanker

BATCH_BYTES = 4 << 20
LINE_SEARCH_BYTES = 64 << 10


class Stream:
    """A stream. `name` is the last part of its URL; `acknowledged` and `attempted` are offsets as the server counts."""

    def __init__(self, name: str, path: str, blanker: Blanker | None) -> None:
        self.name = name
        self.path = path
        self._blanker = blanker
        self._fd = -1
        # (offset, place in the file, line): the line is for a segment that is not in the file.
        self._segments: list[tuple[int, int, bytes]] = [(0, 0, b"")]
        self._dropped = (0, 0)  # bytes and lines counted in the last such line
        self.acknowledged = 0
        self.attempted = 0
        self.refusals = 0
        self.quiet_until = 0.0  # monotonic: after a refusal nothing is sent for a while

    def size(self) -> int:
        """Return the size of the file in bytes; 0 while there is no file."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return 0
        return os.fstat(self._fd).st_size

    def end(self) -> int:
        """Return the offset after the file's last byte."""
        start, place, _ = self._segments[-1]
        return start + max(0, self.size() - place)

    def unsent(self) -> int:
        return max(0, self.end() - self.acknowledged)

    def batch(self, final: bool) -> bytes:
        """Return the bytes to send at `acknowledged`, at most BATCH_BYTES. `final`: the file will not grow any more."""
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
            if not data and limit is not None:  # the server asks for bytes that a truncation has removed
                data = b"\n" * min(limit - self.acknowledged, BATCH_BYTES)
        self.attempted = max(self.attempted, self.acknowledged + len(data))
        return data

    def acknowledge(self, length: int) -> None:
        """Record that the server has `length` bytes.

        It may be more than acknowledged (an answer was lost), or fewer.
        """
        self.acknowledged = max(0, min(length, self.end()))

    def drop(self, excess: int) -> int:
        """Drop the oldest `excess` bytes that were never sent, up to the end of a line; return the number dropped."""
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
        """Return the file's last bytes, blanked, for the last lines of the exit record."""
        size = self.size()
        return self._read(max(0, size - size_bytes), size, size, True)

    def _notice_truncation(self, size: int) -> None:
        """Continue at the beginning if the program truncated the file: it has fewer bytes than were read."""
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
        """Return the file's bytes from `first` to `last`, blanked, without those that must be held back."""
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
