"""Observations of the backend that the job's record does not have yet, as events for `stepping.step`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.spec import attempts, events, jobs, observations, phases

State = observations.State


def notices(job: jobs.Job, observed: Sequence[observations.Observed]) -> list[events.AnyEvent]:
    """In the order in which they are to be recorded. `observed` is everything that the backend lists of this job."""
    live = job.live
    if live is None:
        return []
    seen = {one.key: one for one in observed}
    return [event for task in live.tasks for event in _of_task(live, task, seen.get(task.key(job.id, live.number)))]


def _of_task(
    live: attempts.Attempt, task: attempts.Task, seen: observations.Observed | None
) -> Iterator[events.AnyEvent]:
    attempt, role, index, incarnation = live.number, str(task.role), task.index, task.incarnation
    made = task.phase is not phases.TaskPhase.PENDING
    gone = made if seen is None else seen.state is State.GONE  # made, and not there: lost
    if seen is not None and seen.exit is not None and task.exit is None:
        yield events.TaskExited(attempt=attempt, role=role, index=index, incarnation=incarnation, exit=seen.exit)
    if gone and not task.gone:
        yield events.TaskGone(attempt=attempt, role=role, index=index, incarnation=incarnation)
    if seen is not None and seen.detail not in {"", task.detail} and task.phase is phases.TaskPhase.DEPLOYING:
        yield events.TaskReported(attempt=attempt, role=role, index=index, incarnation=incarnation, detail=seen.detail)
