"""The search for a text in all lines of a log. The files are read in large blocks, and only lines with a hit are split.

Regular expressions are those of RE2: the time of a search grows with the length of the log and never faster.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from oarlock.data import storage
from oarlock.data.logs import cursors, cuts, joblogs, paging, streams
from oarlock.spec import errors

BLOCK_BYTES = 4 << 20
MOST_HITS = 1_000_000
"""Further hits are not counted."""

Find = Callable[[bytes, int], int]
"""The place of the next match in a block of lines from a place on; -1 for none."""


def search(
    job: joblogs.JobLogs, query: storage.LogQuery, place: str, wanted: storage.LogSearch, *, limit: int
) -> storage.LogHits:
    find = finder(wanted)
    known = cuts.spans(list(job.matching(query)), query)
    cut = cuts.at(place, known)
    found: dict[streams.Stream, array[int]] = {}
    total = 0
    for stream, span in known.items():
        found[stream] = hits(stream, span, find, MOST_HITS - total)
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
    return storage.LogHits(
        hits=total,
        earlier=sum(seen.values()),
        previous=previous.line if previous is not None else None,
        lines=tuple(one.line for one in lines),
        after=cuts.text(cut),
        whole=total < MOST_HITS,
    )


def finder(wanted: storage.LogSearch) -> Find:
    """Return the search as a function. InvalidInput for an expression that is not valid."""
    if not wanted.text or "\n" in wanted.text:
        raise errors.InvalidInput("The text to search for is empty.", path="text", hint="Name a part of one line.")
    if not wanted.regex and not wanted.ignore_case:
        plain = wanted.text.encode("utf-8", "replace")
        return lambda block, start: block.find(plain, start)
    try:
        import re2
    except ImportError as error:
        raise errors.Unsupported(
            "This server can only search for plain text in its own case: it lacks google-re2.",
            hint="Leave out `regex` and `ignore_case`, or install it: pip install google-re2",
        ) from error
    options = re2.Options()
    options.never_nl = True  # a match does not go beyond its line
    options.log_errors = False
    expression = wanted.text if wanted.regex else re2.escape(wanted.text)
    try:
        compiled: Any = re2.compile(f"(?m{'i' if wanted.ignore_case else ''}){expression}", options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else str(error)
        hint = "The expressions are those of RE2, without references to groups and without looking ahead."
        raise errors.InvalidInput(
            f"The regular expression is not valid: {reason[:200]}.", path="text", hint=hint
        ) from error

    def find(block: bytes, start: int) -> int:
        match = compiled.search(block, start)
        return match.start() if match is not None else -1

    return find


def hits(stream: streams.Stream, span: cuts.Span, find: Find, most: int) -> array[int]:
    """Return the offsets of the lines with a hit. A line that is longer than a block counts in pieces."""
    found: array[int] = array("Q")
    at = span.low
    while at < span.high and len(found) < most:
        block = cursors.read(stream.path, at, min(BLOCK_BYTES, span.high - at))
        if not block:
            break
        if at + len(block) < span.high:
            block = block[: block.rfind(b"\n") + 1] or block
        place = 0
        while place < len(block) and len(found) < most and (hit := find(block, place)) >= 0:
            start = block.rfind(b"\n", 0, hit) + 1
            if start >= len(block):
                break  # an empty match behind the last line
            found.append(at + start)
            stop = block.find(b"\n", hit)
            place = stop + 1 if stop >= 0 else len(block)
        at += len(block)
    return found


def _lines(number: int, stream: streams.Stream, offsets: array[int], high: int) -> Iterator[paging.Place]:
    for offset in offsets:
        yield from itertools.islice(paging.lines(number, stream, offset, high, cursors.LEAST_BLOCK_BYTES), 1)
