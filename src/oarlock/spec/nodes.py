"""Machines: their capacity, and their place in the topology."""

from __future__ import annotations

import msgspec

from oarlock.spec import holdings


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
    version: int = 0
