"""Pages of a log: the lines before and after a place, merged by time of arrival, read from the streams' files.

Reading forward and backward gives the same order: by time of arrival, then by stream, then by offset.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from oarlock.data import storage
from oarlock.data.logs import cursors, cuts, joblogs, streams
from oarlock.spec import tasklogs

MOST_BYTES = 4 << 20
"""About the most text of a page: a page of very long lines has fewer of them."""
LEAST_LINES, MOST_LINES = 16, 256
"""The lines that are read at a time backward: at first, and at most."""


class Place(NamedTuple):
    """A line with its place: `end` is the first offset behind it."""

    at: float
    number: int  # of its stream
    offset: int
    stream: streams.Stream
    line: tasklogs.Line
    end: int


def page(job: joblogs.JobLogs, query: storage.LogQuery, place: str, *, before: int, after: int) -> tasklogs.LogPage:
    known = cuts.spans(list(job.matching(query)), query)
    cut = cuts.at(place, known)
    earlier = taken(heapq.merge(*_backward(known, cut), reverse=True), before)[::-1]
    later = taken(heapq.merge(*_forward(known, cut)), after)
    first, last = dict(cut), dict(cut)
    for one in reversed(earlier):
        first[one.stream] = one.offset
    for one in later:
        last[one.stream] = one.end
    left = sum(span.open - last[stream] for stream, span in known.items() if last[stream] < span.open)
    named = cuts.named(place, known)
    at_open = named if named is not None and cut[named] >= known[named].open else None
    unended = [one for one in _unended(known, last) if not left or one.stream is at_open]
    lines = sorted([*earlier, *later, *unended])
    return tasklogs.LogPage(
        lines=tuple(one.line for one in lines),
        before=cuts.text(first),
        after=cuts.text(last),
        earlier_bytes=sum(first[stream] - span.low for stream, span in known.items()),
        later_bytes=left,
        unended=tuple(number for number, one in enumerate(lines) if one.offset >= known[one.stream].open),
    )


def taken(places: Iterable[Place], count: int) -> list[Place]:
    taken: list[Place] = []
    size = 0
    if count:
        for one in places:
            taken.append(one)
            size += one.end - one.offset
            if len(taken) == count or size > MOST_BYTES:
                break
    return taken


def _forward(known: cuts.Spans, cut: cuts.Cut) -> list[Iterator[Place]]:
    block = cursors.block_for(len(known))
    numbered = enumerate(known.items())
    return [lines(number, stream, cut[stream], span.open, block) for number, (stream, span) in numbered]


def _backward(known: cuts.Spans, cut: cuts.Cut) -> list[Iterator[Place]]:
    numbered = enumerate(known.items())
    return [_lines_back(number, stream, span.low, cut[stream]) for number, (stream, span) in numbered]


def _unended(known: cuts.Spans, cut: cuts.Cut) -> Iterator[Place]:
    """Yield the lines behind the cut that have no end yet."""
    for number, (stream, span) in enumerate(known.items()):
        yield from lines(number, stream, max(cut[stream], span.open), span.high, cursors.LEAST_BLOCK_BYTES)


def lines(number: int, stream: streams.Stream, start: int, end: int, block: int) -> Iterator[Place]:
    """Yield the lines of a stream from `start` to `end`, read in growing blocks of at most `block` bytes.

    A page takes few lines of each stream, and every line that is read costs time, also one that is not taken.
    """
    cursor = cursors.Cursor(stream.key, stream.name, stream.path, stream.index(), start)
    size = min(block, cursors.LEAST_BLOCK_BYTES)
    while found := cursor.take(end, flush=True, block=size):
        yield from _placed(number, stream, found, cursor.offset)
        size = min(block, 2 * size)


def _lines_back(number: int, stream: streams.Stream, low: int, end: int) -> Iterator[Place]:
    """Yield the lines of a stream before `end`, the last one first, down to `low`, read in growing groups."""
    count, most = LEAST_LINES, MOST_LINES
    while end > low:
        start = max(low, cursors.tail_start(stream.path, end, count))
        if count > LEAST_LINES and end - start > cursors.BLOCK_BYTES:  # long lines: fewer of them are kept in memory
            most = max(LEAST_LINES, count // 2)  # else each of the next groups would be searched for twice
            count = LEAST_LINES
            continue
        yield from reversed(list(lines(number, stream, start, end, cursors.BLOCK_BYTES)))
        end, count = start, min(most, 2 * count)


def _placed(number: int, stream: streams.Stream, found: Sequence[tasklogs.Line], behind: int) -> Iterator[Place]:
    ends = [*(line.offset for line in found[1:]), behind]
    for line, end in zip(found, ends, strict=True):
        yield Place(line.at, number, line.offset, stream, line, end)
