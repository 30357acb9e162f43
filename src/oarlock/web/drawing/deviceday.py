"""The devices that were held in the last day, by type: a curve of their number, and the mean. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from oarlock.spec import bodies
from oarlock.spec.cluster import samples

DAY_S = 86_400.0
PARTS = 96
"""A quarter of an hour each."""

WIDTH, HEIGHT = 192, 24

Device = tuple[str, int]
"""The name of a node, and the index of one of its devices."""


class Day(msgspec.Struct, frozen=True):
    """Mean numbers of devices over the day, and the curve of those that were held.

    `held`, `idle`, `not_ready` and `reserved` (idle ones where the first waiting job was expected to start) are those
    of the samples, in which a shared device counts by its shares. Without samples `held` is that of the curve, `idle`
    is the rest, and the other two are None. `counted` is the number of devices that there were in the mean, of which
    these are parts. `points` is the polygon of the curve, in which a shared device counts once;
    `most` is its greatest mean of a quarter of an hour.
    """

    type: str
    total: int
    counted: float
    held: float
    idle: float
    most: float
    points: str
    not_ready: float | None = None
    reserved: float | None = None


def days(
    nodes: Sequence[bodies.NodeState],
    past: Sequence[bodies.HeldBefore],
    now: float,
    found: Sequence[samples.Sample] = (),
) -> list[Day]:
    """Return a day for each type of GPU of the present nodes. Devices of nodes that are gone are left out."""
    kinds: dict[Device, str] = {}
    totals: dict[str, int] = {}
    for state in nodes:
        for device in state.node.devices:
            kinds[state.node.name, device.index] = device.type
            totals[device.type] = totals.get(device.type, 0) + 1
    curves = {kind: [0.0] * PARTS for kind in totals}
    for held, spans in _spans(past, now).items():
        if held in kinds:
            for first, last in spans:
                _add(curves[kinds[held]], first, last, now)
    return [
        _day(kind, total, curves[kind], [each.devices[kind] for each in found if kind in each.devices])
        for kind, total in totals.items()
    ]


def _day(kind: str, total: int, curve: Sequence[float], told: Sequence[samples.Devices]) -> Day:
    held = sum(curve) / PARTS
    return Day(
        type=kind,
        total=total,
        counted=statistics.fmean(map(_all, told)) if told else total,
        held=statistics.fmean(one.used for one in told) if told else held,
        idle=statistics.fmean(one.idle for one in told) if told else total - held,
        most=max(curve),
        points=_polygon(curve, total),
        not_ready=statistics.fmean(one.not_ready for one in told) if told else None,
        reserved=statistics.fmean(kept)
        if (kept := [one.reserved for one in told if one.reserved is not None])
        else None,
    )


def _all(one: samples.Devices) -> float:
    return one.used + one.idle + one.not_ready + (one.reserved or 0.0)


def _spans(past: Sequence[bodies.HeldBefore], now: float) -> dict[Device, list[tuple[float, float]]]:
    """Return when each device was held, by one job or several, as spans that do not overlap."""
    spans: dict[Device, list[tuple[float, float]]] = {}
    for one in sorted(past, key=lambda one: one.started_at):
        first, last = one.started_at, now if one.ended_at is None else one.ended_at
        for place in one.places:
            for index in place.devices:
                known = spans.setdefault((place.node, index), [])
                if known and first <= known[-1][1]:
                    known[-1] = (known[-1][0], max(known[-1][1], last))
                else:
                    known.append((first, last))
    return spans


def _add(parts: list[float], first: float, last: float, now: float) -> None:
    """Add a device to each part of the day by the share of it in which it was held."""
    width = DAY_S / PARTS
    begin = now - DAY_S
    for place in range(max(0, int((first - begin) // width)), min(PARTS, int((last - begin) // width) + 1)):
        left = begin + place * width
        parts[place] += max(0.0, min(last, left + width) - max(first, left)) / width


def _polygon(parts: Sequence[float], total: int) -> str:
    """Return the area below the curve, which has a step for each part."""
    step = WIDTH / PARTS
    top = [
        f"{x * step:.0f},{HEIGHT - HEIGHT * min(1.0, part / total):.1f}"
        for place, part in enumerate(parts)
        for x in (place, place + 1)
    ]
    return " ".join([f"0,{HEIGHT}", *top, f"{WIDTH},{HEIGHT}"])
