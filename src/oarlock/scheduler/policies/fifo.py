"""First come, first served: gangs in the order of their submission. No gang is stopped for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oarlock.scheduler.policies import contract, parameters
from oarlock.spec import plans

name = "fifo"
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
    return contract.Rank(one.arrival, reason="in the order of arrival")
