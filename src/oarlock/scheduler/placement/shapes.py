"""The needs of a task and the free resources of a node, as values that tell how many such tasks the node takes.

A large cluster has few kinds of machine, and most of its nodes look alike: empty, full, or half full in one of a few
ways. So nodes and tasks are not compared one by one. All nodes with exactly the same free resources share one `State`,
and the number of tasks of a `Shape` that fit is computed once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from oarlock.spec import plans
from oarlock.spec.cluster import nodes

MANY = 10_000
"""Number of tasks without any needs that fit on a node."""

DEVICE_MILLI = 1000


class Shape(NamedTuple):
    """The needs of one task on a node. `types` None: any GPU. `gpu_memory`: bytes of each device."""

    cpus: int = 0  # thousandths of a core
    memory: int = 0  # bytes
    gpus: int = 0
    milli: int = 0  # a share of one device
    types: tuple[str, ...] | None = None
    gpu_memory: int = 0
    ports: int = 0
    bare: bool = False  # only on nodes without a GPU
    cut: bool = False  # only on devices that are shared already
    constraints: nodes.Constraints | None = None  # on the node


def shape(ask: plans.Ask, gpu_type: str | None, *, bare: bool = False) -> Shape:
    """Return the shape of a task of `ask` on `gpu_type`; None: on any type that it accepts, or without a GPU."""
    amount = ask.amount
    if amount.gpus or amount.gpu_milli:
        types = (gpu_type,) if gpu_type is not None else (ask.gpu_types or None)
        memory = ask.gpu_memory_bytes
    else:
        types, memory = None, 0
    return Shape(
        amount.cpus_milli,
        amount.memory_bytes,
        amount.gpus,
        amount.gpu_milli,
        types,
        memory,
        ask.ports,
        bare,
        constraints=ask.constraints,
    )


class Group(NamedTuple):
    """The identical devices of a node. Bit i of `mask` stands for the device with index i."""

    type: str
    memory: int
    mask: int


class Kind:
    """A kind of machine: the values of a node that do not change with its holdings. Identical nodes share one object.

    `rate` is the price per hour of a device, or of a core if there is no device. Groups with less memory come first.
    `taints` are those that some gangs tolerate: a node with another closing taint takes no new tasks.
    """

    __slots__ = ("groups", "key", "labels", "lacks", "mask", "ports", "rate", "taints", "uncut")

    def __init__(
        self,
        groups: tuple[Group, ...],
        ports: tuple[int, int] | None,
        rate: float,
        taints: tuple[nodes.Taint, ...] = (),
        labels: tuple[tuple[str, str], ...] = (),
        lacks: tuple[str, ...] = (),
    ) -> None:
        self.groups = groups
        self.ports = ports
        self.rate = rate
        self.mask = 0
        for group in groups:
            self.mask |= group.mask
        self.uncut: tuple[tuple[int, ...], ...] = ((),) * len(groups)
        self.taints = taints
        self.labels = dict(labels)
        self.lacks = lacks
        self.key = (rate, groups, ports or (), tuple(map(str, taints)), labels, lacks)

    def admits(self, constraints: nodes.Constraints | None) -> bool:
        """Return whether gangs with these constraints may be placed on a machine of this kind."""
        if constraints is None and not self.taints:
            return True
        return next(nodes.barriers(self.taints, self.labels, self.lacks, constraints), None) is None

    def suiting(self, need: Shape) -> tuple[int, ...]:
        """Return the positions of the groups with devices that such a task may use, by type and memory."""
        part = need.milli or DEVICE_MILLI
        return tuple(
            place
            for place, group in enumerate(self.groups)
            if (need.types is None or group.type in need.types)
            and group.memory * part // DEVICE_MILLI >= need.gpu_memory
        )


KindKey = tuple[
    tuple[Group, ...],
    tuple[int, int] | None,
    float,
    tuple[nodes.Taint, ...],
    tuple[tuple[str, str], ...],
    tuple[str, ...],
]


def kind_key(node: nodes.Node) -> KindKey:
    """Return the values that make two nodes machines of one kind.

    No more devices count than the capacity of the node says.
    """
    masks: dict[tuple[int, str], int] = {}
    for device in sorted(node.devices, key=_index)[: node.capacity.gpus]:
        group = (device.memory_bytes, device.type)
        masks[group] = masks.get(group, 0) | 1 << device.index
    count = node.capacity.gpus or node.capacity.cpus_milli / 1000
    groups = tuple(Group(name, memory, bits) for (memory, name), bits in sorted(masks.items()))
    rate = node.price_per_h / count if count else node.price_per_h
    taints = tuple(taint for taint in node.taints if taint.tolerable and taint.effect in nodes.CLOSING)
    closed = tuple(sorted({*node.lacks, *node.barred})) if node.barred else node.lacks
    return groups, node.ports, rate, taints, tuple(sorted(node.labels.items())), closed


def _index(device: nodes.Device) -> int:
    return device.index


class State:
    """The free resources of a node, and the sorted names of all ready nodes that have exactly these.

    `whole` counts the untouched devices of each group. `cuts` has the free thousandths of the shared devices,
    ascending. `ports` are the taken ones. `key` sorts states: nodes that few gangs may use come
    first, then cheaper ones, then fuller ones; it is unique.
    """

    __slots__ = ("cpus", "cuts", "key", "kind", "memory", "names", "ports", "whole")

    def __init__(
        self,
        kind: Kind,
        cpus: int,
        memory: int,
        whole: tuple[int, ...],
        cuts: tuple[tuple[int, ...], ...],
        ports: tuple[int, ...],
    ) -> None:
        self.kind = kind
        self.cpus = cpus
        self.memory = memory
        self.whole = whole
        self.cuts = cuts
        self.ports = ports
        self.names: list[str] = []
        devices = DEVICE_MILLI * sum(whole) + sum(sum(cut) for cut in cuts)
        self.key = (not kind.taints, kind.rate, devices, cpus, memory, whole, cuts, ports, kind.key)


def fit(need: Shape, state: State) -> int:
    """Return the number of tasks of that shape that fit on a node in that state."""
    if not state.kind.admits(need.constraints):
        return 0
    count = MANY
    if need.cpus:
        count = state.cpus // need.cpus
    if need.memory:
        count = min(count, state.memory // need.memory)
    if need.gpus:
        count = min(count, sum(state.whole[place] for place in state.kind.suiting(need)) // need.gpus)
    elif need.milli:
        count = min(count, _shares(need, state))
    elif need.bare and state.kind.groups:
        return 0
    if need.ports and state.kind.ports is not None and count > 0:
        count = min(count, _blocks(need.ports, state.kind.ports, state.ports))
    return max(count, 0)


def _shares(need: Shape, state: State) -> int:
    count = 0
    for place in state.kind.suiting(need):
        count += sum(left // need.milli for left in state.cuts[place])
        if not need.cut:
            count += state.whole[place] * (DEVICE_MILLI // need.milli)
    return count


def _blocks(size: int, ports: tuple[int, int], taken: Iterable[int]) -> int:
    """Return the number of free blocks of ports. A block begins at a multiple of its size."""
    first, last = ports
    blocks = (last - first + 1) // size
    return blocks - len({block for port in taken if 0 <= (block := (port - first) // size) < blocks})
