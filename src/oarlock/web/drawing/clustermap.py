"""The map of the cluster as SVG: a row for each node, with a cell for each device and a Gantt chart beside it. Pure.

A row has two drawings on one scale for all rows: the cells are the devices now, the bars are the jobs on them from the
past, as recorded, to the forecast. All parts have a class for their colour and a title in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from oarlock.display import amounts, marks
from oarlock.display.jobs import forecasts
from oarlock.display.tables import nodecells
from oarlock.spec import bodies, phases
from oarlock.spec.cluster import nodes
from oarlock.web.drawing import colours

WIDTH, CELL = 480, 14
LEAST_HEIGHT, MOST_LANES = 16, 16
LANE = 8
Say = Callable[[float], str]
"""Returns a time in words."""


class Box(msgspec.Struct, frozen=True):
    """A rectangle. `kind` is `held`, `forecast`, `range` (of an expected start), `idle` or `closed`."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    colour: str
    title: str


class Run(msgspec.Struct, frozen=True):
    """Neighbouring devices that are alike, as one path: a page with thousands of rectangles takes seconds to draw."""

    kind: str
    colour: str
    title: str
    path: str


class Row(msgspec.Struct, frozen=True):
    """A node: its state in words, its devices in `runs`, and its past and future. `cells` has each device."""

    name: str
    ready: bool
    state: str
    used: str
    cells: tuple[Box, ...]
    runs: tuple[Run, ...]
    cells_width: int
    bars: tuple[Box, ...]
    height: int


class Window(msgspec.Struct, frozen=True):
    """The time that the Gantt chart shows, in Unix seconds."""

    begin: float
    now: float
    end: float

    def x(self, at: float) -> float:
        return WIDTH * (min(max(at, self.begin), self.end) - self.begin) / (self.end - self.begin)


class Facts(msgspec.Struct, frozen=True):
    """All that the map is drawn from. `phases` has the phase of each active job."""

    past: Sequence[bodies.HeldBefore]
    expected: bodies.Forecasts
    phases: Mapping[forecasts.Key, str]


