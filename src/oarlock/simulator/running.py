"""From the file of a workload to results: each case is simulated in turn, with the real scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from oarlock.scheduler import planning
from oarlock.scheduler.policies import contract, registry
from oarlock.scheduler.reuse import memos
from oarlock.simulator import scenario
from oarlock.simulator.engine import simulation
from oarlock.simulator.outcomes import outcome
from oarlock.spec import holdings, plans

Watch = Callable[[str, int], simulation.Progress]
"""A callback at the beginning of each run. It takes the run's name and its number of jobs, and returns the progress
callback.
"""


def results(
    of: scenario.Scenario, base: Path, over: scenario.Run, policies: Sequence[str], watch: Watch
) -> Iterator[outcome.Result]:
    """Yield the result of each run.

    Raises InvalidInput, before any run, for an unknown policy, an unknown parameter, or a run that cannot be simulated.
    """
    titles = scenario.titles(of, policies)
    for _, name, policy in titles:
        _check(scenario.rules(of, name, policy, over))
    for title, name, policy in titles[1:]:  # a check; the cases are not kept, since a million jobs of each are too many
        scenario.case(of, base, title, name, policy, over)
    for title, name, policy in titles:
        case = scenario.case(of, base, title, name, policy, over)
        progress = watch(title, len(case.workload.arrivals))
        simulated = simulation.Simulation(
            case.workload, case.machines, case.settings, planning.plan, memo=memos.Memo(), progress=progress
        )
        yield asyncio.run(simulated.run())


def check(of: scenario.Scenario, base: Path, policies: Sequence[str]) -> None:
    """Raise InvalidInput as `results` does. One job of each group is made, so that a million jobs take no longer."""
    few = tuple(msgspec.structs.replace(one, count=min(one.count, 1)) for one in of.jobs)
    of = msgspec.structs.replace(of, jobs=few)
    for title, name, policy in scenario.titles(of, policies):
        _check(scenario.rules(of, name, policy, scenario.Run()))
        scenario.case(of, base, title, name, policy, scenario.Run())


def _check(rules: plans.Rules) -> None:
    for name in {rules.policy: None, **rules.policies}:
        nothing = contract.Budget(amount=holdings.Resources())
        registry.named(name).wishes((), nothing, 0.0, rules, rules.policies.get(name, {}))
