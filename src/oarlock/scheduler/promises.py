"""What will be free, and whom it is promised to.

A gang that is being stopped holds its devices until its processes are gone. Whoever is to have them next is not
launched yet; but what of its place is free already must not go to somebody else meanwhile, nor may two be promised the
same. Nothing of this is stored: the next plan finds the same gangs stopping, and promises the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from oarlock.scheduler import placement
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]


class Promises:
    """Beside a room: `clearing` is what stopping gangs hold, `promised` the places of those that come after them."""

    def __init__(self, room: rooms.Room, clearing: Iterable[holdings.Holding]) -> None:
        self.room = room
        self.clearing: list[holdings.Holding] = []
        self.promised: list[holdings.Holding] = []
        self._kept: list[holdings.Holding] = []  # of what is promised, what is free now: taken in the room
        self._spare: dict[str, holdings.Resources] = {}  # of what is being cleared, by node: promised to nobody yet
        self.clear(clearing)

    def clear(self, claims: Iterable[holdings.Holding]) -> None:
        """These will be free."""
        for claim in claims:
            if claim.node in self.room.nodes:
                self.clearing.append(claim)
                self._spare[claim.node] = self._spare.get(claim.node, rooms.NOTHING) + claim.amount

    @contextmanager
    def afterwards(self, freed: Iterable[holdings.Holding] = ()) -> Iterator[None]:
        """The room as it will be once all that is being cleared, and `freed`, is free, and every promise is kept."""
        mark = self.room.mark()
        try:
            self.room.give_back(self._kept)
            self.room.give_back(self.clearing)
            self.room.give_back(freed)
            self.room.take(self.promised)
            yield
        finally:
            self.room.rollback(mark)

    def place(self, gang: plans.Gang, size: plans.Size, freed: Iterable[holdings.Holding] = ()) -> Claims | None:
        with self.afterwards(freed):
            return placement.place(gang, self.room, size)

    def promise(self, claims: Claims) -> None:
        self.promised += claims
        for part in self.free_parts(claims, self._spare):
            self.room.take([part])
            self._kept.append(part)

    def free_parts(
        self, claims: Iterable[holdings.Holding], spare: dict[str, holdings.Resources]
    ) -> Iterator[holdings.Holding]:
        """What of `claims` is free now and will not come out of `spare`, which is used up."""
        for claim in claims:
            part = part_free(claim, self.room.nodes[claim.node], spare.get(claim.node, rooms.NOTHING))
            spare[claim.node] = _rest(spare.get(claim.node, rooms.NOTHING), claim.amount - part.amount)
            yield part


def part_free(claim: holdings.Holding, node: rooms.NodeRoom, spare: holdings.Resources) -> holdings.Holding:
    """The part of a claim that is to be taken now: its devices and ports that are free, and of the rest what `spare`
    does not cover.
    """
    devices = tuple(index for index in claim.devices if index in node.devices) if claim.amount.gpus else ()
    return msgspec.structs.replace(
        claim,
        job=f"~{claim.job}",
        devices=devices,
        ports=tuple(port for port in claim.ports if port not in node.ports_taken),
        amount=holdings.Resources(
            cpus_milli=_short(claim, node.free, spare, _cpus),
            memory_bytes=_short(claim, node.free, spare, _memory),
            gpus=len(devices),
        ),
    )


def is_free(claims: Iterable[holdings.Holding], room: rooms.Room) -> bool:
    """Whether all of these could be taken now, together."""
    left = {claim.node: room.nodes[claim.node].free for claim in claims if claim.node in room.nodes}
    for claim in claims:
        node = room.nodes.get(claim.node)
        if node is None or not node.node.ready or not claim.amount.fits(left[claim.node]):
            return False
        if any(index not in node.devices for index in claim.devices) or not node.ports_taken.isdisjoint(claim.ports):
            return False
        left[claim.node] -= claim.amount
    return True


def _short(
    claim: holdings.Holding,
    free: holdings.Resources,
    spare: holdings.Resources,
    of: Callable[[holdings.Resources], int],
) -> int:
    return max(0, min(of(free), of(claim.amount) - of(spare)))


def _cpus(amount: holdings.Resources) -> int:
    return amount.cpus_milli


def _memory(amount: holdings.Resources) -> int:
    return amount.memory_bytes


def _rest(spare: holdings.Resources, used: holdings.Resources) -> holdings.Resources:
    return holdings.Resources(
        cpus_milli=max(0, spare.cpus_milli - used.cpus_milli),
        memory_bytes=max(0, spare.memory_bytes - used.memory_bytes),
    )
