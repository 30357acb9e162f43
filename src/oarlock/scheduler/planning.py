"""`plan(snapshot, now) -> Plan`: who starts, grows, moves or stops now, and why the others wait.

The answer is a function of the snapshot and of nothing else: not of the order in which its parts are listed, and not of
the memo, which only saves work. Whoever carries it out may die half way: asked again, the scheduler goes on from what
is. Three things are put together here: what each pool is entitled to (`pools`), who comes first (`ordering`, over
`policies/`), and what can be granted (`granting`, over `placement`).
"""

from __future__ import annotations

from oarlock.scheduler.explaining import impossible
from oarlock.scheduler.granting import drafts, grants
from oarlock.scheduler.ordering import budgets, turnorder
from oarlock.scheduler.placement import freespace
from oarlock.scheduler.policies import contract
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import differences, gangfacts, leaftotals, waitingorder
from oarlock.spec import nodes, plans


class Memo:
    """The facts that one plan leaves for the next, brought up to date by what differs: the free space now and later,
    the sums of the pools, the order of the waiting gangs, the facts about each gang, and what could never run.
    """

    def __init__(self) -> None:
        self.space = freespace.FreeSpace()
        self.later = freespace.FreeSpace()
        self.facts = gangfacts.Facts()
        self.changed = differences.Differences(self.facts)
        self.totals = leaftotals.LeafTotals(self.facts)
        self.standings = waitingorder.WaitingOrders(self.facts)
        self.declared = impossible.Declared((), ())
        self._nodes: tuple[nodes.Node, ...] = ()
        self._budget = budgets.whole(())

    def follow(self, snapshot: plans.Snapshot) -> freespace.FreeSpace:
        """The room as it will be: the same object as the one that is, where nothing can differ."""
        self.declared = self.declared.follow(snapshot)
        self.facts.follow(snapshot)
        self.changed.follow(snapshot)
        self.totals.follow(self.changed)
        self.space.follow(snapshot.nodes, snapshot.running)
        if not snapshot.reallocate and not self.changed.stopping:
            return self.space
        self.later.follow(snapshot.nodes, [job for job in snapshot.running if not job.stopping])
        return self.later

    def budget(self, snapshot: plans.Snapshot) -> contract.Budget:
        """What the nodes that are ready have together, and who has ended."""
        if snapshot.nodes is not self._nodes or snapshot.ended is not self._budget.ended:
            self._nodes = snapshot.nodes
            self._budget = budgets.whole((node for node in snapshot.nodes if node.ready), snapshot.ended)
        return self._budget


def plan(snapshot: plans.Snapshot, now: float, memo: Memo | None = None, *, words: bool = True) -> plans.Plan:
    """The plan for `snapshot` at `now` (Unix seconds); without `words` for whoever reads no refusals.

    Raises InvalidInput where the rules or a pool name a policy or a parameter that there is not.
    """
    memo = memo or Memo()
    later = memo.follow(snapshot)
    budget = memo.budget(snapshot)
    bounds = poolbounds.PoolBounds(snapshot, now, budget.amount, memo.totals)
    order = turnorder.Order(snapshot, now, bounds, budget, memo.facts, memo.changed, memo.standings, memo.declared)
    draft = drafts.Draft(snapshot, now, memo.space, later, bounds, order, memo.facts, memo.declared)
    draft.context.terse = not words
    return grants.Granting(draft, order).plan()