class Map:
    """The rows of nodes. `by` chooses the colour: job, owner, pool or phase; `say` tells a time."""

    def __init__(self, facts: Facts, window: Window, by: str, say: Say) -> None:
        self._window, self._by, self._say = window, by, say
        self._phases = facts.phases
        self._ends = {key(one): one for one in facts.expected.ends}
        self._held: dict[str, list[tuple[bodies.HeldBefore, tuple[int, ...]]]] = {}
        for one in facts.past:
            for place in one.places:
                self._held.setdefault(place.node, []).append((one, place.devices))
        self._expected: dict[str, list[tuple[bodies.ExpectedStart, tuple[int, ...]]]] = {}
        for start in facts.expected.starts:
            for place in start.places:
                self._expected.setdefault(place.node, []).append((start, place.devices))

    def row(self, state: bodies.NodeState) -> Row:
        node = state.node
        count = max(1, len(node.devices))
        lanes = _Lanes(node, max(LEAST_HEIGHT, min(count, MOST_LANES) * LANE // (2 if count > 4 else 1)))
        bars, cells = tuple(self._bars(node, lanes)), tuple(self._cells(node))
        return Row(
            name=node.name,
            ready=node.ready,
            state=nodecells.state(node),
            used=_used(state),
            cells=cells,
            runs=tuple(runs(cells)),
            cells_width=CELL * count,
            bars=bars,
            height=lanes.height,
        )

    def pools(self, node: nodes.Node) -> list[str]:
        """Return the pools of the jobs that hold this node now."""
        return sorted({one.pool for one, _ in self._holders(node)})

    def colour(self, one: bodies.Tenant, phase: str = "") -> str:
        """Return the class of the job's colour. A job with a hidden id has the colour of its name."""
        if self._by == "phase":
            mark = marks.PHASES.get(phase)
            return mark.colour if mark is not None else "open"
        return f"fill-{colours.of({'owner': one.user, 'pool': one.pool}.get(self._by, one.job or '/'.join(key(one))))}"

    def _cells(self, node: nodes.Node) -> Iterator[Box]:
        """Yield a cell for each device, or one for a node without devices; a shared device is split."""
        for place, index in enumerate([device.index for device in node.devices] or [None]):
            holders = [one for one, devices in self._holders(node) if index is None or index in devices]
            word = node.name if index is None else f"GPU {index}"
            if not node.ready or not holders:
                kind, said = ("closed", node.reason or "not ready") if not node.ready else ("idle", "idle")
                yield Box(CELL * place, 0, CELL - 2, LEAST_HEIGHT, kind, "open", f"{word}: {said}")
            for number, one in enumerate(holders):
                part = (CELL - 2) / len(holders)
                colour = self.colour(one, self._phases.get(key(one), ""))
                x = CELL * place + number * part
                yield Box(x, 0, part, LEAST_HEIGHT, "held", colour, f"{word}: {self._told(one)}")

    def _holders(self, node: nodes.Node) -> list[tuple[bodies.HeldBefore, tuple[int, ...]]]:
        return [pair for pair in self._held.get(node.name, ()) if pair[0].ended_at is None]

    def _told(self, one: bodies.HeldBefore) -> str:
        """Return the holder of a device, since when and until when; of a past one, how it ended."""
        words = f"{one.name} ({one.user}, {one.pool}), since {self._say(one.started_at)}"
        if one.ended_at is not None:
            again = " again" if one.outcome is phases.Phase.QUEUED else ""
            how = f", {one.outcome}{again}" if one.outcome is not None else ""
            return f"{words}, until {self._say(one.ended_at)}{how}"
        end = self._ends.get(key(one))
        if end is not None and end.end is not None:
            return f"{words}, until about {self._say(end.end)}"
        if end is not None and end.latest is not None:
            return f"{words}, until {self._say(end.latest)} at the latest"
        return f"{words}; its end is not known"

    def _bars(self, node: nodes.Node, lanes: _Lanes) -> Iterator[Box]:
        window = self._window
        for one, devices in sorted(self._held.get(node.name, ()), key=lambda pair: pair[0].started_at):
            stop = window.now if one.ended_at is None else one.ended_at
            colour = self.colour(one, self._phases.get(key(one), "") if one.ended_at is None else one.outcome or "")
            end = self._ends.get(key(one)) if one.ended_at is None else None
            until = None if end is None else end.latest if end.end is None else end.end
            last = max(stop, until or stop)
            for y, tall in lanes.places(devices, one.started_at, last):
                yield self._bar(one.started_at, stop, y, tall, "held", colour, self._told(one))
                if last > window.now and one.ended_at is None:
                    yield self._bar(window.now, last, y, tall, "forecast", colour, self._told(one))
        for start, devices in self._expected.get(node.name, ()):
            if start.start is None:
                continue
            begin = max(start.start, window.now)
            latest = f" to {self._say(start.latest)}" if start.latest is not None and start.latest > begin else ""
            words = f"{start.name} ({start.user}, {start.pool}): expected start {self._say(begin)}{latest}"
            colour = self.colour(start, phases.Phase.QUEUED)
            for y, tall in lanes.places(devices, begin, window.end):
                yield self._bar(begin, window.end, y, tall, "forecast", colour, words)
                if latest:
                    yield self._bar(begin, start.latest or begin, y, tall, "range", colour, words)

    def _bar(self, first: float, last: float, y: float, height: float, kind: str, colour: str, title: str) -> Box:
        x = self._window.x(first)
        return Box(x, y, max(1.0, self._window.x(last) - x), height, kind, colour, title)


class _Lanes:
    """The heights at which bars lie: those of their devices; for jobs without devices the first free lane below them.

    `height` is that of the row, and grows with the first job without devices on a node that has some.
    """

    def __init__(self, node: nodes.Node, height: int) -> None:
        self._index = {device.index: place for place, device in enumerate(node.devices)}
        self._tall = height / max(1, len(node.devices))
        self._below = height if node.devices else 0
        self._until = [0.0] * 4
        self.height = height

    def places(self, devices: Iterable[int], first: float, last: float) -> Iterator[tuple[float, float]]:
        """Yield position and height for each stretch of neighbouring devices."""
        held = sorted(self._index[device] for device in devices if device in self._index)
        if not held:
            self.height = self._below + LEAST_HEIGHT
            lane = next((number for number, until in enumerate(self._until) if until <= first), 3)
            self._until[lane] = max(self._until[lane], last)
            tall = LEAST_HEIGHT / len(self._until)
            yield self._below + lane * tall, tall
            return
        begin = before = held[0]
        for place in held[1:]:
            if place != before + 1:
                yield begin * self._tall, (before - begin + 1) * self._tall
                begin = place
            before = place
        yield begin * self._tall, (before - begin + 1) * self._tall


def runs(cells: Iterable[Box]) -> Iterator[Run]:
    """Yield the cells of a node, those together that are alike but for their device. Parts of a device stay apart."""

    def alike(cell: Box) -> tuple[object, ...]:
        return cell.kind, cell.colour, cell.title.partition(": ")[2], cell.width, cell.width < CELL - 2 and cell.x

    for _, found in itertools.groupby(cells, alike):
        boxes = list(found)
        (first, said), last = boxes[0].title.split(": ", 1), boxes[-1].title.partition(": ")[0]
        word = first if len(boxes) == 1 else f"{first} to {last.removeprefix('GPU ')}"
        path = "".join(f"M{one.x:g} {one.y:g}h{one.width:g}v{one.height:g}h-{one.width:g}z" for one in boxes)
        yield Run(boxes[0].kind, boxes[0].colour, f"{word}: {said}", path)


def key(one: bodies.Tenant) -> forecasts.Key:
    return one.user, one.pool, one.name


def _used(state: bodies.NodeState) -> str:
    held, whole = state.held, state.node.capacity
    if whole.gpus:
        return f"{amounts.number(held.devices)} of {whole.gpus} GPUs held"
    return f"{amounts.number(held.cpus_milli / 1000)} of {amounts.number(whole.cpus_milli / 1000)} CPUs held"
