"""Higher priority first, then first come, first served; a running gang may be stopped for one of higher priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oarlock.scheduler.policies import contract, parameters
from oarlock.spec import plans

name = "priority"
reserves = True
sizing = False

PARAMETERS: Mapping[str, float] = {}


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    return contract.by_rank(candidates, ranking(given))


def ranking(given: Mapping[str, float]) -> contract.Ranking:
    parameters.read(name, given, PARAMETERS)
    return _rank


def _rank(one: contract.Candidate) -> contract.Rank:
    priority = one.gang.priority
    return contract.Rank((-priority, *one.arrival), -priority, f"priority {priority}, in order of arrival")
