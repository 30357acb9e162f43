"""This machine as nodes: one that is real, or several that pretend to have it each to themselves."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from oarlock.backends import gpunames
from oarlock.backends.local import cgroups, gpus
from oarlock.spec import holdings
from oarlock.spec.cluster import nodes

NAME = "local"
VIRTUAL_TYPE = "virtual"
VIRTUAL_MEMORY_BYTES = 16 << 30


def capacity() -> holdings.Resources:
    """Return the CPUs and memory that this process may use, by its affinity and its own groups' limits."""
    limit = cgroups.limits()
    cpus_milli = len(os.sched_getaffinity(0)) * 1000
    memory_bytes = _total_memory_bytes()
    return holdings.Resources(
        cpus_milli=min(cpus_milli, limit.cpus_milli or cpus_milli),
        memory_bytes=min(memory_bytes, limit.memory_bytes or memory_bytes),
    )


def _total_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def labels(enforced: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of every node: its place, and the way limits are kept."""
    return {"host": socket.gethostname(), **limits(enforced)}


def limits(enforced: Mapping[str, str]) -> dict[str, str]:
    return {f"limit.{what}": enforced.get(what, "not enforced") for what in ("cpus", "memory")}


def real(
    room: holdings.Resources, found: Sequence[gpus.Gpu], ports: tuple[int, int], said: dict[str, str]
) -> nodes.Node:
    devices = tuple(
        nodes.Device(index=one.index, type=gpunames.type_name(one.name), memory_bytes=one.memory_bytes, uuid=one.uuid)
        for one in found
    )
    amount = room + holdings.Resources(gpus=len(devices))
    return nodes.Node(name=NAME, capacity=amount, devices=devices, labels=said, ports=ports)


def virtual(
    room: holdings.Resources, devices: int, ports: Collection[tuple[int, int]], said: dict[str, str]
) -> list[nodes.Node]:
    """Return as many nodes as there are port ranges. Each pretends to have all the machine's CPUs and memory."""
    pretended = tuple(
        nodes.Device(index=index, type=VIRTUAL_TYPE, memory_bytes=VIRTUAL_MEMORY_BYTES, virtual=True)
        for index in range(devices)
    )
    amount = room + holdings.Resources(gpus=devices)
    return [
        nodes.Node(name=f"virtual-{number}", capacity=amount, devices=pretended, labels=said, ports=own)
        for number, own in enumerate(ports)
    ]
