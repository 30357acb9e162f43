"""A place that is kept for a gang that fits nowhere yet, so that those behind it may start, and never delay it.

Imagine the running gangs ended one after the other: those whose end is expected in the order of those ends, then the
others, the oldest first. The gang's place is found at the first moment at which it fits; what of that place is free
already is taken off the room. Whoever starts later goes elsewhere, or is over before that moment by its own time-out.

Why this delays nobody: in the next plan the gangs that this sequence is made of are the same less those that have
ended, and what has started since lies outside the place, or ends before that moment. So the place is still there at the
same point of the sequence at the latest; by induction the gang starts no later than if nothing had been started beside
it. (The argument of EASY backfilling, Mu'alem and Feitelson 2001, with unknown ends in a fixed order after the known.)
"""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.scheduler import placement, promises
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]


class Kept:
    """`at` is when the place is expected to be free (Unix seconds), None where that hangs on an unknown end."""

    def __init__(self, gang: plans.Gang, claims: Claims, at: float | None, room: rooms.Room) -> None:
        self.gang = gang
        self.claims = claims
        self.at = at
        self._room = room
        self.parts: list[holdings.Holding] = []  # of the place, what is free now
        self._take()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(claim.node for claim in self.claims))

    def before(self, gang: plans.Gang, size: plans.Size, now: float) -> Claims | None:
        """A place for a gang that is over before this one's is free, as its time-out promises: taken, or None."""
        if self.at is None or gang.at_most_s is None or now + gang.at_most_s > self.at:
            return None
        self._room.give_back(self.parts)
        claims = placement.place(gang, self._room, size)
        if claims is not None:
            self._room.take(claims)
        self._take()
        return claims

    def in_the_way(self, gang: plans.Gang, size: plans.Size) -> bool:
        """Whether a gang would fit now, were this place not kept."""
        mark = self._room.mark()
        self._room.give_back(self.parts)
        fits = gang.amount(size).fits(self._room.free()) and placement.place(gang, self._room, size) is not None
        self._room.rollback(mark)
        return fits

    def _take(self) -> None:
        self.parts = []
        for claim in self.claims:
            part = promises.part_free(claim, self._room.nodes[claim.node], rooms.NOTHING)
            self._room.take([part])
            self.parts.append(part)


def kind(gang: plans.Gang) -> object:
    """Gangs of different kinds wait for different devices: the first of each has a place kept."""
    return tuple(sorted({ask.gpu_types for ask in gang.asks if ask.amount.devices}))


def keep(
    gang: plans.Gang, size: plans.Size, running: Sequence[plans.Running], promised: promises.Promises
) -> Kept | None:
    """Of `running` (those that are not being stopped) the first to end make room; None where not even all would."""
    order = sorted(running, key=_by_end)
    with promised.afterwards():
        found = _first_fit(gang, size, order, promised.room)
    if found is None:
        return None
    claims, ended = found
    nodes = {claim.node for claim in claims}
    needed = [job for job in order[:ended] if any(claim.node in nodes for claim in job.holdings)]
    ends = [job.expected_end for job in needed]
    known = [end for end in ends if end is not None]
    at = max(known) if known and len(known) == len(ends) else None
    return Kept(gang, claims, at, promised.room)


def _first_fit(
    gang: plans.Gang, size: plans.Size, order: Sequence[plans.Running], room: rooms.Room
) -> tuple[Claims, int] | None:
    """Where it fits after the fewest ends of `order`, and how many: doubled until it does, then halved into."""
    low, high = 0, min(1, len(order))
    while (claims := _after(gang, size, order[:high], room)) is None:
        if high == len(order):
            return None
        low, high = high, min(2 * high, len(order))
    while high - low > 1:
        middle = (low + high) // 2
        earlier = _after(gang, size, order[:middle], room)
        if earlier is None:
            low = middle
        else:
            high, claims = middle, earlier
    return claims, high


def _after(gang: plans.Gang, size: plans.Size, ended: Sequence[plans.Running], room: rooms.Room) -> Claims | None:
    mark = room.mark()
    for job in ended:
        room.give_back(job.holdings)
    claims = placement.place(gang, room, size)
    room.rollback(mark)
    return claims


def _by_end(job: plans.Running) -> tuple[bool, float, str]:
    known = job.expected_end is not None
    return not known, job.expected_end if job.expected_end is not None else job.started_at, job.job
