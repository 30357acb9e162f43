"""The free amounts, devices and ports of one node. Taken parts can be given back in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from functools import lru_cache
from itertools import repeat

from oarlock.scheduler.placement import indexes, shapes
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes


class FreeNode:
    """One node and its free resources."""

    __slots__ = (
        "_odd",
        "_ports",
        "_taken",
        "cpus",
        "gpus",
        "kind",
        "memory",
        "milli",
        "name",
        "node",
        "state",
    )

    def __init__(self, node: nodes.Node, kind: shapes.Kind) -> None:
        self.node = node
        self.name = node.name
        self.kind = kind
        usable = node.usable
        self.cpus = usable.cpus_milli  # this and the next three: free amounts
        self.memory = usable.memory_bytes
        self.gpus = usable.gpus
        self.milli = usable.gpu_milli
        self._ports: dict[int, int] = {}  # taken ports, each with its number of holders
        self._taken = 0  # bit i: the device with index i is taken as a whole
        self._odd: dict[int, int] = {}  # other devices in use: the taken thousandths
        self.state: shapes.State | None = None

    def become(self, node: nodes.Node, kind: shapes.Kind) -> None:
        """Replace the declaration of the node; its holdings stay."""
        more = node.usable - self.node.usable
        self.cpus += more.cpus_milli
        self.memory += more.memory_bytes
        self.gpus += more.gpus
        self.milli += more.gpu_milli
        self.node = node
        self.kind = kind

    @property
    def free(self) -> holdings.Resources:
        """The usable amount less the holdings. A share of a device is missing from `gpu_milli`."""
        return holdings.Resources(self.cpus, self.memory, self.gpus, self.milli)

    @property
    def ports_taken(self) -> KeysView[int]:
        return self._ports.keys()

    @property
    def used(self) -> bool:
        return self.free != self.node.usable or bool(self._taken or self._odd or self._ports)

    @property
    def whole(self) -> int:
        """The untouched devices, as a bit mask."""
        mask = self.kind.mask & ~self._taken
        for device in self._odd:
            mask &= ~(1 << device)
        return _without_last(mask, self.node.taken.gpus) if self.node.taken.gpus else mask

    @property
    def devices(self) -> dict[int, nodes.Device]:
        """The untouched devices by their index."""
        mask = self.whole
        return {device.index: device for device in self.node.devices if mask >> device.index & 1}

    def shares(self, device: int) -> int:
        """Return the free thousandths of a device."""
        bit = 1 << device
        if not self.kind.mask & bit or self._taken & bit:
            return 0
        return max(0, shapes.DEVICE_MILLI - self._odd.get(device, 0))

    def cuts(self, group: shapes.Group) -> list[tuple[int, int]]:
        """Return the free thousandths and the index of each shared device of the group, ascending."""
        return sorted(
            (left, device) for device in self._odd if group.mask >> device & 1 and (left := self.shares(device))
        )

    def domain(self, level: str) -> str | None:
        """Return the name of the node's domain of that level; None if it is in none."""
        if level == "node":
            return self.name
        return self.node.domains.get(level) or (self.name if level == "nvlink" else None)

    def path(self) -> tuple[str, ...]:
        """Return the node's place in the topology: nodes that are near each other are near in this order."""
        domains = self.node.domains
        return domains.get("zone", ""), domains.get("rack", ""), domains.get("nvlink", ""), self.name

    def slots(self, index: indexes.Index) -> int:
        """Return the number of tasks of the index's shape that fit on the node."""
        return 0 if self.state is None else index.count(self.state)

    def has(self, claim: holdings.Holding) -> bool:
        """Return whether all of the claim is free."""
        amount = claim.amount
        if amount.cpus_milli > max(self.cpus, 0) or amount.memory_bytes > max(self.memory, 0):
            return False
        if amount.gpu_milli:
            devices = all(self.shares(device) >= amount.gpu_milli for device in claim.devices)
        else:
            devices = len(claim.devices) == amount.gpus and not mask(claim.devices) & ~self.whole
        if not devices or any(port in self._ports for port in claim.ports):
            return False
        ports = self.node.ports
        return not claim.ports or (ports is not None and ports[0] <= min(claim.ports) <= max(claim.ports) <= ports[1])

    def claims(self, job: str, ask: plans.Ask, need: shapes.Shape, places: Iterable[int]) -> list[holdings.Holding]:
        """Return the holdings that these tasks of `ask` (by their index) would get on this node. They must fit."""
        devices = self._shared(need) if need.milli else self._untouched(need)
        ports = self._free_blocks(need.ports)
        return [
            holdings.Holding(
                job=job,
                attempt=0,
                role=ask.role,
                index=place,
                node=self.name,
                amount=ask.amount,
                devices=next(devices),
                ports=next(ports),
            )
            for place in places
        ]

    def _untouched(self, need: shapes.Shape) -> Iterator[tuple[int, ...]]:
        """Yield the devices of one task after the other: devices with less memory first, then by index."""
        if not need.gpus:
            yield from repeat(())
        free: list[int] = []
        for place in self.kind.suiting(need):
            free += set_bits(self.whole & self.kind.groups[place].mask)
        for start in range(0, len(free), need.gpus):
            yield tuple(free[start : start + need.gpus])

    def _shared(self, need: shapes.Shape) -> Iterator[tuple[int, ...]]:
        """Yield the device of one share after the other.

        The fullest shared device with enough left comes first, then untouched ones.
        """
        groups = [self.kind.groups[place] for place in self.kind.suiting(need)]
        for left, device in sorted(cut for group in groups for cut in self.cuts(group)):
            yield from repeat((device,), left // need.milli)
        for group in groups:
            for device in set_bits(self.whole & group.mask):
                yield from repeat((device,), shapes.DEVICE_MILLI // need.milli)

    def _free_blocks(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield blocks of free ports; empty ones where each task has an address of its own."""
        ports = self.node.ports
        if ports is None or size == 0:
            yield from repeat(())
        else:
            for start in range(ports[0], ports[1] - size + 2, size):
                block = range(start, start + size)
                if not any(port in self._ports for port in block):
                    yield tuple(block)

    def take(self, claim: holdings.Holding, times: int = 1) -> None:
        """Take the claim; with `times` -1 give it back."""
        amount = claim.amount
        self.cpus -= times * amount.cpus_milli
        self.memory -= times * amount.memory_bytes
        self.gpus -= times * amount.gpus
        self.milli -= times * amount.gpu_milli
        if claim.devices:
            self._take_devices(claim.devices, times * amount.gpu_milli, times)
        for port in claim.ports:
            holders = self._ports.get(port, 0) + times
            if holders:
                self._ports[port] = holders
            else:
                del self._ports[port]

    def _take_devices(self, devices: tuple[int, ...], milli: int, times: int) -> None:
        if not milli and not self._odd:
            bits = mask(devices)
            if times > 0 and not bits & self._taken:
                self._taken |= bits
                return
            if times < 0 and bits & self._taken == bits:
                self._taken &= ~bits
                return
        for device in devices:
            bit = 1 << device
            used = shapes.DEVICE_MILLI if self._taken & bit else self._odd.pop(device, 0)
            self._taken &= ~bit
            used += milli or times * shapes.DEVICE_MILLI
            if used == shapes.DEVICE_MILLI:
                self._taken |= bit
            elif used:
                self._odd[device] = used

    def left(self) -> tuple[shapes.Kind, int, int, tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """Return the values that all nodes in one state have in common."""
        kind, whole = self.kind, self.whole
        counts = tuple([(group.mask & whole).bit_count() for group in kind.groups])
        cuts = kind.uncut
        if self._odd:
            cuts = tuple(tuple(left for left, _ in self.cuts(group)) for group in kind.groups)
        return kind, self.cpus, self.memory, counts, cuts, tuple(sorted(self._ports)) if self._ports else ()


@lru_cache(maxsize=4096)
def mask(devices: tuple[int, ...]) -> int:
    """Return the indexes of devices as bits."""
    bits = 0
    for device in devices:
        bits |= 1 << device
    return bits


def _without_last(bits: int, count: int) -> int:
    """Return the mask without its `count` highest devices.

    Programs of others have so many, but which ones is unknown.
    """
    for _ in range(count):
        bits &= ~(1 << bits.bit_length() - 1) if bits else 0
    return bits


def set_bits(bits: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
