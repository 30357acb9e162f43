"""Samples of the cluster: what each pool used and was entitled to at one time, and the state of the devices."""

from __future__ import annotations

import msgspec

RESOURCES = ("gpus", "cpus")
"""The resources of pools that samples have."""


class Devices(msgspec.Struct, frozen=True):
    """Devices of one type: held (shares of a device count as such), free on nodes that are ready, and on others.

    `reserved` are free ones, too: those where the first waiting job is expected to start. None in a sample of an
    earlier version: its `idle` has them.
    """

    used: float = 0.0
    idle: float = 0.0
    not_ready: float = 0.0
    reserved: float | None = None


class PoolUse(msgspec.Struct, frozen=True):
    """Amounts of a pool, with those below it, by resource: devices and cores."""

    used: dict[str, float] = {}
    entitled: dict[str, float] = {}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at `at`, Unix seconds. `devices` is by type, `pools` by name."""

    at: float
    devices: dict[str, Devices] = {}
    pools: dict[str, PoolUse] = {}
