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
    return port.by_rank(candidates, ranking(given))


def ranking(given: Mapping[str, float]) -> port.Ranking:
    parameters.read(name, given, PARAMETERS)
    return _rank


def _rank(one: port.Candidate) -> port.Rank:
    priority = one.gang.priority
    return port.Rank((-priority, *one.arrival), -priority, f"priority {priority}, in order of arrival")
