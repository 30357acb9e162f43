"""Resources, and a job's claim on them."""

from __future__ import annotations

import msgspec


class Resources(msgspec.Struct, frozen=True):
    """An amount of what a node has. CPUs in thousandths of a core, so that sums are exact."""

    cpus_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpus_milli + other.cpus_milli, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpus_milli - other.cpus_milli, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus
        )

    def times(self, count: int) -> Resources:
        return Resources(self.cpus_milli * count, self.memory_bytes * count, self.gpus * count)

    def fits(self, room: Resources) -> bool:
        """Whether this amount is within `room`, resource by resource."""
        return self.cpus_milli <= room.cpus_milli and self.memory_bytes <= room.memory_bytes and self.gpus <= room.gpus


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One task's claim on one node: an amount, whole devices by their index, and a block of ports.

    The store refuses a second holder of a device or of a port of the same node: `AlreadyHeld`.
    """

    job: str
    attempt: int
    role: str
    index: int
    node: str
    amount: Resources
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
