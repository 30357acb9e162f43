"""Small workloads and clusters for the simulator's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.simulator import published

from oarlock.simulator import cluster
from oarlock.simulator.engine import simulation
from oarlock.simulator.models import jobmodels
from oarlock.simulator.outcomes import outcome
from oarlock.simulator.workloads import workload
from oarlock.spec import jobfile, plans, roles


def job(
    name: str, at: float, lasts_s: float, *, gpus: int = 1, job_model: jobmodels.JobModel | None = None, **spec: Any
) -> workload.Arrival:
    """A gang of `gpus` tasks with a device each."""
    worker = jobfile.Role(count=gpus, gpus=1, cpus=1)
    fields = {"command": "train", "max_restarts": 1000, "roles": {roles.RoleName.WORKER: worker}} | spec
    return workload.Arrival(
        id=name,
        at=at,
        spec=jobfile.JobSpec(**fields),
        job_model=job_model or jobmodels.Scaled(lasts_s, gpus, jobmodels.linear),
    )


def prepared(
    arrivals: Sequence[workload.Arrival],
    nodes: str = "1x1",
    *,
    plan: Any = published.first_come,
    memo: Any = None,
    **settings: Any,
) -> simulation.Simulation:
    given: dict[str, Any] = {"name": "test", "restart_s": 0.0, "rules": plans.Rules()} | settings
    return simulation.Simulation(
        workload.build("test", arrivals),
        cluster.machines(cluster.parse([nodes])),
        simulation.Settings(**given),
        plan,
        memo=memo,
    )


def run(arrivals: Sequence[workload.Arrival], nodes: str = "1x1", **settings: Any) -> outcome.Outcome:
    return asyncio.run(prepared(arrivals, nodes, **settings).run()).outcome
