"""Where a reader of a job's log stands, stream by stream, so that a lost server costs neither a line nor prints one
twice.

Within a stream the offsets of lines grow; what is not beyond the last offset seen was seen, but for the end of a line
that had none yet. After a loss the lines are asked for again from `SLACK_S` before the newest arrival, because streams
are merged by time of arrival, and a server that comes back may have another idea of the time by a little.
"""

from __future__ import annotations

import msgspec

from oarlock.client import failures, requests
from oarlock.data import storage
from oarlock.spec import errors

SLACK_S = 60.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
TOLD_LOSSES = 2
"""So many losses in a row are told, and so is the return after them. One alone may be a stream without news that was
opened again, and nobody needs to hear of it.
"""


class Position(msgspec.Struct):
    """How far one stream was read: the last piece, and the line that it belongs to."""

    offset: int
    characters: int
    partial: bool
    line_offset: int
    line_characters: int


class Cursor:
    """Belongs to one reader."""

    def __init__(self, choice: requests.LogChoice) -> None:
        self._choice = choice
        self._positions: dict[tuple[str, int, int, str], Position] = {}
        self._newest: float | None = None
        self._first: float | None = None

    @property
    def started(self) -> bool:
        """Whether a line was seen."""
        return self._newest is not None

    def unseen(self, line: storage.Line) -> storage.Line | None:
        """What of `line` was not seen yet; None where all of it was. Notes it.

        A line that had no end may come again as a whole, with what was seen at its front: that is cut off.
        """
        stream = (line.task, line.attempt, line.incarnation, line.stream)
        at = self._positions.get(stream)
        self._newest = line.at if self._newest is None else max(self._newest, line.at)
        self._first = line.at if self._first is None else min(self._first, line.at)
        if isinstance(line, storage.Lines):
            # Asked for until the first loss only: there is nothing yet that could have been seen.
            length = len(line.text) - line.text.rfind("\n") - 1
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
        """What to ask for now: at first what was wanted, later what may be missing of it."""
        if self._newest is None:
            return self._choice
        since = self._newest - SLACK_S
        if self._choice.tail is not None and self._first is not None:
            since = max(since, self._first)  # what lies before the tail was not asked for
        if self._choice.since is not None:
            since = max(since, self._choice.since)
        return msgspec.structs.replace(self._choice, tail=None, since=since)


def hopeless(failure: errors.OarlockError, losses: int, cursor: Cursor) -> bool:
    """Whether there was never a server to wait for."""
    return isinstance(failure, failures.Unsent) and losses == 0 and not cursor.started


def pause_s(losses: int) -> float:
    """Seconds until the server is looked for again after so many losses in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(losses - 1, 20), LONGEST_PAUSE_S)


class Splitter:
    """Bytes in, lines out: split at newlines only, since a JSON text may hold what else Python splits at."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line for line in lines if line.strip()]
