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
    return port.by_rank(candidates, ranking(given))


def ranking(given: Mapping[str, float]) -> port.Ranking:
    parameters.read(name, given, PARAMETERS)
    return _rank


def _rank(one: port.Candidate) -> port.Rank:
    return port.Rank(one.arrival, reason="in the order of arrival")
