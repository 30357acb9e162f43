"""Thousands of rounds over random clusters, pools, jobs, policies and faults: whatever a plan says can be done, whole
gangs only, within every limit, and in the end no job is lost.

The ordinary suite makes a thousand rounds over fixed seeds. `make soak` makes a million over new ones: SEED repeats
one, ROUNDS says how many.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests import marks

from oarlock.scheduler import planning
from oarlock.scheduler.policies import registry
from oarlock.scheduler.reuse import memos
from oarlock.simulator import scenario
from oarlock.simulator.engine import simulation
from oarlock.spec import holdings, phases, plans
from oarlock.spec.input import validation
from oarlock.store import stores

ROUNDS = int(os.environ.get("ROUNDS") or 1_000_000)  # read before any test: a fixture takes our settings away from each
SEED = os.environ.get("SEED")


def drawn(seed: int) -> dict[str, Any]:
    """A scenario as its file would say it."""
    dice = random.Random(seed)
    nodes: list[dict[str, Any]] = [
        {"count": dice.randint(1, 4), "gpus": dice.choice((1, 2, 4, 8)), "gpu_type": kind, "per_rack": 2}
        for kind in dice.sample(("a100", "h100", "k80"), dice.randint(1, 2))
    ]
    if dice.random() < 0.3:
        nodes.append({"count": 1, "gpus": 0, "cpus": 16})
    total = sum(one["count"] * one["gpus"] for one in nodes)
    pools = [
        {"name": "default"},
        {
            "name": "a",
            "reserve": {"gpus": dice.choice((total // 3, total // 2, total))},
            "share": {"gpus": dice.choice((1.0, 2.0))},
        },
        {"name": "b", "limit": {"gpus": max(1, total // 2)}, "static": []},
    ]
    groups = [group(dice, place, nodes, pools) for place in range(dice.randint(2, 5))]
    faults = {
        "node_mtbf_s": dice.choice((5e3, 3e4, 3e8)),
        "node_mttr_s": 600,
        "job_mtbf_s": dice.choice((3e3, 3e4, 3e8)),
        "launch_failures": dice.choice((0.0, 0.02)),
    }
    run = {
        "policy": dice.choice(sorted(registry.POLICIES)),
        "round": dice.choice((20, 60)),
        "min_runtime": dice.choice((0, 120)),
        "restart": dice.choice((0, 30)),
        "backfill": dice.random() < 0.8,
    }
    return {"seed": seed, "nodes": nodes, "pools": pools, "jobs": groups, "faults": faults, "run": run}


def group(dice: random.Random, place: int, nodes: list[dict[str, Any]], pools: list[dict[str, Any]]) -> dict[str, Any]:
    """Jobs that each fit the empty cluster and pool."""
    spec: dict[str, Any] = {
        "pool": dice.choice(("default", "default", "a", "b")),
        "priority": dice.choice((10, 50, 50, 90)),
        "placement": dice.choice(("pack", "pack", "spread")),
        "max_restarts": 1000,
        "roles": {"worker": {"cpus": 1}},
    }
    made: dict[str, Any] = {"name": f"g{place}", "count": dice.randint(3, 12), "spec": spec}
    made["arrivals"] = dice.choice(({"every": dice.randint(1, 400)}, {"poisson": {"per_h": dice.randint(5, 60)}}))
    made["lasts"] = {"uniform": {"least": 30, "most": dice.choice((300, 3000))}}
    kind = dice.choice([one for one in nodes if one["gpus"]])
    most = kind["gpus"] * kind["count"]
    if dice.random() < 0.3:
        spec["roles"]["worker"]["gpu_type"] = [kind["gpu_type"]]
    if dice.random() < 0.3:
        same, required = dice.choice(("node", "rack")), dice.random() < 0.5
        spec["topology"] = {"same": same, "required": required}
        if required:
            most = kind["gpus"] * (1 if same == "node" else min(2, kind["count"]))
    if spec["pool"] == "b":
        most = min(most, pools[2]["limit"]["gpus"])
    if spec["pool"] == "a" and dice.random() < 0.5 and pools[1]["reserve"]["gpus"]:
        spec["preemptible"] = False
        most = min(most, pools[1]["reserve"]["gpus"])
    sizes = dice.choice(([1], [1, 2], [1, 2, 4], [2, 4, 8]))
    made["gpus"] = {"choice": {"values": sorted({min(size, most) for size in sizes})}}
    if dice.random() < 0.5:
        made |= {"least": 1, "most": dice.choice((4, 16)), "speed": {"amdahl": dice.choice((0.0, 0.05, 0.5))}}
    if dice.random() < 0.2:
        spec["batch"] = {"size": 64, "max": 1024, "local_max": 64}
        made["speed"] = {"allreduce": {"compute_s": 0.02, "compute_per_example_s": 0.001, "far_s": 0.02, "noise": 400}}
    return made


class Checked:
    """The real plan, with everything that it says held against the snapshot that it was made of."""

    def __init__(self) -> None:
        self.rounds = 0

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        made = planning.plan(snapshot, now, memo)
        self.rounds += 1
        waiting = {gang.job: gang for gang in snapshot.waiting}
        running = {one.job: one for one in snapshot.running}
        told = Counter(one.job for one in (*made.launches, *made.preemptions, *made.resizes, *made.moves))
        told.update(made.refusals.keys())
        assert max(told.values(), default=0) <= 1, f"twice: {told.most_common(2)}"
        for launch in made.launches:
            check_gang(waiting[launch.job], launch.holdings)
        for one in (*made.preemptions, *made.resizes, *made.moves):
            assert not running[one.job].stopping, f"{one.job} is being stopped already"
            assert snapshot.reallocate, "a plan that must not touch running gangs touched one"
        for one in made.preemptions:
            assert running[one.job].gang.preemptible, f"{one.job} must not be preempted"
        held = [claim for one in snapshot.running for claim in one.holdings]
        check_room(snapshot, [*held, *(claim for launch in made.launches for claim in launch.holdings)])
        check_limits(snapshot, made, waiting)
        return made


def check_gang(gang: plans.Gang, claims: Iterable[holdings.Holding]) -> None:
    """All of it, numbered from 0, within its bounds."""
    for ask in gang.asks:
        indexes = sorted(claim.index for claim in claims if claim.role == ask.role)
        assert indexes == list(range(len(indexes)))
        assert ask.min <= len(indexes) <= ask.max, f"{gang.job} is not whole: {len(indexes)} of {ask.min} to {ask.max}"


def check_room(snapshot: plans.Snapshot, claims: Iterable[holdings.Holding]) -> None:
    """No device twice, no more than a node's capacity, no new task on a node that is not there."""
    nodes = {node.name: node for node in snapshot.nodes}
    devices: Counter[tuple[str, int]] = Counter()
    amounts: dict[str, holdings.Resources] = {}
    for claim in claims:
        devices.update((claim.node, index) for index in claim.devices)
        amounts[claim.node] = amounts.get(claim.node, holdings.Resources()) + claim.amount
        if claim.attempt == 0:
            assert nodes[claim.node].ready, f"{claim.job} is to start on {claim.node}, which is lost"
    assert max(devices.values(), default=1) == 1, devices.most_common(2)
    for name, amount in amounts.items():
        assert name not in nodes or amount.fits(nodes[name].capacity), f"{name} holds {amount}"


