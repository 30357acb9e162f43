"""The times of plans and their extent. Pure, except for the memory of the last plans.

A plan covers the whole queue or its head, and may touch running gangs or leave them alone.

- While at most `HEAD` gangs wait, every plan covers all of them. While more wait, most plans cover the head: the first
  of the gangs that the last whole plan left waiting, in the order of that plan, and the gangs submitted since. A whole
  plan follows at most every `FULL_ROUND_S`, so the policy's own order decides which gangs stand at the head. A gang
  that a pool or the policy has refused waits for the next whole plan, because only a whole plan knows all demands. A
  plan of the head never preempts.
- Running gangs may be touched at most every `round_s`, and at once after a start. A planning round without purpose is
  left out: no gang waits, no gang could grow, shrink or move to a better place, and nothing has changed since the last
  one. A job submitted to a quiet cluster therefore need not wait for a round.
- Time alone asks for a plan while gangs wait (`RESYNC_S`: nodes and pools change without a line in the log), when a
  back-off ends, and when a planning round is due.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from oarlock.spec import intents, jobs, phases, plans, refusals

HEAD = 64
"""Waiting gangs that every plan looks at."""

FULL_ROUND_S = 2.0
RESYNC_S = 5.0
RETRY_S = 0.5
"""The wait after a launch that lost its place to another claim, and while no node has reported yet."""

LEAST_ROUND_S = 0.1

_FOR_ALL_TO_SEE = refusals.NEVER | {
    refusals.Code.POOL_LIMIT,
    refusals.Code.POOL_SHARE,
    refusals.Code.NOT_RESERVED,
    refusals.Code.OUTRANKED,
}
"""Refusals that a freed device does not end: plans of the head skip these gangs."""


class PlanningRounds:
    """The next time for a plan, and its extent. All times are seconds of the server's clock."""

    def __init__(self, round_s: float, resync_s: float = RESYNC_S) -> None:
        self._round_s = max(round_s, LEAST_ROUND_S)
        self._resync_s = resync_s
        self._full_at = -math.inf
        self._touched_at = -math.inf
        self._changed = True  # since the last planning round
        self._restless = True  # time alone may change the decisions of a planning round
        self._whole = True  # the last plan covered the whole queue
        self._left: dict[str, int] = {}  # positions of the gangs that the last whole plan refused
        self._due: float | None = 0.0

    @property
    def due(self) -> float | None:
        return self._due

    def changed(self) -> None:
        """Note that a scheduler would see a change."""
        self._changed = True

    def start_anew(self) -> None:
        """Ask for a whole plan next: nodes or pools have changed."""
        self._changed = True
        self._full_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Return whether time alone asks for a plan. It does after the clock was set back, too."""
        return self._due is not None and not now < self._due <= now + max(self._resync_s, self._round_s)

    def touches(self, now: float) -> bool:
        """Return whether a plan made now may touch running gangs."""
        return (self._changed or self._restless) and not self._touched_at <= now < self._touched_at + self._round_s

    def whole(self, waiting: int, now: float, *, touches: bool) -> bool:
        return touches or waiting <= HEAD or not self._full_at <= now < self._full_at + FULL_ROUND_S

    def head(self, waiting: Sequence[jobs.Job]) -> list[jobs.Job]:
        """Return the waiting jobs that a plan of the head covers."""
        left = [job for job in waiting if job.id in self._left]
        came = [job for job in waiting if job.id not in self._left and not _is_for_all_to_see(job.refusal)]
        return [
            *heapq.nsmallest(HEAD, left, key=lambda job: self._left[job.id]),
            *heapq.nsmallest(HEAD, came, key=lambda job: (-job.spec.priority, job.created_at, job.id)),
        ]

    def planned(self, snapshot: plans.Snapshot, plan: plans.Plan, now: float, *, whole: bool) -> None:
        """Record that `plan` was made from `snapshot`."""
        self._whole = whole
        if whole:
            self._full_at = now
            stay = (job_id for job_id, refusal in plan.refusals.items() if not _is_for_all_to_see(refusal))
            self._left = {job_id: position for position, job_id in enumerate(stay)}
        if snapshot.reallocate:
            self._touched_at = now
            self._changed = False
            self._restless = (
                plan.restless
                or bool(snapshot.waiting)
                or any(one.gang.elastic or one.gang.batch is not None for one in snapshot.running)
            )

    def rest(self, still: Iterable[jobs.Job], now: float, *, held: bool, retry: bool) -> None:
        """Set the time until which a plan would repeat the last one, if nothing happens.

        `still` are the jobs that wait; `held` tells whether any job holds resources; `retry` whether a launch failed.
        """
        waiting = list(still)
        times = [self._touched_at + self._round_s] if held and (self._changed or self._restless) else []
        if waiting:
            times.append(now + (RETRY_S if retry else self._resync_s) if self._whole else self._full_at + FULL_ROUND_S)
            times += [job.not_before for job in waiting if job.not_before is not None and job.not_before > now]
        self._due = min((max(at, now) for at in times), default=None)


def waits(job: jobs.Job | None) -> TypeGuard[jobs.Job]:
    """Return whether the job waits for a launch."""
    return (
        job is not None and job.phase is phases.Phase.QUEUED and job.live is None and job.intent is intents.Intent.RUN
    )


def _is_for_all_to_see(refusal: refusals.Refusal | None) -> bool:
    return refusal is not None and refusal.code in _FOR_ALL_TO_SEE
