"""Machines: their capacity, and their place in the topology."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from oarlock.spec import holdings

CLOSING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep new tasks away."""
DEVICES = "devices/"
"""Begins those claims of `Constraints` that are claims of devices: the name of their template follows."""
RESOURCES = "resources/"
"""Begins those that are amounts of an extended resource for each task: `rdma/hca=1` follows."""


class Taint(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A mark on a node that tasks do not tolerate, in the words of Kubernetes. A cordon is one too.

    `tolerable`: the tasks of some gangs tolerate it, by their `Constraints`.
    """

    key: str
    effect: str
    value: str = ""
    tolerable: bool = False

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"

    def is_tolerated(self, by: Iterable[str]) -> bool:
        """Return whether one of these, each a key or `KEY=VALUE`, names the taint."""
        return any(one in (self.key, f"{self.key}={self.value}") for one in by)


class Constraints(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The taints that the tasks of a gang tolerate (`KEY` or `KEY=VALUE`), the labels that their nodes must have, and
    the claims of volumes that they mount, of devices (`DEVICES`) and of extended resources (`RESOURCES`).

    All are sorted, so that equal constraints compare equal.
    """

    tolerates: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    claims: tuple[str, ...] = ()


def barriers(
    taints: Iterable[Taint],
    labels: Mapping[str, str],
    lacks: Collection[str],
    constraints: Constraints | None,
    barred: Collection[str] = (),
) -> Iterator[str]:
    """Yield the reasons why a node with these taints and labels, which cannot serve the claims `lacks`, and lately did
    not serve those `barred`, is closed to a gang that others may differ from.

    A taint that no gang tolerates closes the node to all of them: see `Node.open`.
    """
    tolerates, needed = (constraints.tolerates, constraints.labels) if constraints is not None else ((), ())
    for taint in taints:
        if taint.tolerable and taint.effect in CLOSING and not taint.is_tolerated(tolerates):
            yield f"taint {taint}"
    for name, value in needed:
        if labels.get(name) != value:
            yield f"no label {name}={value}"
    for claim in constraints.claims if constraints is not None else ():
        if claim in lacks:
            yield _lack(claim)
        elif claim in barred:
            what = _claimed(claim)
            yield f"lately the cluster's scheduler found {what} not available there, and is asked again soon"


def is_volume(claim: str) -> bool:
    """Return whether the claim of `Constraints` is one of a volume."""
    return not claim.startswith((DEVICES, RESOURCES))


def _lack(claim: str) -> str:
    return f"{_claimed(claim)} cannot be mounted there" if is_volume(claim) else f"no {_claimed(claim)}"


def _claimed(claim: str) -> str:
    if claim.startswith(DEVICES):
        return f"devices of {claim.removeprefix(DEVICES)}"
    if claim.startswith(RESOURCES):
        return claim.removeprefix(RESOURCES)
    return f"the volume of claim {claim}"


class Device(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One GPU. `virtual` ones are pretended, for a laptop that plays a cluster."""

    index: int
    type: str
    memory_bytes: int = 0
    uuid: str = ""
    virtual: bool = False


class Node(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A machine. `ports` is the range [first, last] out of which blocks are held, None where every task has its own
    address.

    `domains` gives its place in the topology: `{"rack": "r1", "zone": "a"}`; its own name is the domain `node`, and
    `nvlink` too where nothing else is said. `price_per_h` is of the whole machine, in whatever currency all prices are;
    `core_price_per_h` of it falls to each core, the rest to the devices (see `scheduler/pricing.py`).

    `taken` is the part of the capacity that programs of others take now (pods that are not ours); which of the devices
    these have is not known. `taints` are those that not all of our tasks tolerate. `labels` matter only
    where the constraints of gangs name them. `lacks` are the claims that it cannot serve, `barred` those that it did
    not serve lately and may serve soon: both sorted.
    """

    name: str
    capacity: holdings.Resources
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    domains: dict[str, str] = {}
    node_class: str = ""
    price_per_h: float = 0.0
    core_price_per_h: float = 0.0
    ports: tuple[int, int] | None = None
    ready: bool = True
    reason: str = ""
    address: str = "127.0.0.1"
    taken: holdings.Resources = holdings.Resources()
    taints: tuple[Taint, ...] = ()
    lacks: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    version: int = 0

    @property
    def open(self) -> bool:
        """Whether new tasks of some gang may be placed on it. Tasks that run on a closed node run on."""
        return self.ready and not any(taint.effect in CLOSING and not taint.tolerable for taint in self.taints)

    def barriers(self, constraints: Constraints | None) -> list[str]:
        """Return the reasons why the node, open or not, is closed to gangs with these constraints alone."""
        return list(barriers(self.taints, self.labels, self.lacks, constraints, self.barred))

    def admits(self, constraints: Constraints | None) -> bool:
        """Return whether gangs with these constraints may be placed on the node while it is open."""
        if constraints is None and not self.taints:
            return True
        return not self.barriers(constraints)

    @property
    def usable(self) -> holdings.Resources:
        """The capacity less the part that programs of others take."""
        return self.capacity - self.taken


class NodeClass(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Nodes that an autoscaler may add, at most `most` of this class together with those that are there.

    `model` is one of them, empty. A level of the topology in `shared` has so many nodes in each domain.
    """

    name: str
    model: Node
    most: int
    shared: dict[str, int] = {}

    def node(self, index: int) -> Node:
        """Return a node of this class that is not there yet. No node of a cluster has such a name."""
        domains = {level: f"{self.name}/{index // count}" for level, count in self.shared.items()}
        name = f"{self.name}/new-{index}"
        return msgspec.structs.replace(self.model, name=name, domains={**self.model.domains, **domains})

    def missing(self, there: Iterable[Node]) -> int:
        """Return how many more nodes of this class there may be."""
        return max(0, self.most - sum(node.node_class == self.name for node in there))


def gpu_types(nodes: Mapping[str, Node], claims: Iterable[holdings.Holding]) -> tuple[str, ...]:
    """Return the types of the devices that these claims hold, sorted. A node that is not in `nodes` is left aside."""
    found = {
        device.type
        for claim in claims
        if claim.devices and claim.node in nodes
        for device in nodes[claim.node].devices
        if device.index in claim.devices
    }
    return tuple(sorted(found))
