"""Who is looked at first: every leaf's policy orders its gangs, and the leaf that is furthest below its entitlement
goes next.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from oarlock.scheduler import usage as usages
from oarlock.scheduler.policies import known, port
from oarlock.spec import holdings, plans, pools


class Turn(NamedTuple):
    """One wish, its candidate, and whether its policy has decided the size."""

    wish: port.Wish
    candidate: port.Candidate
    sizing: bool


def candidates(snapshot: plans.Snapshot, now: float) -> list[port.Candidate]:
    """Everybody who has or wants something; who is being stopped for good wants nothing more."""
    return [
        *(port.Candidate(gang=gang, served_s=gang.served_s) for gang in snapshot.waiting),
        *(
            port.Candidate(gang=job.gang, running=job, served_s=served_s(job, now))
            for job in snapshot.running
            if not job.stopping or job.returns
        ),
    ]


def served_s(running: plans.Running, now: float) -> float:
    """Device-seconds (CPU-seconds without devices) that the gang has held up to now."""
    amount = sum((claim.amount for claim in running.holdings), holdings.Resources())
    return running.gang.served_s + max(0.0, now - running.started_at) * (amount.devices or amount.cpus_milli / 1000)


class Order:
    """The wishes of all leaves as one sequence. Whoever takes from it counts in `usage` what it grants, so that the
    next turn is the right leaf's.
    """

    def __init__(self, snapshot: plans.Snapshot, now: float, usage: usages.Usage, budgets: Budgets) -> None:
        self._usage = usage
        self._rules = snapshot.rules
        leaves: dict[str, list[port.Candidate]] = {}
        for one in candidates(snapshot, now):
            leaves.setdefault("" if usage.single else one.gang.pool, []).append(one)
        self.turns: dict[str, list[Turn]] = {
            leaf: self._turns(usage.pools.get(leaf or pools.DEFAULT), ones, budgets.of(leaf), now)
            for leaf, ones in leaves.items()
        }

    def _turns(
        self, pool: pools.Pool | None, ones: list[port.Candidate], budget: port.Budget, now: float
    ) -> list[Turn]:
        rules = self._rules
        policy = known.named((pool.policy if pool else None) or rules.policy)
        by_job = {one.gang.job: one for one in ones}
        wishes = policy.wishes(ones, budget, now, rules, rules.policies.get(policy.name, {}))
        return [Turn(wish, by_job[wish.job], policy.sizing) for wish in wishes]

    def __iter__(self) -> Iterator[Turn]:
        """The leaf with the least of its entitlement first, each in its policy's order."""
        waiting = [(self._usage.ratio(leaf), leaf, 0) for leaf in self.turns]
        heapq.heapify(waiting)
        while waiting:
            _, leaf, place = heapq.heappop(waiting)
            yield self.turns[leaf][place]
            if place + 1 < len(self.turns[leaf]):
                heapq.heappush(waiting, (self._usage.ratio(leaf), leaf, place + 1))


class Budgets:
    """What each leaf may divide: its entitlement, or all there is where nothing bounds it."""

    def __init__(self, ready: list[tuple[int, holdings.Resources]], usage: usages.Usage) -> None:
        self._usage = usage
        self._whole = port.Budget(
            amount=sum((amount for _, amount in ready), holdings.Resources()),
            node_devices=tuple(sorted((devices for devices, _ in ready), reverse=True)),
        )

    def of(self, leaf: str) -> port.Budget:
        entitled = {} if self._usage.single else self._usage.entitled.get(leaf, {})
        whole = self._whole.amount
        return port.Budget(
            amount=holdings.Resources(
                cpus_milli=min(whole.cpus_milli, int(entitled.get("cpus", whole.cpus_milli / 1000) * 1000 + 0.5)),
                memory_bytes=min(whole.memory_bytes, int(entitled.get("memory", whole.memory_bytes))),
                gpus=min(whole.gpus, int(entitled.get("gpus", whole.gpus) + usages.SLACK)),
            ),
            node_devices=self._whole.node_devices,
        )
