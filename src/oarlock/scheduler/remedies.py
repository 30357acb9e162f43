"""The smallest change that would let a waiting gang start now, tried out with the scheduler's own plan.

Every change is made to the gang alone, the plan is asked again, and what does not start it is not offered. In the order
in which they cost its owner least: a time-out that ends before a kept place is needed, leave to be preempted, a wider
topology, another type of GPU, fewer workers, another pool, a higher priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from oarlock.scheduler import planning, wording
from oarlock.spec import plans, pools, refusals

BUDGET_S = 0.25
OFFERED = 2
"""So many changes are told."""

TRIED_TYPES = 4
TRIED_POOLS = 8
HURRY_S = 60.0
"""A time-out is offered where it leaves so much at least."""


class Change(NamedTuple):
    words: str  # after "It would start now "
    gang: plans.Gang


def smallest(
    snapshot: plans.Snapshot, gang: plans.Gang, refusal: refusals.Refusal, now: float, spent: Callable[[], float]
) -> str:
    """A sentence; empty where nothing was found, or nothing in `BUDGET_S` of the caller's clock."""
    if refusal.code in refusals.NEVER:
        return ""
    trial = Trial(snapshot, gang, now, spent)
    found: list[str] = []
    for words in _found(trial, gang, refusal, snapshot, now):
        found.append(words)
        if len(found) == OFFERED:
            break
    return f"It would start now {', or '.join(found)}." if found else ""


class Trial:
    """The plan with another gang in the place of this one."""

    def __init__(self, snapshot: plans.Snapshot, gang: plans.Gang, now: float, spent: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._others = tuple(other for other in snapshot.waiting if other.job != gang.job)
        self._now = now
        self._spent = spent
        self._memo = planning.Memo()

    def starts(self, gang: plans.Gang) -> bool:
        """Whether it would be launched now; False where there is no time left to know."""
        if self._spent() > BUDGET_S:
            return False
        asked = msgspec.structs.replace(
            self._snapshot, waiting=(*self._others, msgspec.structs.replace(gang, refusal=None))
        )
        return any(
            launch.job == gang.job for launch in planning.plan(asked, self._now, self._memo, words=False).launches
        )


def _found(
    trial: Trial, gang: plans.Gang, refusal: refusals.Refusal, snapshot: plans.Snapshot, now: float
) -> Iterator[str]:
    for change in _slight(gang, refusal, snapshot, now):
        if trial.starts(change.gang):
            yield change.words
    if (fewer := _fewer_workers(trial, gang)) is not None:
        yield fewer
    for change in _elsewhere(gang, snapshot):
        if trial.starts(change.gang):
            yield change.words
            break


def _slight(gang: plans.Gang, refusal: refusals.Refusal, snapshot: plans.Snapshot, now: float) -> Iterator[Change]:
    replace = msgspec.structs.replace
    if refusal.until is not None and refusal.until - now > HURRY_S:
        left_s = refusal.until - now - 1
        if gang.at_most_s is None or gang.at_most_s > left_s:
            yield Change(f"with a `timeout` of {wording.about(left_s)}", replace(gang, at_most_s=left_s))
    if not gang.preemptible:
        yield Change("with `preemptible: true`", replace(gang, preemptible=True))
    if gang.topology is not None and gang.topology.required:
        relaxed = replace(gang.topology, required=False)
        yield Change(f"if it need not be within one {gang.topology.same}", replace(gang, topology=relaxed))
    wanted = wording.cards(gang).types
    present = sorted({device.type for node in snapshot.nodes if node.ready for device in node.devices})
    for kind in [kind for kind in present if wanted and kind not in wanted][:TRIED_TYPES]:
        asks = tuple(replace(ask, gpu_types=(kind,)) if ask.amount.devices else ask for ask in gang.asks)
        yield Change(f"on {kind} instead of {' or '.join(wanted)}", replace(gang, asks=asks))


def _fewer_workers(trial: Trial, gang: plans.Gang) -> str | None:
    """The most workers with which it would start: halved into."""
    place = next((place for place, ask in enumerate(gang.asks) if ask.role == "worker"), None)
    if place is None:
        return None
    low, high = 0, gang.asks[place].min
    while high - low > 1:
        middle = (low + high) // 2
        if trial.starts(_with_workers(gang, place, middle)):
            low = middle
        else:
            high = middle
    if not low:
        return None
    least = "a `min` of " if gang.asks[place].min < gang.asks[place].count else ""
    return f"with {least}{low} worker{'' if low == 1 else 's'} instead of {gang.asks[place].min}"


def _with_workers(gang: plans.Gang, place: int, count: int) -> plans.Gang:
    ask = gang.asks[place]
    most = ask.max if ask.min < ask.count else count
    fewer = msgspec.structs.replace(ask, min=count, count=min(ask.count, most), max=most)
    return msgspec.structs.replace(gang, asks=(*gang.asks[:place], fewer, *gang.asks[place + 1 :]))


def _elsewhere(gang: plans.Gang, snapshot: plans.Snapshot) -> Iterator[Change]:
    parents = {pool.parent for pool in snapshot.pools}
    names = {pools.DEFAULT, *(pool.name for pool in snapshot.pools)} if snapshot.pools else set()
    for name in sorted(names - parents - {gang.pool})[:TRIED_POOLS]:
        yield Change(f"in the pool {name}", msgspec.structs.replace(gang, pool=name))
    highest = max((other.priority for other in snapshot.waiting if other.job != gang.job), default=0)
    if highest >= gang.priority:
        yield Change(f"with a priority of {highest + 1}", msgspec.structs.replace(gang, priority=highest + 1))
