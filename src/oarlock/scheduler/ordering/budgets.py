"""The amounts that a policy may divide: all nodes, or the entitlement of one leaf pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from oarlock.scheduler.policies import contract
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.speed import rates
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes


def whole(ready: Iterable[nodes.Node], ended: tuple[plans.Ended, ...] = ()) -> contract.Budget:
    """Return the capacity of these nodes as a budget. `ended` are the jobs that have ended so far."""
    devices, amount, by_type = [], holdings.Resources(), dict[str, list[nodes.Node]]()
    for node in ready:
        devices.append(len(node.devices))
        amount += node.usable
        for name in {device.type for device in node.devices}:
            by_type.setdefault(name, []).append(node)
    several = len(by_type) > 1
    return contract.Budget(
        amount=amount,
        node_devices=tuple(sorted(devices, reverse=True)),
        ended=ended,
        types=tuple(_share(name, by_type[name]) for name in sorted(by_type)) if several else (),
        type_of=_types_by_place(by_type) if several else {},
    )


def _types_by_place(by_type: Mapping[str, Iterable[nodes.Node]]) -> dict[str, str]:
    """Return the type of each node, and of each device (`node/index`) of a node that has several types."""
    found: dict[str, str] = {}
    mixed: dict[str, nodes.Node] = {}
    for name, of in by_type.items():
        for node in of:
            if node.name in found:
                mixed[node.name] = node
            found[node.name] = name
    for node in mixed.values():
        del found[node.name]
        found |= {f"{node.name}/{device.index}": device.type for device in node.devices}
    return found


def _share(name: str, of: Iterable[nodes.Node]) -> contract.TypeShare:
    alike = [[device for device in node.devices if device.type == name] for node in of]
    return contract.TypeShare(
        gpu_type=name,
        devices=sum(map(len, alike)),
        per_node=rates.node_size([len(devices) for devices in alike]),
        memory_bytes=min(device.memory_bytes for devices in alike for device in devices),
    )


def of_leaf(whole: contract.Budget, leaf: str, bounds: poolbounds.PoolBounds) -> contract.Budget:
    """Return the amounts that a leaf may divide: its entitlement, or the whole budget if it has no bound."""
    if bounds.single:
        return whole
    entitled, amount = bounds.entitled.get(leaf, {}), whole.amount
    return contract.Budget(
        amount=holdings.Resources(
            cpus_milli=min(amount.cpus_milli, int(entitled.get("cpus", amount.cpus_milli / 1000) * 1000 + 0.5)),
            memory_bytes=min(amount.memory_bytes, int(entitled.get("memory", amount.memory_bytes))),
            gpus=min(amount.gpus, int(entitled.get("gpus", amount.gpus) + poolbounds.SLACK)),
        ),
        node_devices=whole.node_devices,
        ended=whole.ended,
        types=_types(whole, entitled.get("gpus")),
        type_of=whole.type_of,
    )


def _types(whole: contract.Budget, entitled: float | None) -> tuple[contract.TypeShare, ...]:
    """Return the same part of each type of GPU as the leaf's entitlement is of all GPUs."""
    if entitled is None or not whole.amount.gpus:
        return whole.types
    part = min(1.0, (entitled + poolbounds.SLACK) / whole.amount.gpus)
    return tuple(msgspec.structs.replace(one, devices=int(one.devices * part + 0.5)) for one in whole.types)
