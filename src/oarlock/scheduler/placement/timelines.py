"""What will be free, and whom it is promised to.

A gang that is being stopped holds its devices until its processes are gone. Whoever is to have them next is not
launched yet; but what of its place is free already must not go to somebody else meanwhile, nor may two be promised the
same. Nothing of this is stored: the next plan finds the same gangs stopping, and promises the same again.

So there are two rooms. `now` is what is free at this instant; in it places are found for those that start. `later` is
what will be, when all that is being stopped is gone and all that was promised has come; in it places are found for
those that wait for that, and who might be stopped for them is tried out. Whatever is given away is taken in both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oarlock.scheduler.placement import freenodes, freespace, shapes
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]


class Returning:
    """What will be free on some nodes in time, and is promised to nobody: it need not be kept free now."""

    def __init__(self, claims: Iterable[holdings.Holding] = ()) -> None:
        self.amounts: dict[str, holdings.Resources] = {}
        self.shares: dict[tuple[str, int], int] = {}  # thousandths of a device
        for claim in claims:
            self.add(claim)

    def add(self, claim: holdings.Holding) -> None:
        self.amounts[claim.node] = self.amounts.get(claim.node, freespace.NOTHING) + claim.amount
        for device in claim.devices if claim.amount.gpu_milli else ():
            key = claim.node, device
            self.shares[key] = self.shares.get(key, 0) + claim.amount.gpu_milli

    def keep(self, claims: Claims, space: freespace.FreeSpace) -> Claims:
        """Take of `claims` what is to be taken now: these parts."""
        kept: list[holdings.Holding] = []
        for claim in claims:
            if (node := space.nodes.get(claim.node)) is not None:
                parts = self.part(claim, node)
                space.take(parts)
                kept += parts
        return tuple(kept)

    def part(self, claim: holdings.Holding, node: freenodes.FreeNode) -> list[holdings.Holding]:
        """What of a claim is to be taken now: its devices and ports that are free, and of what cannot be told apart as
        much as will not come from here, which is used up.
        """
        left = self.amounts.get(claim.node, freespace.NOTHING)
        cpus = max(0, min(node.cpus, claim.amount.cpus_milli - left.cpus_milli))
        memory = max(0, min(node.memory, claim.amount.memory_bytes - left.memory_bytes))
        if claim.node in self.amounts:
            self.amounts[claim.node] = holdings.Resources(
                cpus_milli=max(0, left.cpus_milli - (claim.amount.cpus_milli - cpus)),
                memory_bytes=max(0, left.memory_bytes - (claim.amount.memory_bytes - memory)),
            )
        whole = tuple(device for device in claim.devices if claim.amount.gpus and node.whole >> device & 1)
        part = msgspec.structs.replace(
            claim,
            devices=whole,
            ports=tuple(port for port in claim.ports if port not in node.ports_taken),
            amount=holdings.Resources(cpus, memory, len(whole)),
        )
        cut = (self._cut(claim, node, device) for device in claim.devices if device not in whole)
        return [part, *(one for one in cut if one is not None)]

    def _cut(self, claim: holdings.Holding, node: freenodes.FreeNode, device: int) -> holdings.Holding | None:
        """The share that is to be taken now of a device of which somebody holds the rest, or a share is claimed."""
        free, key = node.shares(device), (claim.node, device)
        asked = claim.amount.gpu_milli or shapes.DEVICE_MILLI
        taken = min(free, max(0, asked - self.shares.get(key, 0)))
        if key in self.shares:
            self.shares[key] = max(0, self.shares[key] - (asked - taken))
        if not taken:
            return None
        amount = holdings.Resources(gpu_milli=taken)
        return msgspec.structs.replace(claim, amount=amount, devices=(device,), ports=())


class Timeline:
    """`later` is `now` itself where nobody is being stopped, and nobody may be."""

    def __init__(self, now: freespace.FreeSpace, later: freespace.FreeSpace, stopping: Iterable[plans.Running]) -> None:
        self.now = now
        self.later = later
        self._spare = Returning(claim for job in stopping for claim in job.holdings)
        self._parts: dict[int, tuple[Claims, Claims]] = {}  # by the identity of what was promised: what is taken now

    @property
    def rooms(self) -> list[freespace.FreeSpace]:
        return [self.now] if self.later is self.now else [self.now, self.later]

    def launch(self, claims: Claims) -> None:
        for space in self.rooms:
            space.take(claims)

    def clear(self, claims: Claims) -> None:
        """These will be free."""
        self.later.give_back(claims)
        for claim in claims:
            self._spare.add(claim)

    def promise(self, claims: Claims) -> None:
        """They are somebody's, as soon as they are free."""
        self.later.take(claims)
        if self.later is not self.now:
            self._parts[id(claims)] = claims, self._spare.keep(claims, self.now)

    def withdraw(self, claims: Claims) -> None:
        """They are nobody's again. (What was to come out of `Spare` does not go back there: others keep the more.)"""
        self.later.give_back(claims)
        if self.later is not self.now:
            self.now.give_back(self._parts.pop(id(claims))[1])
