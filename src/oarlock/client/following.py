"""The position of a reader in a job's log, for each stream: after a lost connection, no line is missing or repeated.

Within a stream the offsets of lines grow. A line at or before the last offset was seen before, except for the rest of a
line without an end. After a loss, the reader requests the lines from `SLACK_S` before the newest arrival, because
streams are merged by time of arrival, and the clock of a restarted server may differ a little.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oarlock.client import answers, failures, requests
from oarlock.spec import bodies, errors, tasklogs

SLACK_S = 60.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
TOLD_LOSSES = 2
"""The number of losses in a row after which the user is told. A single one may be a silent stream that was reopened."""


class Position(msgspec.Struct):
    """The position in one stream: the last piece, and the line that it belongs to."""

    offset: int
    characters: int
    partial: bool
    line_offset: int
    line_characters: int


class Cursor:
    """The positions of one reader."""

    def __init__(self, choice: requests.LogChoice) -> None:
        self._choice = choice
        self._positions: dict[tuple[str, int, int, str], Position] = {}
        self._newest: float | None = None
        self._first: float | None = None

    @property
    def started(self) -> bool:
        """Whether a line was seen."""
        return self._newest is not None

    def unseen(self, line: tasklogs.Line) -> tasklogs.Line | None:
        """Return the part of the line that was not seen yet, None where there is none, and note its position.

        A line without an end may come again as a whole. The part that was seen before is cut off.
        """
        stream = (line.task, line.attempt, line.incarnation, line.stream)
        at = self._positions.get(stream)
        self._newest = line.at if self._newest is None else max(self._newest, line.at)
        self._first = line.at if self._first is None else min(self._first, line.at)
        if isinstance(line, tasklogs.Lines):
            # Only the first request asks for `Lines`: no line was seen before.
            length = len(line.data[line.last - line.offset : -1].decode(errors="replace"))
            self._positions[stream] = Position(line.last, length, False, line.last, length)
            return line
        length = len(line.text)
        if at is None or line.offset > at.offset:
            if at is not None and at.partial:
                started, before = at.line_offset, at.line_characters
            else:
                started, before = line.offset, 0
            self._positions[stream] = Position(line.offset, length, line.partial, started, before + length)
            return line
        if not at.partial or line.offset not in (at.offset, at.line_offset):
            return None
        known = at.line_characters if line.offset == at.line_offset else at.characters
        if length < known or (length == known and line.partial):
            return None
        at.partial = line.partial
        at.line_characters += length - known
        at.offset, at.characters = line.offset, length
        return msgspec.structs.replace(line, text=line.text[known:])

    def choice(self) -> requests.LogChoice:
        """Return the lines to request: at first the wanted ones, later those that may be missing."""
        if self._newest is None:
            return self._choice
        since = self._newest - SLACK_S
        if self._choice.tail is not None and self._first is not None:
            since = max(since, self._first)  # earlier lines were not requested
        if self._choice.since is not None:
            since = max(since, self._choice.since)
        return msgspec.structs.replace(self._choice, tail=None, since=since)


def hopeless(failure: errors.OarlockError, losses: int, cursor: Cursor) -> bool:
    """Return whether no server ever answered, so that waiting is useless."""
    return isinstance(failure, failures.Unsent) and losses == 0 and not cursor.started


def pause_s(losses: int) -> float:
    """Return the seconds before the next try after so many losses in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(losses - 1, 20), LONGEST_PAUSE_S)


class Reader:
    """The items of a log's answer: JSON texts, one on a line each. The bytes of a block follow its line.

    A block arrives in many chunks. They are joined once, when it is complete.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._block: answers.LogItem | None = None  # the bytes that come next are its own
        self._missing = 0

    def feed(self, chunk: bytes) -> Iterator[tasklogs.Line | bodies.Ended]:
        """Take bytes, and yield the items that are complete. Raises the server's error."""
        self._chunks.append(chunk)
        self._missing -= len(chunk)
        if self._missing > 0 or (self._block is None and chunk.find(b"\n") < 0):
            return
        data, at = b"".join(self._chunks), 0
        while True:
            if self._block is not None:
                if len(data) < at + self._block.size:
                    break
                yield self._block.lines(data[at : at + self._block.size])
                at += self._block.size
                self._block = None
            stop = data.find(b"\n", at)
            if stop < 0:
                break
            raw, at = data[at:stop], stop + 1
            if raw.strip():
                item = failures.decoded(raw, answers.LogItem)
                if item.error is not None:
                    raise failures.raised(item.error)
                if item.size:
                    self._block = item
                else:
                    yield item.end if item.end is not None else item.line()
        self._chunks = [data[at:]]
        self._missing = at + self._block.size - len(data) if self._block is not None else 0
