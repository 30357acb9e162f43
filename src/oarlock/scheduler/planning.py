"""`plan(snapshot, now) -> Plan`: which gangs start now, and why the others do not.

The simplest policy that is right: whole gangs, higher priority first, then first come first served, best fit. The first
gang that does not fit holds back those behind it, so that nothing starves; a gang that waits for its pool's limit, for
its back-off, or for something that no node has holds nobody back. `forecast` asks the same code about one more gang,
and about the future.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oarlock.scheduler import explaining, placement
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, plans, pools, refusals

MAX_FORECAST_STEPS = 200


def plan(snapshot: plans.Snapshot, now: float, memo: Any = None) -> plans.Plan:
    """Launches and refusals for `snapshot` at `now` (Unix seconds).

    `memo` may save work; the answer is the same without.
    """
    room = rooms.Room(snapshot.nodes, (holding for job in snapshot.running for holding in job.holdings))
    usage = PoolUsage(snapshot)
    launches: list[plans.Launch] = []
    refused: dict[str, refusals.Refusal] = {}
    first: plans.Gang | None = None  # the gang that the others are behind
    for ahead, gang in enumerate(in_order(snapshot.waiting)):
        if gang.not_before is not None and gang.not_before > now:
            refused[gang.job] = explaining.backing_off(gang)
        elif first is not None:
            refused[gang.job] = _newly_impossible(gang, snapshot) or explaining.behind(gang, first, ahead)
        elif (over := usage.over(gang)) is not None:
            refused[gang.job] = explaining.never(gang, snapshot) or explaining.pool_limit(gang, over, ahead)
        elif (claims := placement.place(gang, room)) is not None:
            room.take(claims)
            usage.add(gang)
            launches.append(plans.Launch(job=gang.job, holdings=claims))
        else:
            impossible = explaining.never(gang, snapshot)
            refused[gang.job] = impossible or explaining.no_capacity(gang, snapshot, room, ahead)
            first = first if impossible else gang
    return plans.Plan(launches=tuple(launches), refusals=refused)


def _newly_impossible(gang: plans.Gang, snapshot: plans.Snapshot) -> refusals.Refusal | None:
    """Whether it can never run: asked once for each gang of a long queue, and again only while the answer is yes."""
    known = gang.refusal
    return explaining.never(gang, snapshot) if known is None or known.code in refusals.NEVER else None


def in_order(waiting: tuple[plans.Gang, ...]) -> list[plans.Gang]:
    """Higher priority first, then who came first; the id decides between equals."""
    return sorted(waiting, key=lambda gang: (-gang.priority, gang.submitted_at, gang.job))


def forecast(snapshot: plans.Snapshot, gang: plans.Gang, now: float) -> plans.Forecast:
    """The verdict for `gang`, were it submitted now: now, later (and when, if the ends of what runs are known), or
    never.
    """
    asked = msgspec.structs.replace(
        snapshot, waiting=(*(other for other in snapshot.waiting if other.job != gang.job), gang)
    )
    impossible = explaining.never(gang, snapshot)
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


class PoolUsage:
    """What each pool's jobs hold, against its limit and its parents'."""

    def __init__(self, snapshot: plans.Snapshot) -> None:
        self.pools: dict[str, pools.Pool] = {pool.name: pool for pool in snapshot.pools}
        self.used: dict[str, holdings.Resources] = {}
        for job in snapshot.running:
            self._count(job.pool, sum((holding.amount for holding in job.holdings), rooms.NOTHING))

    def add(self, gang: plans.Gang) -> None:
        self._count(gang.pool, explaining.needed(gang))

    def over(self, gang: plans.Gang) -> explaining.OverLimit | None:
        """The first limit that would be exceeded, of its pool or of one above."""
        asked = explaining.numbers(explaining.needed(gang))
        for name in self._line(gang.pool):
            used = explaining.numbers(self.used.get(name, rooms.NOTHING))
            for resource, limit in self.pools[name].limit.items():
                if asked.get(resource, 0.0) and used.get(resource, 0.0) + asked[resource] > limit:
                    return explaining.OverLimit(name, resource, used.get(resource, 0.0), limit)
        return None

    def _count(self, pool: str, amount: holdings.Resources) -> None:
        for name in self._line(pool):
            self.used[name] = self.used.get(name, rooms.NOTHING) + amount

    def _line(self, pool: str | None) -> list[str]:
        """The pool and those above it."""
        line: list[str] = []
        while pool is not None and pool in self.pools and pool not in line:
            line.append(pool)
            pool = self.pools[pool].parent
        return line
