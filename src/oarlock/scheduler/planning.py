"""`plan(snapshot, now) -> Plan`: who starts, grows, moves or stops now, and why the others wait.

The answer is a function of the snapshot and of nothing else: not of the order in which its parts are listed, and not of
the memo, which only saves work. Whoever carries it out may die half way: asked again, the scheduler goes on from what
is. Three things are put together here: what each pool is entitled to (`usage`), who comes first (`ordering`, over
`policies/`), and what can be granted (`granting`, over `placement`).
"""

from __future__ import annotations

from oarlock.scheduler import granting, ordering
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.spec import plans


class Memo:
    """What one plan leaves for the next: the room, which is brought up to date by differences."""

    def __init__(self) -> None:
        self.room = rooms.Room()


def plan(snapshot: plans.Snapshot, now: float, memo: Memo | None = None, *, words: bool = True) -> plans.Plan:
    """The plan for `snapshot` at `now` (Unix seconds); without `words` for whoever reads no refusals.

    Raises InvalidInput where the rules or a pool name a policy or a parameter that there is not.
    """
    room = (memo or Memo()).room
    room.follow(snapshot.nodes, snapshot.running)
    ready = [(len(node.node.devices), node.node.capacity) for node in room.ready()]
    usage = usages.Usage(snapshot, sum((amount for _, amount in ready), rooms.NOTHING))
    order = ordering.Order(snapshot, now, usage, ordering.Budgets(ready, usage))
    grants = granting.Granting(snapshot, now, room, usage)
    grants.scene.terse = not words
    for turns in order.turns.values():
        grants.consider(turns)
    for turn in order:
        grants.grant(turn)
    return grants.finish()
