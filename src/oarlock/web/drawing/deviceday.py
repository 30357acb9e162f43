"""The devices that were held in the last day, by type: a curve of their number, the mean and the maximum. Pure."""

from __future__ import annotations

import itertools
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
Span = tuple[float, float]
"""The first and the last Unix second in which a device is held."""


class Day(msgspec.Struct, frozen=True):
    """Mean numbers of devices over the day, and the curve of those that were held.

    `held`, `idle`, `not_ready` and `reserved` (idle ones where the first waiting job was expected to start) are those
    of the samples, in which a shared device counts by its shares. Without samples `held` is that of the curve, `idle`
    is the rest, and the other two are None. `counted` is the number of devices that there were in the mean, of which
    these are parts. `points` is the polygon of the curve, in which a shared device counts once; `most` is the most
    devices that were held at one time. All are of the last `known_s` seconds: nothing is known of the time before.
    """

    type: str
    total: int
    counted: float
    held: float
    idle: float
    most: int
    points: str
    known_s: float = DAY_S
    not_ready: float | None = None
    reserved: float | None = None


def days(
    nodes: Sequence[bodies.NodeState],
    past: Sequence[bodies.HeldBefore],
    now: float,
    found: Sequence[samples.Sample] = (),
    *,
    started_at: float = 0.0,
) -> list[Day]:
    """Return a day for each type of GPU of the present nodes. Devices of nodes that are gone are left out.

    `started_at` is the time since which the server has run. Older jobs and samples tell of the time before.
    """
    kinds: dict[Device, str] = {}
    totals: dict[str, int] = {}
    for state in nodes:
        for device in state.node.devices:
            kinds[state.node.name, device.index] = device.type
            totals[device.type] = totals.get(device.type, 0) + 1
    known = [started_at, *(one.started_at for one in past), *(one.at for one in found)]
    begin = max(now - DAY_S, min(known))
    spans: dict[str, list[Span]] = {kind: [] for kind in totals}
    for place, several in _spans(past, now).items():
        if place in kinds:
            spans[kinds[place]] += [(max(first, begin), last) for first, last in several if last > begin]
    return [
        _day(kind, total, spans[kind], (begin, now), [each.devices[kind] for each in found if kind in each.devices])
        for kind, total in totals.items()
    ]


def _day(kind: str, total: int, spans: Sequence[Span], known: Span, told: Sequence[samples.Devices]) -> Day:
    begin, now = known
    known_s = max(1.0, now - begin)
    held = sum(last - first for first, last in spans) / known_s
    return Day(
        type=kind,
        total=total,
        counted=statistics.fmean(map(_all, told)) if told else total,
        held=statistics.fmean(one.used for one in told) if told else held,
        idle=statistics.fmean(one.idle for one in told) if told else total - held,
        most=_most(spans),
        points=_polygon(spans, total, now, known_s),
        known_s=known_s,
        not_ready=statistics.fmean(one.not_ready for one in told) if told else None,
        reserved=statistics.fmean(kept)
        if (kept := [one.reserved for one in told if one.reserved is not None])
        else None,
    )


def _most(spans: Sequence[Span]) -> int:
    """Return the most devices that were held at one time. A device that is given back and held again is one."""
    changes = sorted((at, change) for span in spans for at, change in zip(span, (1, -1), strict=True))
    return max(itertools.accumulate((change for _, change in changes), initial=0))


def _all(one: samples.Devices) -> float:
    return one.used + one.idle + one.not_ready + (one.reserved or 0.0)


def _spans(past: Sequence[bodies.HeldBefore], now: float) -> dict[Device, list[Span]]:
    """Return when each device was held, by one job or several, as spans that do not overlap."""
    spans: dict[Device, list[Span]] = {}
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


def _polygon(spans: Sequence[Span], total: int, now: float, known_s: float) -> str:
    """Return the area below the curve, which has a step for each part of the day that is known."""
    parts = [0.0] * PARTS
    for first, last in spans:
        _add(parts, first, last, now)
    step = WIDTH / PARTS
    left = min(PARTS - 1, int(PARTS * (1 - known_s / DAY_S)))
    top = [
        f"{x * step:.0f},{HEIGHT - HEIGHT * min(1.0, part / total):.1f}"
        for place, part in enumerate(parts[left:], left)
        for x in (place, place + 1)
    ]
    return " ".join([f"{left * step:.0f},{HEIGHT}", *top, f"{WIDTH},{HEIGHT}"])
