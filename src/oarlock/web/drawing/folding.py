"""Lines of a log as rows: equal lines of several ranks are one row with their number, and a redrawn line is one. Pure.

Ranks of a gang print much the same at much the same time. A line joins an earlier row with the same text, if that row
is near, has no line of its rank yet, and follows the row of its rank's line before. Each rank's lines keep their order.
A page that follows the log joins the rows of two answers by the same rules (`log.js`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from oarlock.spec import tasklogs

NEAR_ROWS = 64
NEAR_S = 5.0

_Stream = tuple[str, int, int, str]


class Row(msgspec.Struct):
    """One or several equal lines. `open` rows have no end yet, and `redrawn` ones cover their stream's piece before."""

    line: tasklogs.Line
    address: str
    others: list[str] = []  # the tasks of the further lines
    addresses: set[str] = set()
    open: bool = False

    @property
    def redrawn(self) -> bool:
        return "\r" in self.line.text.rstrip("\r")  # `\r\n` is the end of a line


def address(line: tasklogs.Line) -> str:
    """Return the place of a line, which stays the same for ever."""
    return f"{line.task}:{line.attempt}:{line.incarnation}:{line.stream}:{line.offset}"


def rows(lines: Sequence[tasklogs.Line], unended: Collection[int] = (), *, fold: bool = True) -> list[Row]:
    found: list[Row] = []
    last: dict[_Stream, int] = {}  # the row of the stream's last line
    texts: dict[tuple[str, str], list[int]] = {}
    for number, line in enumerate(lines):
        stream = (line.task, line.attempt, line.incarnation, line.stream)
        before = last.get(stream, -1)
        row = Row(line, address(line), open=number in unended, addresses={address(line)})
        if before >= 0 and found[before].line.partial and row.redrawn and not found[before].others:
            found[before].addresses = set()  # covered by the new piece
        key = (line.stream, line.text)
        place = _joined(found, texts.get(key, ()), before, line) if fold and not line.partial else None
        if place is None:
            place = len(found)
            found.append(row)
            if not line.partial:  # a line without an end comes again, and its row goes
                texts.setdefault(key, []).append(place)
        else:
            found[place].others.append(line.task)
            found[place].addresses.add(row.address)
        last[stream] = place
    return [row for row in found if row.addresses]


def _joined(found: list[Row], same: Sequence[int], before: int, line: tasklogs.Line) -> int | None:
    if not line.text.strip():
        return None
    for place in same[-NEAR_ROWS:]:
        row = found[place]
        near = place >= len(found) - NEAR_ROWS and line.at - row.line.at <= NEAR_S
        other = line.task != row.line.task and line.task not in row.others
        if near and other and place > before and row.line.attempt == line.attempt:
            return place
    return None
