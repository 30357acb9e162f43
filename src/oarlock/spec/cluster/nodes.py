"""Machines: their capacity, and their place in the topology."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oarlock.spec import holdings

CLOSING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep new tasks away."""


class Taint(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A mark on a node that our tasks do not tolerate, in the words of Kubernetes. A cordon is one too."""

    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


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
    these have is not known. `taints` are those that our tasks do not tolerate.
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
    version: int = 0

    @property
    def open(self) -> bool:
        """Whether new tasks may be placed on it. Tasks that run on a closed node run on."""
        return self.ready and not any(taint.effect in CLOSING for taint in self.taints)

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
