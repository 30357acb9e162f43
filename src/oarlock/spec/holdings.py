"""Resources, and a job's claim on them."""

from __future__ import annotations

import msgspec


class Resources(msgspec.Struct, frozen=True, gc=False):
    """An amount of a node's resources. CPUs in thousandths of a core, so that sums are exact.

    `gpus` are whole devices, `gpu_milli` a share of one device in thousandths: a task has one or the other, sums both.
    """

    cpus_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    gpu_milli: int = 0

    @property
    def devices(self) -> float:
        """Whole devices and shares together."""
        return self.gpus + self.gpu_milli / 1000

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpus_milli + other.cpus_milli,
            self.memory_bytes + other.memory_bytes,
            self.gpus + other.gpus,
            self.gpu_milli + other.gpu_milli,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpus_milli - other.cpus_milli,
            self.memory_bytes - other.memory_bytes,
            self.gpus - other.gpus,
            self.gpu_milli - other.gpu_milli,
        )

    def times(self, count: int) -> Resources:
        return Resources(self.cpus_milli * count, self.memory_bytes * count, self.gpus * count, self.gpu_milli * count)

    def fits(self, room: Resources) -> bool:
        """Return whether this amount is within `room`, resource by resource; shares may be cut from whole devices."""
        return (
            self.cpus_milli <= room.cpus_milli
            and self.memory_bytes <= room.memory_bytes
            and self.gpus <= room.gpus
            and self.gpus * 1000 + self.gpu_milli <= room.gpus * 1000 + room.gpu_milli
        )


class Holding(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One task's claim on one node: an amount, devices by their index (one device, where the amount is a share of it),
    and a block of ports.

    The store refuses to hold more of a device than there is, and a second holder of a port of the same node:
    `AlreadyHeld`.
    """

    job: str
    attempt: int
    role: str
    index: int
    node: str
    amount: Resources
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()

    @property
    def task(self) -> str:
        """The name of the task: `worker-1`."""
        return f"{self.role}-{self.index}"


Claims = tuple[Holding, ...]
"""The holdings of a gang, or a place for it."""
