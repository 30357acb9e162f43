"""`plan(snapshot, now) -> Plan`: the gangs that start, grow, move or stop now, and why the others wait.

The plan is a function of the snapshot alone: neither the order of its parts nor the memo, which only saves work,
changes it. A server that dies half way through a plan asks again, and the scheduler goes on from the present state.
Three parts come together here: the bounds of each pool (`pools`), the order of the gangs (`ordering`, over
`policies/`), and the decisions (`granting`, over `placement`).

The fast planner is the plain one with a memo of the last plan, and with shortcuts (`reuse/`).
"""

from __future__ import annotations

from oarlock.scheduler.granting import drafts, grants
from oarlock.scheduler.ordering import budgets, turnorder
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import memos, shortcuts
from oarlock.spec import plans


def plan(
    snapshot: plans.Snapshot,
    now: float,
    memo: memos.Memo | None = None,
    *,
    words: bool = True,
    shortcuts: shortcuts.Shortcuts = shortcuts.ALL,
) -> plans.Plan:
    """Return the plan for `snapshot` at `now` (Unix seconds). `words=False` leaves out the text of most refusals.

    Without `memo` and with `shortcuts.NONE` this is the plain planner. Raises InvalidInput where the rules or a pool
    name an unknown policy or parameter.
    """
    draft = begun(snapshot, now, memo or memos.Memo(), shortcuts)
    draft.context.terse = not words
    return grants.Granting(draft).plan()


def begun(
    snapshot: plans.Snapshot, now: float, memo: memos.Memo, taken: shortcuts.Shortcuts = shortcuts.ALL
) -> drafts.Draft:
    """Return the draft of a plan, without any decision yet."""
    later = memo.follow(snapshot)
    budget = budgets.whole((node for node in snapshot.nodes if node.ready), snapshot.ended)
    bounds = poolbounds.PoolBounds(snapshot, now, budget.amount, memo.totals)
    order = turnorder.Order(snapshot, now, bounds, budget, memo, taken)
    return drafts.Draft(snapshot, now, memo, later, bounds, order, taken)
