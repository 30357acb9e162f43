"""The GPUs of the cluster by type, below the table of nodes (`columns.GPU_TYPES`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from oarlock.spec import bodies


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one type. `held` ones belong to jobs, and programs outside Oarlock have `taken` ones. `free` counts
    those that new tasks may get: those of nodes that take none count for nothing.
    """

    type: str
    gpus: int
    held: float = 0.0
    taken: float = 0.0
    free: float = 0.0


def of(views: Sequence[bodies.NodeState]) -> list[GpuType]:
    """Return the types by name. On a node of several types, others are taken to have the devices that jobs leave, those
    of the first type first: which ones they have is not known.
    """
    gpus = Counter[str]()
    held, taken, free = defaultdict[str, float](float), defaultdict[str, float](float), defaultdict[str, float](float)
    for view in views:
        types = {device.index: device.type + (" (virtual)" if device.virtual else "") for device in view.node.devices}
        there, ours = Counter(types.values()), _held(view, types)
        others = float(view.node.taken.devices)
        for kind, count in there.items():
            theirs = min(others, max(0.0, count - ours[kind]))
            others -= theirs
            gpus[kind] += count
            held[kind] += ours[kind]
            taken[kind] += theirs
            free[kind] += count - ours[kind] - theirs if view.node.open else 0
    return [
        GpuType(type=kind, gpus=count, held=held[kind], taken=taken[kind], free=max(0.0, free[kind]))
        for kind, count in sorted(gpus.items())
    ]


def row(one: GpuType) -> list[str]:
    return [one.type, str(one.gpus), f"{one.held:g}", f"{one.taken:g}", f"{one.free:g}"]


def _held(view: bodies.NodeState, types: dict[int, str]) -> dict[str, float]:
    """Return the devices that jobs hold, by type. Each device of a holding has an equal part of its amount."""
    found = defaultdict[str, float](float)
    for holding in view.holdings:
        for index in holding.devices:
            if index in types:
                found[types[index]] += holding.amount.devices / len(holding.devices)
    return found
