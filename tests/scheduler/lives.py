"""The life of a random cluster: jobs come, end and fail, nodes are lost and come back, and after each step a plan.

All chance comes from one `random.Random`; so a seed is a life, and Hypothesis can make one smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from tests.scheduler import clusters, invariants, world

from oarlock.scheduler import planning
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.scheduler.reuse import memos
from oarlock.spec import curves, holdings, jobfile, plans
from oarlock.spec.cluster import nodes, pools

GIB = 1 << 30
POLICIES = ("fifo", "priority", "fair", "las", "gandiva")
TYPES = ("v100", "h100")

ALONE = curves.Sample(nodes=1, devices=1, local=8, step_s=1.0, sync_s=0.0, count=5)

Plan = Callable[[plans.Snapshot, float, memos.Memo | None], plans.Plan]


class Kind(NamedTuple):
    """The events that may occur in a life."""

    policies: Sequence[str] = POLICIES
    pools: bool = True
    faults: bool = True
    elastic: bool = True
    shares: bool = True
    roles: bool = True
    topology: bool = True
    pairs: bool = False  # small gangs that may share a device, and what is measured of them
    walls: bool = False  # taints that some gangs tolerate, and labels that some need
    most_nodes: int = 5
    most_waiting: int = 12


ANY = Kind()


class Life:
    def __init__(self, dice: random.Random, kind: Kind = ANY, plan: Plan = planning.plan) -> None:
        self.dice = dice
        self.kind = kind
        self.plan = plan
        self.now = 1000.0
        self.memo = memos.Memo()
        self.rounds = 0
        self.born = 0
        self.world = world.World(
            plans.Rules(
                policy=dice.choice(list(kind.policies)),
                min_runtime_s=dice.choice([0.0, 60.0, 120.0]),
                restart_s=dice.choice([5.0, 30.0]),
                backfill=dice.random() < 0.9,
            )
        )
        for number in range(dice.randint(1, kind.most_nodes)):
            self.world.nodes[f"n{number}"] = self._node(f"n{number}")
        if kind.pools and dice.random() < 0.7:
            self._pools()

    def step(self) -> plans.Plan:
        """Something happens, then a plan is made, looked at, and carried out."""
        self.happen()
        if self.kind.pairs:
            self._measure()
        snapshot = self.world.snapshot(reallocate=self.dice.random() < 0.6)
        plan = self.plan(snapshot, self.now, self.memo)
        invariants.check(snapshot, plan, self.now)
        failing = {launch.job for launch in plan.launches if self.kind.faults and self.dice.random() < 0.05}
        self.world.carry_out(plan, self.now, failing=failing)
        for job in failing:
            self._waits_on(job, not_before=self.now + self.dice.choice([1.0, 10.0, 100.0]))
        self.rounds += 1
        return plan

    def happen(self) -> None:
        dice, running = self.dice, self.world.running
        self.now += dice.choice([0.5, 1.0, 5.0, 30.0, 60.0, 200.0])
        for job in [job for job, one in running.items() if one.stopping and dice.random() < 0.6]:
            self.world.gone(job, self.now)
        for job in [job for job, one in running.items() if not one.stopping and dice.random() < 0.06]:
            del running[job]
        for job, one in list(running.items()):
            if not one.stopping and dice.random() < 0.1:
                running[job] = self._progressed(one)
        for _ in range(dice.choice([0, 0, 0, 1, 1, 2])):
            if len(self.world.waiting) < self.kind.most_waiting:
                self.arrive()
        if self.world.waiting and dice.random() < 0.05:
            del self.world.waiting[dice.choice(sorted(self.world.waiting))]
        if self.kind.faults and dice.random() < 0.15:
            self._fault()
        if self.kind.walls and self.world.nodes and dice.random() < 0.1:
            name = dice.choice(sorted(self.world.nodes))
            self.world.nodes[name] = world.replace(self.world.nodes[name], **self._marks())

    def arrive(self) -> plans.Gang:
        """A gang that could never run is refused when it is submitted (but may become impossible later)."""
        while True:
            self.born += 1
            gang = self.draw(f"j{self.born:04}")
            if reasons.never(gang, contexts.Context(self.world.snapshot())) is None:
                self.world.waiting[gang.job] = gang
                return gang

    # Faults

    def _fault(self) -> None:
        dice, running = self.dice, self.world.running
        what = dice.choice(["lost", "back", "back", "gone", "fails", "halt", "pool", "swap"])
        name = dice.choice(sorted(self.world.nodes)) if self.world.nodes else ""
        if what in {"lost", "gone"} and name:
            self.world.nodes[name] = world.replace(self.world.nodes[name], ready=False)
            for job, one in list(running.items()):
                if any(claim.node == name for claim in one.holdings):
                    self.world.stop(job)
            if what == "gone":
                del self.world.nodes[name]
        elif what == "back":
            for name, node in list(self.world.nodes.items()):
                self.world.nodes[name] = world.replace(node, ready=True)
            if len(self.world.nodes) < self.kind.most_nodes:
                name = f"n{dice.randint(0, 9)}"
                self.world.nodes.setdefault(name, self._node(name))
        elif what == "fails" and running:
            job = dice.choice(sorted(running))
            self.world.stop(job)
        elif what == "halt" and running:
            job = dice.choice(sorted(running))
            self.world.running[job] = world.replace(running[job], stopping=True, returns=False)
        elif what == "pool" and self.world.pools:
            name = dice.choice(sorted(self.world.pools))
            self.world.pools[name] = self._bounds(self.world.pools[name])

    def _waits_on(self, job: str, *, not_before: float) -> None:
        if job in self.world.waiting:
            self.world.waiting[job] = world.replace(self.world.waiting[job], not_before=not_before)

    def _progressed(self, one: plans.Running) -> plans.Running:
        dice = self.dice
        return world.replace(
            one,
            checkpoint_at=dice.choice([None, self.now, max(one.started_at, self.now - 50)]),
            expected_end=dice.choice([None, self.now + dice.choice([1, 50, 500])]),
        )

    def _measure(self) -> None:
        """Some that run are measured, alone or beside another one: at times it pays, at times it does not."""
        dice = self.dice
        on: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for job, one in self.world.running.items():
            for claim in one.holdings:
                if not one.stopping and claim.amount.devices <= 1 and len(one.holdings) == 1:
                    on.setdefault((claim.node, claim.devices), []).append(job)
        for here in on.values():
            for job in here:
                beside = "".join(other for other in here if other != job)
                if dice.random() < 0.5:
                    step_s = 1.0 if not beside else dice.choice([1.1, 4.0, 4.0])
                    self.world.learn(job, [world.replace(ALONE, beside=beside, step_s=step_s)])

    # The state

    def _node(self, name: str) -> nodes.Node:
        dice = self.dice
        kind, count = dice.choice(TYPES), dice.choice([0, 1, 2, 4, 4, 8])
        memory = dice.choice([16, 80]) * GIB
        marks = self._marks() if self.kind.walls else {}
        return nodes.Node(
            **marks,
            name=name,
            capacity=holdings.Resources(dice.choice([4, 16, 32]) * 1000, dice.choice([8, 64]) * GIB, count),
            devices=tuple(nodes.Device(index=index, type=kind, memory_bytes=memory) for index in range(count)),
            domains={"rack": f"r{dice.randint(0, 1)}"},
            ports=dice.choice([None, None, (20000, 20019)]),
            price_per_h=dice.choice([0.0, 1.0, 2.0]),
        )

    def _marks(self) -> dict[str, Any]:
        dice = self.dice
        return {
            "taints": dice.choice([(), (), (), *clusters.CLOSED]),
            "labels": dice.choice([{}, {"disk": "ssd"}, {"disk": "hdd"}]),
        }

    def draw(self, name: str) -> plans.Gang:
        dice, kind = self.dice, self.kind
        asks = [self._ask("worker")]
        pairs = kind.pairs and dice.random() < 0.8
        if pairs:
            amount = holdings.Resources(500, 0, 1)
            asks = [plans.Ask(role="worker", count=1, min=1, max=1, amount=amount, gpu_memory_bytes=8 * GIB)]
        if kind.roles and dice.random() < 0.15:
            asks.append(self._ask("ps"))
        if kind.walls:
            held = dice.choice([None, None, *clusters.CONSTRAINTS])
            asks = [world.replace(ask, constraints=held) for ask in asks]
        same = dice.choice(["node", "rack"]) if kind.topology and dice.random() < 0.15 else None
        leaves = self.leaves()
        return plans.Gang(
            job=name,
            name=name,
            pool=dice.choice(leaves),
            owner=dice.choice(["ada", "bob", "eve"]),
            asks=tuple(asks),
            submitted_at=self.now - dice.choice([0.0, 0.0, 1.0]),
            priority=dice.choice([10, 50, 50, 90]),
            preemptible=dice.random() < 0.85,
            placement=dice.choice(list(jobfile.Placement)),
            topology=None
            if same is None
            else jobfile.Topology(same=jobfile.Domain(same), required=dice.random() < 0.5),
            mixed=dice.random() < 0.1,
            beside=dice.choice([None, True, False]) if len(asks) > 1 else None,
            lasts_s=dice.choice([None, 20.0, 300.0]),
            at_most_s=dice.choice([None, None, 40.0, 400.0]),
            curve=curves.Curve(model=curves.Table(rates=(1.0,)), samples=(ALONE,)) if pairs else None,
        )

    def _ask(self, role: str) -> plans.Ask:
        dice = self.dice
        count = dice.choice([1, 1, 1, 2, 2, 3, 4, 8])
        elastic = self.kind.elastic and dice.random() < 0.35
        gpus, milli = dice.choice([(0, 0), (1, 0), (1, 0), (1, 0), (2, 0), (4, 0), (0, 500)])
        if role == "ps":
            gpus, milli, count = 0, 0, min(count, 2)
        elif not self.kind.shares:
            milli, gpus = 0, gpus or 1
        return plans.Ask(
            role=role,
            count=count,
            min=dice.randint(1, count) if elastic else count,
            max=count + dice.choice([0, 1, 4]) if elastic else count,
            amount=holdings.Resources(dice.choice([500, 1000, 4000]), dice.choice([0, 1]) * GIB, gpus, milli),
            ports=dice.choice([0, 0, 4]),
            gpu_types=dice.choice([(), (), (), ("h100",), ("h100", "v100")]),
            gpu_memory_bytes=dice.choice([0, 0, 8]) * GIB,
        )

    def leaves(self) -> list[str]:
        parents = {pool.parent for pool in self.world.pools.values()}
        return sorted({*(name for name in self.world.pools if name not in parents), pools.DEFAULT} - parents) or ["x"]

    def _pools(self) -> None:
        dice = self.dice
        for name, parent in (("a", None), ("b", None), ("a1", "a"), ("a2", "a")):
            if parent is None or (parent in self.world.pools and dice.random() < 0.5):
                self.world.pools[name] = self._bounds(pools.Pool(name=name, parent=parent))

    def _bounds(self, pool: pools.Pool) -> pools.Pool:
        dice = self.dice
        reserve = {"gpus": float(dice.choice([1, 2, 4]))} if dice.random() < 0.5 else {}
        limit = {"gpus": float(dice.choice([2, 4, 8]))} if dice.random() < 0.4 else {}
        if dice.random() < 0.2:
            limit["cpus"] = dice.choice([2.0, 8.5])
        return msgspec.structs.replace(
            pool,
            reserve=reserve,
            limit=limit,
            share={"gpus": dice.choice([0.5, 1.0, 3.0])} if dice.random() < 0.3 else {},
            static=("gpus",) if reserve and dice.random() < 0.3 else (),
            policy=dice.choice([None, None, *self.kind.policies]),
        )
