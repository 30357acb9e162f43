"""How long a plan takes in a large cluster: the whole of it, words and all, with steady churn.

Machines of 8 GPUs of three types in racks, nine pools in a tree with reservations, limits and policies of their own,
and gangs of 1 to 512 GPUs, sized by a power law: some of one rack, some elastic, some not to be preempted. The cluster
is filled until hardly anything fits. Then, round by round, 50 jobs end and 50 come, so that as many wait as before, and
a plan is made of all of them and carried out; every sixth may stop, resize and move running gangs.

What is timed is `plan` alone, from one frozen snapshot to the next. Each case has a process of its own, on one core:
`first` is a plan from nothing, as after a restart, and the memory is the largest of the process, the snapshots and the
pretended cluster included.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from bench import table
from oarlock.scheduler import planning
from oarlock.scheduler.reuse import memos
from oarlock.spec import holdings, jobfile, plans, refusals
from oarlock.spec.cluster import nodes, pools

GIB = 1 << 30
TYPES = ("h100", "h100", "a100", "a100", "v100")
EVENTS = 100
TOUCHES_EVERY = 6
ROUND_S = 10.0
DOUBLING = (500, 1000, 2000, 4000, 8000, 16_000)
PICTURE = "benchmarks/doubling.png"

POOLS = (
    # name, parent, part of the GPUs reserved, part at most, policy
    ("research", None, 0.4, None, None),
    ("vision", "research", 0.15, None, None),
    ("speech", "research", 0.1, 0.3, "las"),
    ("language", "research", 0.15, None, None),
    ("product", None, 0.3, 0.6, None),
    ("ads", "product", 0.1, None, None),
    ("search", "product", 0.1, None, "fifo"),
    ("students", None, 0.0, 0.1, None),
    ("default", None, 0.05, None, None),
)
LEAVES = ("vision", "speech", "language", "ads", "search", "students", "default")


def run() -> list[table.Row]:
    rows: list[table.Row] = []
    for policy in ("priority", "fair"):
        rows += _rows(policy, measured(10_000, 10_000, policy, 120), 10_000, first_s=5.0, p99_ms=1000.0)
        rows += _rows(policy, measured(1000, 10_000, policy, 240), 1000, first_s=None, p99_ms=100.0)
    for policy in ("las", "goodput"):
        rows += _rows(policy, measured(1000, 10_000, policy, 60), 1000, first_s=None, p99_ms=None)
    return rows + _curve()


def _rows(
    policy: str, found: dict[str, Any], count: int, *, first_s: float | None, p99_ms: float | None
) -> list[table.Row]:
    on = f"{policy}, {count:,} nodes, 10,000 gangs wait"
    rounds, touching = found["rounds_ms"], found["touching_ms"]
    detail = f"median {table.median(rounds):.0f}, slowest {max(rounds):.0f}; " + (
        f"{len(rounds)} rounds, of which {len(touching)} may touch running gangs: median {table.median(touching):.0f}"
    )
    return [
        table.Row("scheduling", f"first plan, {on}", found["first_s"], "s", first_s, detail=found["held"]),
        table.Row("scheduling", f"round p99, {on}", table.percentile(rounds, 0.99), "ms", p99_ms, detail=detail),
        table.Row("scheduling", f"memory, {on}", found["memory_mb"], "MB", 2000.0 if first_s else None),
    ]


def _curve() -> list[table.Row]:
    """Measure as many gangs as nodes, from 500 to 16,000: the time of a round, and its growth against n log n."""
    times = {count: table.median(measured(count, count, "priority", 60)["rounds_ms"]) for count in DOUBLING}
    least, most = DOUBLING[0], DOUBLING[-1]
    grown = (times[most] / times[least]) / (most * math.log(most) / (least * math.log(least)))
    told = ", ".join(f"{count:,}: {ms:.1f}" for count, ms in times.items())
    what = "a round's growth from 500 to 16,000 nodes and gangs, against n log n"
    points = tuple((float(count), ms) for count, ms in times.items())
    return [table.Row("scheduling", what, grown, "x", 1.0, False, f"median ms: {told}", points, PICTURE)]


def measured(count: int, waiting: int, policy: str, rounds: int) -> dict[str, Any]:
    """One case, in a process of its own."""
    command = [sys.executable, "-m", "bench.scheduler.scheduling", str(count), str(waiting), policy, str(rounds)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Cluster:
    """A cluster that carries the plans out. A gang that has not changed is the same object in the next snapshot."""

    def __init__(self, count: int, waiting: int, policy: str, seed: int = 1) -> None:
        self.dice = random.Random(seed)
        self.nodes = machines(count)
        self.pools = tree(8 * count)
        self.wanted = waiting
        self.now = 1_000_000.0
        self.rules = plans.Rules(policy=policy, round_s=ROUND_S * TOUCHES_EVERY)
        self.waiting: dict[str, plans.Gang] = {}
        self.running: dict[str, plans.Running] = {}
        self.told_at: dict[str, float] = {}
        self.born = 0
        self.most = min(512, 2 * count)

    def snapshot(self, *, touches: bool) -> plans.Snapshot:
        return plans.Snapshot(
            nodes=self.nodes,
            pools=self.pools,
            waiting=tuple(self.waiting.values()),
            running=tuple(self.running.values()),
            rules=self.rules,
            reallocate=touches,
        )

    def fill(self) -> None:
        """Submit gangs until almost none of the new ones fits any more."""
        memo = memos.Memo()
        for _ in range(12):
            self.arrive(self.wanted)
            plan = planning.plan(self.snapshot(touches=False), self.now, memo, words=False)
            self.carry_out(plan)
            self.now -= 3600.0 * self.dice.random()
            if len(plan.launches) < EVENTS:
                break
        self.now = 1_000_000.0
        self.arrive(self.wanted)

    def arrive(self, wanted: int) -> None:
        while len(self.waiting) < wanted:
            gang = self.gang(f"job-{self.born:06}")
            self.waiting[gang.job] = gang
            self.born += 1

    def churn(self) -> None:
        """End 50 gangs, submit 50, and remove those that were stopped."""
        self.now += ROUND_S
        for job in [job for job, one in self.running.items() if one.stopping]:
            one = self.running.pop(job)
            self.waiting[job] = msgspec.structs.replace(one.gang, stopped_at=self.now)
        for job in self.dice.sample(sorted(self.running), min(EVENTS // 2, len(self.running))):
            del self.running[job]
        for _ in range(EVENTS // 2):
            self.arrive(len(self.waiting) + 1)
        for job in self.dice.sample(sorted(self.waiting), max(0, len(self.waiting) - self.wanted)):
            del self.waiting[job]
        self.arrive(self.wanted)

    def carry_out(self, plan: plans.Plan) -> None:
        for launch in plan.launches:
            gang = msgspec.structs.replace(self.waiting.pop(launch.job), refusal=None, destined=())
            end = None if gang.lasts_s is None else self.now + gang.lasts_s
            self.running[launch.job] = plans.Running(
                gang=gang, holdings=launch.holdings, started_at=self.now, expected_end=end
            )
        for stopped in plan.preemptions:
            self._stop(stopped.job, ())
        for changed in (*plan.resizes, *plan.moves):
            self._stop(changed.job, changed.to)
        for job, refusal in plan.refusals.items():
            if self._says_something(job, refusal):
                self.waiting[job] = msgspec.structs.replace(self.waiting[job], refusal=refusal)
                self.told_at[job] = self.now

    def _says_something(self, job: str, refusal: refusals.Refusal) -> bool:
        """Judge as the server does: numbers that drift are written every 30 s."""
        known = self.waiting[job].refusal
        if refusal.same_kind(known):
            return False
        return known is None or known.code is not refusal.code or self.now - self.told_at[job] >= 30.0

    def _stop(self, job: str, to: tuple[holdings.Holding, ...]) -> None:
        one = self.running[job]
        gang = msgspec.structs.replace(one.gang, destined=to)
        self.running[job] = msgspec.structs.replace(one, gang=gang, stopping=True, returns=True)

    def gang(self, job: str) -> plans.Gang:
        dice = self.dice
        size = min(self.most, int(dice.paretovariate(0.9)))
        size = size if size < 8 else size // 8 * 8
        gpus, count = (size, 1) if size < 8 else (8, size // 8)
        elastic = count > 1 and dice.random() < 0.2
        ask = plans.Ask(
            role="worker",
            count=count,
            min=max(1, count // 2) if elastic else count,
            max=2 * count if elastic else count,
            amount=holdings.Resources(12_000 * gpus, 64 * GIB * gpus, gpus),
            gpu_types=dice.choice(((), (), ("h100",), ("h100", "a100"), ("a100", "v100"))),
            gpu_memory_bytes=dice.choice((0, 0, 40 * GIB)),
        )
        near = count > 1 and size <= 128 and dice.random() < 0.3
        return plans.Gang(
            job=job,
            name=job,
            pool=dice.choice(LEAVES),
            owner=f"user-{dice.randrange(100)}",
            asks=(ask,),
            submitted_at=self.now - dice.random() * 86_400,
            priority=dice.choice((10, 30, 50, 50, 50, 70, 90)),
            preemptible=dice.random() < 0.95,
            topology=jobfile.Topology(same=jobfile.Domain.RACK, required=dice.random() < 0.3) if near else None,
            lasts_s=dice.choice((None, 600.0, 3600.0, 86_400.0)),
            at_most_s=dice.choice((None, None, 3600.0, 86_400.0)),
        )


def machines(count: int) -> tuple[nodes.Node, ...]:
    """Return nodes in racks of 32, in zones of 64 racks."""
    return tuple(
        nodes.Node(
            name=f"node-{number:05}",
            capacity=holdings.Resources(112_000, 1024 * GIB, 8),
            devices=tuple(
                nodes.Device(
                    index=index,
                    type=TYPES[number // 32 % len(TYPES)],
                    memory_bytes=(32 if TYPES[number // 32 % len(TYPES)] == "v100" else 80) * GIB,
                )
                for index in range(8)
            ),
            domains={"rack": f"rack-{number // 32}", "zone": f"zone-{number // 2048}"},
            price_per_h=20.0,
        )
        for number in range(count)
    )


def tree(gpus: int) -> tuple[pools.Pool, ...]:
    return tuple(
        pools.Pool(
            name=name,
            parent=parent,
            reserve={"gpus": float(int(reserve * gpus))} if reserve else {},
            limit={"gpus": float(int(limit * gpus))} if limit else {},
            policy=policy,
        )
        for name, parent, reserve, limit, policy in POOLS
    )


def case(count: int, waiting: int, policy: str, rounds: int) -> dict[str, Any]:
    cluster = Cluster(count, waiting, policy)
    cluster.fill()
    cluster.arrive(waiting)
    gc.collect()
    memo = memos.Memo()
    began = time.process_time()
    plan = planning.plan(cluster.snapshot(touches=True), cluster.now, memo)
    first_s = time.process_time() - began
    cluster.carry_out(plan)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(1, rounds + 1):
        cluster.churn()
        touches = number % TOUCHES_EVERY == 0
        snapshot = cluster.snapshot(touches=touches)
        began = time.process_time()
        plan = planning.plan(snapshot, cluster.now, memo)
        taken[touches].append(1000 * (time.process_time() - began))
        cluster.carry_out(plan)
    held = sum(claim.amount.gpus for job in cluster.running.values() for claim in job.holdings)
    return {
        "first_s": first_s,
        "rounds_ms": taken[True] + taken[False],
        "touching_ms": taken[True],
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "held": f"{len(cluster.running):,} run on {held / (8 * count):.0%} of the GPUs",
    }


def _arguments(given: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduler.scheduling", description=__doc__)
    parser.add_argument("nodes", type=int)
    parser.add_argument("gangs", type=int)
    parser.add_argument("policy")
    parser.add_argument("rounds", type=int)
    return parser.parse_args(None if given is None else list(given))


if __name__ == "__main__":
    asked = _arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    json.dump(case(asked.nodes, asked.gangs, asked.policy, asked.rounds), sys.stdout)
