"""The memo that one plan leaves for the next one."""

from __future__ import annotations

from oarlock.scheduler.explaining import impossible
from oarlock.scheduler.placement import freespace
from oarlock.scheduler.reuse import differences, gangfacts, leaftotals, waitingorder
from oarlock.spec import plans


class Memo:
    """The facts that one plan leaves for the next, which brings them up to date by the differences.

    They are the free space now and later, the sums of the pools, the order of the waiting gangs, the facts about each
    gang, and the gangs that could never run.
    """

    def __init__(self) -> None:
        self.space = freespace.FreeSpace()
        self.later = freespace.FreeSpace()
        self.facts = gangfacts.Facts()
        self.changed = differences.Differences(self.facts)
        self.totals = leaftotals.LeafTotals(self.facts)
        self.standings = waitingorder.WaitingOrders(self.facts)
        self.declared = impossible.Declared((), ())

    def follow(self, snapshot: plans.Snapshot) -> freespace.FreeSpace:
        """Take in a snapshot. Return the later free space: the same object as `space` where the two cannot differ."""
        self.declared = self.declared.follow(snapshot)
        self.facts.follow(snapshot)
        self.changed.follow(snapshot)
        self.totals.follow(self.changed)
        self.space.follow(snapshot.nodes, snapshot.running)
        if not snapshot.reallocate and not self.changed.stopping:
            return self.space
        self.later.follow(snapshot.nodes, [job for job in snapshot.running if not job.stopping])
        return self.later
