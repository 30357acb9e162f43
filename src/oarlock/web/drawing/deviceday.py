"""The devices that were held in the last day, by type: a curve of their number, and the mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from oarlock.spec import bodies
from oarlock.spec.cluster import samples

DAY_S = 86_400.0
PARTS = 96
"""A quarter of an hour each."""

WIDTH, HEIGHT = 192, 24


class Day(msgspec.Struct, frozen=True):
    """`points` is a polygon; `held` is the mean number of held devices, `most` the greatest of a quarter of an hour.

    `not_ready` is the mean number of devices on nodes that were not ready, `reserved` that of idle ones where the first
    waiting job was expected to start, each None where no sample tells; `idle` the rest.
    """

    type: str
    total: int
    held: float
    most: float
    points: str
    not_ready: float | None = None
    reserved: float | None = None

    @property
    def idle(self) -> float:
        return max(0.0, self.total - self.held - (self.not_ready or 0.0) - (self.reserved or 0.0))


def days(
    nodes: Sequence[bodies.NodeState],
    past: Sequence[bodies.HeldBefore],
    now: float,
    found: Sequence[samples.Sample] = (),
) -> list[Day]:
    """Return a day for each type of GPU of the present nodes. Devices of nodes that are gone are left out."""
    kinds: dict[tuple[str, int], str] = {}
    totals: dict[str, int] = {}
    for state in nodes:
        for device in state.node.devices:
            kinds[state.node.name, device.index] = device.type
            totals[device.type] = totals.get(device.type, 0) + 1
    held = {kind: [0.0] * PARTS for kind in totals}
    for one in past:
        for kind, count in _devices(one, kinds).items():
            _add(held[kind], count, one.started_at, now if one.ended_at is None else one.ended_at, now)
    return [
        Day(
            type=kind,
            total=total,
            held=sum(held[kind]) / PARTS,
            most=max(held[kind]),
            points=_polygon(held[kind], total),
            not_ready=_mean([each.devices[kind].not_ready for each in found if kind in each.devices]),
            reserved=_mean([each.devices[kind].reserved for each in found if kind in each.devices]),
        )
        for kind, total in totals.items()
    ]


def _mean(found: Iterable[float | None]) -> float | None:
    told = [one for one in found if one is not None]
    return sum(told) / len(told) if told else None


def _devices(one: bodies.HeldBefore, kinds: Mapping[tuple[str, int], str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for place in one.places:
        for device in place.devices:
            if (kind := kinds.get((place.node, device))) is not None:
                found[kind] = found.get(kind, 0) + 1
    return found


def _add(parts: list[float], count: int, first: float, last: float, now: float) -> None:
    """Add devices to each part of the day by the share of it in which they were held."""
    width = DAY_S / PARTS
    begin = now - DAY_S
    for place in range(max(0, int((first - begin) // width)), min(PARTS, int((last - begin) // width) + 1)):
        left = begin + place * width
        parts[place] += count * max(0.0, min(last, left + width) - max(first, left)) / width


def _polygon(parts: Sequence[float], total: int) -> str:
    """Return the area below the curve, which has a step for each part."""
    step = WIDTH / PARTS
    top = [
        f"{x * step:.0f},{HEIGHT - HEIGHT * min(1.0, part / total):.1f}"
        for place, part in enumerate(parts)
        for x in (place, place + 1)
    ]
    return " ".join([f"0,{HEIGHT}", *top, f"{WIDTH},{HEIGHT}"])
