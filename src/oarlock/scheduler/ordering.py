"""Who is looked at first: every leaf's policy orders its gangs, and the leaf that is furthest below its entitlement
goes next.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from oarlock.scheduler import profiles
from oarlock.scheduler import usage as usages
from oarlock.scheduler.policies import known, port
from oarlock.spec import curves, holdings, plans, pools


class Turn(NamedTuple):
    """One wish, its candidate, and of its policy whether it has decided the size, and whether places are kept for its
    gangs.
    """

    wish: port.Wish
    candidate: port.Candidate
    sizing: bool
    reserves: bool = True

    @property
    def runs(self) -> bool:
        """Whether it has a place that it may keep."""
        running = self.candidate.running
        return running is not None and not running.stopping

    def batch(self, size: plans.Size) -> curves.Batch | None:
        """The batch size that was decided for it, if it gets the size for which it was decided."""
        return self.wish.batch if self.wish.size == size else None


class Order:
    """The wishes of all leaves. `turns` are by leaf, in the order of its policy; all are in the leaf "" where nothing
    bounds the only pool.
    """

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        usage: usages.Usage,
        budget: port.Budget,
        profiled: profiles.Profiles,
    ) -> None:
        self._rules = snapshot.rules
        self._profiled = profiled
        leaves: dict[str, list[port.Candidate]] = {}
        for gang in snapshot.waiting:
            one = port.Candidate(gang=gang, served_s=gang.served_s)
            leaves.setdefault("" if usage.single else gang.pool, []).append(one)
        for job in snapshot.running:
            if not job.stopping or job.returns:  # who is being stopped for good wants nothing more
                one = port.Candidate(gang=job.gang, running=job, served_s=self._served_s(job, now))
                leaves.setdefault("" if usage.single else job.gang.pool, []).append(one)
        self.turns: dict[str, list[Turn]] = {
            leaf: self._turns(usage.pools.get(leaf or pools.DEFAULT), ones, _budget(budget, leaf, usage), now)
            for leaf, ones in sorted(leaves.items())
        }

    def _turns(
        self, pool: pools.Pool | None, ones: list[port.Candidate], budget: port.Budget, now: float
    ) -> list[Turn]:
        rules = self._rules
        policy = known.named((pool.policy if pool else None) or rules.policy)
        by_job = {one.gang.job: one for one in ones}
        wishes = policy.wishes(ones, budget, now, rules, rules.policies.get(policy.name, {}))
        return [Turn(wish, by_job[wish.job], policy.sizing, policy.reserves) for wish in wishes]

    def _served_s(self, job: plans.Running, now: float) -> float:
        """Device-seconds (CPU-seconds without devices) that the gang has held up to now."""
        return job.gang.served_s + max(0.0, now - job.started_at) * self._profiled.held(job).weight


def by_need(turns: Mapping[str, Sequence[Turn]], usage: usages.Usage, passes: Callable[[Turn], bool]) -> Iterator[Turn]:
    """The leaf with the least of its entitlement first; of equal ones the one whose next gang came first. Whoever takes
    from it counts in `usage` what it grants, so that the next turn is the right leaf's. Who `passes` when its leaf has
    come that far is left out.
    """
    left = {leaf: (turn for turn in ones if not passes(turn)) for leaf, ones in turns.items()}
    if len(left) == 1:
        yield from left.popitem()[1]
        return
    heap: list[tuple[float, tuple[float, str], str, Turn]] = []

    def go_on(leaf: str) -> None:
        turn = next(left[leaf], None)
        if turn is not None:
            heapq.heappush(heap, (usage.ratio(leaf), turn.candidate.arrival, leaf, turn))

    for leaf in left:
        go_on(leaf)
    given_up = usage.given_up
    while heap:
        _, _, leaf, turn = heapq.heappop(heap)
        yield turn
        if usage.given_up != given_up:  # by whom does not matter here: all are looked at again
            heap = [(usage.ratio(other), arrival, other, turn) for _, arrival, other, turn in heap]
            heapq.heapify(heap)
            given_up = usage.given_up
        go_on(leaf)


def budget(ready: Iterable[tuple[int, holdings.Resources]], ended: tuple[plans.Ended, ...] = ()) -> port.Budget:
    """All there is, of nodes that are ready: the devices of each, and what it has; and who has ended so far."""
    devices, amount = [], holdings.Resources()
    for count, capacity in ready:
        devices.append(count)
        amount += capacity
    return port.Budget(amount=amount, node_devices=tuple(sorted(devices, reverse=True)), ended=ended)


def _budget(whole: port.Budget, leaf: str, usage: usages.Usage) -> port.Budget:
    """What a leaf may divide: its entitlement, or all there is where nothing bounds it."""
    if usage.single:
        return whole
    entitled, amount = usage.entitled.get(leaf, {}), whole.amount
    return port.Budget(
        amount=holdings.Resources(
            cpus_milli=min(amount.cpus_milli, int(entitled.get("cpus", amount.cpus_milli / 1000) * 1000 + 0.5)),
            memory_bytes=min(amount.memory_bytes, int(entitled.get("memory", amount.memory_bytes))),
            gpus=min(amount.gpus, int(entitled.get("gpus", amount.gpus) + usages.SLACK)),
        ),
        node_devices=whole.node_devices,
        ended=whole.ended,
    )
