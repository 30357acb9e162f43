"""`plan(snapshot, now) -> Plan`: who starts, grows, moves or stops now, and why the others wait.

The answer is a function of the snapshot and of nothing else: not of the order in which its parts are listed, and not of
the memo, which only saves work. Whoever carries it out may die half way: asked again, the scheduler goes on from what
is. Three things are put together here: what each pool is entitled to (`usage`), who comes first (`ordering`, over
`policies/`), and what can be granted (`granting`, over `placement`).
"""

from __future__ import annotations

from oarlock.scheduler import drafts, granting, impossible, ordering, profiles, rolls
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.scheduler.policies import port
from oarlock.spec import nodes, plans


class Memo:
    """What one plan leaves for the next, brought up to date by what differs: the two rooms (`promises`), the sums of
    the pools, the order of those that wait, what is known of each gang, and what never could be.
    """

    def __init__(self) -> None:
        self.room = rooms.Room()
        self.later = rooms.Room()
        self.profiles = profiles.Profiles()
        self.roll = rolls.Roll(self.profiles)
        self.tally = usages.Tally(self.profiles)
        self.standings = ordering.Standings(self.profiles)
        self.declared = impossible.Declared((), ())
        self._nodes: tuple[nodes.Node, ...] = ()
        self._budget = ordering.budget(())

    def follow(self, snapshot: plans.Snapshot) -> rooms.Room:
        """The room as it will be: the same object as the one that is, where nothing can differ."""
        self.declared = self.declared.follow(snapshot)
        self.profiles.follow(snapshot)
        self.roll.follow(snapshot)
        self.tally.follow(self.roll)
        self.room.follow(snapshot.nodes, snapshot.running)
        if not snapshot.reallocate and not self.roll.stopping:
            return self.room
        self.later.follow(snapshot.nodes, [job for job in snapshot.running if not job.stopping])
        return self.later

    def budget(self, snapshot: plans.Snapshot) -> port.Budget:
        """What the nodes that are ready have together, and who has ended."""
        if snapshot.nodes is not self._nodes or snapshot.ended is not self._budget.ended:
            self._nodes = snapshot.nodes
            self._budget = ordering.budget((node for node in snapshot.nodes if node.ready), snapshot.ended)
        return self._budget


def plan(snapshot: plans.Snapshot, now: float, memo: Memo | None = None, *, words: bool = True) -> plans.Plan:
    """The plan for `snapshot` at `now` (Unix seconds); without `words` for whoever reads no refusals.

    Raises InvalidInput where the rules or a pool name a policy or a parameter that there is not.
    """
    memo = memo or Memo()
    later = memo.follow(snapshot)
    budget = memo.budget(snapshot)
    usage = usages.Usage(snapshot, now, budget.amount, memo.tally)
    order = ordering.Order(snapshot, now, usage, budget, memo.profiles, memo.roll, memo.standings)
    draft = drafts.Draft(snapshot, now, memo.room, later, usage, order, memo.profiles, memo.declared)
    draft.scene.terse = not words
    return granting.Granting(draft, order).plan()
