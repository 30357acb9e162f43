"""The search for a text in all lines of a log. The files are read in large blocks, and only lines with a hit are split.

Regular expressions are those of RE2 (the extra `regex`): the time of a search grows with the length of the log and
never faster. The factor is the expression's: such a search goes through small pieces, and ends when its time is up or
no request waits for it. Plain text in any case of letters is searched by RE2 where it is there, else by Python's
`re`, in which such a pattern is linear, too; it takes about seven times as long.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import importlib.util
import itertools
import re
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from oarlock.data import storage
from oarlock.data.logs import cursors, cuts, joblogs, paging, streams
from oarlock.spec import errors, tasklogs
from oarlock.spec.hints import extras

BLOCK_BYTES = 4 << 20
PIECE_BYTES = 16 << 10
"""An expression is applied to whole lines of about this length together."""
EXPRESSION_BYTES = 1 << 20
"""The most memory of an expression. It bounds the time that one piece takes."""
SEARCH_S = 20.0
"""The most processor time of a search."""
MOST_HITS = 1_000_000
"""Further hits are not counted."""
_LAST_CASED = 0x1E943
"""The last letter with a case in Unicode (Adlam)."""

Find = Callable[[bytes, int], int]
"""The place of the next match in a block of lines from a place on; -1 for none."""


class Stop:
    """The end of one search: its time is up, or `now` was called. Searches look at it between pieces."""

    def __init__(self) -> None:
        self._stopped = False
        self._due_s = float("inf")

    def now(self) -> None:
        self._stopped = True

    def begin(self) -> None:
        self._due_s = time.thread_time() + SEARCH_S

    def check(self) -> None:
        """Raise Unavailable for a stopped search, and TooLarge for one whose time is up."""
        if self._stopped:
            raise errors.Unavailable("The search was stopped.", hint="Search again.")
        if time.thread_time() > self._due_s:
            hint = "Search for a simpler text, or in fewer lines: one task, one attempt, or a shorter time."
            raise errors.TooLarge(f"The search took more than {SEARCH_S:g} s.", hint=hint)


def search(
    job: joblogs.JobLogs, query: storage.LogQuery, place: str, wanted: tasklogs.LogSearch, *, limit: int, stop: Stop
) -> tasklogs.LogHits:
    stop.begin()
    find, piece = finder(wanted)
    known = cuts.spans(list(job.matching(query)), query)
    cut = cuts.at(place, known)
    found: dict[streams.Stream, array[int]] = {}
    total = 0
    for stream, span in known.items():
        found[stream] = hits(stream, span, find, MOST_HITS - total, piece=piece, stop=stop)
        total += len(found[stream])
    seen = {stream: bisect.bisect_left(offsets, cut[stream]) for stream, offsets in found.items()}
    ahead = [
        _lines(number, stream, found[stream][seen[stream] :], span.high)
        for number, (stream, span) in enumerate(known.items())
    ]
    behind = [
        _lines(number, stream, found[stream][max(0, seen[stream] - 1) : seen[stream]], span.high)
        for number, (stream, span) in enumerate(known.items())
    ]
    lines = paging.taken(heapq.merge(*ahead), limit)
    for one in lines:
        cut[one.stream] = one.end
    previous = max((one for part in behind for one in part), default=None)
    return tasklogs.LogHits(
        hits=total,
        earlier=sum(seen.values()),
        previous=previous.line if previous is not None else None,
        lines=tuple(one.line for one in lines),
        after=cuts.text(cut),
        whole=total < MOST_HITS,
    )


def takes_expressions() -> bool:
    """Return whether there is an engine for regular expressions, whose time is linear in the text."""
    return importlib.util.find_spec("re2") is not None


def finder(wanted: tasklogs.LogSearch) -> tuple[Find, int]:
    """Return the search as a function, and the bytes to give it. InvalidInput for an expression that is not valid."""
    if not wanted.text or "\n" in wanted.text:
        raise errors.InvalidInput("The text to search for is empty.", path="text", hint="Name a part of one line.")
    if not wanted.regex and not wanted.ignore_case:
        plain = wanted.text.encode("utf-8", "replace")
        return (lambda block, start: block.find(plain, start)), BLOCK_BYTES
    try:
        compiled = _expression(wanted)
    except ImportError as error:
        if wanted.regex:
            raise errors.Unsupported(
                "This server searches for plain text only: it lacks google-re2.",
                hint=f"Search without an expression, or install it on the server's machine: {extras.command('regex')}",
            ) from error
        compiled = _any_case(wanted.text)

    def find(block: bytes, start: int) -> int:
        match = compiled.search(block, start)
        return match.start() if match is not None else -1

    return find, PIECE_BYTES


def _expression(wanted: tasklogs.LogSearch) -> Any:
    """Return the search as an expression of RE2. Raises ImportError without RE2, and InvalidInput."""
    import re2

    options = re2.Options()
    options.never_nl = True  # a match does not go beyond its line
    options.log_errors = False
    options.max_mem = EXPRESSION_BYTES
    expression = wanted.text if wanted.regex else re2.escape(wanted.text)
    try:
        return re2.compile(f"(?m{'i' if wanted.ignore_case else ''}){expression}", options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else str(error)
        hint = "The expressions are those of RE2, without references to groups and without looking ahead."
        raise errors.InvalidInput(
            f"The regular expression is not valid: {reason[:200]}.", path="text", hint=hint
        ) from error


def _any_case(text: str) -> re.Pattern[bytes]:
    """Return the text as a pattern of bytes: for each letter one of its forms. Without a repetition it is linear."""
    forms = (_cases().get(letter.casefold(), frozenset()) | {letter} for letter in text)
    return re.compile(b"".join(b"(?:%b)" % b"|".join(sorted(map(_escaped, one))) for one in forms))


def _escaped(letter: str) -> bytes:
    return re.escape(letter.encode("utf-8", "replace"))


@functools.cache
def _cases() -> dict[str, frozenset[str]]:
    """Return the letters by the form that they have without case, where there are several."""
    found: dict[str, set[str]] = {}
    for letter in map(chr, range(_LAST_CASED + 1)):
        if (folded := letter.casefold()) != letter and len(folded) == 1:
            found.setdefault(folded, {folded}).add(letter)
    return {folded: frozenset(letters) for folded, letters in found.items()}


def hits(stream: streams.Stream, span: cuts.Span, find: Find, most: int, *, piece: int, stop: Stop) -> array[int]:
    """Return the offsets of the lines with a hit. A line that is longer than a piece or a block counts in parts."""
    found: array[int] = array("Q")
    at = span.low
    while at < span.high and len(found) < most:
        stop.check()
        block = cursors.read(stream.path, at, min(BLOCK_BYTES, span.high - at))
        if not block:
            break
        if at + len(block) < span.high:
            block = block[: block.rfind(b"\n") + 1] or block
        low = 0
        while low < len(block) and len(found) < most:
            high = _end(block, low, piece)
            _hits(block[low:high] if high - low < len(block) else block, at + low, find, most, found, stop)
            low = high
        at += len(block)
    return found


def _end(block: bytes, low: int, size: int) -> int:
    """Return the end of the whole lines from `low` on that have `size` bytes together, or of one longer line."""
    if len(block) - low <= size:
        return len(block)
    longest = low + max(size, cursors.PIECE_BYTES)
    ended = block.rfind(b"\n", low, low + size) + 1 or block.find(b"\n", low, longest) + 1
    return ended or min(len(block), longest)


def _hits(block: bytes, at: int, find: Find, most: int, found: array[int], stop: Stop) -> None:
    place = 0
    while place < len(block) and len(found) < most:
        stop.check()
        if (hit := find(block, place)) < 0:
            return
        start = block.rfind(b"\n", 0, hit) + 1
        if start >= len(block):
            return  # an empty match behind the last line
        found.append(at + start)
        end = block.find(b"\n", hit)
        place = end + 1 if end >= 0 else len(block)


def _lines(number: int, stream: streams.Stream, offsets: array[int], high: int) -> Iterator[paging.Place]:
    for offset in offsets:
        yield from itertools.islice(paging.lines(number, stream, offset, high, cursors.LEAST_BLOCK_BYTES), 1)
