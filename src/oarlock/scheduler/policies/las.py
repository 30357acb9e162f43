"""Least attained service first, by bands: nobody needs to know how long a job will last (Tiresias, NSDI '19, 3.2).

A job's service is the device-seconds that it has held (2D-LAS). It begins in the first band, and falls to the next one
whenever its service reaches a boundary; within a band the first to come is first. So short jobs pass long ones, and
since there are few bands a job is stopped for others only a few times in its life.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from oarlock.scheduler.policies import parameters, port
from oarlock.spec import plans

name = "las"
sizing = False

PARAMETERS: Mapping[str, float] = {
    # Device-seconds at which the first band ends. Tiresias' own simulator has 3,250 (with 7,200 and 18,000 after it).
    "first_s": 3250.0,
    # Each band is so many times as wide as all before it together.
    "factor": 2.35,
    # How many bands there are; the last has no end.
    "bands": 4.0,
    # A job that has waited since it was stopped so many times as long as it ever ran is treated as a new one, so that
    # it does not starve (Tiresias' PROMOTEKNOB). 0: never.
    "promote": 0.0,
    # 1: within a band too a gang may be stopped for one that came before it, as Tiresias does it.
    "strict": 0.0,
}


def wishes(
    candidates: Sequence[port.Candidate],
    budget: port.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[port.Wish]:
    known = _read(given)
    bounds = _bounds(known)
    keyed = [(_service(one, now, known["promote"]), one) for one in candidates]
    ranked = sorted(
        ((_band(service, bounds), one.arrival, service, one) for service, one in keyed), key=lambda it: it[:2]
    )
    levels = {
        band_at: level
        for level, (band_at, _) in enumerate(itertools.groupby((band, arrival[0]) for band, arrival, _, _ in ranked))
    }
    return [
        port.Wish(
            job=one.gang.job,
            size=one.asked,
            level=float(levels[band, arrival[0]] if known["strict"] else band),
            reason=_reason(service, band, bounds),
        )
        for band, arrival, service, one in ranked
    ]


def _read(given: Mapping[str, float]) -> dict[str, float]:
    known = parameters.read(name, given, PARAMETERS)
    if known["first_s"] <= 0:
        raise parameters.refused(name, "first_s", known["first_s"], "device-seconds, more than 0")
    if known["factor"] <= 1:
        raise parameters.refused(name, "factor", known["factor"], "more than 1")
    if not 1 <= known["bands"] <= 64:
        raise parameters.refused(name, "bands", known["bands"], "a number from 1 to 64")
    if known["promote"] < 0:
        raise parameters.refused(name, "promote", known["promote"], "0 or more")
    return known


def _bounds(known: Mapping[str, float]) -> list[float]:
    """Where each band but the last ends, in device-seconds."""
    return [known["first_s"] * known["factor"] ** band for band in range(int(known["bands"]) - 1)]


def _band(service: float, bounds: Sequence[float]) -> int:
    return sum(service >= bound for bound in bounds)


def _service(one: port.Candidate, now: float, promote: float) -> float:
    """Device-seconds that count: those of this attempt alone, where it had to wait for it for so long."""
    before = one.gang.served_s
    stopped_at = one.gang.stopped_at
    if not promote or stopped_at is None or not before:
        return one.served_s
    waited = (now if one.running is None else one.running.started_at) - stopped_at
    width = one.gang.amount(one.gang.wanted)
    executed = before / (width.devices or width.cpus_milli / 1000 or 1.0)
    return one.served_s - before if waited >= promote * executed else one.served_s


def _reason(service: float, band: int, bounds: Sequence[float]) -> str:
    end = f"below {bounds[band]:.0f}" if band < len(bounds) else f"{bounds[-1]:.0f} and more" if bounds else "any"
    return f"band {band + 1} of {len(bounds) + 1}: {service:.0f} device-seconds so far ({end})"
