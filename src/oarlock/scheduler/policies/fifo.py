"""First come, first served: whoever was submitted first is first, and nobody is stopped for anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oarlock.scheduler.policies import parameters, port
from oarlock.spec import plans

name = "fifo"
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
        port.Wish(job=one.gang.job, size=one.asked, reason=f"number {place} in the order of arrival")
        for place, one in enumerate(sorted(candidates, key=lambda one: one.arrival), start=1)
    ]
