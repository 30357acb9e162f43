"""Devices where they save most time: the contract of every policy, and what this one adds."""

from __future__ import annotations

import asyncio
import os
import statistics
from typing import Any

import msgspec
import pytest
from tests.scheduler.policies import contract
from tests.simulator import published
from tests.simulator import test_published as measured

from oarlock.scheduler import planning
from oarlock.scheduler.policies import optimus
from oarlock.simulator import cluster, recorded, simulation
from oarlock.spec import curves, plans

DATA = os.environ.get("OARLOCK_DATA", "")  # read before any test: a fixture takes our settings away from each


class TestContract(contract.PolicyContract):
    policy = optimus


class Told(published.Optimus):
    """Our scheduler, told what published Optimus was told: true step times, and the steps that are left."""

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        told = msgspec.structs.replace(
            snapshot,
            waiting=tuple(self._told(gang) for gang in snapshot.waiting),
            running=tuple(msgspec.structs.replace(one, gang=self._told(one.gang)) for one in snapshot.running),
        )
        return planning.plan(told, now, memo)

    def _told(self, gang: plans.Gang) -> plans.Gang:
        most = min(self._most(gang.job), gang.asks[0].max)
        rates = tuple(1 / self._seconds(gang.job, devices) for devices in range(1, most + 1))
        curve = curves.Curve(model=curves.Table(rates=rates), left=float(self._steps_left(gang.job)))
        return msgspec.structs.replace(gang, curve=curve)


@pytest.mark.skipif(not DATA, reason="OARLOCK_DATA does not name the folder of the recorded workloads")
@pytest.mark.parametrize(("number", "mean_s"), [(1, 4087.0), (2, 6914.0), (3, 3944.0), (4, 5968.0)])
def test_as_the_oracle_it_comes_to_what_was_published(number: int, mean_s: float) -> None:
    """Told everything, and heedless of restarts, it is the Optimus that was simulated for Pollux (OSDI '21)."""
    of = measured.read(number, recorded.Freedom.ELASTIC)
    machines = cluster.machines(cluster.parse(["16x4"]))
    rules = plans.Rules(policy="optimus", min_runtime_s=0.0, policies={"optimus": {"margin": 0.0, "restarts": 0.0}})
    settings = simulation.Settings(name="oracle", lockstep=True, rules=rules)
    sim = simulation.Simulation(of, machines, settings, None)
    sim._plan = Told(of.arrivals, lambda job: sim.agents.works[job].progress, measured.iterations)
    found = asyncio.run(sim.run()).outcome
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    got = statistics.fmean(story.ended - story.arrived for story in found.stories)
    assert got == pytest.approx(mean_s, rel=0.05)
