"""The cells of a node in the table of nodes (`columns.NODES`)."""

from __future__ import annotations

from oarlock.display import amounts, durations
from oarlock.spec import bodies
from oarlock.spec.cluster import nodes
from oarlock.spec.input import quantities


def row(view: bodies.NodeState) -> list[str]:
    node, held = view.node, view.held
    several = len({one.user for one in view.holders}) > 1
    holders = dict.fromkeys(f"{one.name} ({one.user})" if several else one.name for one in view.holders)
    types = dict.fromkeys(device.type + (" (virtual)" if device.virtual else "") for device in node.devices)
    return [
        node.name,
        state(node),
        f"{held.cpus_milli / 1000:g}/{node.capacity.cpus_milli / 1000:g}",
        f"{quantities.memory_text(held.memory_bytes)} / {quantities.memory_text(node.capacity.memory_bytes)}",
        f"{held.devices:g}/{node.capacity.gpus}" if node.capacity.gpus else "",
        _taken(node),
        ", ".join(types),
        ", ".join(holders),
    ]


def held_before(one: bodies.HeldBefore, until: float) -> list[str]:
    """Return the cells of an attempt in the table of the past (`columns.HISTORY`), which ends at `until`."""
    return [
        one.user,
        one.pool,
        one.name,
        str(one.attempt),
        durations.moment(one.started_at, until),
        "" if one.ended_at is None else durations.moment(one.ended_at, until),
        ", ".join(f"{place.node}{amounts.gpus(place.devices)}" for place in one.places),
    ]


def state(node: nodes.Node) -> str:
    """Return `ready`, the reason why the node is not ready, or the taints that close it."""
    if not node.ready:
        return node.reason or "not ready"
    if node.open and node.admits(None):
        return "ready"
    return f"{'for some' if node.open else 'closed'}: {', '.join(map(str, node.taints))}"


def _taken(node: nodes.Node) -> str:
    """Return `2 CPUs, 4 GiB, 1 GPU`: the amounts that programs outside Oarlock take."""
    of = node.taken
    parts = {"cpus": of.cpus_milli / 1000, "memory": float(of.memory_bytes), "gpus": float(of.devices)}
    return ", ".join(amounts.of_resource(resource, value) for resource, value in parts.items() if value)
