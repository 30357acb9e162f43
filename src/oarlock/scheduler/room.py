"""What is free on the nodes, as a transaction: a gang is tried in it, and kept whole or discarded whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oarlock.spec import holdings, nodes, plans

NOTHING = holdings.Resources()


class NodeRoom:
    """One node's free amount, devices and ports. Only ready nodes have room."""

    def __init__(self, node: nodes.Node) -> None:
        self.node = node
        self.free = node.capacity
        self.devices = {device.index: device for device in node.devices}
        self.ports_taken: set[int] = set()

    def take(self, holding: holdings.Holding) -> None:
        self.free -= holding.amount
        for device in holding.devices:
            self.devices.pop(device, None)
        self.ports_taken.update(holding.ports)

    def give_back(self, holding: holdings.Holding) -> None:
        self.free += holding.amount
        for device in self.node.devices:
            if device.index in holding.devices:
                self.devices[device.index] = device
        self.ports_taken.difference_update(holding.ports)

    def claim(self, job: str, task: plans.GangTask, gpu_type: str | None) -> holdings.Holding | None:
        """The holding that `task` would have here, or None where it does not fit."""
        if not task.amount.fits(self.free):
            return None
        devices = self.suitable(task, gpu_type)[: task.amount.gpus]
        if len(devices) < task.amount.gpus:
            return None
        ports = self._free_block(task.ports)
        if ports is None:
            return None
        return holdings.Holding(
            job=job,
            attempt=0,
            role=task.role,
            index=task.index,
            node=self.node.name,
            amount=task.amount,
            devices=tuple(devices),
            ports=ports,
        )

    def suitable(self, task: plans.GangTask, gpu_type: str | None) -> list[int]:
        """Indexes of the free devices that this task may use."""
        return sorted(index for index, device in self.devices.items() if accepts(task, device, gpu_type))

    def _free_block(self, size: int) -> tuple[int, ...] | None:
        """The first free block of ports; empty where every task has an address of its own, None where all are held."""
        if self.node.ports is None or size == 0:
            return ()
        first, last = self.node.ports
        for start in range(first, last - size + 2, size):
            block = range(start, start + size)
            if self.ports_taken.isdisjoint(block):
                return tuple(block)
        return None


def accepts(task: plans.GangTask, device: nodes.Device, gpu_type: str | None) -> bool:
    """Whether a device is of the type that was chosen for the gang, and has the memory."""
    return (gpu_type is None or device.type == gpu_type) and device.memory_bytes >= task.gpu_memory_bytes


class Room:
    """All nodes' room. What is taken and given back after a `mark` is undone by `rollback`."""

    def __init__(self, of: Iterable[nodes.Node] = (), held: Iterable[holdings.Holding] = ()) -> None:
        self._settle(of, held)

    def _settle(self, of: Iterable[nodes.Node], held: Iterable[holdings.Holding]) -> None:
        self.nodes = {node.name: NodeRoom(node) for node in sorted(of, key=lambda node: node.name)}
        self._done: list[tuple[bool, tuple[holdings.Holding, ...]]] = []  # since the beginning: taken, or given back
        for holding in held:
            if holding.node in self.nodes:
                self.nodes[holding.node].take(holding)

    def follow(self, of: Sequence[nodes.Node], running: Sequence[plans.Running]) -> None:
        """Become the room of this snapshot: what a room made of it afresh would be. Earlier marks mean nothing then."""
        self._settle(of, (holding for job in running for holding in job.holdings))

    def mark(self) -> int:
        return len(self._done)

    def rollback(self, mark: int) -> None:
        """Undo what was taken and given back since `mark`."""
        while len(self._done) > mark:
            taken, claims = self._done.pop()
            self._change(claims, taken=not taken)

    def ready(self) -> list[NodeRoom]:
        return [room for room in self.nodes.values() if room.node.ready]

    def free(self) -> holdings.Resources:
        return sum((room.free for room in self.ready()), NOTHING)

    def total(self) -> holdings.Resources:
        return sum((room.node.capacity for room in self.nodes.values()), NOTHING)

    def take(self, claims: Iterable[holdings.Holding]) -> None:
        claims = tuple(claims)
        self._done.append((True, claims))
        self._change(claims, taken=True)

    def give_back(self, claims: Iterable[holdings.Holding]) -> None:
        claims = tuple(claims)
        self._done.append((False, claims))
        self._change(claims, taken=False)

    def _change(self, claims: Iterable[holdings.Holding], *, taken: bool) -> None:
        for claim in claims:
            if (node := self.nodes.get(claim.node)) is not None:
                node.take(claim) if taken else node.give_back(claim)

    def slots(self, ask: plans.Ask, *, mixed: bool = False) -> int:
        """How many tasks of `ask` would fit now in all, on one type of GPU unless `mixed`."""
        kinds: list[str | None] = [None]
        if ask.amount.gpus and not mixed:
            present = {device.type for node in self.ready() for device in node.node.devices}
            kinds = [kind for kind in ask.gpu_types or sorted(present) if kind in present]
        return max((sum(_count(node, ask, kind) for node in self.ready()) for kind in kinds), default=0)

    def domains(self, level: str) -> list[list[NodeRoom]]:
        """The ready nodes by their domain of that level, the domain with the least room first."""
        groups: dict[str, list[NodeRoom]] = {}
        for room in self.ready():
            name = room.node.name if level == "node" else room.node.domains.get(level)
            if name is not None:
                groups.setdefault(name, []).append(room)
        return sorted(groups.values(), key=_total_free)


def _count(node: NodeRoom, ask: plans.Ask, gpu_type: str | None) -> int:
    taken: list[holdings.Holding] = []
    while len(taken) < ask.count and (claim := node.claim("", ask.task(len(taken)), gpu_type)) is not None:
        node.take(claim)
        taken.append(claim)
    for claim in taken:
        node.give_back(claim)
    return len(taken)


def _total_free(rooms: Sequence[NodeRoom]) -> tuple[int, int, int]:
    free = sum((room.free for room in rooms), NOTHING)
    return free.gpus, free.cpus_milli, free.memory_bytes
