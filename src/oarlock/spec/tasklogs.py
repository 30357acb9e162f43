"""The lines of a job's log: as they are stored, as pages of them, and the hits of a search."""

from __future__ import annotations

import msgspec

EXPRESSIONS = "log-expressions"
"""The capability of a server whose searches take regular expressions."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log, without its newline.

    `at` is the time when the server received its last byte, `offset` the place of its first byte in the stream. A
    `partial` line has no end yet: the next line of the stream continues it. Lines longer than 64 KiB come in such
    pieces. Control characters are unchanged (a program that shows them strips them). Bytes that are not UTF-8 are
    replaced.
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
    """Several whole lines that arrived together: `data` has their bytes, each line with its newline; `text` is empty.

    `last` is the last line's offset. `at` holds for all of them.
    """

    text: str = ""
    last: int
    data: bytes


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive lines of a log, in the order of their arrival.

    `before` and `after` are the places at its two ends, for the pages next to it. Lines that have no end yet are shown,
    but lie behind `after`: the next page has them again, with the text that came since. `earlier_bytes` and
    `later_bytes` is the amount of text before and behind the page.
    """

    lines: tuple[Line, ...]
    before: str
    after: str
    earlier_bytes: int
    later_bytes: int
    unended: tuple[int, ...] = ()  # the indexes of the lines without an end


class LogSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A text to look for in the lines of a log, or a regular expression of RE2 (its time is linear in the text)."""

    text: str
    regex: bool = False
    ignore_case: bool = False


class LogHits(msgspec.Struct, frozen=True, kw_only=True):
    """The lines in which a text was found: their number, how many of them lie before the place of the search, the last
    of these, and the first ones behind the place. `after` is the place behind the last of `lines`.

    `whole` is False if there are more hits than are counted.
    """

    hits: int
    earlier: int
    previous: Line | None
    lines: tuple[Line, ...]
    after: str
    whole: bool = True
