"""How good the policies are: the recorded workloads that the field compares by, next to the published figures.

AdaptDL's workloads 1 to 4 (Pollux, OSDI '21): 160 jobs over 8 hours on 16 nodes of 4 GPUs, 60 s between plans that
touch running jobs, 30 s for each start of a gang; seconds of average completion. `goodput` sizes the gangs and chooses
their batch sizes, as Pollux does; `las` and `gittins` leave both as the users gave them, as Tiresias does. Between two
such plans a newcomer is placed where there is room; `whole rounds` forbids that, as the published simulator did.

OARLOCK_DATA names the folder that has `adaptdl/` in it.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
from pathlib import Path
from typing import NamedTuple

from bench import table
from oarlock.scheduler import planning
from oarlock.scheduler.policies import registry
from oarlock.scheduler.reuse import memos
from oarlock.simulator import cluster
from oarlock.simulator.engine import simulation
from oarlock.simulator.models import traces
from oarlock.simulator.workloads import recorded
from oarlock.spec import plans

POLLUX = {1: 2089.0, 2: 3323.0, 3: 2189.0, 4: 2721.0}
TIRESIAS = {1: 2474.0, 2: 5145.0, 3: 3876.0, 4: 3280.0}
"""Published average completion by workload, seconds."""

MODELS: dict[int, dict[str, float]] = {
    1: {"bert": 2686, "cifar10": 982, "deepspeech2": 3839, "imagenet": 40210, "ncf": 107, "yolov3": 12135},
    2: {"bert": 5549, "cifar10": 1619, "deepspeech2": 7621, "imagenet": 46112, "ncf": 108, "yolov3": 14314},
    3: {"bert": 3277, "cifar10": 1163, "deepspeech2": 4566, "ncf": 107, "yolov3": 12421},
    4: {"bert": 2750, "cifar10": 1092, "deepspeech2": 4345, "imagenet": 50695, "ncf": 104, "yolov3": 13303},
}
MAKESPAN = {1: 64742.0, 2: 56146.0, 3: 36015.0, 4: 64435.0}
"""Pollux, published: average completion by workload and model, and the time from the first arrival to the last end."""

BETTER = 0.9
"""The part of Tiresias' figure that `las` and `gittins` are to reach."""

RESTARTS = 3.0
DECISION_MS = 10.0


class Ran(NamedTuple):
    completion_s: float
    makespan_s: float
    models_s: dict[str, float]  # average completion of the jobs that train each model
    restarts: float
    decision_ms: float


def run() -> list[table.Row]:
    data = os.environ.get("OARLOCK_DATA")
    if not data:
        raise RuntimeError("OARLOCK_DATA does not name the folder of the recorded workloads.")
    rows = []
    for policy, freedom, published in (
        ("goodput", recorded.Freedom.ADAPTIVE, POLLUX),
        ("las", recorded.Freedom.GIVEN, _better(TIRESIAS)),
        ("gittins", recorded.Freedom.GIVEN, _better(TIRESIAS)),
    ):
        if policy in registry.POLICIES:
            rows += _rows(policy, freedom, published, Path(data))
    return rows


def _rows(policy: str, freedom: recorded.Freedom, published: dict[int, float], data: Path) -> list[table.Row]:
    found = {number: simulated(policy, number, freedom, data) for number in published}
    strict = {number: simulated(policy, number, freedom, data, lockstep=True) for number in published}
    rows = [
        table.Row(
            "policies",
            f"{policy}, workload {number}, average completion",
            ran.completion_s,
            "s",
            published[number],
            detail=f"{ran.restarts:.2f} restarts a job; {strict[number].completion_s:.0f} s in whole rounds",
        )
        for number, ran in found.items()
    ]
    if policy == "goodput":
        rows += [row for number, ran in found.items() for row in _against_pollux(number, ran)]
    most = max(ran.restarts for ran in found.values())
    median = statistics.median(ran.decision_ms for ran in found.values())
    return [
        *rows,
        table.Row("policies", f"{policy}, restarts a job in the worst workload", most, "", RESTARTS),
        table.Row("policies", f"{policy}, decision time, median", median, "ms", DECISION_MS),
    ]


def _against_pollux(number: int, ran: Ran) -> list[table.Row]:
    """One row each for the makespan and for the model that fares worst, with the others as its detail."""
    parts = {name: ran.models_s[name] / published for name, published in MODELS[number].items()}
    worst = max(parts, key=parts.__getitem__)
    detail = "against Pollux: " + ", ".join(f"{name} {100 * (part - 1):+.0f} %" for name, part in parts.items())
    what = f"goodput, workload {number}"
    return [
        table.Row("policies", f"{what}, makespan", ran.makespan_s, "s", MAKESPAN[number]),
        table.Row("policies", f"{what}, {worst}", ran.models_s[worst], "s", MODELS[number][worst], detail=detail),
    ]


def simulated(policy: str, number: int, freedom: recorded.Freedom, data: Path, *, lockstep: bool = False) -> Ran:
    of = recorded.read(recorded.Recorded(file=f"adaptdl/workloads/workload-{number}.csv"), data, freedom, 1.0)
    settings = simulation.Settings(name=policy, rules=plans.Rules(policy=policy), lockstep=lockstep)
    machines = cluster.machines(cluster.parse(["16x4"]))
    sim = simulation.Simulation(of, machines, settings, planning.plan, memo=memos.Memo())
    stories = asyncio.run(sim.run()).outcome.stories
    if len(stories) != 160 or any(story.phase != "COMPLETED" for story in stories):
        raise RuntimeError(f"Not every job of workload {number} was completed with {policy}.")
    ended = {story.job: story.ended or math.inf for story in stories}
    lasted = {story.job: ended[story.job] - story.arrived for story in stories}
    models: dict[str, list[float]] = {}
    for arrival in of.arrivals:
        if isinstance(arrival.job_model, traces.Trained):
            models.setdefault(arrival.job_model.model.name, []).append(lasted[arrival.id])
    return Ran(
        statistics.fmean(lasted.values()),
        max(ended.values()) - min(story.arrived for story in stories),
        {name: statistics.fmean(times) for name, times in models.items()},
        statistics.fmean(max(0, story.starts - 1) for story in stories),
        1000 * statistics.median(sim.decided_s),
    )


def _better(published: dict[int, float]) -> dict[int, float]:
    return {number: BETTER * seconds for number, seconds in published.items()}
