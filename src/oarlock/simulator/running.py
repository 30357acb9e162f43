"""From a workload's file to results: each case in turn, with the real scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oarlock.scheduler import planning
from oarlock.scheduler.policies import known
from oarlock.simulator import outcome, scenario, simulation

Watch = Callable[[str, int], simulation.Progress]
"""Asked at the beginning of each run, with its name and the number of its jobs; hears how far it is."""


def results(
    of: scenario.Scenario, base: Path, over: scenario.Run, policies: Sequence[str], watch: Watch
) -> Iterator[outcome.Result]:
    """Raises InvalidInput, before anything runs, for a policy that nobody knows."""
    titles = scenario.titles(of, policies)
    for _, name, policy in titles:
        known.named(scenario.rules(of, name, policy, over).policy)
    for title, name, policy in titles:
        case = scenario.case(of, base, title, name, policy, over)
        progress = watch(title, len(case.workload.arrivals))
        simulated = simulation.Simulation(
            case.workload, case.machines, case.settings, planning.plan, memo=planning.Memo(), progress=progress
        )
        yield asyncio.run(simulated.run())
