"""One series over all the lives of a process: the points of its attempts and incarnations, in order.

A process that was started again continues from a checkpoint. The steps that its earlier life ran after that checkpoint
are dropped. The points flow through the thinner block by block.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from oarlock.data import storage
from oarlock.data.metrics import chunks, columns, frames, thinning
from oarlock.spec import attempts

View = Callable[[], tuple[chunks.Records, list[chunks.Chunk], bytes, frames.Parsed]]


class Block(Protocol):
    """Rows of one schema, from a chunk or from raw bytes. Columns are decoded on demand."""

    names: tuple[str, ...]
    rows: int
    first_step: int
    last_step: int

    def steps(self) -> array[Any]: ...

    def times(self) -> array[Any]: ...

    def values(self, name: str) -> array[Any]: ...


class StoredBlock:
    def __init__(self, records: chunks.Records, block: chunks.Block, begin: int) -> None:
        self.names, self.rows = block.names, block.rows
        self.first_step, self.last_step = block.first_step, block.last_step
        self._records = records
        self._places = block.places
        self._begin = begin

    def steps(self) -> array[Any]:
        return columns.unpack_steps(self._column(0))

    def times(self) -> array[Any]:
        return columns.unpack_times(self._column(1))

    def values(self, name: str) -> array[Any]:
        return columns.unpack_values(self._column(2 + self.names.index(name)))

    def _column(self, place: int) -> bytes:
        offset, size = self._places[place]
        return self._records.bytes(self._begin + offset, size)


class RawBlock:
    def __init__(self, names: tuple[str, ...], rows: bytes, count: int) -> None:
        self.names, self.rows = names, count
        self._rows = rows
        self._stride = frames.VALUES_AT + 8 * len(names)
        steps = self.steps()
        self.first_step, self.last_step = min(steps), max(steps)

    def steps(self) -> array[Any]:
        return self._column("Q", frames.STEP_AT)

    def times(self) -> array[Any]:
        return self._column("d", frames.TIME_AT)

    def values(self, name: str) -> array[Any]:
        return self._column("d", frames.VALUES_AT + 8 * self.names.index(name))

    def _column(self, kind: str, offset: int) -> array[Any]:
        return columns.numbers(kind, columns.gathered(self._rows, offset, self._stride, self.rows))


class Part(NamedTuple):
    """The kept rows of a block: all of them, or those at these places."""

    block: Block
    places: list[int] | None

    @property
    def rows(self) -> int:
        return self.block.rows if self.places is None else len(self.places)

    def cut(self, column: array[Any]) -> array[Any]:
        return column if self.places is None else array(column.typecode, [column[place] for place in self.places])


def series(
    streams: Sequence[tuple[attempts.TaskKey, int, View]],
    wanted: frozenset[str] | None,
    points: int,
    steps: tuple[int, int] = storage.ALL_STEPS,
    ranks: int | None = None,
) -> list[storage.Series]:
    """Return the thinned series of these streams, which are in the order of their keys. `wanted`: the names, or all.

    `ranks` is the most series of each name. Once the wanted names have so many, no further stream is read.
    """
    by_process: dict[tuple[str, int, int], list[View]] = defaultdict(list)
    for key, process, view in streams:
        by_process[key.role, key.index, process].append(view)
    found: list[storage.Series] = []
    counts: Counter[str] = Counter()
    for (role, index, process), views in sorted(by_process.items()):
        if ranks is not None and wanted is not None and all(counts[name] >= ranks for name in wanted):
            break
        groups = list(kept([list(blocks_of(*view())) for view in views], *steps))
        made = thinned(f"{role}-{index}", process, groups, wanted, points)
        found += [one for one in made if ranks is None or counts[one.name] < ranks]
        counts.update(one.name for one in made)
    return found


def blocks_of(
    records: chunks.Records, found: list[chunks.Chunk], raw: bytes, parsed: frames.Parsed
) -> Iterator[list[Block]]:
    """Yield the blocks of one life, those of one chunk together, because they cover the same steps."""
    for chunk in found:
        head, begin = records.head(chunk)
        yield [StoredBlock(records, block, begin) for block in head.blocks]
    rest: list[Block] = [RawBlock(*group) for group in chunks.groups(raw, parsed.runs)]
    if rest:
        yield rest


def kept(lives: list[list[list[Block]]], first: int = 0, last: int = storage.ALL_STEPS[1]) -> Iterator[list[Part]]:
    """Yield the kept parts of each life: only the steps before those of any later life, from `first` to `last`."""
    firsts = [min((block.first_step for group in life for block in group), default=1 << 64) for life in lives]
    for number, life in enumerate(lives):
        limit = min([last + 1, *firsts[number + 1 :]])
        for group in life:
            near = [block for block in group if block.first_step < limit and block.last_step >= first]
            parts = [part_of(block, first, limit) for block in near]
            if parts:
                yield parts


def part_of(block: Block, first: int, limit: int) -> Part:
    if first <= block.first_step and block.last_step < limit:
        return Part(block, None)
    return Part(block, [place for place, step in enumerate(block.steps()) if first <= step < limit])


def thinned(
    task: str, process: int, groups: list[list[Part]], wanted: frozenset[str] | None, points: int
) -> list[storage.Series]:
    counts: dict[str, int] = defaultdict(int)
    for part in itertools.chain.from_iterable(groups):
        for name in part.block.names:
            if wanted is None or name in wanted:
                counts[name] += part.rows
    thinners = {name: thinning.Thinner(count, points) for name, count in sorted(counts.items()) if count}
    for group in groups:
        feed(thinners, group)
    return [thinner.series(task, process, name) for name, thinner in thinners.items()]


def feed(thinners: dict[str, thinning.Thinner], group: list[Part]) -> None:
    """Feed the thinners with a group of blocks. Steps and times are decoded once for all names of a block."""
    told: dict[str, list[tuple[array[Any], array[Any], Part]]] = defaultdict(list)
    for part in group:
        names = [name for name in part.block.names if name in thinners]
        if names and part.rows:
            steps, times = part.cut(part.block.steps()), part.cut(part.block.times())
            for name in names:
                told[name].append((steps, times, part))
    for name, tellings in told.items():
        if len(tellings) == 1:
            ((steps, times, part),) = tellings
            thinners[name].add(steps, times, part.cut(part.block.values(name)))
        else:
            thinners[name].add(*merged(name, tellings))


def merged(name: str, tellings: list[tuple[array[Any], array[Any], Part]]) -> tuple[array[Any], array[Any], array[Any]]:
    """Return one name's points from several schemas (`loss` alone, `loss` with `accuracy`), ordered by time."""
    steps: array[Any] = array("Q")
    times: array[Any] = array("d")
    values: array[Any] = array("d")
    for its_steps, its_times, part in tellings:
        steps += its_steps
        times += its_times
        values += part.cut(part.block.values(name))
    order = sorted(range(len(times)), key=times.__getitem__)
    return (
        array("Q", [steps[place] for place in order]),
        array("d", [times[place] for place in order]),
        array("d", [values[place] for place in order]),
    )
