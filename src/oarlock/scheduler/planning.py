"""`plan(snapshot, now) -> Plan`: who starts, grows, moves or stops now, and why the others wait.

The answer is a function of the snapshot and of nothing else: not of the order in which its parts are listed, and not of
the memo, which only saves work. Whoever carries it out may die half way: asked again, the scheduler goes on from what
is. Three things are put together here: what each pool is entitled to (`usage`), who comes first (`ordering`, over
`policies/`), and what can be granted (`granting`, over `placement`).
"""

from __future__ import annotations

import msgspec

from oarlock.scheduler import explaining, granting, ordering
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.spec import holdings, plans

MAX_FORECAST_STEPS = 200


class Memo:
    """What one plan leaves for the next: the room, which is brought up to date by differences."""

    def __init__(self) -> None:
        self.room = rooms.Room()


def plan(snapshot: plans.Snapshot, now: float, memo: Memo | None = None) -> plans.Plan:
    """The plan for `snapshot` at `now` (Unix seconds). Raises InvalidInput where the rules or a pool name a policy or a
    parameter that there is not.
    """
    room = (memo or Memo()).room
    room.follow(snapshot.nodes, snapshot.running)
    ready = [(len(node.node.devices), node.node.capacity) for node in room.ready()]
    usage = usages.Usage(snapshot, sum((amount for _, amount in ready), rooms.NOTHING))
    order = ordering.Order(snapshot, now, usage, ordering.Budgets(ready, usage))
    grants = granting.Granting(snapshot, now, room, usage)
    for turns in order.turns.values():
        grants.consider(turns)
    for turn in order:
        grants.grant(turn)
    return grants.finish()


def forecast(snapshot: plans.Snapshot, gang: plans.Gang, now: float) -> plans.Forecast:
    """The verdict for `gang`, were it submitted now: now, later (and when, if the ends of what runs are known), or
    never.
    """
    asked = msgspec.structs.replace(
        snapshot, waiting=(*(other for other in snapshot.waiting if other.job != gang.job), gang)
    )
    impossible = explaining.never(gang, explaining.Scene(snapshot))
    if impossible is not None:
        return plans.Forecast(when=plans.When.NEVER, message=impossible.message, refusal=impossible)
    answer = plan(asked, now)
    started = next((launch for launch in answer.launches if launch.job == gang.job), None)
    if started is not None:
        return plans.Forecast(
            when=plans.When.NOW, message=_where(started.holdings), placement=started.holdings, start=now
        )
    refusal = answer.refusals[gang.job]
    return plans.Forecast(
        when=plans.When.LATER, message=refusal.message, refusal=refusal, start=_start(asked, gang, now, answer)
    )


def _start(snapshot: plans.Snapshot, gang: plans.Gang, now: float, answer: plans.Plan) -> float | None:
    """Run the same plan forward, from one known end to the next, until `gang` starts; None where an unknown end is in
    the way.
    """
    for _ in range(MAX_FORECAST_STEPS):
        snapshot = _launched(snapshot, answer, now)
        ends = [job.expected_end for job in snapshot.running if job.expected_end is not None]
        backoffs = [other.not_before for other in snapshot.waiting if other.not_before and other.not_before > now]
        if not ends and not backoffs:
            return None
        now = max(now, min([*ends, *backoffs]))
        snapshot = msgspec.structs.replace(
            snapshot,
            running=tuple(job for job in snapshot.running if job.expected_end is None or job.expected_end > now),
        )
        answer = plan(snapshot, now)
        if any(launch.job == gang.job for launch in answer.launches):
            return now
    return None


def _launched(snapshot: plans.Snapshot, answer: plans.Plan, now: float) -> plans.Snapshot:
    started = {launch.job: launch for launch in answer.launches}
    running = tuple(
        plans.Running(gang=gang, holdings=started[gang.job].holdings, started_at=now)
        for gang in snapshot.waiting
        if gang.job in started
    )
    return msgspec.structs.replace(
        snapshot,
        waiting=tuple(gang for gang in snapshot.waiting if gang.job not in started),
        running=(*snapshot.running, *running),
    )


def _where(claims: tuple[holdings.Holding, ...]) -> str:
    count: dict[str, int] = {}
    for claim in claims:
        count[claim.node] = count.get(claim.node, 0) + 1
    return "It starts now: " + ", ".join(f"{tasks} on {node}" for node, tasks in count.items()) + "."
