"""From a workload's file to results: each case in turn, with the real scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oarlock.scheduler import planning
from oarlock.scheduler.policies import contract, registry
from oarlock.simulator import scenario
from oarlock.simulator.engine import simulation
from oarlock.simulator.outcomes import outcome
from oarlock.spec import holdings, plans

Watch = Callable[[str, int], simulation.Progress]
"""Asked at the beginning of each run, with its name and the number of its jobs; hears how far it is."""


def results(
    of: scenario.Scenario, base: Path, over: scenario.Run, policies: Sequence[str], watch: Watch
) -> Iterator[outcome.Result]:
    """Raises InvalidInput, before anything runs, for a policy that nobody knows, a parameter that it has not, and
    whatever else makes no simulation of one of the runs.
    """
    titles = scenario.titles(of, policies)
    for _, name, policy in titles:
        _check(scenario.rules(of, name, policy, over))
    for title, name, policy in titles[1:]:  # the first is made next; a million jobs of each are too many to keep
        scenario.case(of, base, title, name, policy, over)
    for title, name, policy in titles:
        case = scenario.case(of, base, title, name, policy, over)
        progress = watch(title, len(case.workload.arrivals))
        simulated = simulation.Simulation(
            case.workload, case.machines, case.settings, planning.plan, memo=planning.Memo(), progress=progress
        )
        yield asyncio.run(simulated.run())


def _check(rules: plans.Rules) -> None:
    for name in {rules.policy: None, **rules.policies}:
        nothing = contract.Budget(amount=holdings.Resources())
        registry.named(name).wishes((), nothing, 0.0, rules, rules.policies.get(name, {}))
