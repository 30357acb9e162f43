"""The order of all turns: each leaf pool by its policy, and the leaf that is furthest below its entitlement first.

A policy is asked about all gangs of its leaf. A policy that ranks each gang by itself (`contract.ranking`) is asked
only about the gangs that arrived since the last plan; the other waiting gangs keep their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import msgspec

from oarlock.scheduler.ordering import budgets, queues, turns
from oarlock.scheduler.policies import contract, registry
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import memos, shortcuts, waitingorder
from oarlock.spec import plans
from oarlock.spec.cluster import pools


class Order:
    """The queues of all leaves. There is one leaf, named "", where the only pool has no bound."""

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        bounds: poolbounds.PoolBounds,
        budget: contract.Budget,
        memo: memos.Memo,
        taken: shortcuts.Shortcuts,
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._bounds = bounds
        self._facts = memo.facts
        self._changed = memo.changed
        self._declared = memo.declared
        self._candidates: dict[str, contract.Candidate] = {}
        self._rules = snapshot.rules
        leaves = self._leaves()
        policies = {leaf: self._policy(leaf) for leaf in leaves}
        ranked = policies.items() if taken.ranking else ()
        found = {leaf: contract.ranking(policy, self._given(policy)) for leaf, policy in ranked}
        rankings = {
            leaf: waitingorder.LeafRanking(rank, policies[leaf].reserves)
            for leaf, rank in found.items()
            if rank is not None
        }
        by = [(leaf, policies[leaf].name, self._given(policies[leaf])) for leaf in rankings]
        memo.standings.follow(snapshot, memo.changed, rankings, by)
        listed = self._listed(leaves - rankings.keys())
        returning: dict[str, list[contract.Candidate]] = {}
        for job in memo.changed.stopping:
            if job.returns:
                returning.setdefault(self.leaf(job.gang), []).append(self.candidate(job))
        self.queues: dict[str, queues.Ranked | queues.Listed] = {}
        for leaf in sorted(leaves):
            if leaf in rankings:
                self.queues[leaf] = queues.Ranked(memo.standings.of(leaf, rankings[leaf]), returning.get(leaf, ()))
            else:
                share = budgets.of_leaf(budget, leaf, bounds)
                self.queues[leaf] = queues.Listed(self._turns(policies[leaf], listed[leaf], share))

    def leaf(self, gang: plans.Gang) -> str:
        return "" if self._bounds.single else gang.pool

    def turn(self, running: plans.Running) -> turns.Turn:
        """Return the policy's turn for a gang that runs, or is being stopped."""
        return self.queues[self.leaf(running.gang)].turn(self.candidate(running))

    def level(self, running: plans.Running) -> float:
        return self.queues[self.leaf(running.gang)].level(self.candidate(running))

    def extras_level(self, running: plans.Running) -> float:
        """Return the level of the tasks above the gang's minimum."""
        level = self.turn(running).wish.extras_level
        return self.level(running) if level is None else level

    def sizes(self, leaf: str) -> bool:
        """Return whether the leaf's policy decides sizes."""
        queue = self.queues.get(leaf)
        return queue is not None and queue.sizes

    def back(self, running: plans.Running) -> None:
        """Give a turn to a gang that lost its place in this plan."""
        self.queues[self.leaf(running.gang)].back(self.turn(running))

    def noted(self) -> list[turns.Turn]:
        """Return the turns of gangs for which an earlier plan found a place, in order of arrival.

        Gangs that are being stopped and will return are among them.
        """
        waiting = [contract.waiting(gang) for gang in self._changed.noted.values()]
        stopping = [self.candidate(job) for job in self._changed.stopping if job.returns]
        found = [self.queues[self.leaf(one.gang)].turn(one) for one in (*waiting, *stopping)]
        return sorted(found, key=lambda turn: turn.candidate.arrival)

    def listed(self) -> Iterator[turns.Turn]:
        """Return the turns of the policies that look at all their gangs together."""
        return (turn for queue in self.queues.values() if isinstance(queue, queues.Listed) for turn in queue.turns)

    def candidate(self, job: plans.Running) -> contract.Candidate:
        one = self._candidates.get(job.gang.job)
        if one is None:
            held_s = max(0.0, self._now - job.started_at) * self._facts.held(job).weight
            one = self._candidates[job.gang.job] = contract.Candidate(
                gang=job.gang, running=job, served_s=job.gang.served_s + held_s
            )
        return one

    def _leaves(self) -> set[str]:
        if self._bounds.single:
            return {""}
        waiting = {pool for pool, gangs in self._changed.pools.items() if gangs}
        return waiting | {job.gang.pool for job in self._snapshot.running}

    def _policy(self, leaf: str) -> contract.Policy:
        pool = self._bounds.pools.get(leaf or pools.DEFAULT)
        return registry.named((pool.policy if pool else None) or self._rules.policy)

    def _given(self, policy: contract.Policy) -> Mapping[str, float]:
        return self._rules.policies.get(policy.name, {})

    def _listed(self, leaves: set[str]) -> dict[str, list[contract.Candidate]]:
        """Return all gangs of these leaves, except those that are being stopped for good."""
        found: dict[str, list[contract.Candidate]] = {leaf: [] for leaf in leaves}
        for pool, gangs in self._changed.pools.items():
            if (leaf := "" if self._bounds.single else pool) in leaves:
                found[leaf] += [contract.waiting(gang) for gang in gangs.values()]
        for job in self._snapshot.running if leaves else ():
            if (leaf := self.leaf(job.gang)) in leaves and (job.returns or not job.stopping):
                found[leaf].append(self.candidate(job))
        return found

    def _turns(
        self, policy: contract.Policy, ones: list[contract.Candidate], budget: contract.Budget
    ) -> list[turns.Turn]:
        by_job = {one.gang.job: one for one in ones}
        wishes = policy.wishes(ones, budget, self._now, self._rules, self._given(policy))
        of, sizing, reserves = self._facts.of, policy.sizing, policy.reserves
        return [
            turns.Turn.new(wish, one, of(one.gang), sizing=sizing, reserves=reserves)
            for wish in wishes
            for one in (self._narrowed(by_job[wish.job], wish.on),)
        ]

    def _narrowed(self, one: contract.Candidate, gpu_type: str) -> contract.Candidate:
        """Return a waiting candidate as if it asked for one type alone, where its policy has decided on that type.

        A policy counts devices, not CPUs or memory. Where no node of the type could hold the gang, it keeps all types.
        """
        if not gpu_type or one.running is not None:
            return one
        narrowed = plans.on(one.gang, gpu_type)
        possible = self._declared.never(narrowed) is None
        return msgspec.structs.replace(one, gang=narrowed) if possible else one


def by_need(queues: Mapping[str, queues.Queue], bounds: poolbounds.PoolBounds) -> Iterator[turns.Turn]:
    """Yield turns, from the leaf with the smallest part of its entitlement first; ties go to the earlier first gang.

    The caller counts in `bounds` each amount that it grants, so that the next turn comes from the right leaf.
    """
    turns = {leaf: iter(queue) for leaf, queue in queues.items()}
    heap = [(bounds.ratio(leaf), queue.first, leaf) for leaf, queue in queues.items()]
    heapq.heapify(heap)
    given_up = bounds.given_up
    while heap:
        _, first, leaf = heap[0]
        changes = bounds.changes
        for turn in turns[leaf]:
            yield turn
            if bounds.changes != changes:
                break
        else:
            heapq.heappop(heap)
            continue
        if bounds.given_up != given_up:  # other leaves may take the amount that was given up
            given_up = bounds.given_up
            heap = [(bounds.ratio(other), first, other) for _, first, other in heap]
            heapq.heapify(heap)
        else:
            heapq.heapreplace(heap, (bounds.ratio(leaf), first, leaf))