def check_limits(snapshot: plans.Snapshot, made: plans.Plan, waiting: dict[str, plans.Gang]) -> None:
    """No launch takes a pool beyond its limit."""
    used: Counter[str] = Counter()
    for one in snapshot.running:
        used[one.pool] += sum(claim.amount.gpus for claim in one.holdings)
    started = set()
    for launch in made.launches:
        pool = waiting[launch.job].pool
        started.add(pool)
        used[pool] += sum(claim.amount.gpus for claim in launch.holdings)
    for pool in snapshot.pools:
        if pool.name in started and "gpus" in pool.limit:
            assert used[pool.name] <= pool.limit["gpus"], f"{pool.name} has {used[pool.name]} of {pool.limit}"


def rounds_of(seed: int, place: Path) -> int:
    """One scenario to its end; how many plans that took."""
    case = scenario.case(validation.convert(drawn(seed), scenario.Scenario), place, "r", "", None, scenario.Run())
    checked = Checked()
    sim = simulation.Simulation(case.workload, case.machines, case.settings, checked, memo=memos.Memo())
    found = asyncio.run(sim.run()).outcome
    assert len(found.stories) == len(case.workload.arrivals), "a job is lost"
    stuck = [story.job for story in found.stories if story.phase != phases.Phase.COMPLETED]
    for job_id in stuck:
        job = asyncio.run(sim.store.read(lambda view, job_id=job_id: view.job(job_id)))
        assert job is not None
        assert job.phase is phases.Phase.QUEUED, f"{job_id} is {job.phase}: {job.reason}"
        raise AssertionError(f"{job_id} waits for ever: {job.refusal.message if job.refusal else job.reason}")
    told = sum(usage.device_seconds for usage in asyncio.run(sim.store.read(usage_of)))
    assert told == pytest.approx(sum((span.end - span.start) * span.devices for span in found.spans))
    assert asyncio.run(sim.store.read(lambda view: view.holdings())) == []
    return checked.rounds


def usage_of(view: stores.View) -> list[stores.Usage]:
    return view.usage()


@pytest.mark.parametrize("first", marks.long_except([0], [0, 100, 200]))
def test_a_thousand_rounds(first: int, tmp_path: Path) -> None:
    rounds, seed = 0, first
    while rounds < 334:
        rounds += rounds_of(seed, tmp_path)
        seed += 1


@pytest.mark.soak
def test_a_million_rounds(tmp_path: Path) -> None:
    """SEED repeats one, ROUNDS says how many."""
    seed = int(SEED or random.SystemRandom().randrange(10**9))
    rounds = 0
    while rounds < ROUNDS:
        print(f"SEED={seed} after {rounds} rounds", flush=True)
        rounds += rounds_of(seed, tmp_path)
        seed += 1
        if SEED:
            break
