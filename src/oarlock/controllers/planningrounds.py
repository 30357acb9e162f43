"""When a plan is made, and of how much: pure but for what it remembers of the last ones.

A plan may look at the whole queue or at its head, and may touch who runs or leave them alone.

- While at most `HEAD` gangs wait, every plan looks at all of them. While more do, most plans look at the head alone:
  the first of those that the last whole plan has left, in the order in which it left them, and those that came since;
  a whole plan follows at most every `FULL_ROUND_S`. So whatever a policy goes by, its own order decides who is looked
  at between two whole plans. Whom a pool or the policy has refused waits for the next whole one, since that alone
  knows what everybody wants; and nobody who runs is stopped by a plan that has not seen everybody.
- Running gangs may be touched at most every `round_s`, and at once after a start. The time is not spent on nothing:
  where nobody waits, nobody can grow, shrink or stand better and nothing has changed since the last such round, there
  is none; so who comes next to a quiet cluster need not wait for it.
- By time alone a plan is made again while anybody waits (`RESYNC_S`: nodes and pools change without a line in the log),
  when a back-off is over, and when a round is due.
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
"""After a launch that somebody else's claim has prevented, and while the first node has yet to be heard of."""

LEAST_ROUND_S = 0.1

_FOR_ALL_TO_SEE = refusals.NEVER | {
    refusals.Code.POOL_LIMIT,
    refusals.Code.POOL_SHARE,
    refusals.Code.NOT_RESERVED,
    refusals.Code.OUTRANKED,
}
"""What does not pass because some device has become free: a plan of the head does not look at these again."""


class PlanningRounds:
    def __init__(self, round_s: float, resync_s: float = RESYNC_S) -> None:
        self._round_s = max(round_s, LEAST_ROUND_S)
        self._resync_s = resync_s
        self._full_at = -math.inf
        self._touched_at = -math.inf
        self._changed = True  # since the last round in which who runs might be touched
        self._restless = True  # time alone may change what such a round would decide
        self._whole = True  # the last plan was
        self._left: dict[str, int] = {}  # by the last whole plan: the place of each that it refused
        self._due: float | None = 0.0

    @property
    def due(self) -> float | None:
        return self._due

    def changed(self) -> None:
        """Something that a scheduler can see is not as it was."""
        self._changed = True

    def start_anew(self) -> None:
        """The ground itself has changed: the next plan is of everything."""
        self._changed = True
        self._full_at = -math.inf

    def is_due(self, now: float) -> bool:
        """By time alone. A clock that was set back makes it so too."""
        return self._due is not None and not now < self._due <= now + max(self._resync_s, self._round_s)

    def touches(self, now: float) -> bool:
        """Whether who runs may be touched by a plan made now."""
        return (self._changed or self._restless) and not self._touched_at <= now < self._touched_at + self._round_s

    def whole(self, waiting: int, now: float, *, touches: bool) -> bool:
        return touches or waiting <= HEAD or not self._full_at <= now < self._full_at + FULL_ROUND_S

    def head(self, waiting: Sequence[jobs.Job]) -> list[jobs.Job]:
        """Whom a plan of the head looks at, of those that wait."""
        left = [job for job in waiting if job.id in self._left]
        came = [job for job in waiting if job.id not in self._left and not _is_for_all_to_see(job.refusal)]
        return [
            *heapq.nsmallest(HEAD, left, key=lambda job: self._left[job.id]),
            *heapq.nsmallest(HEAD, came, key=lambda job: (-job.spec.priority, job.created_at, job.id)),
        ]

    def planned(self, snapshot: plans.Snapshot, plan: plans.Plan, now: float, *, whole: bool) -> None:
        """A plan was made of this."""
        self._whole = whole
        if whole:
            self._full_at = now
            stay = (job_id for job_id, refusal in plan.refusals.items() if not _is_for_all_to_see(refusal))
            self._left = {job_id: place for place, job_id in enumerate(stay)}
        if snapshot.reallocate:
            self._touched_at = now
            self._changed = False
            self._restless = (
                plan.restless
                or bool(snapshot.waiting)
                or any(one.gang.elastic or one.gang.batch is not None for one in snapshot.running)
            )

    def rest(self, still: Iterable[jobs.Job], now: float, *, held: bool, retry: bool) -> None:
        """Until when a plan would be the same, if nothing happens: `still` wait, and jobs may hold something."""
        waiting = list(still)
        times = [self._touched_at + self._round_s] if held and (self._changed or self._restless) else []
        if waiting:
            times.append(now + (RETRY_S if retry else self._resync_s) if self._whole else self._full_at + FULL_ROUND_S)
            times += [job.not_before for job in waiting if job.not_before is not None and job.not_before > now]
        self._due = min((max(at, now) for at in times), default=None)


def waits(job: jobs.Job | None) -> TypeGuard[jobs.Job]:
    """Whether it is to be given a place."""
    return (
        job is not None and job.phase is phases.Phase.QUEUED and job.live is None and job.intent is intents.Intent.RUN
    )


def _is_for_all_to_see(refusal: refusals.Refusal | None) -> bool:
    return refusal is not None and refusal.code in _FOR_ALL_TO_SEE
