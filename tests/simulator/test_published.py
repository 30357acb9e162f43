"""The simulator against the figures that were published with the workloads: the same schedulers, written anew, on the
same jobs, must come to the same average completion times. So it can be trusted with others.

It needs the recorded workloads and traces (tests/needs.py says how to get them).
"""

from __future__ import annotations

import asyncio
import csv
import statistics
from pathlib import Path

import pytest
from tests import needs
from tests.simulator import published

from oarlock.simulator import cluster
from oarlock.simulator.engine import simulation
from oarlock.simulator.workloads import recorded, workload

pytestmark = [needs.recorded, pytest.mark.long]

TIRESIAS = {1: 2474.0, 2: 5145.0, 3: 3876.0, 4: 3280.0}
OPTIMUS = {1: 4087.0, 2: 6914.0, 3: 3944.0, 4: 5968.0}
"""Average completion, seconds: 16 nodes of 4 devices, rounds of 60 s, 30 s for each start. We come within 1.7 %."""


def read(number: int, freedom: recorded.Freedom) -> workload.Workload:
    file = recorded.Recorded(file=f"adaptdl/workloads/workload-{number}.csv")
    return recorded.read(file, Path(needs.RECORDED), freedom, 1.0)


def simulated(of: workload.Workload, plan: object) -> simulation.Simulation:
    machines = cluster.machines(cluster.parse(["16x4"]))
    return simulation.Simulation(of, machines, simulation.Settings(name="published", lockstep=True), plan)


def mean_completion_s(sim: simulation.Simulation) -> float:
    found = asyncio.run(sim.run()).outcome
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    assert len(found.stories) == 160
    return statistics.fmean(story.ended - story.arrived for story in found.stories)


def iterations(model: str) -> dict[int, list[float]]:
    """Steps up to the end of each epoch, by batch size."""
    found = {}
    for path in (Path(needs.RECORDED) / "adaptdl" / "traces" / model).glob("validation-*.csv"):
        with path.open(newline="") as file:
            found[int(path.stem.partition("-")[2])] = [float(row["iteration"]) for row in csv.DictReader(file)]
    return found


@pytest.mark.parametrize("number", TIRESIAS)
def test_tiresias(number: int) -> None:
    sim = simulated(read(number, recorded.Freedom.GIVEN), published.Tiresias())
    assert mean_completion_s(sim) == pytest.approx(TIRESIAS[number], rel=0.02)


@pytest.mark.parametrize("number", OPTIMUS)
def test_optimus(number: int) -> None:
    of = read(number, recorded.Freedom.ELASTIC)
    sim = simulated(of, None)
    sim._plan = published.Optimus(of.arrivals, lambda job: sim.agents.works[job].progress, iterations)
    assert mean_completion_s(sim) == pytest.approx(OPTIMUS[number], rel=0.02)
