"""The points that have arrived since a reader last looked, in the order of their arrival, none left out.

A cursor is the text that an answer ends with. It names, for each process of a task, the life that was read last and the
place in its stream: `worker/0/0:1.2.5308` is attempt 1, incarnation 2, byte 5308. So an answer costs as much as what is
new, however much is stored, and a series that rests costs nothing. A long cursor is compressed, as part of a URL:
HTTP servers take 16 KiB for all lines of a request's head. The processes of a large job are read in groups, each with a
cursor of its own. A process that moves into the next group, behind one that began late, comes there from its beginning.

A place within a stream that has become part of a chunk since is not found again: the whole chunk comes once more. So a
reader keeps the last step of each series. The steps that an earlier life ran after the checkpoint of a later one are
left out, as far as the later one is known.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from oarlock.data import storage
from oarlock.data.metrics import chunks, frames, lives
from oarlock.spec import attempts, errors

MOST_PROCESSES = 1000
"""A cursor names no more processes: it is part of a URL. Further ones are in further groups."""

PLAIN_MOST = 2_000
"""A cursor of more characters is compressed."""
LONGEST = 200_000
"""The most characters of a cursor that is not compressed any more."""
_PACKED = "z."

_PART = re.compile(r"([a-z0-9-]+)/([0-9]{1,9})/([0-9]{1,9}):([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,18})")

Process = tuple[str, int, int]
"""Role, index, and number of the process within the task."""
View = tuple[chunks.Records, list[chunks.Chunk], bytes, frames.Parsed]


class Place(NamedTuple):
    attempt: int
    incarnation: int
    at: int


class Life(NamedTuple):
    """The stream of one incarnation. `view` returns what is stored behind a place, and None where that is nothing."""

    key: attempts.TaskKey
    process: int
    view: Callable[[int], View | None]


def news(streams: Iterable[Life], after: str, points: int, group: int = 0) -> storage.News:
    """Return a group's points behind its cursor `after`: about `points`, and more where one chunk has more.

    Raises InvalidInput for a text that is not a cursor.
    """
    places, found, left = parsed(after), list[storage.Series](), points
    of: dict[Process, list[Life]] = {}
    for one in streams:
        of.setdefault((one.key.role, one.key.index, one.process), []).append(one)
    begin = group * MOST_PROCESSES
    of_group = dict(sorted(of.items())[begin : begin + MOST_PROCESSES])
    places = {process: place for process, place in places.items() if process in of_group}
    for process, its_lives in of_group.items():
        if left <= 0:
            break
        its_lives.sort(key=lambda one: (one.key.attempt, one.key.incarnation))
        groups, places[process] = _new(its_lives, places.get(process, Place(0, 0, 0)), left)
        its = lives.thinned(f"{process[0]}-{process[1]}", process[2], groups, None, _ALL)
        left -= sum(len(one.points) for one in its)
        found += its
    return storage.News(series=found, after=text(places), groups=max(1, -(-len(of) // MOST_PROCESSES)))


_ALL = 1 << 62


def text(places: dict[Process, Place]) -> str:
    plain = ",".join(
        f"{role}/{index}/{process}:{place.attempt}.{place.incarnation}.{place.at}"
        for (role, index, process), place in sorted(places.items())
    )
    if len(plain) <= PLAIN_MOST:
        return plain
    return _PACKED + base64.urlsafe_b64encode(zlib.compress(plain.encode(), 9)).decode().rstrip("=")


def _unpacked(after: str) -> str:
    """Return the cursor as text. Raises InvalidInput."""
    if not after.startswith(_PACKED):
        return after
    packed = after.removeprefix(_PACKED)
    opened = zlib.decompressobj()
    try:
        plain = opened.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), LONGEST).decode("ascii")
    except (ValueError, zlib.error) as error:
        raise _no_cursor(after) from error
    if not opened.eof:
        raise _no_cursor(after)
    return plain


def _no_cursor(part: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{part[:60]!r} is not a part of a cursor", path="after", hint="Send the `after` of the last answer."
    )


def parsed(after: str) -> dict[Process, Place]:
    after, found = _unpacked(after), dict[Process, Place]()
    for part in after.split(",") if after else ():
        match = _PART.fullmatch(part)
        if match is None:
            raise _no_cursor(part)
        role, *numbers = match.groups()
        index, process, attempt, incarnation, at = map(int, numbers)
        found[role, index, process] = Place(attempt, incarnation, at)
    return found


def _new(its_lives: Sequence[Life], place: Place, most: int) -> tuple[list[list[lives.Part]], Place]:
    """Return the kept parts of one process behind the place, by group, and the place behind them."""
    since = [one for one in its_lives if (one.key.attempt, one.key.incarnation) >= place[:2]]
    begun = [_begun(one, place) for one in since]
    views = [one.view(at) for one, at in zip(since, begun, strict=True)]
    firsts = [_first_step(view) for view in views[1:]]
    found: list[list[lives.Part]] = []
    count = 0
    for number, (one, view) in enumerate(zip(since, views, strict=True)):
        limit = min(firsts[number:], default=_ALL)
        place = Place(one.key.attempt, one.key.incarnation, begun[number])
        for group in _groups(view, place.at):
            if count >= most:
                return found, place
            parts = [lives.part_of(block, 0, limit) for block in group.blocks if block.first_step < limit]
            found.append(parts)
            count += sum(part.rows * len(part.block.names) for part in parts)
            place = place._replace(at=group.end)
    return found, place


def _begun(one: Life, place: Place) -> int:
    return place.at if (one.key.attempt, one.key.incarnation) == place[:2] else 0


class _Group(NamedTuple):
    """Blocks that cover the same steps, and the place in the stream behind them."""

    blocks: list[lives.Block]
    end: int


def _first_step(view: View | None) -> int:
    return min((block.first_step for group in _groups(view, 0) for block in group.blocks), default=_ALL)


def _groups(view: View | None, at: int) -> Iterator[_Group]:
    """Yield the groups behind a place of the stream."""
    if view is None:
        return
    records, stored, raw, rest = view
    base = stored[-1].end if stored else 0
    for chunk in stored:
        if chunk.end > at:
            head, begin = records.head(chunk)
            yield _Group([lives.StoredBlock(records, block, begin) for block in head.blocks], chunk.end)
    if base + rest.end > at:
        runs = [run for run in (_behind(run, at - base) for run in rest.runs) if run.rows]
        yield _Group([lives.RawBlock(*group) for group in chunks.groups(raw, runs)], base + rest.end)


def _behind(run: frames.Run, at: int) -> frames.Run:
    """Return the rows of the run that begin at this place or behind it."""
    passed = min(run.rows, max(0, -(-(at - run.start) // run.stride)))
    return run._replace(start=run.start + passed * run.stride, rows=run.rows - passed)
