"""Where the tasks of one gang go: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oarlock.scheduler import generations, seating, shapes
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]


class Domain(NamedTuple):
    """Of all domains of a level the one that would take most of a gang: how many of its tasks."""

    level: str
    name: str
    tasks: int


def place(
    gang: plans.Gang,
    room: rooms.Room,
    size: plans.Size | None = None,
    *,
    keep: frozenset[str] = frozenset(),
    prefer: Sequence[str] = (),
) -> Claims | None:
    """The holdings of the gang at `size` (None: as it was asked for), all of them, or None. `room` is left as it was:
    the caller takes them.

    A gang has one type of GPU, the first with which it fits (`gpu_types`); several only where it says so and no single
    one will do. A required domain of the topology is kept; of a preferred one the smallest is tried first, then the
    tightest that holds it, then the next level, then all nodes. Packed, it takes the fewest nodes, of those the
    fullest, and of equal ones the cheapest; spread, as many as there are, evenly. Without need of a GPU it stays off
    nodes that have some, unless it fits nowhere else.

    Nodes named in `keep` are not used; those in `prefer`, where it stood before, come first among equals.
    """
    size = gang.wanted if size is None else size
    for needs in _likely(gang, room, size):
        found = seating.Seating(gang, size, needs, room, keep=keep, prefer=prefer).claims()
        if found is not None:
            return found
    return None


def fits(gang: plans.Gang, room: rooms.Room, size: plans.Size) -> bool:
    """Whether `place` would find one."""
    sums = by_sums(gang, size)
    return any(
        sums or seating.Seating(gang, size, needs, room).claims() is not None for needs in _likely(gang, room, size)
    )


def by_sums(gang: plans.Gang, size: plans.Size) -> bool:
    """Whether the sums say all: tasks that are all alike, and may lie anywhere. So what fits in a room fits in any that
    has more left.
    """
    return (gang.topology is None or not gang.topology.required) and sum(tasks > 0 for tasks in size) == 1


def most(gang: plans.Gang, room: rooms.Room) -> int:
    """How many of its tasks would fit now, were it not a gang; within one domain, where it must be in one."""
    if gang.topology is not None and gang.topology.required:
        best = widest(gang, room)
        return 0 if best is None else best.tasks
    attempts = (seating.Seating(gang, gang.wanted, needs, room) for needs in ways(gang, room))
    return max((attempt.fitting(None) for attempt in attempts), default=0)


def widest(gang: plans.Gang, room: rooms.Room) -> Domain | None:
    """The domain of the level it asks for that would take most of its tasks; None without such a wish, or domain."""
    if gang.topology is None:
        return None
    level = gang.topology.same
    attempts = (seating.Seating(gang, gang.wanted, needs, room) for needs in ways(gang, room))
    found = [Domain(level, name, tasks) for attempt in attempts for name, tasks in attempt.widest(level)]
    return max(found, key=lambda domain: (domain.tasks, domain.name), default=None)


def gpu_types(gang: plans.Gang, room: rooms.Room) -> list[str | None]:
    """The types to try, best first; None where it wants no GPU, or (last) for several types at once.

    In the gang's order of preference; where any will do, older ones first for low priority and newer ones for others.
    """
    wanting = [ask for ask in gang.asks if ask.amount.gpus or ask.amount.gpu_milli]
    if not wanting:
        return [None]
    named = next((ask.gpu_types for ask in wanting if ask.gpu_types), None)
    found: list[str | None] = [
        kind
        for kind in (generations.in_order(room.types, gang.priority) if named is None else named)
        if kind in room.types and all(not ask.gpu_types or kind in ask.gpu_types for ask in wanting)
    ]
    if gang.mixed and all(not ask.gpu_types or any(kind in room.types for kind in ask.gpu_types) for ask in wanting):
        return [*found, None] if room.types else []
    return found


def _likely(gang: plans.Gang, room: rooms.Room, size: plans.Size) -> Iterator[tuple[shapes.Shape, ...]]:
    """The ways that the sums do not rule out: most gangs that do not fit are refused by these."""
    for needs in ways(gang, room):
        if not any(tasks and room.lacks(need, tasks) for need, tasks in zip(needs, size, strict=True)):
            yield needs


def ways(gang: plans.Gang, room: rooms.Room) -> tuple[tuple[shapes.Shape, ...], ...]:
    """What its tasks may look like, best first, each as one shape for every ask: on this type of GPU or on that one.

    Without need of a GPU: first on nodes that have none, then on any.
    """
    key = gang.asks, gang.mixed, gang.priority < generations.ORDINARY_PRIORITY
    ways = room.ways.get(key)
    if ways is None:
        passes: tuple[bool, ...] = (False,)
        if room.types and not any(ask.amount.gpus or ask.amount.gpu_milli for ask in gang.asks):
            passes = (True, False)
        ways = room.ways[key] = tuple(
            tuple(shapes.shape(ask, kind, bare=bare) for ask in gang.asks)
            for kind in gpu_types(gang, room)
            for bare in passes
        )
    return ways
