"""The free space now and later, with the claims that are promised to gangs.

A gang that is being stopped holds its devices until its processes are gone. The gang that gets them next is not
launched yet; but the free part of its place must not go to another gang meanwhile, and no place may be promised twice.
Promises are not stored: the next plan finds the same gangs stopping, and promises the same again.

So there are two free spaces. `now` is free at this instant; gangs that start are placed in it. `later` is free once all
stopping gangs are gone and all promised gangs have come; gangs that wait for that are placed in it, and preemption is
tried in it. A claim that is given to a gang is taken in both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oarlock.scheduler.placement import freenodes, freespace, shapes
from oarlock.spec import holdings, plans


class Returning:
    """The claims that will become free on some nodes and are promised to no gang: they need not be reserved now."""

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

    def keep(self, claims: holdings.Claims, space: freespace.FreeSpace) -> holdings.Claims:
        """Take the part of `claims` that must be reserved now. Return that part."""
        kept: list[holdings.Holding] = []
        for claim in claims:
            if (node := space.nodes.get(claim.node)) is not None:
                parts = self.part(claim, node)
                space.take(parts)
                kept += parts
        return tuple(kept)

    def part(self, claim: holdings.Holding, node: freenodes.FreeNode) -> list[holdings.Holding]:
        """Return the part of a claim that must be reserved now.

        It has the devices and ports that are free, and the CPUs and memory beyond those that will become free; these
        are used up by the call.
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
        """Return the share of a device to reserve now, where the device is shared or a share is claimed."""
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
    """The two free spaces. `later` is `now` itself where no gang is being stopped, or may be."""

    def __init__(self, now: freespace.FreeSpace, later: freespace.FreeSpace, stopping: Iterable[plans.Running]) -> None:
        self.now = now
        self.later = later
        self._spare = Returning(claim for job in stopping for claim in job.holdings)
        self._parts: dict[
            int, tuple[holdings.Claims, holdings.Claims]
        ] = {}  # by id of the promised claims: these, and the part taken now

    @property
    def spaces(self) -> list[freespace.FreeSpace]:
        return [self.now] if self.later is self.now else [self.now, self.later]

    def launch(self, claims: holdings.Claims) -> None:
        for space in self.spaces:
            space.take(claims)

    def clear(self, claims: holdings.Claims) -> None:
        """Note that these claims will become free."""
        self.later.give_back(claims)
        for claim in claims:
            self._spare.add(claim)

    def promise(self, claims: holdings.Claims) -> None:
        """Promise these claims to a gang for the time when they are free."""
        self.later.take(claims)
        if self.later is not self.now:
            self._parts[id(claims)] = claims, self._spare.keep(claims, self.now)

    def withdraw(self, claims: holdings.Claims) -> None:
        """Withdraw a promise.

        Its part of `_spare` does not go back there, so later promises reserve more than they need.
        """
        self.later.give_back(claims)
        if self.later is not self.now:
            self.now.give_back(self._parts.pop(id(claims))[1])
