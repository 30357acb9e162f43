"""Places in a log of several streams. A cut is an offset in each stream: what lies before it, and what behind.

Lines are shown in the order of their arrival, and a late line of one stream may come to lie before lines that were
shown already. A place that is an offset in each stream, and not a time, misses no line and shows none twice.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from oarlock.data import storage
from oarlock.data.logs import cursors, reading, streams
from oarlock.spec import errors, tasklogs

START, END = "start", "end"
LINE = re.compile(r"([a-z]{1,32})-(\d{1,9}):(\d{1,9}):(\d{1,9}):([a-z]{1,32}(?:[.-]\d{1,6})?):(\d{1,15})")
MOST_BYTES = 1 << 20
"""The longest unpacked cut; one of 512 tasks has about 30,000 bytes."""

_Key = tuple[str, int, int, int, str]  # role, index, attempt, incarnation, stream
_Group = tuple[str, int, int, str, list[int], bytes]  # role, attempt, incarnation, stream; the indexes and offsets


class Span(msgspec.Struct, frozen=True):
    """The part of a stream that a query wants. Its last bytes, from `open` on, are a line that has no end yet."""

    low: int
    high: int
    open: int


Spans = dict[streams.Stream, Span]
Cut = dict[streams.Stream, int]


def spans(found: Sequence[streams.Stream], query: storage.LogQuery) -> Spans:
    return {one: _span(one, query) for one in found}


def _span(stream: streams.Stream, query: storage.LogQuery) -> Span:
    high = reading.latest(stream, query)
    low = min(high, reading.earliest(stream, query, high))
    ended = high == low or cursors.read(stream.path, high - 1, 1) == b"\n"
    return Span(low, high, high if ended else max(low, cursors.line_start(stream.path, high)))


def at(place: str, known: Spans) -> Cut:
    """Return the cut that a place names. InvalidInput, NotFound."""
    if place == START:
        return {one: span.low for one, span in known.items()}
    if place == END:
        return {one: span.open for one, span in known.items()}
    if line := LINE.fullmatch(place):
        return _before_line(named(place, known), int(line[6]), known)
    told = _decoded(place)
    return {one: min(max(told.get(_key(one), 0), span.low), span.high) for one, span in known.items()}


def text(cut: Mapping[streams.Stream, int]) -> str:
    """Return a cut as text for an address, which `at` reads. Streams that begin there are left out."""
    grouped: dict[tuple[str, int, int, str], dict[int, int]] = {}
    for one, offset in cut.items():
        if offset:
            role, index, attempt, incarnation, name = _key(one)
            grouped.setdefault((role, attempt, incarnation, name), {})[index] = offset
    groups = [(*key, list(told), _packed(list(told.values()))) for key, told in grouped.items()]
    return "." + base64.urlsafe_b64encode(zlib.compress(msgspec.msgpack.encode(groups), 9)).decode().rstrip("=")


def _packed(offsets: Sequence[int]) -> bytes:
    """Return all first bytes of the offsets, then all second ones, ...: compressing removes those that are zero."""
    return b"".join(bytes(offset >> shift & 255 for offset in offsets) for shift in range(0, 64, 8))


def _unpacked(planes: bytes, count: int) -> list[int]:
    if len(planes) != 8 * count:
        raise ValueError("the offsets are cut off")
    return [sum(planes[number + count * at] << 8 * at for at in range(8)) for number in range(count)]


def line_at(stream: streams.Stream, offset: int, high: int) -> tasklogs.Line | None:
    """Return the line that begins at the offset."""
    cursor = cursors.Cursor(stream.key, stream.name, stream.path, stream.index(), offset)
    return next(iter(cursor.take(high, flush=True, block=cursors.LEAST_BLOCK_BYTES)), None)


def named(place: str, known: Spans) -> streams.Stream | None:
    """Return the stream of the line that a place is the address of."""
    if (line := LINE.fullmatch(place)) is None:
        return None
    role, index, attempt, incarnation, name, _ = line.groups()
    key = (role, int(index), int(attempt), int(incarnation), name)
    return next((one for one in known if _key(one) == key), None)


def _before_line(stream: streams.Stream | None, offset: int, known: Spans) -> Cut:
    if stream is None or not known[stream].low <= offset < known[stream].high:
        raise errors.NotFound("The log has no such line.", hint="Leave out the filters, or open the end of the log.")
    place = list(known).index(stream)
    start = cursors.line_start(stream.path, offset)
    line = line_at(stream, start, known[stream].high)
    cut: Cut = {}
    for number, (one, span) in enumerate(known.items()):
        if number == place or line is None:
            cut[one] = start
        else:  # of lines that arrived at one time, those of earlier streams come first
            after = one.index().since(line.at, span.high, after=number < place)
            cut[one] = min(max(cursors.line_start(one.path, after), span.low), span.open)
    return cut


def _key(one: streams.Stream) -> _Key:
    return one.key.role, one.key.index, one.key.attempt, one.key.incarnation, one.name


def _decoded(place: str) -> dict[_Key, int]:
    unpacked = zlib.decompressobj()
    try:
        if not place.startswith("."):
            raise ValueError(place)
        packed = base64.urlsafe_b64decode(place[1:] + "==")
        groups = msgspec.msgpack.decode(unpacked.decompress(packed, MOST_BYTES), type=list[_Group])
        return {
            (role, index, attempt, incarnation, name): offset
            for role, attempt, incarnation, name, indexes, planes in groups
            for index, offset in zip(indexes, _unpacked(planes, len(indexes)), strict=True)
        }
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError) as error:
        hint = "Use `start`, `end`, TASK:ATTEMPT:INCARNATION:STREAM:OFFSET, or `before` and `after` of an answer."
        raise errors.InvalidInput(f"{place[:60]!r} is not a place in a log.", path="at", hint=hint) from error
