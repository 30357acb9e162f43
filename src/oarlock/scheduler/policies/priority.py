"""Higher priority first, then first come, first served; a running gang may be stopped for one of higher priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oarlock.scheduler.policies import parameters, port
from oarlock.spec import plans

name = "priority"
reserves = True
sizing = False

PARAMETERS: Mapping[str, float] = {}


def wishes(
    candidates: Sequence[port.Candidate],
    budget: port.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[port.Wish]:
    parameters.read(name, given, PARAMETERS)
    return [
        port.Wish(
            job=one.gang.job,
            size=one.asked,
            level=-one.gang.priority,
            reason=f"priority {one.gang.priority}, in order of arrival",
        )
        for one in sorted(candidates, key=lambda one: (-one.gang.priority, one.arrival))
    ]
