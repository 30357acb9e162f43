"""Placement for readers: node by node, task by task, every set of nodes. The scheduler's fast one is held against it.

It knows nothing of the fast one's shapes, states and indexes: only the nouns of `spec`. It says whether a gang with one
ask fits, and on how many nodes at least; and whether any claims at all, however they were found, are right.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes


class Machine:
    """One node, and its free resources."""

    def __init__(self, node: nodes.Node, held: Iterable[holdings.Holding] = ()) -> None:
        self.node = node
        self.cpus = node.capacity.cpus_milli - node.taken.cpus_milli
        self.memory = node.capacity.memory_bytes - node.taken.memory_bytes
        self.left = {device.index: 1000 for device in node.devices}
        self.ports: set[int] = set()
        for claim in held:
            if claim.node == node.name:
                self.take(claim)
        untouched = sorted(index for index, left in self.left.items() if left == 1000)
        for index in untouched[len(untouched) - min(len(untouched), node.taken.gpus) :]:
            self.left[index] = 0  # a device of others; which ones they have is not known

    def take(self, claim: holdings.Holding) -> None:
        self.cpus -= claim.amount.cpus_milli
        self.memory -= claim.amount.memory_bytes
        for index in claim.devices:
            self.left[index] -= claim.amount.gpu_milli or 1000
        self.ports.update(claim.ports)

    def slots(self, ask: plans.Ask, types: Collection[str], most: int) -> int:
        """How many tasks of `ask` go onto it, `most` at most: tried one after the other."""
        trial = Machine(self.node)
        trial.cpus, trial.memory, trial.left, trial.ports = self.cpus, self.memory, dict(self.left), set(self.ports)
        count = 0
        while count < most and trial._add(ask, types):
            count += 1
        return count

    def _add(self, ask: plans.Ask, types: Collection[str]) -> bool:
        amount = ask.amount
        if (amount.cpus_milli and amount.cpus_milli > self.cpus) or (
            amount.memory_bytes and amount.memory_bytes > self.memory
        ):
            return False
        part = amount.gpu_milli or 1000
        fitting = [
            device.index
            for device in self.node.devices
            if device.type in types
            and self.left[device.index] >= part
            and device.memory_bytes * part // 1000 >= ask.gpu_memory_bytes
        ]
        fitting = sorted(fitting, key=lambda index: self.left[index])[: amount.gpus or (1 if amount.gpu_milli else 0)]
        if len(fitting) < (amount.gpus or (1 if amount.gpu_milli else 0)):
            return False
        if ask.ports and self.node.ports is not None:
            first, last = self.node.ports
            blocks = (set(range(at, at + ask.ports)) for at in range(first, last - ask.ports + 2, ask.ports))
            block = next((block for block in blocks if not block & self.ports), None)
            if block is None:
                return False
            self.ports |= block
        self.cpus -= amount.cpus_milli
        self.memory -= amount.memory_bytes
        for index in fitting:
            self.left[index] -= part
        return True


class Cluster:
    def __init__(self, of: Sequence[nodes.Node], held: Sequence[holdings.Holding] = ()) -> None:
        self.nodes = {node.name: node for node in of}
        self.held = list(held)
        self.machines = [Machine(node, held) for node in of if node.open]

    def types(self, gang: plans.Gang) -> list[tuple[str, ...]]:
        """The sets of types of which all its devices may be: one after the other, all at once where it is mixed."""
        (ask,) = gang.asks
        present = sorted({device.type for node in self.nodes.values() for device in node.devices})
        if not (ask.amount.gpus or ask.amount.gpu_milli):
            return [()]
        acceptable = [kind for kind in ask.gpu_types or present if kind in present]
        return [(kind,) for kind in acceptable] + ([tuple(acceptable)] if gang.mixed else [])

    def scopes(self, gang: plans.Gang, keep: Collection[str]) -> list[list[Machine]]:
        """Sets of nodes each of which could be where all of it goes."""
        usable = [one for one in self.machines if one.node.name not in keep and allows(one.node, gang)]
        topology = gang.topology
        if topology is None or not topology.required:
            return [usable]
        return [
            [one for one in usable if domain(one.node, topology.same) == name]
            for name in {domain(machine.node, topology.same) for machine in usable}
            if name is not None
        ]

    def fits(self, gang: plans.Gang, keep: Collection[str] = ()) -> bool:
        return any(
            self._slots(gang, scope, types) >= gang.asks[0].count
            for types in self.types(gang)
            for scope in self.scopes(gang, keep)
        )

    def fewest(self, gang: plans.Gang, types: tuple[str, ...], among: Collection[str]) -> int:
        """The least number of those nodes that hold all of it: every set of them is looked at, the small ones first."""
        (ask,) = gang.asks
        slots = [
            one.slots(ask, types, ask.count)
            for one in self.machines
            if one.node.name in among and allows(one.node, gang)
        ]
        for count in range(1, len(slots) + 1):
            if any(sum(chosen) >= ask.count for chosen in itertools.combinations(slots, count)):
                return count
        raise AssertionError("it does not fit there at all")

    def _slots(self, gang: plans.Gang, scope: Iterable[Machine], types: tuple[str, ...]) -> int:
        (ask,) = gang.asks
        return sum(machine.slots(ask, types, ask.count) for machine in scope)

    def check(self, gang: plans.Gang, size: plans.Size, claims: Sequence[holdings.Holding]) -> None:
        """That these are places for all of the gang's tasks, beside what is held."""
        tasks = {(ask.role, index): ask for ask, n in zip(gang.asks, size, strict=True) for index in range(n)}
        assert sorted((claim.role, claim.index) for claim in claims) == sorted(tasks)
        machines = {name: Machine(node, self.held) for name, node in self.nodes.items()}
        kinds: set[str] = set()
        for claim in claims:
            ask, machine = tasks[claim.role, claim.index], machines[claim.node]
            assert allows(machine.node, gang)
            assert claim.job == gang.job
            assert claim.amount == ask.amount
            self._check_task(ask, claim, machine)
            kinds |= {device.type for device in machine.node.devices if device.index in claim.devices}
            machine.take(claim)
            assert machine.cpus >= 0 or not claim.amount.cpus_milli
            assert machine.memory >= 0 or not claim.amount.memory_bytes
        assert gang.mixed or len(kinds) <= 1
        if gang.topology is not None and gang.topology.required:
            places = {domain(self.nodes[claim.node], gang.topology.same) for claim in claims}
            assert len(places) == 1
            assert None not in places
        self._check_servers(gang, claims)

    def _check_task(self, ask: plans.Ask, claim: holdings.Holding, machine: Machine) -> None:
        assert machine.node.ready
        assert len(claim.devices) == (ask.amount.gpus or (1 if ask.amount.gpu_milli else 0))
        part = ask.amount.gpu_milli or 1000
        devices = {device.index: device for device in machine.node.devices}
        for index in claim.devices:
            assert machine.left[index] >= part, "a device is given away twice"
            assert not ask.gpu_types or devices[index].type in ask.gpu_types
            assert devices[index].memory_bytes * part // 1000 >= ask.gpu_memory_bytes
        assert not machine.ports & set(claim.ports)
        assert len(claim.ports) == (ask.ports if machine.node.ports is not None else 0)
        assert all(machine.node.ports and machine.node.ports[0] <= p <= machine.node.ports[1] for p in claim.ports)

    def _check_servers(self, gang: plans.Gang, claims: Sequence[holdings.Holding]) -> None:
        workers = {claim.node for claim in claims if claim.role != "ps"}
        servers = {claim.node for claim in claims if claim.role == "ps"}
        if gang.beside is not None and workers:
            assert servers <= workers if gang.beside else not servers & workers


def allows(node: nodes.Node, gang: plans.Gang) -> bool:
    """Return whether the gang tolerates each taint that closes the node, which has its labels and mounts its claims."""
    held = gang.asks[0].constraints or nodes.Constraints()
    return all(
        taint.effect == "PreferNoSchedule"
        or (taint.tolerable and bool({taint.key, f"{taint.key}={taint.value}"} & {*held.tolerates}))
        for taint in node.taints
    ) and ({*held.labels} <= {*node.labels.items()} and not {*held.claims} & {*node.lacks})


def domain(node: nodes.Node, level: jobfile.Domain) -> str | None:
    if level is jobfile.Domain.NODE:
        return node.name
    return node.domains.get(level) or (node.name if level is jobfile.Domain.NVLINK else None)
