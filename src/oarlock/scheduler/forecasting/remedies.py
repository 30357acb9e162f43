"""The smallest change that would let a waiting gang start now, tried with the scheduler's own plan.

Each change is tried by itself in a new plan, and only changes that start the gang are offered. They are tried in the
order of their cost to the owner: a time-out that ends before a reserved place is needed, permission to be preempted, a
wider topology, another type of GPU, fewer workers, another pool, a higher priority, a higher limit of its pool. If none
of them helps, the end of one job that holds the missing resources is tried, and named if it would be enough. If a
pool's limit is not the only reason, the next reason is named with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from oarlock.scheduler import gangs, planning, sizes, wording
from oarlock.scheduler.reuse import memos
from oarlock.spec import plans, refusals
from oarlock.spec.cluster import pools
from oarlock.spec.input import edits

BUDGET_S = 0.25
OFFERED = 2
"""Number of changes that the answer names."""

TRIED_TYPES = 4
TRIED_POOLS = 8
TRIED_HOLDERS = 3
HURRY_S = 60.0
"""A time-out is offered only if it leaves at least so much time."""


class Change(NamedTuple):
    """A change of the gang, and its words."""

    words: str  # after "It would start now "
    gang: plans.Gang
    edit: edits.Edit | None = None  # by which the owner makes it


class Advice(NamedTuple):
    """A sentence, and the changes that it names as values. Where no change starts the gang, there are none."""

    words: str = ""
    remedies: tuple[plans.Remedy, ...] = ()


def smallest(
    snapshot: plans.Snapshot, gang: plans.Gang, refusal: refusals.Refusal, now: float, spent: Callable[[], float]
) -> Advice:
    """Return the smallest changes, with a sentence.

    The sentence is empty if none was found within `BUDGET_S` of the caller's clock.
    """
    if refusal.code in refusals.NEVER:
        return Advice()
    trial = Trial(snapshot, gang, now, spent)
    found = tuple(itertools.islice(_found(trial, gang, refusal, snapshot, now), OFFERED))
    if found:
        return Advice(f"It would start now {', or '.join(one.words for one in found)}.", found)
    return Advice(_once_ended(trial, gang, refusal) or _past_limit(trial, gang, refusal, snapshot))


class Trial:
    """The plan of a changed gang, or of a changed cluster around it."""

    def __init__(self, snapshot: plans.Snapshot, gang: plans.Gang, now: float, spent: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self.running = snapshot.running
        self._others = tuple(other for other in snapshot.waiting if other.job != gang.job)
        self._now = now
        self._spent = spent
        self._memo = memos.Memo()

    def starts(self, gang: plans.Gang, **around: Any) -> bool:
        """Return whether the gang would be launched now; False if the time is used up.

        `around` has fields of the snapshot to change.
        """
        if self._spent() > BUDGET_S:
            return False
        answer = planning.plan(self._asked(gang, around), self._now, self._memo, words=False)
        return any(launch.job == gang.job for launch in answer.launches)

    def reason(self, gang: plans.Gang, **around: Any) -> str:
        """Return why the gang would not be launched; an empty text if it would, or if the time is used up."""
        if self._spent() > BUDGET_S:
            return ""
        refusal = planning.plan(self._asked(gang, around), self._now).refusals.get(gang.job)
        return refusal.message if refusal is not None else ""

    def _asked(self, gang: plans.Gang, around: Mapping[str, Any]) -> plans.Snapshot:
        waiting = (*self._others, msgspec.structs.replace(gang, refusal=None))
        return msgspec.structs.replace(self._snapshot, waiting=waiting, **around)


def _found(
    trial: Trial, gang: plans.Gang, refusal: refusals.Refusal, snapshot: plans.Snapshot, now: float
) -> Iterator[plans.Remedy]:
    for change in _small_changes(gang, refusal, snapshot, now):
        if trial.starts(change.gang):
            yield plans.Remedy(words=change.words)
    if (fewer := _fewer_workers(trial, gang)) is not None:
        yield fewer
    for change in _other_pools(gang, snapshot):
        if trial.starts(change.gang):
            yield plans.Remedy(words=change.words, edit=change.edit)
            break
    raised = _raised_limit(gang, refusal, snapshot)
    if raised is not None and trial.starts(gang, pools=raised.pools):
        yield plans.Remedy(words=f"with a limit of {raised.limit} for the pool {raised.name}")


class Raised(NamedTuple):
    """The pools with one limit raised by exactly the amount that the gang lacks."""

    name: str
    limit: str
    pools: tuple[pools.Pool, ...]


def _raised_limit(gang: plans.Gang, refusal: refusals.Refusal, snapshot: plans.Snapshot) -> Raised | None:
    """Return the change of the limit that refuses the gang; None if no limit does."""
    if refusal.code is not refusals.Code.POOL_LIMIT or not refusal.total:
        return None
    ((resource, bound),) = refusal.total.items()
    by_name = {pool.name: pool for pool in snapshot.pools}
    pool = by_name.get(gang.pool)
    while pool is not None and pool.limit.get(resource) != bound:
        pool = by_name.get(pool.parent or "")
    if pool is None:
        return None
    enough = bound - refusal.free[resource] + refusal.needed[resource]
    wider = msgspec.structs.replace(pool, limit={**pool.limit, resource: enough})
    changed = tuple(wider if one.name == pool.name else one for one in snapshot.pools)
    return Raised(pool.name, wording.shown(resource, enough), changed)


def _once_ended(trial: Trial, gang: plans.Gang, refusal: refusals.Refusal) -> str:
    """Return a sentence with one job whose end would be enough.

    The largest holders of the missing resource are tried.
    """
    if refusal.code is refusals.Code.STOPPING:
        return ""
    for holder in refusal.holders[:TRIED_HOLDERS]:
        if trial.starts(gang, running=tuple(one for one in trial.running if one.job != holder.job)):
            return f"It would start once {holder.name} ends."
    return ""


def _past_limit(trial: Trial, gang: plans.Gang, refusal: refusals.Refusal, snapshot: plans.Snapshot) -> str:
    """Return a sentence with the reason that comes after the limit of its pool."""
    raised = _raised_limit(gang, refusal, snapshot)
    reason = trial.reason(gang, pools=raised.pools) if raised is not None else ""
    if raised is None or not reason:
        return ""
    return f"With a limit of {raised.limit} for the pool {raised.name} it would still wait: {reason}"


def _small_changes(
    gang: plans.Gang, refusal: refusals.Refusal, snapshot: plans.Snapshot, now: float
) -> Iterator[Change]:
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


def _fewer_workers(trial: Trial, gang: plans.Gang) -> plans.Remedy | None:
    """Return the most workers with which the gang would start, found by bisection; None if there is no such number.

    The edit lowers the gang's least number of workers and leaves the greatest: it is tried, too.
    """
    place = next((place for place, ask in enumerate(gang.asks) if ask.role == "worker"), None)
    if place is None:
        return None
    ask = gang.asks[place]
    most = sizes.last(0, ask.min, lambda count: count if trial.starts(_with_workers(gang, place, count)) else None)
    if most is None:
        return None
    least = "a `min` of " if ask.min < ask.count else ""
    words = f"with {least}{wording.workers(most)} instead of {ask.min}"
    lowered = msgspec.structs.replace(ask, min=most)
    edited = msgspec.structs.replace(gang, asks=(*gang.asks[:place], lowered, *gang.asks[place + 1 :]))
    return plans.Remedy(words=words, edit=edits.Edit(min=most) if trial.starts(edited) else None)


def _with_workers(gang: plans.Gang, place: int, count: int) -> plans.Gang:
    ask = gang.asks[place]
    most = ask.max if ask.min < ask.count else count
    fewer = msgspec.structs.replace(ask, min=count, count=min(ask.count, most), max=most)
    return msgspec.structs.replace(gang, asks=(*gang.asks[:place], fewer, *gang.asks[place + 1 :]))


def _other_pools(gang: plans.Gang, snapshot: plans.Snapshot) -> Iterator[Change]:
    parents = {pool.parent for pool in snapshot.pools}
    names = {pools.DEFAULT, *(pool.name for pool in snapshot.pools)} if snapshot.pools else set()
    for name in sorted(names - parents - {gang.pool})[:TRIED_POOLS]:
        yield Change(f"in the pool {name}", gangs.in_pool(gang, name, snapshot.rules.profiles), edits.Edit(pool=name))
    highest = max((other.priority for other in snapshot.waiting if other.job != gang.job), default=0)
    if highest >= gang.priority:
        raised = msgspec.structs.replace(gang, priority=highest + 1)
        yield Change(f"with a priority of {highest + 1}", raised, edits.Edit(priority=highest + 1))
