"""Least attained service first, by bands, without knowing how long a job lasts (Tiresias, NSDI '19, 3.2).

A job's service is the device-seconds that it has held (2D-LAS). It begins in the first band, and falls to the next one
whenever its service reaches a boundary; within a band the first to come is first. So short jobs pass long ones, and
since there are few bands a job is stopped for others only a few times in its life.

Boundaries do best just beyond the needs of many jobs, and worst just before them. The defaults did best on the
workloads of AdaptDL and on others drawn in the same way: jobs of 2, 8 and 16 device-hours end within the first, second
and third band.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from oarlock.scheduler.policies import bands, contract, parameters
from oarlock.spec import plans

name = "las"
reserves = False
sizing = False

BOUNDARIES = ("band1_s", "band2_s", "band3_s")

PARAMETERS: Mapping[str, float] = {
    # Device-seconds at which the first, second and third band end; the fourth has no end. 0: there is no such boundary.
    # Tiresias' own simulator has 3,250, 7,200 and 18,000; tuned for the comparison with Pollux it has 57,600 alone.
    "band1_s": 9_000.0,
    "band2_s": 33_000.0,
    "band3_s": 60_000.0,
    # Seconds for which a gang must have waited before others are stopped for it that came after it to the same band.
    # Tiresias: 0.
    "patience_s": 1_800.0,
    # A job that has waited since it was stopped so many times as long as it ever ran is treated as a new one, so that
    # it does not starve (Tiresias' PROMOTEKNOB). 0: never.
    "promote": 0.0,
}


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    known = _read(given)
    bounds = [known[bound] for bound in BOUNDARIES if known[bound]]
    ends = [*(f"ends at {bound:.0f}" for bound in bounds), "has no end"]
    told = [f"band {band} of {len(ends)}, which {end}" for band, end in enumerate(ends, 1)]
    placed = [_placed(one, bounds, told, now, known["promote"]) for one in candidates]
    return bands.wishes(placed, now, known["patience_s"])


def _read(given: Mapping[str, float]) -> dict[str, float]:
    known = parameters.read(name, given, PARAMETERS)
    for parameter, value in known.items():
        if value < 0:
            raise parameters.refused(name, parameter, value, "0 or more")
    bounds = [known[bound] for bound in BOUNDARIES if known[bound]]
    if bounds != sorted(set(bounds)):
        raise parameters.refused(name, BOUNDARIES[-1], bounds[-1], "boundaries that grow")
    return known


def _placed(
    one: contract.Candidate, bounds: Sequence[float], told: Sequence[str], now: float, promote: float
) -> bands.Placed:
    service = _service(one, now, promote) if promote else one.served_s
    band = bisect.bisect_right(bounds, service)
    return bands.Placed(band, (one.gang.submitted_at,), one, f"{service:.0f} device-seconds so far: {told[band]}")


def _service(one: contract.Candidate, now: float, promote: float) -> float:
    """Return the device-seconds that count: after a long enough wait, those of the present attempt alone."""
    before = one.gang.served_s
    if not before or one.gang.stopped_at is None:
        return one.served_s
    width = one.gang.amount(one.gang.wanted)
    executed_s = before / (width.devices or width.cpus_milli / 1000 or 1.0)
    return one.served_s - before if bands.waited_s(one, now) >= promote * executed_s else one.served_s
